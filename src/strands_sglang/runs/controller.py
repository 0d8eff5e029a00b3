"""Controls one run: `RunController` turns tasks into episodes, runs or restores each, and collects them in groups.

`IdenticalFailures` stops a run whose first episodes all fail with the same error class: its configuration or code has
an error that every further episode would repeat. `InterruptHandler` reports Ctrl-C in one line: asyncio turns Ctrl-C
into a cancellation of the main task and then into a KeyboardInterrupt, whose long traceback has no useful information.

Invariant: every sample of every task that is run becomes one episode of the result, whichever process ran it. Once an
episode ends in another way, identical failures no longer stop the run; engine outages never do. Ctrl-C has the same
effect as without this module, and the process still ends by it (exit code 130 in a shell); only the output differs.
Other errors are shown unchanged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from strands_sglang._terminal import counted
from strands_sglang._version import __version__
from strands_sglang.errors import ConfigurationError, RequestRejectedError, RunStoppedError
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode, Failure
from strands_sglang.runs.groups import GroupCollector
from strands_sglang.runs.monitoring.metrics import RunMetrics
from strands_sglang.runs.monitoring.progress import Reporter
from strands_sglang.runs.monitoring.telemetry import run_span
from strands_sglang.runs.resume import PreviousRun
from strands_sglang.runs.scheduler import Scheduler, Worker
from strands_sglang.runs.task import Task
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec

logger = logging.getLogger(__name__)


class IdenticalFailures:
    """Counts the first episodes of a run that failed with the same error class."""

    def __init__(self, limit: int | None) -> None:
        """Set the number of identical failures that stops the run; None: the run is never stopped."""
        self._limit = limit
        self._count, self._others = 0, 0
        self._first: Failure | None = None

    def add(self, episode: Episode) -> None:
        """Count an episode that ended in this process.

        Raises:
            RunStoppedError: The first episodes, as many as stop the run, all failed with the same error class.
        """
        failure = episode.failure
        counts = failure is not None and _is_run_error(episode.end_reason, failure)
        if failure is None or not counts or (self._first is not None and self._first.kind != failure.kind):
            self._others += 1
            return
        self._first = self._first or failure
        self._count += 1
        if self._count == self._limit and not self._others:
            raise RunStoppedError(
                f"the first {counted(self._count, 'episode')} all failed with the same error, and the run was stopped: "
                f"{failure_line(self._first)}\n"
                "Fix the error and make the same call again: with a directory, it continues from the recorded turns. "
                "RunOptions(stop_after_failures=None) never stops a run for failures"
            )

    def log_if_all_failed(self) -> None:
        """Log an error if all episodes of the run failed with the same error class but were too few to stop it."""
        if self._first is not None and not self._others:
            logger.error(
                "episodes=<%d>, error=<%s> | all episodes failed with the same error",
                self._count,
                failure_line(self._first),
            )


def failure_line(failure: Failure) -> str:
    """Return a failure in one line: error class, message, and the innermost file and line of the traceback."""
    places = [line.strip() for line in failure.where.splitlines() if line.strip().startswith('File "')]
    return f"{failure.kind}: {failure.message}" + (f" ({places[-1]})" if places else "")


def _is_run_error(end_reason: EndReason, failure: Failure) -> bool:
    """Return whether a failure is an error of the agent's code or a rejected request, not an engine outage."""
    return end_reason is EndReason.AGENT_ERROR or (
        end_reason is EndReason.ENGINE_ERROR and failure.kind == RequestRejectedError.__name__
    )


