"""Results of runs: gathered in one small file, read back, and summarised with bootstrap intervals.

A line of the file is a run: its settings, its summary, and a list of values per metric, one for each step. Needs numpy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from settings import Settings

FILE = Path(__file__).resolve().parent / "results" / "runs.jsonl"
"""The results in the repository."""
WINDOW = 5
"""Steps at the beginning of training over which drift and success at the start are averaged."""
LAST = 10
"""Steps at the end of training over which metrics are averaged."""
RESAMPLES = 10_000


@dataclass(frozen=True)
class Run:
    """A finished run."""

    settings: Settings
    summary: dict[str, Any]
    steps: dict[str, list[float | None]]
    """Values by metric."""

    def values(self, metric: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return a metric, one value per step; NaN where it is missing."""
        return np.array([np.nan if value is None else value for value in self.steps[metric]], dtype=np.float64)

    def first(self, metric: str) -> float:
        """Return the mean of a metric over the first steps."""
        return _mean(self.values(metric)[:WINDOW])

    def last(self, metric: str) -> float:
        """Return the mean of a metric over the last steps."""
        return _mean(self.values(metric)[-LAST:])

    @property
    def gain(self) -> float:
        """Held-out success after training minus before."""
        return float(self.summary["end"]) - float(self.summary["start"])


def _mean(values: Any) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def read_run(path: Path) -> Run | None:
    """Return the run in a results file of `train.py`; None if it did not finish."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if not lines or "summary" not in lines[-1]:
        return None
    steps: dict[str, list[float | None]] = {}
    for line in lines[1:-1]:
        for name, value in line.items():
            if name != "step":
                steps.setdefault(name, []).append(value)
    return Run(Settings.from_dict(lines[0]["settings"]), lines[-1]["summary"], steps)


def collect(folders: Iterable[Path], file: Path = FILE) -> int:
    """Write the finished runs of some folders to one file, sorted; return their number."""
    paths = sorted(path for folder in folders for path in folder.glob("*.jsonl"))
    runs = {run.settings.name: run for path in paths if (run := read_run(path)) is not None}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as out:
        for _, run in sorted(runs.items()):
            line = {"settings": asdict(run.settings), "summary": run.summary, "steps": run.steps}
            out.write(json.dumps(line, separators=(",", ":")) + "\n")
    return len(runs)


def load(file: Path = FILE) -> list[Run]:
    """Return the runs in the file that `collect` writes."""
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [Run(Settings.from_dict(one["settings"]), one["summary"], one["steps"]) for one in found]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with a 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    count: int
    """Number of seeds; with one there is no interval, and low and high are the mean."""

    def text(self, places: int = 2, *, sign: bool = False) -> str:
        """Return the mean with its interval in brackets."""
        form = f"{{:{'+' if sign else ''}.{places}f}}"
        if self.count == 0:
            return "–"
        if self.count == 1:
            return form.format(self.mean)
        return f"{form.format(self.mean)} [{form.format(self.low)}, {form.format(self.high)}]"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of one value per seed with a bootstrap interval: percentiles of means of resampled seeds."""
    data = np.array([value for value in values if np.isfinite(value)], dtype=np.float64)
    if not len(data):
        return Interval(float("nan"), float("nan"), float("nan"), 0)
    if len(data) == 1:
        return Interval(float(data[0]), float(data[0]), float(data[0]), 1)
    picks = np.random.default_rng(0).integers(0, len(data), (RESAMPLES, len(data)))
    low, high = np.percentile(data[picks].mean(1), [2.5, 97.5])
    return Interval(float(data.mean()), float(low), float(high), len(data))


def band(runs: Sequence[Run], metric: str, smooth: int = 1) -> list[Interval]:
    """Return a metric per step over seeds, each step averaged with the `smooth` - 1 steps before it."""
    if not runs:
        return []
    length = min(len(run.steps[metric]) for run in runs)
    table = np.array([run.values(metric)[:length] for run in runs])
    smoothed = [[_mean(row[max(0, at - smooth + 1) : at + 1]) for at in range(length)] for row in table]
    return [interval(column) for column in np.array(smoothed).T.tolist()]


def paired(runs: Sequence[Run], baseline: Sequence[Run], value: Callable[[Run], float]) -> Interval:
    """Return the mean difference of two arms over the seeds that both have."""
    before = {run.settings.seed: value(run) for run in baseline}
    return interval([value(run) - before[run.settings.seed] for run in runs if run.settings.seed in before])


def select(runs: Iterable[Run], **wanted: Any) -> list[Run]:
    """Return the runs with some settings, sorted by seed."""
    found = [run for run in runs if all(getattr(run.settings, name) == value for name, value in wanted.items())]
    return sorted(found, key=lambda run: run.settings.seed)
