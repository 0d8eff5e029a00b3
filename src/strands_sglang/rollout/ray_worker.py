"""Running episodes in a process of Ray's: `RayWorker`, the body of an actor.

Invariant: it is a `LocalWorker` with a name, a ledger shard and an event loop of its own; nothing about an episode is
different for running here.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any

from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.job import Job, Setup
from strands_sglang.rollout.local import LocalWorker
from strands_sglang.rollout.measures import TurnCounts
from strands_sglang.rollout.threads import tool_threads
from strands_sglang.tokens import TokenTree


class RayWorker:
    """Runs episodes of one run, any number at once, for a `RayPool`."""

    def __init__(self, setup: Setup, name: str) -> None:
        """Make the model and open a ledger shard; see `LocalWorker`."""
        self._setup, self._name = setup, name
        self._local: LocalWorker | None = None
        self._threads: Any = None
        self._running: dict[str, tuple[asyncio.Task[Episode], asyncio.Event]] = {}
        self._turns: deque[tuple[str, TurnCounts]] = deque(maxlen=100_000)

    async def ready(self) -> int:
        """Get ready on this process's event loop; returns the process id."""
        if self._local is None:
            self._local = LocalWorker(self._setup, self._name)
            self._threads = tool_threads(1024)
            self._threads.__enter__()
        return os.getpid()

    async def run(self, job: Job) -> tuple[Episode, tuple[TokenTree, list[Any]]]:
        """Run an episode.

        Returns:
            The episode without its turns and messages, which is small; and these. Ray keeps the two apart, so that
            only the first has to travel.
        """
        await self.ready()
        assert self._local is not None
        cut_short = asyncio.Event()
        work = asyncio.ensure_future(
            self._local.run(job, on_turn=lambda counts: self._turns.append((job.id, counts)), cut_short=cut_short)
        )
        self._running[job.id] = (work, cut_short)
        try:
            episode = await work
        finally:
            del self._running[job.id]
        tree, messages = episode.tree, episode.messages
        episode.source, episode.messages = TokenTree(job.id), []
        return episode, (tree, messages)

    async def end(self, id: str, cut_short: bool) -> None:
        """End an episode, as cut short or as unfinished."""
        running = self._running.get(id)
        if running is not None:
            work, event = running
            if cut_short:
                event.set()
            work.cancel()

    async def turns(self) -> list[tuple[str, TurnCounts]]:
        """Return the turns that were sampled since this was asked last, each with its episode."""
        turns = list(self._turns)
        self._turns.clear()
        return turns

    async def close(self) -> None:
        """Write what is left of the ledger."""
        if self._local is not None:
            await self._local.close()
