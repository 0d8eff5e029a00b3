"""Compares two runs, or two trainings, on the tasks that both have: `compare` returns the difference of their rewards.

Invariants: a task is compared with itself only: tasks with one id and different prompts are no pair. The overall
difference is the mean over tasks of the difference of their mean rewards, with Student's t interval over tasks, as
`evaluate` computes its figures; the difference of one task has Welch's interval. An interval that the data does not
determine is None. What is not compared is counted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strands_sglang._terminal import counted, escape_for_terminal, natural_key, table
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.figures import Figures, evaluation_apart
from strands_sglang.ledger.folder import find_runs, is_run, last_steps, newest_attempts
from strands_sglang.ledger.run_dir import check_format
from strands_sglang.ledger.summary import run_rows
from strands_sglang.runs.offline.evaluation import Estimate, Interval, mean_interval, t_quantile

Rewards = Mapping[str, Sequence[float]]
"""Rewards by task."""


@dataclass(frozen=True, slots=True)
class TaskDifference:
    """The difference of one task."""

    id: str
    first: float
    """Mean reward."""
    second: float
    counts: tuple[int, int]
    difference: Estimate
    """The second mean minus the first."""

    @property
    def change(self) -> str:
        """Return "better" or "worse" if the interval excludes 0, "higher", "lower" or "equal" otherwise."""
        value, interval = self.second - self.first, self.difference.interval
        if value and interval is not None and not interval[0] <= 0 <= interval[1]:
            return "better" if value > 0 else "worse"
        return "equal" if not value else "higher" if value > 0 else "lower"

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as plain data."""
        return {
            **{"task": self.id, "first": self.first, "second": self.second, "counts": list(self.counts)},
            **{"difference": self.difference.to_dict(), "change": self.change},
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs on the same tasks."""

    tasks: list[TaskDifference]
    """Tasks that both have rewards for, in natural order."""
    reward: Estimate
    """Mean over these tasks of the second mean reward minus the first."""
    passed: Estimate
    """The same for the share of rewards of at least `threshold`."""
    means: tuple[float | None, float | None]
    """Mean over these tasks of the mean rewards of each."""
    shares: tuple[float | None, float | None]
    """The same for the share of rewards of at least `threshold`."""
    only: tuple[int, int]
    """Number of tasks that only one of them has rewards for."""
    other: int
    """Number of tasks whose id is in both, with another prompt in each."""
    threshold: float
    confidence: float

    def counts(self) -> dict[str, int]:
        """Return the number of tasks by change."""
        names = ("better", "higher", "equal", "lower", "worse")
        return {name: sum(task.change == name for task in self.tasks) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            **{
                "threshold": self.threshold,
                "confidence": self.confidence,
                "means": list(self.means),
                "shares": list(self.shares),
            },
            **{"reward": self.reward.to_dict(), "passed": self.passed.to_dict()},
            **{"only": list(self.only), "other": self.other},
            **{"counts": self.counts(), "tasks": [task.to_dict() for task in self.tasks]},
        }

    def text(self, names: tuple[str, str], most: int | None = None) -> str:
        """Return the comparison as text with at most `most` tasks, those that differ most first; None: all."""
        first, second = map(escape_for_terminal, names)
        counts, percent = self.counts(), f"{100 * self.confidence:g}%"
        alone = [
            f"{counted(n, 'task')} only in {name}" for n, name in zip(self.only, (first, second), strict=True) if n
        ]
        if self.other:
            alone.insert(0, f"{counted(self.other, 'task')} with the same id and another prompt, left out")
        lines = [f"A: {first}", f"B: {second}", f"{counted(len(self.tasks), 'task')} in both" + _listed(alone), ""]
        rows = [
            ("", "A", "B", "B - A", f"{percent} interval"),
            ("mean reward", *_pair(self.means), _signed(self.reward.value), _bounds(self.reward.interval)),
            ("passed", *_pair(self.shares), _signed(self.passed.value), _bounds(self.passed.interval)),
        ]
        lines += [*table(rows, right=(1, 2, 3)), ""]
        clear = f"{counts['better']:,} better, {counts['worse']:,} worse ({percent} interval without 0)"
        rest = f"{counts['higher']:,} higher, {counts['lower']:,} lower, {counts['equal']:,} equal"
        lines += [f"tasks: {clear}; without a clear difference: {rest}", ""]
        ordered = sorted(self.tasks, key=lambda one: (-abs(one.second - one.first), natural_key(one.id)))
        shown = ordered if most is None else ordered[:most]
        cells = [("task", "A", "B", "B - A", f"{percent} interval", "samples", "change")]
        for task in shown:
            means = (*_pair((task.first, task.second)), _signed(task.second - task.first))
            samples = f"{task.counts[0]:,} / {task.counts[1]:,}"
            cells.append(
                (escape_for_terminal(task.id), *means, _bounds(task.difference.interval), samples, task.change)
            )
        lines += table(cells, right=(1, 2, 3))
        if len(shown) < len(ordered):
            lines.append(f"and {counted(len(ordered) - len(shown), 'more task')}")
        return "\n".join(lines)


def compare_figures(first: Figures, second: Figures, *, threshold: float = 1.0, confidence: float = 0.95) -> Comparison:
    """Return the comparison of two runs from their figures; see `compare`."""
    both = first.tasks.keys() & second.tasks.keys()
    other = {id for id in both if first.tasks[id].questions != second.tasks[id].questions}
    rewards = [{id: task.rewards for id, task in one.tasks.items()} for one in (first, second)]
    return compare(*rewards, other=other, threshold=threshold, confidence=confidence)


def compare(
    first: Rewards,
    second: Rewards,
    *,
    other: Collection[str] = (),
    threshold: float = 1.0,
    confidence: float = 0.95,
) -> Comparison:
    """Return the comparison of the rewards of two runs.

    Args:
        first: Rewards by task, what is compared with.
        second: Rewards by task, what is compared.
        other: Ids that name another question in each: these tasks are counted, and not compared.
        threshold: Reward from which an episode passes.
        confidence: Probability that an interval covers the true difference.
    """
    known = [{id for id, rewards in one.items() if rewards} for one in (first, second)]
    tasks = []
    both = known[0] & known[1]
    for id in sorted(both.difference(other), key=natural_key):
        a, b = first[id], second[id]
        estimate = Estimate(_mean(b) - _mean(a), difference_interval(a, b, confidence), len(a) + len(b))
        tasks.append(TaskDifference(id, _mean(a), _mean(b), (len(a), len(b)), estimate))
    shares = [(_share(first[one.id], threshold), _share(second[one.id], threshold)) for one in tasks]
    return Comparison(
        tasks=tasks,
        reward=_over_tasks([one.second - one.first for one in tasks], confidence),
        passed=_over_tasks([b - a for a, b in shares], confidence),
        means=_means([(one.first, one.second) for one in tasks]),
        shares=_means(shares),
        only=(len(known[0] - known[1]), len(known[1] - known[0])),
        other=len(both.intersection(other)),
        threshold=threshold,
        confidence=confidence,
    )


def difference_interval(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return Welch's interval of the second mean minus the first, its degrees of freedom rounded down.

    None for fewer than two values on either side, or if neither varies.
    """
    if min(len(first), len(second)) < 2:
        return None
    parts = [math.fsum((x - _mean(one)) ** 2 for x in one) / (len(one) - 1) / len(one) for one in (first, second)]
    if (variance := sum(parts)) <= 0:
        return None
    spread = sum((part / variance) ** 2 / (len(one) - 1) for part, one in zip(parts, (first, second), strict=True))
    half = t_quantile(confidence, max(1, math.floor(1 / spread + 1e-9))) * math.sqrt(variance)
    middle = _mean(second) - _mean(first)
    return middle - half, middle + half


def recorded_figures(directory: Path | str, last: int | None = None) -> Figures:
    """Return the figures of a recorded run, or of a training's steps; `last`: of its last steps only.

    Of a step that the trainer repeated, the newest attempt counts. Evaluations within a training are left out.
    """
    folder = Path(directory)
    paths = [folder]
    if not is_run(folder):
        steps = [one for one in newest_attempts(find_runs(folder)) if one.training == folder.resolve().name]
        paths = [one.path for one in last_steps(steps, last)]
    if not paths:
        raise LedgerError(
            f"{directory} must be the directory of a run or of a training, but has no run.json, no ledger, and no "
            "folders such as step-000000"
        )
    for path in paths:
        check_format(path)
    return Figures.merged(Figures.of(path.name, evaluation_apart(run_rows(path))[0]) for path in paths)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _means(pairs: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    return (_mean([a for a, _ in pairs]), _mean([b for _, b in pairs])) if pairs else (None, None)


def _share(rewards: Sequence[float], threshold: float) -> float:
    return sum(reward >= threshold for reward in rewards) / len(rewards)


def _over_tasks(differences: Sequence[float], confidence: float) -> Estimate:
    if not differences:
        return Estimate(None)
    return Estimate(_mean(differences), mean_interval(differences, confidence), len(differences))


def _pair(values: tuple[float | None, float | None]) -> tuple[str, str]:
    first, second = ("-" if value is None else f"{value:.4g}" for value in values)
    return first, second


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4g}"


def _bounds(interval: Interval | None) -> str:
    return "" if interval is None else f"[{interval[0]:+.4g}, {interval[1]:+.4g}]"


def _listed(parts: Sequence[str]) -> str:
    return "".join(f"; {part}" for part in parts)
