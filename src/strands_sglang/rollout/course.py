"""A run under way: `Course`. From tasks to jobs, from jobs to groups, with what is on record in between.

Invariant: every sample of every task becomes one episode of the result, whichever process ran it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from strands_sglang._version import __version__
from strands_sglang.ledger.run_file import write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.rollout.alike import Alike
from strands_sglang.rollout.arguments import check_new
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.job import Job, Setup
from strands_sglang.rollout.local import LocalWorker
from strands_sglang.rollout.reporter import Reporter
from strands_sglang.rollout.resume import Before
from strands_sglang.rollout.schedule import Schedule, Worker
from strands_sglang.rollout.tally import Tally
from strands_sglang.rollout.task import Task
from strands_sglang.rollout.telemetry import run_span

logger = logging.getLogger(__name__)


class Course:
    """A run under way."""

    reporter: Reporter
    """Who is told how it goes."""

    def __init__(
        self,
        setup: Setup,
        before: Before | None,
        tally: Tally,
        on_episode: Callable[[Episode], Any] | None,
        stop_after_failures: int | None = None,
    ) -> None:
        """Set up.

        Args:
            setup: What the episodes have in common.
            before: What an earlier process left behind; None: nothing.
            tally: Where episodes are put together.
            on_episode: Called with every episode that ends.
            stop_after_failures: How many episodes may fail alike before any other ends; None: any number.
        """
        self.setup = setup if before is None else replace(setup, run=before.run["run"])
        """What the episodes have in common; the id of the run is that of the one that goes on."""
        self.tally = tally
        """Where episodes are put together."""
        self._before, self._on_episode = before, on_episode
        self._alike = Alike(stop_after_failures)
        self._scored = 0  # episodes of an earlier process that were scored now

    def samples(self, tasks: Iterable[Any], samples: int) -> bool:
        """Return whether anything may remain to be sampled; the tasks of a generator are not looked at."""
        if self._before is None or not isinstance(tasks, list):
            return True
        needed = self.tally.wanted.needed(samples)
        return any(self._before.open(task, samples, needed) for task in tasks)

    async def run(
        self, tasks: Iterable[Any], samples: int, concurrency: int, workers: int, warm_seconds: float | None
    ) -> None:
        """Run everything there is to be run; see `rollout`."""
        total = self.reporter.totals.total
        with run_span(self.setup.run, samples_per_task=samples, total=total) as span:
            self.setup = replace(self.setup, trace=span.carrier)
            await self._all(tasks, samples, concurrency, workers, warm_seconds)
            span.ended(self.reporter.totals.snapshot())

    async def _all(
        self, tasks: Iterable[Any], samples: int, concurrency: int, workers: int, warm_seconds: float | None
    ) -> None:
        worker = self._worker(workers, concurrency)
        try:
            self._open(worker.fingerprint, samples)
            schedule = Schedule(
                worker,
                self._groups(tasks, samples),
                concurrency=concurrency,
                warm_seconds=warm_seconds,
                on_begin=lambda job: self.reporter.totals.began(job.id),
                on_turn=self.reporter.turn,
                on_end=self._ended,
            )
            self.tally.complete = lambda task: schedule.drop(task.id)
            await schedule.run()
        finally:
            await worker.close()
        self._alike.told()
        totals = self.reporter.totals.snapshot()
        if self._scored:
            logger.info("episodes=<%d> | had no score on record and were scored, nothing was sampled", self._scored)
        elif totals.restored and totals.restored == totals.done:
            logger.warning(
                "directory=<%s>, episodes=<%d> | all were on record and none was run; a new run takes a new directory",
                self.setup.directory,
                totals.done,
            )
        if self.setup.directory is not None:
            await asyncio.get_running_loop().run_in_executor(None, seal, self.setup.directory)

    def _worker(self, workers: int, concurrency: int) -> Worker:
        if workers == 0:
            return LocalWorker(self.setup)
        from strands_sglang.rollout.ray_pool import RayPool

        pool = RayPool(self.setup, workers, concurrency)
        self.reporter.totals.unreachable = pool.unreachable_seconds
        return pool

    def _open(self, fingerprint: dict[str, str], samples: int) -> None:
        """Begin a run on disk, or see that the one that is there can go on."""
        if self._before is not None:
            self._before.check(fingerprint)
            kept, begun = len(self._before.finished), len(self._before.unfinished)
            logger.info("run=<%s>, ended=<%d>, to_go_on=<%d> | a run on record goes on", self.setup.run, kept, begun)
            if self._before.run.get("settings") != (settings := self.setup.settings()):
                logger.warning("settings=<%s> | the run on record began with others, which run.json names", settings)
        elif self.setup.directory is not None:
            about = {"run": self.setup.run, "created": time.time(), "package": __version__}
            write_run(
                self.setup.directory,
                {
                    **about,
                    "samples_per_task": samples,
                    "fingerprint": fingerprint,
                    "settings": self.setup.settings(),
                },
            )

    def _groups(self, tasks: Iterable[Any], samples: int) -> Iterator[list[Job]]:
        needed = self.tally.wanted.needed(samples)
        numbered: Iterable[tuple[int, Task]] = enumerate(map(Task.of, tasks))
        if (before := self._before) is not None and isinstance(tasks, list):
            # What an earlier process had complete counts first: what it had enough of is enough again.
            numbered = sorted(numbered, key=lambda one: before.complete_at(one[1], samples, needed))
        for number, task in numbered:
            check_new(task, self.tally.places)
            self.tally.expect(task, samples, number)
            if self._before is None:
                yield [Job(task.copy(), sample) for sample in range(samples)]
            else:
                jobs = self._before.jobs(task, samples, needed, scored=self.setup.reward is not None)
                self._scored += sum(job.unscored for job in jobs)
                yield jobs

    async def _ended(self, episode: Episode, restored: bool) -> bool:
        totals, tally = self.reporter.totals, self.tally
        totals.finished(episode, restored=restored)
        enough = await tally.add(episode)
        totals.groups(tally.kept, tally.dropped)
        totals.filter_errors = tally.filters.errors
        if self._on_episode is not None:
            told = self._on_episode(episode)
            if inspect.isawaitable(told):
                await told
        if not restored:
            self._alike.add(episode)
        return enough
