"""Running episodes in a process of Ray's: `RayWorker`, the body of an actor.

Invariant: it is a `LocalWorker` with a name, a ledger shard and an event loop of its own; nothing about an episode is
different for running here.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from strands_sglang.engine.client import SGLangClient
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
        self._turns: dict[str, list[TurnCounts]] = {}
        self._set_aside: dict[str, tuple[int, float]] = {}  # episodes that were set aside before they began
        self._not_wanted: dict[str, bool] = {}  # episodes that were ended before they began, and whether cut short

    async def ready(self) -> int:
        """Get ready on this process's event loop; returns the process id."""
        if self._local is None:
            self._local = LocalWorker(self._setup, self._name)
            self._threads = tool_threads(1024)
            self._threads.__enter__()
        return os.getpid()

    async def run(self, job: Job) -> tuple[tuple[Episode, list[TurnCounts]], TokenTree, list[Any]]:
        """Run an episode.

        Returns:
            The episode without its turns and messages, which is small, with the counts nobody has asked for yet; its
            turns; its messages. Ray keeps the three apart, so that only the first has to travel.
        """
        await self.ready()
        assert self._local is not None
        cut_short = asyncio.Event()
        work = asyncio.ensure_future(
            self._local.run(
                job, on_turn=lambda counts: self._turns.setdefault(job.id, []).append(counts), cut_short=cut_short
            )
        )
        await asyncio.sleep(0)  # a task that is cancelled before its first step runs none of its code
        self._running[job.id] = (work, cut_short)
        life, seconds = self._set_aside.pop(job.id, (-1, 0.0))
        if life == job.life:
            self._local.suspend(job.id, seconds)
        if job.id in self._not_wanted:
            await self.end(job.id, self._not_wanted.pop(job.id))
        try:
            episode = await work
        finally:
            del self._running[job.id]
        tree, messages = episode.tree, episode.messages
        episode.source, episode.conversation = TokenTree(job.id), []
        return (episode, self._turns.pop(job.id, [])), tree, messages

    async def end(self, id: str, cut_short: bool) -> None:
        """End an episode, as cut short or as unfinished."""
        running = self._running.get(id)
        if running is None:
            self._not_wanted[id] = cut_short  # the call that begins it is still under way
            return
        work, event = running
        if cut_short:
            event.set()
        work.cancel()

    async def suspend(self, id: str, life: int, seconds: float) -> None:
        """Set an episode aside, in that life of it; see `LocalWorker.suspend`."""
        if self._local is None or not self._local.suspend(id, seconds):
            self._set_aside[id] = (life, seconds)  # the call that begins it is still under way, or it has just ended

    async def news(self) -> tuple[dict[str, list[TurnCounts]], float]:
        """Return the turns that were sampled since this was asked last, by episode.

        Returns:
            These, and for how many seconds the engine could not be reached by now; 0.0: it can.
        """
        turns, self._turns = self._turns, {}
        client = self._setup.client
        return turns, client.unreachable_seconds() if isinstance(client, SGLangClient) else 0.0

    async def close(self) -> None:
        """Write what is left of the ledger."""
        if self._local is not None:
            await self._local.close()
