"""`Scheduler`: every episode is run once in any order of ends; stopped ones are reported; nothing is left running."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang._async import LoopThrottle
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode, TurnCounts
from strands_sglang.runs.scheduler import Scheduler
from strands_sglang.runs.task import Task
from strands_sglang.runs.workers.spec import EpisodeSpec
from support.rollout.finished import finished


class FakeWorker:
    """Runs episodes that take a few iterations of the event loop."""

    def __init__(self, seed: int = 0, rounds: int = 5) -> None:
        self.fingerprint: dict[str, str] = {}
        self.chance, self.rounds = random.Random(seed), rounds
        self.started: list[str] = []
        self.live = self.most = 0
        self.hangs: set[str] = set()

    async def run(self, spec: EpisodeSpec, *, on_turn: Any = None, stop: asyncio.Event | None = None) -> Episode:
        self.started.append(spec.id)
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            for _ in range(self.chance.randint(0, self.rounds)):
                await asyncio.sleep(0)
            on_turn(TurnCounts(4, 2, 3))
            while spec.id in self.hangs:
                await asyncio.sleep(60)
            return finished(spec.task, spec.sample)
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # cancellation takes a moment
            if stop is None or not stop.is_set():
                raise
            return finished(spec.task, spec.sample, ended=EndReason.NOT_NEEDED)
        finally:
            self.live -= 1

    async def close(self) -> None: ...


def groups(tasks: int, samples: int) -> Iterator[list[EpisodeSpec]]:
    for number in range(tasks):
        task = Task(f"question {number}", id=f"t{number}")
        yield [EpisodeSpec(task, sample) for sample in range(samples)]


class Run:
    """A scheduler and the episodes it reported."""

    def __init__(
        self,
        worker: FakeWorker,
        specs: Iterator[list[EpisodeSpec]],
        enough: int | None = None,
        *,
        concurrency: int = 4,
        prefix_warmup: float | None = None,
    ) -> None:
        self.reported: list[Episode] = []
        self.turns = 0
        self.enough = enough
        self.schedule = Scheduler(
            worker, specs, concurrency=concurrency, prefix_warmup=prefix_warmup, on_begin=lambda spec: None,
            on_turn=self._turn, on_end=self._end,
        )  # fmt: skip

    def _turn(self, spec: EpisodeSpec, counts: TurnCounts) -> None:
        self.turns += 1

    async def _end(self, episode: Episode, restored: bool) -> bool:
        self.reported.append(episode)
        return self.enough is not None and len(self.reported) >= self.enough

    @property
    def ids(self) -> list[str]:
        return sorted(episode.id for episode in self.reported)


@given(
    tasks=st.integers(0, 6),
    samples=st.integers(1, 4),
    concurrency=st.integers(1, 8),
    warm=st.sampled_from([None, 0.001, 60.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
async def test_every_episode_is_run_once(
    tasks: int, samples: int, concurrency: int, warm: float | None, seed: int
) -> None:
    worker = FakeWorker(seed)
    run = Run(worker, groups(tasks, samples), concurrency=concurrency, prefix_warmup=warm)
    await asyncio.wait_for(run.schedule.run(), 20)
    expected = sorted(f"t{task}/{sample}" for task in range(tasks) for sample in range(samples))
    assert sorted(worker.started) == run.ids == expected
    assert worker.most <= concurrency and run.turns == len(expected)


@given(
    tasks=st.integers(1, 6), samples=st.integers(1, 4), enough=st.integers(1, 10), seed=st.integers(0, 99),
    warm=st.sampled_from([None, 60.0]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
async def test_with_enough_groups_every_started_episode_is_reported(
    tasks: int, samples: int, enough: int, seed: int, warm: float | None
) -> None:
    worker = FakeWorker(seed)
    run = Run(worker, groups(tasks, samples), enough, concurrency=6, prefix_warmup=warm)
    await asyncio.wait_for(run.schedule.run(), 20)
    assert run.ids == sorted(worker.started)
    assert len(run.reported) >= min(enough, tasks * samples)
    assert worker.live == 0 and len(asyncio.all_tasks()) == 1


@given(seed=st.integers(0, 99), stopped_tasks=st.sets(st.integers(0, 3)), samples=st.integers(2, 6))
@settings(max_examples=60, deadline=None)
async def test_stop_task_stops_remaining_episodes_at_any_time(seed: int, stopped_tasks: set[int], samples: int) -> None:
    """`stop_task` is called when the first episode of a task ends; others may not have run their first step yet."""
    worker = FakeWorker(seed)
    run = Run(worker, groups(4, samples), concurrency=8)
    for task in stopped_tasks:
        worker.hangs |= {f"t{task}/{sample}" for sample in range(1, samples)}
    on_end = run._end

    async def ended(episode: Episode, restored: bool) -> bool:
        await on_end(episode, restored)
        if episode.end_reason is not EndReason.NOT_NEEDED and int(episode.task.id[1:]) in stopped_tasks:
            run.schedule.stop_task(episode.task.id)
        return False

    run.schedule._on_end = ended
    await asyncio.wait_for(run.schedule.run(), 20)
    assert run.ids == sorted(worker.started)
    good = {episode.id for episode in run.reported if episode.end_reason is not EndReason.NOT_NEEDED}
    assert good == {
        f"t{task}/{sample}"
        for task in range(4)
        for sample in range(samples)
        if task not in stopped_tasks or sample == 0
    }
    assert len(asyncio.all_tasks()) == 1


async def test_stop_task_then_enough_groups_ends_episodes_once() -> None:
    """An episode that is being stopped must not be cancelled a second time, or it would be lost."""
    worker = FakeWorker()
    worker.hangs = {f"t0/{sample}" for sample in range(1, 5)}
    run = Run(worker, groups(1, 5), 1, concurrency=8)
    on_end = run._end

    async def ended(episode: Episode, restored: bool) -> bool:
        if episode.end_reason is not EndReason.NOT_NEEDED:
            run.schedule.stop_task("t0")
        return await on_end(episode, restored)

    run.schedule._on_end = ended
    await asyncio.wait_for(run.schedule.run(), 5)
    assert run.ids == [f"t0/{sample}" for sample in range(5)]


async def test_episode_in_on_end_is_not_stopped() -> None:
    worker = FakeWorker(rounds=0)
    run = Run(worker, groups(2, 1), concurrency=2)
    ended_ids: list[str] = []

    async def ended(episode: Episode, restored: bool) -> bool:
        if episode.id == "t0/0":
            await asyncio.sleep(0.05)  # a slow callback
        ended_ids.append(episode.id)
        return True

    run.schedule._on_end = ended
    await run.schedule.run()
    assert sorted(ended_ids) == ["t0/0", "t1/0"]


async def test_cancel_waits_for_episodes_that_are_being_stopped() -> None:
    class SlowWorker(FakeWorker):
        async def run(self, spec: EpisodeSpec, *, on_turn: Any = None, stop: asyncio.Event | None = None) -> Episode:
            self.live += 1
            try:
                await asyncio.sleep(0 if spec.id == "t0/0" else 60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.1)
            finally:
                self.live -= 1
            return finished(spec.task, spec.sample, ended=EndReason.NOT_NEEDED if spec.sample else EndReason.ANSWERED)

    worker = SlowWorker()
    run = Run(worker, groups(4, 1), 1)
    work = asyncio.ensure_future(run.schedule.run())
    await asyncio.sleep(0.03)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert worker.live == 0 and len(asyncio.all_tasks()) == 1


async def test_empty_groups_are_skipped() -> None:
    worker = FakeWorker()
    specs: list[list[EpisodeSpec]] = [[], *groups(2, 1), []]
    run = Run(worker, iter(specs))
    await asyncio.wait_for(run.schedule.run(), 5)
    assert len(run.ids) == 2


async def test_one_caller_continues_per_iteration_in_order() -> None:
    scheduler, continued, rounds = LoopThrottle(), [], 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def episode(number: int) -> None:
        await scheduler.wait()
        continued.append((number, rounds))

    counting = asyncio.ensure_future(count())
    await asyncio.gather(*(episode(number) for number in range(100)))
    counting.cancel()
    assert [number for number, _ in continued] == list(range(100))
    # At least one loop iteration passed between any two of them.
    assert all(later - earlier >= 1 for (_, earlier), (_, later) in pairwise(continued))


async def test_a_caller_with_nobody_before_it_continues_at_once() -> None:
    throttle, waiting = LoopThrottle(), [asyncio.Event() for _ in range(2)]

    async def episode(event: asyncio.Event) -> None:
        await throttle.wait()
        event.set()

    tasks = [asyncio.ensure_future(episode(event)) for event in waiting]
    await asyncio.sleep(0)
    assert [event.is_set() for event in waiting] == [True, False]
    await asyncio.gather(*tasks)


async def test_timers_are_on_time_while_many_wait() -> None:
    scheduler, loop = LoopThrottle(), asyncio.get_running_loop()
    late: list[float] = []

    async def episode() -> None:
        await scheduler.wait()
        until = loop.time() + 0.001
        while loop.time() < until:
            pass

    async def timer() -> None:
        while True:
            due = loop.time() + 0.005
            await asyncio.sleep(0.005)
            late.append(loop.time() - due)

    timing = asyncio.ensure_future(timer())
    await asyncio.gather(*(episode() for _ in range(300)))
    timing.cancel()
    assert len(late) > 10 and sorted(late)[len(late) // 2] < 0.02


async def test_cancelled_caller_does_not_block_others() -> None:
    scheduler = LoopThrottle()
    waiting = [asyncio.ensure_future(scheduler.wait()) for _ in range(10)]
    await asyncio.sleep(0)
    for one in waiting[1::2]:
        one.cancel()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(one, asyncio.CancelledError) for one in done) == 5
    await asyncio.wait_for(scheduler.wait(), 1)


async def test_callers_on_other_loops_never_wait() -> None:
    """A sub-agent in a thread calls it at the same time: it never waits, and releases no caller of this loop."""
    scheduler, stop = LoopThrottle(), threading.Event()
    await scheduler.wait()
    turns = 0

    def thread() -> None:
        nonlocal turns

        async def call() -> None:
            nonlocal turns
            while not stop.is_set():
                await scheduler.wait()
                turns += 1

        asyncio.run(call())

    threads = [threading.Thread(target=thread) for _ in range(3)]
    for one in threads:
        one.start()
    for _ in range(300):
        await asyncio.wait_for(scheduler.wait(), 2)
    until = time.monotonic() + 60
    while turns < 300 and time.monotonic() < until:  # the threads may start late
        await asyncio.sleep(0.01)
    stop.set()
    for one in threads:
        one.join()
    assert turns >= 300


def test_a_later_event_loop_is_throttled_too() -> None:
    throttle, most = LoopThrottle(), []

    async def run() -> None:
        continued: list[int] = []

        async def episode() -> None:
            await throttle.wait()
            continued.append(1)

        waiting = asyncio.gather(*(episode() for _ in range(5)))
        while not waiting.done():
            before = len(continued)
            await asyncio.sleep(0)
            most.append(len(continued) - before)

    for _ in range(2):
        asyncio.run(run())
    assert max(most) == 1
