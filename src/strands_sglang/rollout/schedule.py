"""Which episode runs when: `Schedule`.

Tasks are taken one after the other, as places come free. The first sample of a task begins; its siblings follow when
its first prompt has been through the engine, whose prefix cache then holds what they share.

Invariant: every sample of every task is run once, unless the run has enough before. An episode that fails is a result;
only the run's own code can stop the run, and then no episode is left running.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.job import Job
from strands_sglang.rollout.measures import OnTurn, TurnCounts

_BEGIN = 16  # episodes that begin in one round of the event loop


class Worker(Protocol):
    """Runs episodes: in this process, or in others."""

    @property
    def fingerprint(self) -> dict[str, str]:
        """What its model renders conversations with; see `job.fingerprint`."""
        ...

    async def run(self, job: Job, *, on_turn: OnTurn | None = None, cut_short: asyncio.Event | None = None) -> Episode:
        """Run an episode to its end; see `LocalWorker.run`."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


class Schedule:
    """Runs the jobs of a run, so many at once."""

    def __init__(
        self,
        worker: Worker,
        groups: Iterator[list[Job]],
        *,
        concurrency: int,
        warm_seconds: float | None,
        on_begin: Callable[[Job], None],
        on_turn: OnTurn,
        on_end: Callable[[Episode, bool], Awaitable[bool]],
    ) -> None:
        """Set up; nothing runs yet.

        Args:
            worker: Who runs episodes.
            groups: The jobs of each task, task after task; asked for as places come free.
            concurrency: Episodes at once.
            warm_seconds: How long siblings wait at most for the first sample of their task to have its first turn;
                None: they do not wait.
            on_begin: Called when an episode begins.
            on_turn: Called with every turn that is sampled.
            on_end: Called with every episode that ended, and whether an earlier process ran it; returns whether the run
                has enough.
        """
        self._worker, self._groups = worker, groups
        self._concurrency, self._warm_seconds = concurrency, warm_seconds
        self._on_begin, self._on_turn, self._on_end = on_begin, on_turn, on_end
        self._ready: deque[Job] = deque()
        self._held: dict[str, list[Job]] = {}
        self._live: dict[str, _Running] = {}
        self._change = asyncio.Event()
        self._enough = False
        self._broken: BaseException | None = None
        self._last_group = False

    async def run(self) -> None:
        """Run everything; returns when all have ended, or the run has enough and the rest was cut short."""
        try:
            while not self._enough and self._broken is None:
                self._change.clear()
                begun = 0
                while self._free and (job := self._next()) is not None:
                    self._start(job)
                    begun += 1
                    if begun % _BEGIN == 0:
                        await asyncio.sleep(0)  # thousands may begin at once; others want the loop too
                if not self._live and not self._ready and not self._held and self._last_group:
                    break
                await self._change.wait()
        except BaseException:
            await self._stop(cut_short=False)
            raise
        await self._stop(cut_short=self._broken is None)
        if self._broken is not None:
            raise self._broken

    @property
    def _free(self) -> bool:
        """Whether another episode may begin."""
        return len(self._live) < self._concurrency and not self._enough and self._broken is None

    def drop(self, task: str) -> None:
        """Cut short what is left of a task: its group is complete without."""
        held = self._held.pop(task, ())
        self._ready.extend(held)
        # One that an earlier process ended is only told of.
        self._ready = deque(job for job in self._ready if job.task.id != task or job.finished is not None)
        for running in self._live.values():
            if running.job.task.id == task and running.job.finished is None:
                running.end(cut_short=True)

    def _next(self) -> Job | None:
        if self._ready:
            return self._ready.popleft()
        while not self._last_group:
            group = next(self._groups, None)
            if group is None:
                self._last_group = True
            elif group:
                first, *siblings = group
                # One that is resumed, or over, has had its first turn.
                fresh = first.record is None and first.finished is None
                if siblings and self._warm_seconds is not None and fresh:
                    self._held[first.task.id] = siblings
                    asyncio.get_running_loop().call_later(self._warm_seconds, self._warmed, first.task.id)
                else:
                    self._ready.extend(siblings)
                return first
        return None

    def _warmed(self, task: str) -> None:
        siblings = self._held.pop(task, None)
        if siblings:
            self._ready.extend(siblings)
            self._change.set()

    def _start(self, job: Job) -> None:
        if job.finished is None:
            self._on_begin(job)
        running = self._live[job.id] = _Running(job)
        running.work = asyncio.ensure_future(self._one(job, running))
        # A task that is cancelled before its first step runs none of its code, `finally` included.
        running.work.add_done_callback(lambda _: self._over(job))

    def _over(self, job: Job) -> None:
        del self._live[job.id]
        self._warmed(job.task.id)
        self._change.set()

    async def _one(self, job: Job, running: _Running) -> None:
        def on_turn(counts: TurnCounts) -> None:
            self._warmed(job.task.id)
            self._on_turn(counts)

        try:
            episode = job.finished
            if episode is None or job.unscored:
                episode = await self._worker.run(job, on_turn=on_turn, cut_short=running.cut_short)
            running.ended = True
            if await self._on_end(episode, job.finished is not None):
                self._enough = True
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._broken = self._broken or error

    async def _stop(self, *, cut_short: bool) -> None:
        """End whatever still runs, and wait until it has ended, even when that is cancelled."""
        cancelled = False
        for running in self._live.values():
            running.end(cut_short=cut_short)
        while self._live:
            try:
                await asyncio.wait([running.work for running in self._live.values()])
                await asyncio.sleep(0)  # the callbacks of these tasks
            except asyncio.CancelledError:
                cancelled = True
                for running in self._live.values():
                    running.work.cancel()
        if cancelled:
            raise asyncio.CancelledError


class _Running:
    """An episode that runs."""

    work: asyncio.Task[None]

    def __init__(self, job: Job) -> None:
        self.job, self.cut_short = job, asyncio.Event()
        self.ended = False  # then it is only told of

    def end(self, *, cut_short: bool) -> None:
        """End it, as cut short or as unfinished."""
        if cut_short and (self.ended or self.cut_short.is_set()):
            return  # it ends by itself; cancelled twice, it would not
        if cut_short:
            self.cut_short.set()
        self.work.cancel()
