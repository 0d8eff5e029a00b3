"""The worker that runs a trainer's episodes: one for each event loop and purpose, made once. `LoopWorkers`.

Trainers make their own objects anew for every sample, or call from several loops; a model is tried out once, and what
waits on a loop belongs to it.

Invariant: no worker is used from another event loop than the one it was made in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from importlib import import_module
from typing import Any

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.job import Job, Setup
from strands_sglang.rollout.local import LocalWorker

logger = logging.getLogger(__name__)


class LoopWorkers:
    """Workers by event loop and purpose."""

    def __init__(self) -> None:
        self._workers: dict[tuple[asyncio.AbstractEventLoop, Hashable], LocalWorker] = {}

    def get(self, purpose: Hashable, setup: Callable[[], Setup]) -> LocalWorker:
        """Return the running loop's worker.

        Args:
            purpose: What the worker is for; another purpose, another worker.
            setup: Called when it has to be made.
        """
        key = (asyncio.get_running_loop(), purpose)
        worker = self._workers.get(key)
        if worker is None:
            for known in [known for known in self._workers if known[0].is_closed()]:
                del self._workers[known]
            worker = self._workers[key] = LocalWorker(setup(), guest=True)
        return worker


async def played(worker: LocalWorker, job: Callable[[], Job]) -> Episode | None:
    """Run an episode; only cancellation passes through.

    Args:
        worker: Runs it.
        job: Makes it. A row of the dataset that makes no task is a failed episode: one row should not end a training.

    Returns:
        The episode; None: there was not even a task.
    """
    try:
        made = job()
    except Exception as error:
        logger.error("error=<%s: %s> | this row of the dataset makes no task", type(error).__name__, error)
        return None
    episode = await worker.run(made)
    tell(episode)
    return episode


def tell(episode: Episode) -> None:
    """Say in the log what broke in an episode; nothing when nothing did."""
    if episode.failure is not None:
        about = f"{episode.failure.kind}: {episode.failure.message}"
        logger.warning("episode=<%s>, ended=<%s>, failure=<%s> | failed", episode.id, episode.ended.value, about)
    elif episode.score.error is not None:
        logger.warning("episode=<%s>, error=<%s> | scoring failed", episode.id, episode.score.error)


def found(what: Any) -> Any:
    """Return an object, looked up where its dotted path is given ("my_agent.build").

    Raises:
        ConfigurationError: Nothing is found there.
    """
    if not isinstance(what, str):
        return what
    module, _, name = what.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{what!r} should be a dotted path such as 'my_agent.build': {error}") from error
