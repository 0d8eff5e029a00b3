"""A trainer's weights into the engine: `DiskSync`, and the check that they arrived, `Syncer`.

Invariant: no episode of a step begins before every worker has said that it loaded that step's weights, and the engine
that it samples from them; an update that did not arrive is an error, never a step with old weights.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson

from strands_sglang.engine.control import EngineControl
from strands_sglang.errors import ConfigurationError, EngineError
from strands_sglang.trainers.trl_link import EngineLink
from strands_sglang.trainers.trl_weights import save_weights

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds for which an engine that does not answer is asked again."""

_PAUSE = 2.0
_SHARDED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP")


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


class DiskSync:
    """Saves the weights to a folder, tells every worker to load them, and removes those before.

    The main process alone saves. Adapters (PEFT) are merged for the saved copy; the trainer's own weights stay as they
    are.
    """

    def __init__(self, folder: str | Path | None = None, *, patience: float = PATIENCE) -> None:
        """Begin.

        Args:
            folder: Where weights are kept while they are loaded; every worker must see it under this path. A folder in
                memory (`/dev/shm/weights`) is quickest on one machine. None: a temporary one, removed by `close`.
            patience: Seconds for which workers that did not load are asked again: one that is being restarted comes
                back. After that it is an error.
        """
        self.patience = patience
        self._given = None if folder is None else Path(folder).absolute()
        self._made: Path | None = None
        self._last: Path | None = None

    def __call__(self, trainer: Any, version: str, link: EngineLink) -> None:
        """Save, load, and remove what was loaded before.

        Raises:
            ConfigurationError: The model is in pieces, or its adapters cannot be merged.
            EngineError: A worker would not load them.
        """
        if (kind := sharded_by(trainer)) is not None:
            raise ConfigurationError(
                f"sync='disk' saves a model that is whole on the main process; here it is in pieces ({kind}). Give a "
                "function as sync=, called on every process as sync(trainer, version, link), that gathers and saves "
                "it, then link.run(link.control.swap_weights(path, version=version)) on one of them"
            )
        if not trainer.accelerator.is_main_process:
            return
        path = self._save(trainer, version)
        patiently(lambda: link.run(_load(link.control, path, version)), self.patience)
        if self._last is not None and self._last != path:
            shutil.rmtree(self._last, ignore_errors=True)
        self._last = path

    def close(self) -> None:
        """Remove what is left of it."""
        for path in (self._last, self._made):
            if path is not None:
                shutil.rmtree(path, ignore_errors=True)
        self._last = self._made = None

    def _save(self, trainer: Any, version: str) -> Path:
        """Save under another name, then rename: a folder with a version's name is whole."""
        if self._given is None and self._made is None:
            self._made = Path(tempfile.mkdtemp(prefix="strands-sglang-weights-"))
        folder = self._given or self._made
        assert folder is not None
        folder.mkdir(parents=True, exist_ok=True)
        partial, path = folder / f".partial-{version}", folder / f"weights-{version}"
        for left in (partial, path):
            shutil.rmtree(left, ignore_errors=True)
        save_weights(trainer.accelerator.unwrap_model(trainer.model), partial)
        partial.rename(path)
        return path


class Syncer:
    """Brings the engine up to date when the trainer's step has changed, and makes sure of it."""

    def __init__(self, sync: WeightSync | SyncKind | str, link: EngineLink) -> None:
        """Begin; the engine counts as out of date.

        Raises:
            ConfigurationError: `sync` is none of the three.
        """
        try:
            kind = sync if callable(sync) else SyncKind(sync)
        except ValueError:
            raise ConfigurationError(f"sync is 'disk', 'none', a DiskSync(...) or a function, not {sync!r}") from None
        self._sync = None if kind is SyncKind.NONE else DiskSync() if kind is SyncKind.DISK else kind
        self._link = link
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
        version = str(_from_main(trainer, lambda: self._new_name(step)))
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

    def _new_name(self, step: int) -> str:
        """Name the weights of a step; by another name than the engine's now, so that a change can be seen."""
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


async def _load(control: EngineControl, path: Path, version: str) -> None:
    told = await control.swap_weights(str(path), version=version)
    refused = [f"{result.worker}: {result.message}" for result in told if not (result.ok and _did(result.message))]
    if refused:
        raise EngineError(
            f"{len(refused)} of {len(told)} workers did not load the weights in {path}, which they must see under that "
            f"path: {'; '.join(refused):.1000}"
        )


def patiently(work: Callable[[], T], seconds: float) -> T:
    """Do something until it is no EngineError, or so many seconds are over."""
    until = time.monotonic() + seconds
    while True:
        try:
            return work()
        except EngineError as error:
            if time.monotonic() + _PAUSE > until:
                raise
            logger.warning("error=<%s> | not this time; trying again", error)
            time.sleep(_PAUSE)


def sharded_by(trainer: Any) -> str | None:
    """Return what has the trainer's model in pieces, spread over processes; None: each process has it whole."""
    kind = str(getattr(getattr(trainer.accelerator, "distributed_type", None), "value", "NO"))
    return kind if kind in _SHARDED else None


def _did(message: str) -> bool:
    """Return whether a worker's words to an update are a yes."""
    try:
        words = orjson.loads(message)
    except orjson.JSONDecodeError:
        return True
    return not (isinstance(words, dict) and words.get("success") is False)


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
