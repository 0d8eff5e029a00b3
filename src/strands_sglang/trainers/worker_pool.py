"""Workers that run a trainer's episodes, kept per event loop: `PerLoop`, `run_episode`.

Trainers create their own objects for every sample, or call from several event loops. The model is set up once per loop,
because locks and connections belong to one loop.

Invariant: an object kept here is only used on the event loop that it was made on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from importlib import import_module
from typing import Any, Generic, TypeVar

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec

logger = logging.getLogger(__name__)

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Objects kept by event loop and key. Those of closed loops are dropped when a new one is made.

    Example:
        >>> workers: PerLoop[LocalWorker] = PerLoop()
        >>> worker = workers.get(lambda: LocalWorker(run_spec), key="generator")
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[asyncio.AbstractEventLoop, Hashable], T] = {}

    def get(self, make: Callable[[], T], key: Hashable = None) -> T:
        """Return the running loop's object.

        Args:
            make: Called if the loop has none under this key.
            key: Distinguishes several objects of one loop.
        """
        place = (asyncio.get_running_loop(), key)
        if place not in self._kept:
            for known in [known for known in self._kept if known[0].is_closed()]:
                del self._kept[known]
            self._kept[place] = make()
        return self._kept[place]

    def discard(self, key: Hashable = None) -> None:
        """Forget the running loop's object, so that the next `get` makes a new one."""
        self._kept.pop((asyncio.get_running_loop(), key), None)

    def __len__(self) -> int:
        return len(self._kept)


async def run_episode(worker: LocalWorker, spec: Callable[[], EpisodeSpec]) -> Episode | None:
    """Run an episode and log its failure, if any. Raises nothing but cancellation.

    Args:
        worker: Runs the episode.
        spec: Makes the specification of the episode. If it raises, the dataset's row counts as a failed episode: one
            bad row must not end a training.

    Returns:
        The episode; None if `spec` raised.
    """
    try:
        made = spec()
    except Exception as error:
        logger.error("error=<%s: %s> | cannot make a task from this row of the dataset", type(error).__name__, error)
        return None
    episode = await worker.run(made)
    log_failure(episode)
    return episode


def log_failure(episode: Episode) -> None:
    """Log a warning if the episode or its reward function failed."""
    if episode.failure is not None:
        failure = f"{episode.failure.kind}: {episode.failure.message}"
        logger.warning(
            "episode=<%s>, end_reason=<%s>, failure=<%s> | episode failed",
            episode.id,
            episode.end_reason.value,
            failure,
        )
    elif episode.reward_detail.error is not None:
        logger.warning("episode=<%s>, error=<%s> | reward function failed", episode.id, episode.reward_detail.error)


def import_by_path(target: Any) -> Any:
    """Return the object at a dotted path such as "my_agent.build"; anything but a string is returned as it is.

    Raises:
        ConfigurationError: If there is nothing at that path.
    """
    if not isinstance(target, str):
        return target
    module, _, name = target.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"expected a function or a dotted path such as 'my_agent.build', got {target!r}: {error}"
        ) from error
