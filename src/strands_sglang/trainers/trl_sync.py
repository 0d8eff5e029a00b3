"""A trainer's weights into the engine whenever they have changed, and the check that they arrived: `Syncer`.

Invariant: no episode of a step begins before every worker that answers has said that it loaded that step's weights,
and the engine that it samples from them; an update that did not arrive is an error, never a step with old weights.
"""

from __future__ import annotations

import logging
import time
import uuid
import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

from strands_sglang.errors import ConfigurationError, EngineError
from strands_sglang.trainers.trl_disk import PATIENCE, DiskSync, patiently
from strands_sglang.trainers.trl_link import EngineLink

logger = logging.getLogger(__name__)


class SyncKind(str, Enum):
    """How the engine gets the trainer's weights."""

    DISK = "disk"
    """Saved to a folder that the engine can read: `DiskSync()`."""
    NONE = "none"
    """Not by us: somebody else sees to it."""


class WeightSync(Protocol):
    """Brings the engine to the trainer's weights. Called on every process, in the trainer's thread."""

    def __call__(self, trainer: Any, version: str, link: EngineLink) -> None:
        """Return when the engine samples from the weights of `trainer.model`, under the name `version`."""
        ...


class Syncer:
    """Brings the engine up to date when the trainer's step has changed, and makes sure of it."""

    def __init__(
        self, sync: WeightSync | SyncKind | str, link: EngineLink, look: Callable[[EngineLink, Any], None] | None = None
    ) -> None:
        """Begin; the engine counts as out of date.

        Args:
            sync: How weights get there.
            link: To the engine.
            look: Called once, on the main process, before the first update: raises if this is not the engine meant.

        Raises:
            ConfigurationError: `sync` is none of the three.
        """
        try:
            kind = sync if callable(sync) else SyncKind(sync)
        except ValueError:
            raise ConfigurationError(f"sync is 'disk', 'none', a DiskSync(...) or a function, not {sync!r}") from None
        self._sync = None if kind is SyncKind.NONE else DiskSync() if kind is SyncKind.DISK else kind
        self._link, self._look = link, look
        self._done: tuple[weakref.ref[Any], int] | None = None  # a trainer, and its step
        self.version: str | None = None
        """Name of the weights that the engine has; None: none of ours."""
        if self._sync is not None:
            _ = link.control  # what cannot work is refused now

    def update(self, trainer: Any) -> float | None:
        """Bring the engine to the trainer's weights; return the seconds it took, None when it had them.

        Raises:
            EngineError: It does not have them now.
        """
        step = int(trainer.state.global_step)
        if self._sync is None or (self._done is not None and self._done == (weakref.ref(trainer), step)):
            return None
        began = time.monotonic()
        version = str(_from_main(trainer, lambda: self._new_name(trainer, step)))
        failed: Exception | None = None
        try:
            self._sync(trainer, version, self._link)
        except Exception as error:  # told to the other processes first: they would wait for ever
            failed = error
        _from_main(trainer, lambda: self._check(version, failed))
        if failed is not None:
            raise failed
        self._done, self.version = (weakref.ref(trainer), step), version
        seconds = time.monotonic() - began
        logger.info(
            "step=<%d>, version=<%s>, seconds=<%.2f> | engine has the trainer's weights", step, version, seconds
        )
        return seconds

    def close(self) -> None:
        """Remove what was saved; the next `update` begins anew."""
        self._done = self.version = None
        if isinstance(self._sync, DiskSync):
            self._sync.close()

    def _engines(self) -> str | None:
        return self._link.run(self._link.control.model_info()).weight_version

    def _new_name(self, trainer: Any, step: int) -> str:
        """Name the weights of a step; by another name than the engine's now, so that a change can be seen."""
        if self._look is not None:
            self._look(self._link, trainer)
            self._look = None
        name = str(step)
        bears = patiently(self._engines, getattr(self._sync, "patience", PATIENCE))
        return name if bears != name else f"{name}-{uuid.uuid4().hex[:6]}"

    def _check(self, version: str, failed: Exception | None) -> None:
        if failed is not None:
            raise failed
        now = self._engines()
        if now != version:
            raise EngineError(
                f"the engine was told to load the weights {version!r}, but says that it samples from {now!r}: either "
                "the update did not take place, or somebody else updates this engine too"
            )


def _from_main(trainer: Any, work: Callable[[], Any]) -> Any:
    """Do something on the main process, and return or raise on all of them what came of it."""
    accelerator = trainer.accelerator
    if getattr(accelerator, "num_processes", 1) == 1:
        return work()
    from accelerate.utils import broadcast_object_list

    outcome: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = work()
        except Exception as error:
            outcome[1] = error
    # Also where one process waits for the other: no episode begins before the update is over.
    broadcast_object_list(outcome, from_process=0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
