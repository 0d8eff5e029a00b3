"""Decides when each episode starts (`Scheduler`) and when a running one continues (`LoopThrottle`).

`Scheduler` takes tasks one after the other, as slots become free. The first sample of a task starts alone; the task's
other samples start after the engine has answered its first turn, so that their common prompt is in the prefix cache.

`LoopThrottle` spreads the work of episodes over iterations of the event loop. Between two engine calls an agent
computes for a millisecond or more. When thousands of answers arrive at once, the event loop would run all of these
agents before anything else: timers, other answers, the trainer's tasks.

Invariant: every sample of every task is run once, unless the run collects enough groups first. An episode that fails is
a result; only an error of the run's own code stops the run, and then no episode is left running. At most one waiting
episode continues per iteration of the event loop, in the order in which they started to wait, and at most one does not
have to wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Protocol

from strands_sglang.runs.episode import Episode, OnTurn, TurnCounts
from strands_sglang.runs.workers.spec import EpisodeSpec

_STARTS_PER_ITERATION = 16  # episodes started in one iteration of the event loop


class Worker(Protocol):
    """Runs episodes, in this process or in others."""

    @property
    def fingerprint(self) -> dict[str, str]:
        """What identifies the experiment; see `spec.fingerprint`."""
        ...

    async def run(
        self, spec: EpisodeSpec, *, on_turn: OnTurn | None = None, stop: asyncio.Event | None = None
    ) -> Episode:
        """Run an episode to its end; see `LocalWorker.run`."""
        ...

    async def close(self) -> None:
        """Release all resources."""
        ...


class Scheduler:
    """Runs the episodes of a run, at most `concurrency` at a time."""

    def __init__(
        self,
        worker: Worker,
        groups: Iterator[list[EpisodeSpec]],
        *,
        concurrency: int,
        prefix_warmup: float | None,
        on_begin: Callable[[EpisodeSpec], None],
        on_turn: Callable[[EpisodeSpec, TurnCounts], None],
        on_end: Callable[[Episode, bool], Awaitable[bool]],
    ) -> None:
        """Prepare the schedule of the episodes of each task (`groups`), which are read as slots become free.

        `on_end` is called with every episode that ended, and whether a previous run ended it; it returns whether the
        run has enough groups. `prefix_warmup` as in `RunOptions`.
        """
        self._worker, self._groups = worker, groups
        self._concurrency, self._prefix_warmup = concurrency, prefix_warmup
        self._on_begin, self._on_turn, self._on_end = on_begin, on_turn, on_end
        self._ready: deque[EpisodeSpec] = deque()
        self._siblings: dict[str, list[EpisodeSpec]] = {}  # samples that wait for the first one of their task, by task
        self._live: dict[str, _Running] = {}  # by episode
        self._change = asyncio.Event()
        self._enough = False
        self._error: BaseException | None = None
        self._last_group = False

    async def run(self) -> None:
        """Run all episodes; returns when all have ended, or when the run has enough groups and the rest was stopped."""
        try:
            while not self._enough and self._error is None:
                self._change.clear()
                started = 0
                while self._free and (spec := self._next()) is not None:
                    self._start(spec)
                    started += 1
                    # Thousands may start at once; let other tasks run in between. A group that was completed before may
                    # be the last one needed: then nothing else may start.
                    if started % _STARTS_PER_ITERATION == 0 or spec.finished is not None:
                        await asyncio.sleep(0)
                if not self._live and not self._ready and not self._siblings and self._last_group:
                    break
                await self._change.wait()
        except BaseException:
            await self._stop(stop=False)
            raise
        await self._stop(stop=self._error is None)
        if self._error is not None:
            raise self._error

    @property
    def _free(self) -> bool:
        return len(self._live) < self._concurrency and not self._enough and self._error is None

    def add(self, specs: Iterable[EpisodeSpec]) -> None:
        """Run further episodes, before the tasks that were not read yet. Episodes must be running, or waiting."""
        self._ready.extend(specs)
        self._change.set()

    def fail(self, error: BaseException) -> None:
        """Stop the run; `run` raises the error."""
        self._error = self._error or error
        self._change.set()

    def stop_task(self, task: str) -> None:
        """Stop the remaining episodes of a task whose group is complete; running ones end as `not_needed`."""
        self._ready.extend(self._siblings.pop(task, ()))
        # Episodes that ended in a previous run stay: they are only reported.
        self._ready = deque(spec for spec in self._ready if spec.task.id != task or spec.finished is not None)
        for running in self._live.values():
            if running.spec.task.id == task and running.spec.finished is None:
                running.end(stop=True)

    def _next(self) -> EpisodeSpec | None:
        if self._ready:
            return self._ready.popleft()
        while not self._last_group:
            group = next(self._groups, None)
            if group is None:
                self._last_group = True
            elif group:
                first, *siblings = group
                # A resumed or finished episode has already had its first turn.
                fresh = first.record is None and first.finished is None
                if siblings and self._prefix_warmup is not None and fresh:
                    self._siblings[first.task.id] = siblings
                    asyncio.get_running_loop().call_later(self._prefix_warmup, self._release_siblings, first.task.id)
                else:
                    self._ready.extend(siblings)
                return first
        return None

    def _release_siblings(self, task: str) -> None:
        siblings = self._siblings.pop(task, None)
        if siblings:
            self._ready.extend(siblings)
            self._change.set()

    def _start(self, spec: EpisodeSpec) -> None:
        if spec.finished is None:
            self._on_begin(spec)
        running = self._live[spec.id] = _Running(spec)
        running.work = asyncio.ensure_future(self._run_episode(spec, running))
        # An asyncio task that is cancelled before its first step runs none of its code, not even `finally`.
        running.work.add_done_callback(lambda _: self._ended(spec))

    def _ended(self, spec: EpisodeSpec) -> None:
        del self._live[spec.id]
        self._release_siblings(spec.task.id)
        self._change.set()

    async def _run_episode(self, spec: EpisodeSpec, running: _Running) -> None:
        def on_turn(counts: TurnCounts) -> None:
            self._release_siblings(spec.task.id)
            self._on_turn(spec, counts)

        try:
            episode = spec.finished
            if episode is None or spec.unscored:
                episode = await self._worker.run(spec, on_turn=on_turn, stop=running.stop)
            running.ended = True
            if await self._on_end(episode, spec.finished is not None):
                self._enough = True
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.fail(error)

    async def _stop(self, *, stop: bool) -> None:
        """Stop all running episodes and wait until they have ended, even if this wait is cancelled."""
        cancelled = False
        for running in self._live.values():
            running.end(stop=stop)
        while self._live:
            try:
                await asyncio.wait([running.work for running in self._live.values()])
                await asyncio.sleep(0)  # run the done callbacks of these tasks
            except asyncio.CancelledError:
                cancelled = True
                for running in self._live.values():
                    running.work.cancel()
        if cancelled:
            raise asyncio.CancelledError


class _Running:
    work: asyncio.Task[None]

    def __init__(self, spec: EpisodeSpec) -> None:
        self.spec, self.stop = spec, asyncio.Event()
        self.ended = False  # whether the episode has ended and only `on_end` still runs

    def end(self, *, stop: bool) -> None:
        """Cancel it; with `stop` it ends as `not_needed`, otherwise it stays unfinished."""
        if stop and (self.ended or self.stop.is_set()):
            return  # it is already ending; a second cancellation would interrupt that
        if stop:
            self.stop.set()
        self.work.cancel()