class RunController:
    """Controller of one run."""

    reporter: Reporter
    """Counts episodes and turns and reports them; set before `run` is called."""

    def __init__(
        self,
        run_spec: RunSpec,
        previous_run: PreviousRun | None,
        collector: GroupCollector,
        on_episode: Callable[[Episode], Any] | None,
        stop_after_failures: int | None = None,
    ) -> None:
        """Prepare the run; nothing is started.

        Args:
            run_spec: Settings shared by all episodes.
            previous_run: State recovered from a previous run in the same directory; None: there was no previous run.
            collector: Collects episodes into groups.
            on_episode: Called with every episode that ends; None: nothing is called.
            stop_after_failures: Number of first episodes after which the run stops if all of them failed with the
                same error class; None: the run never stops for this.
        """
        self.run_spec = run_spec if previous_run is None else replace(run_spec, run=previous_run.run["run"])
        """Settings shared by all episodes; a resumed run keeps its run id."""
        self.collector = collector
        """Collects episodes into groups."""
        self._previous_run, self._on_episode = previous_run, on_episode
        self._identical_failures = IdenticalFailures(stop_after_failures)
        self._scored = 0  # episodes of a previous run that are only scored in this one

    def may_sample(self, tasks: Iterable[Any], samples: int) -> bool:
        """Return whether the run may call the engine; True if `tasks` is not a list, because that is not read here."""
        if self._previous_run is None or not isinstance(tasks, list):
            return True
        needed = self.collector.stop_criteria.needed(samples)
        return any(self._previous_run.open(task, samples, needed) for task in tasks)

    async def run(
        self, tasks: Iterable[Any], samples: int, concurrency: int, workers: int, prefix_warmup: float | None
    ) -> None:
        """Run the episodes of all tasks; see `rollout` for the arguments."""
        total = self.reporter.totals.total
        with run_span(self.run_spec.run, samples_per_task=samples, total=total) as span:
            self.run_spec = replace(self.run_spec, trace=span.carrier)
            await self._run_all(tasks, samples, concurrency, workers, prefix_warmup)
            span.ended(self.reporter.totals.snapshot())

    async def _run_all(
        self, tasks: Iterable[Any], samples: int, concurrency: int, workers: int, prefix_warmup: float | None
    ) -> None:
        worker = self._worker(workers, concurrency)
        try:
            self._open_run(worker.fingerprint, samples)
            schedule = Scheduler(
                worker,
                self._groups(tasks, samples),
                concurrency=concurrency,
                prefix_warmup=prefix_warmup,
                on_begin=lambda spec: self.reporter.totals.began(spec.id),
                on_turn=self.reporter.turn,
                on_end=self._ended,
            )
            self.collector.on_complete = lambda task: schedule.stop_task(task.id)
            await schedule.run()
        finally:
            await worker.close()
        self._identical_failures.log_if_all_failed()
        totals = self.reporter.totals.snapshot()
        if self._scored:
            logger.info("episodes=<%d> | recorded episodes without a score were scored without sampling", self._scored)
        elif totals.restored and totals.restored == totals.done:
            logger.warning(
                "directory=<%s>, episodes=<%d> | all episodes were read from the directory and none was run; use a new "
                "directory for a new run",
                self.run_spec.directory,
                totals.done,
            )
        if self.run_spec.directory is not None:
            await asyncio.get_running_loop().run_in_executor(None, seal, self.run_spec.directory)

    def _worker(self, workers: int, concurrency: int) -> Worker:
        if workers == 0:
            return LocalWorker(self.run_spec)
        from strands_sglang.runs.workers.ray_pool import RayPool

        pool = RayPool(self.run_spec, workers, concurrency)
        self.reporter.totals.unreachable = pool.unreachable_seconds
        return pool

    def _open_run(self, fingerprint: dict[str, str], samples: int) -> None:
        """Write run.json for a new run, or check that the recorded run can be resumed; no-op without a ledger."""
        if self._previous_run is not None:
            self._previous_run.check(fingerprint)
            ended, unfinished = len(self._previous_run.finished), len(self._previous_run.unfinished)
            logger.info(
                "run=<%s>, ended=<%d>, unfinished=<%d> | resuming a recorded run",
                self.run_spec.run,
                ended,
                unfinished,
            )
            if self._previous_run.run.get("settings") != (settings := self.run_spec.settings()):
                logger.warning(
                    "settings=<%s> | settings differ from those the run started with (see run.json)", settings
                )
        elif self.run_spec.directory is not None:
            base: dict[str, Any] = {"run": self.run_spec.run, "created": time.time(), "package": __version__}
            if (name := self.run_spec.tokenizer_name()) is not None:
                base["tokenizer"] = name
            write_run(
                self.run_spec.directory,
                {
                    **base,
                    "samples_per_task": samples,
                    "fingerprint": fingerprint,
                    "settings": self.run_spec.settings(),
                },
            )

    def _groups(self, tasks: Iterable[Any], samples: int) -> Iterator[list[EpisodeSpec]]:
        needed = self.collector.stop_criteria.needed(samples)
        numbered: Iterable[tuple[int, Task]] = enumerate(map(Task.of, tasks))
        if (previous := self._previous_run) is not None and isinstance(tasks, list):
            # Groups that the previous run completed come first, so that a run that had enough groups has enough again.
            numbered = sorted(numbered, key=lambda one: previous.complete_at(one[1], samples, needed))
        for number, task in numbered:
            check_new(task, self.collector.by_task)
            self.collector.expect(task, samples, number)
            if self._previous_run is None:
                yield [EpisodeSpec(task.copy(), sample) for sample in range(samples)]
            else:
                specs = self._previous_run.specs(task, samples, needed, scored=self.run_spec.reward is not None)
                self._scored += sum(spec.unscored for spec in specs)
                yield specs

    async def _ended(self, episode: Episode, restored: bool) -> bool:
        totals, collector = self.reporter.totals, self.collector
        totals.finished(episode, restored=restored)
        enough = await collector.add(episode)
        totals.groups(collector.kept, collector.dropped)
        totals.filter_errors = collector.filters.errors
        if self._on_episode is not None:
            returned = self._on_episode(episode)
            if inspect.isawaitable(returned):
                await returned
        if not restored:
            self._identical_failures.add(episode)
        return enough


