"""Results of runs: gathered in one small file, read back, and summarised with bootstrap intervals.

A line of the file is a run: its settings, its summary, and a list of values per metric, one for each step. Needs numpy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from arms import Tokens
from settings import Settings

FILE = Path(__file__).resolve().parent / "results" / "runs.jsonl"
"""The results in the repository."""
LAST = 10
"""Steps at the end of training over which metrics are averaged."""
ENOUGH = 5
"""Seeds that a bootstrap interval needs; with fewer, the smallest and the largest value are shown instead."""
COLLAPSED = 0.05
"""Success below which a policy counts as collapsed, if it stays below."""
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
        found = self.steps.get(metric) or [None] * len(self.steps["success"])
        return np.array([np.nan if value is None else value for value in found], dtype=np.float64)

    def first(self, metric: str) -> float:
        """Return a metric in the first step, whose episodes are sampled by the start policy."""
        return float(self.values(metric)[0])

    def last(self, metric: str) -> float:
        """Return the mean of a metric over the last steps."""
        return _mean(self.values(metric)[-LAST:])

    def final(self, metric: str) -> float:
        """Return a metric in the last step."""
        return float(self.values(metric)[-1])

    @property
    def collapse(self) -> int | None:
        """The step from which on success stays below 5 %; None if that is not so in the last ten steps."""
        above = np.flatnonzero(self.values("success") >= COLLAPSED)
        begins = int(above[-1]) + 1 if len(above) else 0
        return begins + 1 if begins <= len(self.values("success")) - LAST else None

    @property
    def without_gradient(self) -> int:
        """Number of steps whose gradient is exactly 0: no answer was right, or all were."""
        return int((self.values("grad_norm") == 0).sum())


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
    summary = {**lines[-1]["summary"], "code": lines[0].get("code")}
    return Run(Settings.from_dict(lines[0]["settings"]), summary, steps)


def collect(folders: Iterable[Path], file: Path = FILE) -> int:
    """Write the finished runs of some folders to one file, sorted; return their number."""
    paths = sorted(path for folder in folders for path in folder.glob("*.jsonl"))
    runs = {run.settings.name: run for path in paths if (run := read_run(path)) is not None}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as out:
        for _, run in sorted(runs.items()):
            steps = {
                name: [None if value is None else float(f"{value:.4g}") for value in values]
                for name, values in run.steps.items()
                if any(value is not None for value in values)
            }
            line = {"settings": asdict(run.settings), "summary": run.summary, "steps": steps}
            out.write(json.dumps(line, separators=(",", ":")) + "\n")
    return len(runs)


def load(file: Path = FILE) -> list[Run]:
    """Return the runs in the file that `collect` writes."""
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [Run(Settings.from_dict(one["settings"]), one["summary"], one["steps"]) for one in found]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, with a 95 % bootstrap interval or, for fewer than five seeds, the range of the values."""

    mean: float
    low: float
    high: float
    values: tuple[float, ...] = ()
    """The value of each seed."""

    @property
    def count(self) -> int:
        """Number of seeds."""
        return len(self.values)

    def text(self, places: int = 2, *, sign: bool = False) -> str:
        """Return the mean with its interval in brackets."""
        form = f"{{:{'+' if sign else ''}.{places}f}}"
        if self.count == 0:
            return "–"
        if self.count == 1:
            return form.format(self.mean)
        return f"{form.format(self.mean)} [{form.format(self.low)}, {form.format(self.high)}]"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of one value per seed, with percentiles of the means of resampled seeds.

    With two or three seeds such percentiles are little else than the smallest and the largest value, and would look
    like more than they are. Then the range itself is returned.
    """
    data = np.array([value for value in values if np.isfinite(value)], dtype=np.float64)
    if not len(data):
        return Interval(float("nan"), float("nan"), float("nan"))
    low, high = float(data.min()), float(data.max())
    if len(data) >= ENOUGH:
        picks = np.random.default_rng(0).integers(0, len(data), (RESAMPLES, len(data)))
        low, high = map(float, np.percentile(data[picks].mean(1), [2.5, 97.5]))
    return Interval(float(data.mean()), low, high, tuple(data.tolist()))


def permutation_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the exact two-sided p-value of a difference of means: all ways to divide the values into two groups."""
    values = np.array([*first, *second], dtype=np.float64)
    seen = abs(np.mean(first) - np.mean(second))
    total, count = values.sum(), len(first)
    sums = np.array([sum(chosen) for chosen in combinations(values.tolist(), count)])
    differences = np.abs(sums / count - (total - sums) / (len(values) - count))
    return float((differences >= seen - 1e-9).mean())


def start_of(runs: Iterable[Run], like: Run, metric: str = "success") -> float:
    """Return a metric of a start policy: the mean of the first step over all runs that begin with it."""
    same = [run for run in runs if run.settings.start_key == like.settings.start_key]
    return _mean(np.array([run.first(metric) for run in same]))


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


LIMIT = 1e-3
"""Largest mean difference between the trainer's logprobs and the engine's, per step, that counts as exact (float32)."""


def exactness(runs: Iterable[Run]) -> tuple[list[str], list[str]]:
    """Judge what must hold whatever is learned.

    In the arms that train sampled tokens, the trainer's logprobs are the engine's at every step and no turn is changed;
    all recorded episodes are proved. With top-p, this holds only where the kept sets are in the loss.

    Returns:
        Lines that say what was compared, and the problems; there are none if everything is exact.
    """
    given = [run for run in runs if run.settings.arm_fields.tokens in (Tokens.EXACT, Tokens.CANONICAL)]
    given = [run for run in given if run.settings.arm_fields.top_p == 1.0 or run.settings.arm_fields.kept]
    checked = [run for run in given if "verified" in run.summary]
    problems: list[str] = []
    for run in given:
        differences = run.values("exact_difference")
        if not (differences <= LIMIT).all():  # a missing value is a problem, too
            problems.append(f"{run.settings.name}: trainer minus engine is {differences.max():.2g} in some step")
        if run.values("changed").any():
            problems.append(f"{run.settings.name}: turns are not as sampled")
    for run in checked:
        found = run.summary["verified"]
        if found["proved"] != found["episodes"]:
            problems.append(
                f"{run.settings.name}: {found['proved']} of {found['episodes']} proved; {found['problems']}"
            )
    if not given:
        return ["nothing to judge: no run of an exact arm is finished"], ["no run of an exact arm is finished"]
    worst = max(float(run.values("exact_difference").max()) for run in given)
    steps = sum(len(run.steps["exact_difference"]) for run in given)
    episodes = sum(run.summary["verified"]["episodes"] for run in checked)
    sound = sum(run.summary["verified"]["proved"] for run in checked)
    return [
        f"trainer minus engine, exact arms: mean at most {worst:.1e} in each of {steps} steps (limit {LIMIT:g})",
        f"verify: {sound:,} of {episodes:,} recorded episodes proved",
    ], problems
