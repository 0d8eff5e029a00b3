"""Sends the metrics of a run to an experiment tracker: Weights & Biases, MLflow, TensorBoard, or your own object.

A tracker receives `RunMetrics.to_dict()` every `RunOptions.metrics_interval` seconds and at the end. The step is the
number of episodes that ended: it never decreases, also when a run is resumed. A run that the user has started in this
process is used and left open; otherwise a run is started, and ended with the rollout.

Invariant: a tracker that cannot start raises before anything runs; after that, an error of a tracker never stops the
run: it is logged, and the tracker is not called again. `log` never runs on the event loop, and is never called twice at
the same time.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from strands_sglang._checks import check_methods, install
from strands_sglang.errors import ConfigurationError
from strands_sglang.runs.monitoring.metrics import RunMetrics

logger = logging.getLogger(__name__)

_MLFLOW_TAG = "strands_sglang.run"  # tag of an MLflow run that names the rollout, so that a resumed one is found
_LAST_SECONDS = 30.0  # that the last points may take at the end of a run


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """Run metadata for a tracker."""

    id: str
    """Id of the run; a resumed run keeps it."""
    name: str
    """Name for people: the name of the run's directory, or the start of its id."""
    directory: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the run as plain data: samples per task, concurrency, limits, sampling parameters, ..."""


class Tracker(Protocol):
    """Interface of a tracker. `begin` and `end` are called in the thread of the run, `log` in another one."""

    def begin(self, run: TrackedRun) -> None:
        """Start tracking. An error stops the run before it starts."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record metrics by name; `step` is the number of episodes that ended and never decreases."""

    def end(self, failed: bool) -> None:
        """Stop tracking; `failed`: whether the run raised or was interrupted."""