_reported = False  # whether a line was printed that replaces the traceback of the next KeyboardInterrupt


class InterruptHandler:
    """Detects Ctrl-C while its `with` block runs; outside the main thread it does nothing."""

    def __init__(self) -> None:
        self.seen = False
        """Whether Ctrl-C was pressed."""
        self._previous_handler: Any = None
        self._handler: Any = None

    def __enter__(self) -> InterruptHandler:
        global _reported
        _reported = False
        previous = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(previous):
            self._previous_handler, self._handler = previous, self._on_signal
            signal.signal(signal.SIGINT, self._handler)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None and signal.getsignal(signal.SIGINT) is self._handler:
            signal.signal(signal.SIGINT, self._previous_handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        self._previous_handler(number, frame)

    def report(self, line: str) -> None:
        """Print a line to stderr in place of the traceback, if Ctrl-C was pressed; does nothing otherwise."""
        global _reported
        if not self.seen or _reported:
            return
        _reported = True
        print(line, file=sys.stderr, flush=True)
        if sys.excepthook is not _quiet:
            _quiet.previous = sys.excepthook
            sys.excepthook = _quiet


class _Quiet:
    """An `excepthook` that hides a KeyboardInterrupt that was already reported in one line."""

    previous: Callable[[type[BaseException], BaseException, TracebackType | None], Any] = sys.__excepthook__

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        global _reported
        reported, _reported = _reported, False
        if not (reported and issubclass(kind, KeyboardInterrupt)):
            self.previous(kind, error, traceback)


_quiet = _Quiet()


def interrupted_line(run: RunMetrics, directory: Path | None) -> str:
    """Return the line about an interrupted run: what is on disk, and how to resume it.

    Args:
        run: Metrics of the run.
        directory: Directory of the ledger; None if no ledger is written.
    """
    done = counted(run.done, "episode") if run.total is None else f"{run.done:,} of {counted(run.total, 'episode')}"
    if directory is None:
        return f"interrupted after {done}: nothing was saved; pass directory= to rollout to save and resume a run"
    saved = f"{done} and the recorded turns of the others"
    return f"interrupted: {saved} are saved in {directory}; to resume: {this_command()}"


def this_command() -> str:
    """Return the command line that this process was started with."""
    return shlex.join(sys.orig_argv)


def check_new(task: Task, seen: Collection[str]) -> None:
    """Raise ConfigurationError if the id of a task is among the ids `seen`."""
    if task.id in seen:
        raise ConfigurationError(
            f"task ids must be unique within a run, got {task.id!r} twice (prompt {task.prompt!r:.80}); without an id "
            "of its own, a task has a digest of its content as its id. Remove one of the tasks, or give them different "
            "ids; to run several episodes of one task, use samples_per_task"
        )
