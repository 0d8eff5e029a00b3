"""Every job is run once, in any order of ends; what is cut short is told of; nothing is left running."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.finished import finished
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.job import Job
from strands_sglang.rollout.measures import TurnCounts
from strands_sglang.rollout.schedule import Schedule
from strands_sglang.rollout.task import Task


class FakeWorker:
    """Runs episodes that take a few rounds of the loop."""

    def __init__(self, seed: int = 0, rounds: int = 5) -> None:
        self.fingerprint: dict[str, str] = {}
        self.chance, self.rounds = random.Random(seed), rounds
        self.begun: list[str] = []
        self.live = self.most = 0
        self.error: BaseException | None = None
        self.hangs: set[str] = set()

    async def run(self, job: Job, *, on_turn: Any = None, cut_short: asyncio.Event | None = None) -> Episode:
        self.begun.append(job.id)
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            for _ in range(self.chance.randint(0, self.rounds)):
                await asyncio.sleep(0)
            on_turn(TurnCounts(4, 2, 3))
            if self.error is not None:
                raise self.error
            while job.id in self.hangs:
                await asyncio.sleep(60)
            return finished(job.task, job.sample)
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # it takes a moment to let go
            if cut_short is None or not cut_short.is_set():
                raise
            return finished(job.task, job.sample, ended=Ended.CUT_SHORT)
        finally:
            self.live -= 1

    async def close(self) -> None: ...


def groups(tasks: int, samples: int) -> Iterator[list[Job]]:
    for number in range(tasks):
        task = Task(f"question {number}", id=f"t{number}")
        yield [Job(task, sample) for sample in range(samples)]


class Run:
    """A schedule, and what it told."""

    def __init__(
        self,
        worker: FakeWorker,
        jobs: Iterator[list[Job]],
        enough: int | None = None,
        *,
        concurrency: int = 4,
        warm_seconds: float | None = None,
    ) -> None:
        self.told: list[Episode] = []
        self.turns = 0
        self.enough = enough
        self.schedule = Schedule(
            worker,
            jobs,
            concurrency=concurrency,
            warm_seconds=warm_seconds,
            on_begin=lambda job: None,
            on_turn=self._turn,
            on_end=self._end,
        )

    def _turn(self, counts: TurnCounts) -> None:
        self.turns += 1

    async def _end(self, episode: Episode, restored: bool) -> bool:
        self.told.append(episode)
        return self.enough is not None and len(self.told) >= self.enough

    @property
    def ids(self) -> list[str]:
        return sorted(episode.id for episode in self.told)


@given(
    tasks=st.integers(0, 6),
    samples=st.integers(1, 4),
    concurrency=st.integers(1, 8),
    warm=st.sampled_from([None, 0.001, 60.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
async def test_every_job_is_run_once(tasks: int, samples: int, concurrency: int, warm: float | None, seed: int) -> None:
    worker = FakeWorker(seed)
    run = Run(worker, groups(tasks, samples), concurrency=concurrency, warm_seconds=warm)
    await asyncio.wait_for(run.schedule.run(), 20)
    wanted = sorted(f"t{task}/{sample}" for task in range(tasks) for sample in range(samples))
    assert sorted(worker.begun) == run.ids == wanted
    assert worker.most <= concurrency and run.turns == len(wanted)


@given(
    tasks=st.integers(1, 6), samples=st.integers(1, 4), enough=st.integers(1, 10), seed=st.integers(0, 99),
    warm=st.sampled_from([None, 60.0]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
async def test_when_there_is_enough_all_that_began_is_told_of(
    tasks: int, samples: int, enough: int, seed: int, warm: float | None
) -> None:
    worker = FakeWorker(seed)
    run = Run(worker, groups(tasks, samples), enough, concurrency=6, warm_seconds=warm)
    await asyncio.wait_for(run.schedule.run(), 20)
    assert run.ids == sorted(worker.begun)
    assert len(run.told) >= min(enough, tasks * samples)
    assert worker.live == 0 and len(asyncio.all_tasks()) == 1


@given(seed=st.integers(0, 99), dropped=st.sets(st.integers(0, 3)), samples=st.integers(2, 6))
@settings(max_examples=60, deadline=None)
async def test_what_is_left_of_a_task_is_dropped_at_any_time(seed: int, dropped: set[int], samples: int) -> None:
    """With the first episode of a task that ends; others may not even have had their first step."""
    worker = FakeWorker(seed)
    run = Run(worker, groups(4, samples), concurrency=8)
    for task in dropped:
        worker.hangs |= {f"t{task}/{sample}" for sample in range(1, samples)}
    told = run._end

    async def ended(episode: Episode, restored: bool) -> bool:
        await told(episode, restored)
        if episode.ended is not Ended.CUT_SHORT and int(episode.task.id[1:]) in dropped:
            run.schedule.drop(episode.task.id)
        return False

    run.schedule._on_end = ended
    await asyncio.wait_for(run.schedule.run(), 20)
    assert run.ids == sorted(worker.begun)
    good = {episode.id for episode in run.told if episode.ended is not Ended.CUT_SHORT}
    assert good == {
        f"t{task}/{sample}" for task in range(4) for sample in range(samples) if task not in dropped or sample == 0
    }
    assert len(asyncio.all_tasks()) == 1


async def test_dropped_and_then_enough_is_ended_once() -> None:
    """Cancelled twice, an episode that is being cut short would be lost."""
    worker = FakeWorker()
    worker.hangs = {f"t0/{sample}" for sample in range(1, 5)}
    run = Run(worker, groups(1, 5), 1, concurrency=8)
    told = run._end

    async def ended(episode: Episode, restored: bool) -> bool:
        if episode.ended is not Ended.CUT_SHORT:
            run.schedule.drop("t0")
        return await told(episode, restored)

    run.schedule._on_end = ended
    await asyncio.wait_for(run.schedule.run(), 5)
    assert run.ids == [f"t0/{sample}" for sample in range(5)]


async def test_one_that_is_only_being_told_of_is_not_cut_short() -> None:
    worker = FakeWorker(rounds=0)
    run = Run(worker, groups(2, 1), concurrency=2)
    heard: list[str] = []

    async def ended(episode: Episode, restored: bool) -> bool:
        if episode.id == "t0/0":
            await asyncio.sleep(0.05)  # a callback that takes its time
        heard.append(episode.id)
        return True

    run.schedule._on_end = ended
    await run.schedule.run()
    assert sorted(heard) == ["t0/0", "t1/0"]


async def test_an_error_of_the_run_s_own_stops_it() -> None:
    worker = FakeWorker()
    worker.hangs = {"t1/0", "t2/0"}
    run = Run(worker, groups(3, 1))

    async def broken(episode: Episode, restored: bool) -> bool:
        raise LookupError("of the caller's")

    run.schedule._on_end = broken
    with pytest.raises(LookupError):
        await asyncio.wait_for(run.schedule.run(), 5)
    assert worker.live == 0 and len(asyncio.all_tasks()) == 1
    worker = FakeWorker()
    worker.error = OSError("the ledger is full")
    with pytest.raises(OSError, match="full"):
        await asyncio.wait_for(Run(worker, groups(3, 1)).schedule.run(), 5)
    assert worker.live == 0


async def test_cancelling_ends_them_all_unfinished() -> None:
    worker = FakeWorker()
    worker.hangs = {f"t{task}/0" for task in range(6)}
    run = Run(worker, groups(6, 1))
    work = asyncio.ensure_future(run.schedule.run())
    await asyncio.sleep(0.02)
    assert worker.live == 4
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert worker.live == 0 and run.told == [] and len(asyncio.all_tasks()) == 1


async def test_cancelling_while_the_rest_is_cut_short_waits_for_it() -> None:
    class SlowWorker(FakeWorker):
        async def run(self, job: Job, *, on_turn: Any = None, cut_short: asyncio.Event | None = None) -> Episode:
            self.live += 1
            try:
                await asyncio.sleep(0 if job.id == "t0/0" else 60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.1)
            finally:
                self.live -= 1
            return finished(job.task, job.sample, ended=Ended.CUT_SHORT if job.sample else Ended.ANSWERED)

    worker = SlowWorker()
    run = Run(worker, groups(4, 1), 1)
    work = asyncio.ensure_future(run.schedule.run())
    await asyncio.sleep(0.03)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert worker.live == 0 and len(asyncio.all_tasks()) == 1


async def test_episodes_of_an_earlier_process_are_told_of_and_not_run() -> None:
    def jobs() -> Iterator[list[Job]]:
        for group in groups(2, 3):
            for job in group[:2]:
                job.finished = finished(job.task, job.sample)
            yield group

    worker = FakeWorker()
    run = Run(worker, jobs(), warm_seconds=60.0)
    await asyncio.wait_for(run.schedule.run(), 5)
    assert worker.begun == ["t0/2", "t1/2"] and len(run.ids) == 6


async def test_tasks_are_taken_as_places_come_free() -> None:
    taken: list[int] = []

    def endless() -> Iterator[list[Job]]:
        for number in range(10**9):
            taken.append(number)
            yield [Job(Task(f"question {number}", id=f"t{number}"), 0)]

    worker = FakeWorker()
    run = Run(worker, endless(), 20, concurrency=3)
    await asyncio.wait_for(run.schedule.run(), 5)
    assert len(taken) <= 24


async def test_groups_without_jobs_are_passed_over() -> None:
    worker = FakeWorker()
    jobs: list[list[Job]] = [[], *groups(2, 1), []]
    run = Run(worker, iter(jobs))
    await asyncio.wait_for(run.schedule.run(), 5)
    assert len(run.ids) == 2