class WandbTracker:
    """Weights & Biases. A run that is active is used, and its steps are left to whoever started it."""

    def __init__(self) -> None:
        self._wandb = _imported("wandb", "wandb")
        self._run: Any = None
        self._ours = False

    def begin(self, run: TrackedRun) -> None:
        """Use the active run, or start one that a resumed rollout continues."""
        self._run = self._wandb.run
        if self._run is None:
            self._ours = True
            self._run = self._wandb.init(id=run.id or None, name=run.name, resume="allow", config=run.settings)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record metrics."""
        if self._ours:
            self._run.log(dict(metrics), step=step)
        else:  # stored with the next step of the run's owner
            self._run.log({**metrics, "rollout/step": step}, commit=False)

    def end(self, failed: bool) -> None:
        """Finish the run, if it was started here."""
        if self._ours:
            self._run.finish(exit_code=int(failed))


class MlflowTracker:
    """MLflow. Metrics are sent by the run's id, because MLflow's active run belongs to a thread."""

    def __init__(self) -> None:
        self._mlflow = _imported("mlflow", "mlflow")
        self._client: Any = None
        self._id = ""
        self._ours = False

    def begin(self, run: TrackedRun) -> None:
        """Use the active run, the one of the rollout that is resumed, or start one."""
        active = self._mlflow.active_run()
        if active is None:
            self._ours = True
            earlier = self._earlier(run)
            if earlier is not None:
                active = self._mlflow.start_run(run_id=earlier)
            else:
                active = self._mlflow.start_run(run_name=run.name, tags={_MLFLOW_TAG: run.id})
                self._mlflow.log_params({name: str(value)[:500] for name, value in _flat(run.settings).items()})
        self._id = active.info.run_id
        self._client = self._mlflow.MlflowClient()

    def _earlier(self, run: TrackedRun) -> str | None:
        """Return the id of the MLflow run that an earlier process started for the same rollout; None: there is none."""
        if run.directory is None or not run.id.isalnum():
            return None
        wanted = f"tags.`{_MLFLOW_TAG}` = '{run.id}'"
        found = self._mlflow.search_runs(filter_string=wanted, max_results=1, output_format="list")
        return str(found[0].info.run_id) if found else None

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record metrics in one request."""
        now = int(time.time() * 1000)
        points = [self._mlflow.entities.Metric(name, float(value), now, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=points)

    def end(self, failed: bool) -> None:
        """End the run, if it was started here."""
        if self._ours:
            self._mlflow.end_run("FAILED" if failed else "FINISHED")


class TensorBoardTracker:
    """TensorBoard, by its own writer: event files in `<directory>/tensorboard`, or in `runs/<name>` without one."""

    def __init__(self) -> None:
        self._summary = _imported("tensorboard.summary", "tensorboard")
        self._writer: Any = None

    def begin(self, run: TrackedRun) -> None:
        """Open an event file."""
        folder = Path("runs", run.name) if run.directory is None else run.directory / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = self._summary.Writer(str(folder))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record metrics."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)
        self._writer.flush()

    def end(self, failed: bool) -> None:
        """Close the event file."""
        self._writer.close()


TRACKERS: dict[str, Callable[[], Tracker]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
    "tensorboard": TensorBoardTracker,
}


def tracker_for(tracker: str | Tracker | None) -> Tracker | None:
    """Return the tracker for the `tracker` argument of `rollout`, None: none; ConfigurationError if it is unusable."""
    if tracker is None:
        return None
    if isinstance(tracker, str):
        if tracker not in TRACKERS:
            names = ", ".join(map(repr, TRACKERS))
            raise ConfigurationError(
                f"tracker must be one of {names}, or an object with begin, log and end, got {tracker!r}"
            )
        return TRACKERS[tracker]()
    check_methods("a tracker", tracker, "begin", "log", "end")
    return tracker


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(f"tracker={extra!r} needs {extra} ({error}): {install(extra)}") from error


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


class Tracking:
    """Calls a tracker while its `async with` block runs."""

    def __init__(self, tracker: Tracker | None, run: TrackedRun) -> None:
        """Prepare tracking; `tracker` None: nothing is tracked."""
        self._tracker, self._run = tracker, run
        self._threads: ThreadPoolExecutor | None = None
        self._latest: Future[None] | None = None
        self._step = 0
        self._broken = False  # whether it failed, so that only `end` is still called

    async def __aenter__(self) -> Tracking:
        if self._tracker is not None:
            try:
                self._tracker.begin(self._run)
            except Exception as error:
                name = type(self._tracker).__name__
                raise ConfigurationError(f"{name} could not start: {type(error).__name__}: {error}") from error
            self._threads = ThreadPoolExecutor(1, "tracker")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._threads is None or self._tracker is None:
            return
        self._threads.shutdown(wait=False)
        if self._latest is not None:
            waiting = asyncio.get_running_loop().run_in_executor(None, wait_for, [self._latest], _LAST_SECONDS)
            done = (await asyncio.shield(waiting)).done
            if not done:
                self._broken = True
                logger.warning("seconds=<%d> | tracker did not accept the last metrics", _LAST_SECONDS)
        try:
            self._tracker.end(kind is not None)
        except Exception as error:
            self._failed(error)

    def send(self, snapshot: RunMetrics, *, last: bool = False) -> None:
        """Send metrics; those that come while the tracker is busy are dropped, except for the `last` ones of a run."""
        busy = self._latest is not None and not self._latest.done()
        if self._threads is None or (busy and not last):
            return
        values = {name: value for name, value in snapshot.to_dict().items() if math.isfinite(value)}
        self._step = max(self._step, snapshot.done)
        self._latest = self._threads.submit(self._log, values, self._step)

    def _log(self, metrics: Mapping[str, float], step: int) -> None:
        if self._tracker is None or self._broken:
            return
        try:
            self._tracker.log(metrics, step)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._broken = True
        name, message = type(self._tracker).__name__, f"{type(error).__name__}: {error}"
        logger.warning("tracker=<%s>, error=<%s> | tracker failed and is not called again", name, message)
