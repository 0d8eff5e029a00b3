"""A trainer's weights into the engine by way of a folder: `DiskSync`.

Invariant: a folder that bears a version's name is whole; every worker that answers loads it, or it is an error.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import orjson

from strands_sglang.engine.control import EngineControl
from strands_sglang.errors import ConfigurationError, EngineError, EngineUnavailableError, RequestRejectedError
from strands_sglang.trainers.trl_link import EngineLink
from strands_sglang.trainers.trl_weights import save_weights

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE = 600.0
"""Seconds for which an engine that does not answer is asked again."""

_PAUSE, _LONGEST_PAUSE = 1.0, 15.0
_SHARDED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP")


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
            patience: Seconds for which an engine that does not answer is asked again: one that is being restarted comes
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
            EngineError: A worker would not load them, or none answers.
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


async def _load(control: EngineControl, path: Path, version: str) -> None:
    """Have every worker load weights; one that answers and does not is an error, one that is gone is not.

    Gone, it samples nothing. When it comes back with older weights, what it samples is masked until the next update.
    """
    told = await control.swap_weights(str(path), version=version)
    refused = {result.worker: result.message for result in told if not (result.ok and _did(result.message))}
    if not refused:
        return
    words = "; ".join(f"{worker}: {message}" for worker, message in refused.items())
    answering = await control.running_requests()
    if any(worker in answering for worker in refused):
        raise RequestRejectedError(
            f"{len(refused)} of {len(told)} workers did not load the weights in {path}, which they must see under that "
            f"path: {words:.1000}"
        )
    if len(refused) == len(told):
        raise EngineUnavailableError(f"no worker answers that could load the weights of step {version}: {words:.1000}")
    logger.warning("gone=<%d>, of=<%d>, words=<%.300s> | the other workers go on", len(refused), len(told), words)


def patiently(work: Callable[[], T], seconds: float) -> T:
    """Do something until it succeeds, is refused, or so many seconds are over."""
    until, pause = time.monotonic() + seconds, _PAUSE
    while True:
        try:
            return work()
        except RequestRejectedError:
            raise
        except EngineError as error:
            if time.monotonic() + pause > until:
                raise
            logger.warning("error=<%.300s>, seconds=<%.0f> | engine does not answer; trying again", error, pause)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


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
