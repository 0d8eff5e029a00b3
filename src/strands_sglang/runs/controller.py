"""Controls one run: `RunController` turns tasks into episodes, runs or restores each, and collects them in groups.

Invariant: every sample of every task that is run becomes one episode of the result, whichever process ran it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from strands_sglang._version import __version__
from strands_sglang.ledger.event import CallData, data_of
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.runs.episode import Episode, TurnCounts
from strands_sglang.runs.experiment import experiment_of, origin, served_model
from strands_sglang.runs.groups import GroupCollector
from strands_sglang.runs.monitoring.progress import Reporter
from strands_sglang.runs.monitoring.telemetry import carrier_of, run_ended, run_span
from strands_sglang.runs.resume import PreviousRun
from strands_sglang.runs.scheduler import Scheduler, Worker
from strands_sglang.runs.stop_criteria import FirstFailures
from strands_sglang.runs.task import Task, check_unique
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec

logger = logging.getLogger(__name__)

_VERSION_SECONDS = 1.0  # between two looks at the engine's weight version


def open_run(
    run_spec: RunSpec,
    previous_run: PreviousRun,
    fingerprint: dict[str, str],
    samples: int | None,
    allow_changed: Collection[str] = (),
) -> None:
    """Write run.json for a new run, or check that the recorded run can be resumed; no-op without a ledger.

    `samples` None: the number of samples of a task is not known.
    """
    if previous_run.run:
        previous_run.check(fingerprint, allow_changed)
        logger.info(
            "run=<%s>, ended=<%d>, unfinished=<%d> | resuming a recorded run",
            run_spec.run,
            len(previous_run.finished),
            len(previous_run.unfinished),
        )
    elif run_spec.directory is not None:
        about: dict[str, Any] = {"run": run_spec.run, "created": time.time(), "package": __version__}
        if (name := run_spec.tokenizer_name()) is not None:
            about["tokenizer"] = name
        if samples is not None:
            about["samples_per_task"] = samples
        about |= {"fingerprint": fingerprint, "settings": run_spec.settings(), "origin": origin(run_spec.client)}
        write_run(run_spec.directory, about)


class RunController:
    """Controller of one run."""

    reporter: Reporter
    """Counts episodes and turns and reports them; set before `run` is called."""

    def __init__(
        self,
        run_spec: RunSpec,
        previous_run: PreviousRun,
        collector: GroupCollector,
        on_episode: Callable[[Episode], Any] | None,
        stop_if_first_fail: int | None = None,
        allow_changed: Collection[str] = (),
    ) -> None:
        """Prepare the run; nothing is started. None: no callback, no early stop."""
        self.run_spec = replace(run_spec, run=previous_run.run.get("run", run_spec.run))
        """A resumed run keeps its run id."""
        self.collector = collector
        self._previous_run, self._on_episode = previous_run, on_episode
        self._first_failures, self._allow_changed = FirstFailures(stop_if_first_fail), allow_changed
        self._scored = 0  # episodes of a previous run that are only scored in this one

    def may_sample(self, tasks: Iterable[Any], samples: int) -> bool:
        """Return whether the run may call the engine; True if `tasks` is not a list, because that is not read here."""
        if not isinstance(tasks, list):
            return True
        needed = self.collector.stop_criteria.needed(samples)
        return any(self._previous_run.open(task, samples, needed) for task in tasks)

    async def run(
        self, tasks: Iterable[Any], samples: int, concurrency: int, workers: int, prefix_warmup: float | None
    ) -> None:
        """Run the episodes of all tasks; see `rollout` for the arguments."""
        totals = self.reporter.totals
        if self.run_spec.directory is not None:
            model = await served_model(self.run_spec.client)
            self.run_spec = replace(self.run_spec, experiment=experiment_of(self.run_spec, model))
        with run_span(self.run_spec.run, samples_per_task=samples, total=totals.total) as span:
            self.run_spec = replace(self.run_spec, trace=carrier_of(span))
            worker = self._worker(workers, concurrency)
            try:
                open_run(self.run_spec, self._previous_run, worker.fingerprint, samples, self._allow_changed)
                schedule = Scheduler(
                    worker,
                    self._groups(tasks, samples),
                    concurrency=concurrency,
                    prefix_warmup=prefix_warmup,
                    on_begin=self._began,
                    on_turn=self._turn,
                    on_end=self._ended,
                )
                self.collector.on_complete = lambda task: schedule.stop_task(task.id)
                self.collector.on_retry = lambda task, first: schedule.add(self._retried(task, samples, first))
                watching = asyncio.ensure_future(self._stop_stale(schedule))
                try:
                    await schedule.run()
                finally:
                    watching.cancel()
                    await asyncio.wait({watching})
            finally:
                await worker.close()
                if self.collector.gate is not None:
                    await self.collector.gate.close()
            await self._close_run()
            run_ended(span, totals.snapshot())

    async def _close_run(self) -> None:
        """Log what the run has shown, and seal its ledger."""
        self._first_failures.log_if_all_failed()
        totals, directory = self.reporter.totals.snapshot(), self.run_spec.directory
        if self._scored:
            logger.info("episodes=<%d> | recorded episodes without a score were scored without sampling", self._scored)
        elif totals.restored and totals.restored == totals.done:
            logger.warning(
                "directory=<%s>, episodes=<%d> | all episodes were read from the directory and none was run; use a new "
                "directory for a new run",
                directory,
                totals.done,
            )
        if directory is not None:
            await asyncio.get_running_loop().run_in_executor(None, seal, directory)

    def _worker(self, workers: int, concurrency: int) -> Worker:
        if workers == 0:
            return LocalWorker(self.run_spec)
        from strands_sglang.runs.workers.ray_pool import RayPool

        pool = RayPool(self.run_spec, workers, concurrency)
        self.reporter.totals.unreachable = pool.unreachable_seconds
        return pool

    def _groups(self, tasks: Iterable[Any], samples: int) -> Iterator[list[EpisodeSpec]]:
        needed = self.collector.stop_criteria.needed(samples)
        numbered: Iterable[tuple[int, Task]] = enumerate(map(Task.of, tasks))
        if self._previous_run.run and isinstance(tasks, list):
            # Groups that the previous run completed come first, so that a run that had enough groups has enough again.
            numbered = sorted(numbered, key=lambda one: self._previous_run.complete_at(one[1], samples, needed))
        for number, task in numbered:
            check_unique(task, self.collector.by_task)
            self.collector.expect(task, samples, number)
            specs = self._previous_run.specs(task, samples, needed, scored=self.run_spec.reward is not None)
            self._scored += sum(spec.unscored for spec in specs)
            yield specs

    def _retried(self, task: Task, samples: int, first: int) -> list[EpisodeSpec]:
        """Return the episodes of a task that is run again because its group became too old."""
        totals, needed = self.reporter.totals, self.collector.stop_criteria.needed(samples)
        totals.total = None if totals.total is None else totals.total + samples
        return self._previous_run.specs(task, samples, needed, scored=self.run_spec.reward is not None, first=first)

    async def _stop_stale(self, schedule: Scheduler) -> None:
        """Stop running episodes whose group is too old after an update of the weights, until cancelled."""
        gate = self.collector.gate
        if gate is None or not gate.rule.stops_running:
            return
        try:
            while True:
                await asyncio.sleep(_VERSION_SECONDS)
                self.collector.discard_lost(await gate.current())
        except Exception as error:
            schedule.fail(error)

    def _began(self, spec: EpisodeSpec) -> None:
        self.reporter.totals.began(spec.id)
        for call in () if spec.record is None else spec.record.calls:
            versions = (span[0] for span in data_of(call, CallData)["versions"])
            self.collector.sampled(spec.task.id, spec.sample, versions)

    def _turn(self, spec: EpisodeSpec, counts: TurnCounts) -> None:
        self.reporter.totals.turn(counts.sampled, counts.cached, counts.prompt)
        self.collector.sampled(spec.task.id, spec.sample, counts.versions)

    async def _ended(self, episode: Episode, restored: bool) -> bool:
        totals, collector = self.reporter.totals, self.collector
        totals.finished(episode, restored=restored)
        enough = await collector.add(episode)
        totals.groups(collector.kept, collector.dropped, collector.filters.errors, collector.stale)
        if self._on_episode is not None:
            returned = self._on_episode(episode)
            if inspect.isawaitable(returned):
                await returned
        if not restored:
            self._first_failures.add(episode)
        return enough
