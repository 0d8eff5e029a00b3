"""Evaluates episodes: `evaluate` returns pass@k and mean rewards with confidence intervals, per task and overall.

Tasks are the independent units: samples of one task resemble each other, so an interval over all episodes would be too
narrow. Overall figures are means over tasks with Student's t interval; where the spread is 0, because pass@k is 0 or 1
for every task, with Wilson's. docs/cli.md explains the figures.

Invariants: an episode without a reward (failed, stopped, or its scoring failed) is counted and named, and enters no
figure unless the caller asks for it. An interval that the data does not determine is None.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

from strands_sglang._terminal import counted, escape_for_terminal, natural_key, table
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.summary import run_rows
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode

Interval = tuple[float, float]  # lower and upper bound
_NORMAL = 4000  # degrees of freedom from which the quantile of Student's t is the normal one to four digits


class RecordedTask(NamedTuple):
    """The part of a recorded task that is evaluated."""

    id: str


class RecordedScore(NamedTuple):
    """The part of a recorded episode that is evaluated."""

    task: RecordedTask
    reward: float | None
    end_reason: EndReason


Scored: TypeAlias = Episode | RecordedScore


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its confidence interval."""

    value: float | None
    """The figure; None: there is no data for it."""
    interval: Interval | None = None
    """None: the data does not determine them."""
    count: int = 0
    """Number of tasks, or of samples of one task, that it is computed from."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as plain data."""
        low, high = self.interval or (None, None)
        return {"value": self.value, "low": low, "high": high, "count": self.count}

    def text(self) -> str:
        """Return the figure in one line: `0.7083 [0.61, 0.81]`."""
        if self.value is None:
            return "-"
        bounds = "" if self.interval is None else f" [{self.interval[0]:.4g}, {self.interval[1]:.4g}]"
        return f"{self.value:.4g}{bounds}"


@dataclass(frozen=True, slots=True)
class TaskEvaluation:
    """The figures of one task."""

    id: str
    episodes: int
    rewards: tuple[float, ...]
    passed: int
    reward: Estimate
    pass_at: dict[int, Estimate]
    """Pass@k by k; k above the number of rewards are left out. Only k=1 has an interval."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            "task": self.id,
            "episodes": self.episodes,
            "scored": len(self.rewards),
            "passed": self.passed,
            "reward": self.reward.to_dict(),
            "pass_at": {str(k): one.to_dict() for k, one in self.pass_at.items()},
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The figures of a run."""

    tasks: list[TaskEvaluation]
    """The figures of each task, in the order of its first episode."""
    reward: Estimate
    pass_at: dict[int, Estimate]
    """pass@k over the tasks that have at least k rewards, by k."""
    threshold: float
    """Reward from which an episode passes."""
    confidence: float
    """Probability that an interval covers the true figure."""
    end_reasons: dict[str, int] = field(default_factory=dict)
    unscored: int = 0
    unscored_as_zero: bool = False
    """Whether these count as reward 0; otherwise they enter no figure."""

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return sum(task.episodes for task in self.tasks)

    @property
    def scored(self) -> int:
        """Number of rewards that the figures are computed from."""
        return sum(len(task.rewards) for task in self.tasks)

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as plain data."""
        return {
            "episodes": self.episodes,
            "scored": self.scored,
            "unscored": self.unscored,
            "unscored_as_zero": self.unscored_as_zero,
            "threshold": self.threshold,
            "confidence": self.confidence,
            "end_reasons": self.end_reasons,
            "reward": self.reward.to_dict(),
            "pass_at": {str(k): one.to_dict() for k, one in self.pass_at.items()},
            "tasks": [task.to_dict() for task in self.tasks],
        }

    def text(self, most: int | None = None) -> str:
        """Return the evaluation as text with at most `most` tasks; None: all."""
        lines = [self._about(), *table(self._overall_rows()), ""]
        head, *tasks = self._task_rows()
        shown = tasks if most is None else tasks[:most]
        lines += table([head, *([escape_for_terminal(cell) for cell in row] for row in shown)])
        if len(shown) < len(tasks):
            lines.append(f"and {counted(len(tasks) - len(shown), 'more task')}")
        return "\n".join(lines)

    def markdown(self) -> str:
        """Return the evaluation as Markdown: two tables."""
        lines = [self._about(), ""]
        for rows in (self._overall_rows(), self._task_rows()):
            head, *rest = [[_markdown(cell) for cell in row] for row in rows]
            lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
            lines += ["| " + " | ".join(row) + " |" for row in rest]
            lines.append("")
        return "\n".join(lines).rstrip()

    def _about(self) -> str:
        ends = ", ".join(f"{count:,} {escape_for_terminal(name)}" for name, count in self.end_reasons.items())
        counts = f"{counted(self.episodes, 'episode')} of {counted(len(self.tasks), 'task')}: {ends or 'none'}"
        treated = "counted as 0" if self.unscored_as_zero else "left out"
        missing = f"; {self.unscored:,} without a reward, {treated}" if self.unscored else ""
        return f"{counts}{missing}; an episode passes with a reward of at least {self.threshold:g}"

    def _overall_rows(self) -> list[Sequence[str]]:
        rows: list[Sequence[str]] = [("", f"{100 * self.confidence:g}% interval", "tasks")]
        rows.append(("mean reward", self.reward.text(), f"{self.reward.count:,}"))
        return rows + [(f"pass@{k}", one.text(), f"{one.count:,}") for k, one in self.pass_at.items()]

    def _task_rows(self) -> list[Sequence[str]]:
        ks = list(self.pass_at)
        head = ["task", "scored", "passed", "mean reward", *(f"pass@{k}" for k in ks)]
        rows: list[Sequence[str]] = [head]
        for task in self.tasks:
            passes = [task.pass_at[k].text() if k in task.pass_at else "-" for k in ks]
            scored = f"{len(task.rewards)} of {task.episodes}"
            rows.append([task.id, scored, f"{task.passed}", task.reward.text(), *passes])
        return rows


def evaluate(
    episodes: Iterable[Scored],
    *,
    ks: Iterable[int] | None = None,
    threshold: float = 1.0,
    confidence: float = 0.95,
    unscored_as_zero: bool = False,
) -> Evaluation:
    """Return pass@k and mean rewards of episodes, per task and overall.

    Args:
        episodes: The episodes, such as a `RunResult`.
        ks: The values of k; None: 1, 2, 4, ... up to the largest number of rewards of a task.
        threshold: Reward from which an episode passes.
        confidence: Probability that an interval covers the true figure, between 0 and 1.
        unscored_as_zero: Whether an episode without a reward counts as reward 0. Otherwise it enters no figure: a
            failure of the infrastructure says nothing about the model.

    Example:
        >>> print(evaluate(run, ks=(1, 8), threshold=0.5).markdown())
    """
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence must be between 0 and 1, such as 0.95, got {confidence!r}")
    if not math.isfinite(threshold):
        raise ConfigurationError(f"threshold must be a finite number, got {threshold!r}")
    groups: dict[str, list[Scored]] = {}
    for episode in episodes:
        groups.setdefault(episode.task.id, []).append(episode)
    everything = [episode for group in groups.values() for episode in group]
    rewards = {
        id: [0.0 if one.reward is None else one.reward for one in group if unscored_as_zero or one.reward is not None]
        for id, group in groups.items()
    }
    wanted = _checked_ks(ks, max(map(len, rewards.values()), default=0))
    tasks = [
        _task(id, len(group), rewards[id], [k for k in wanted if k <= len(rewards[id])], threshold, confidence)
        for id, group in groups.items()
    ]
    return Evaluation(
        tasks=tasks,
        reward=_overall([task.reward for task in tasks], confidence),
        pass_at={
            k: _overall([task.pass_at[k] for task in tasks if k in task.pass_at], confidence, share=True)
            for k in wanted
        },
        threshold=threshold,
        confidence=confidence,
        end_reasons=dict(Counter(one.end_reason.value for one in everything).most_common()),
        unscored=sum(one.reward is None for one in everything),
        unscored_as_zero=unscored_as_zero,
    )


def recorded_scores(directory: Path | str) -> tuple[list[RecordedScore], int]:
    """Return the scores of a recorded run's ended episodes, and the number of those not ended; reads no tokens."""
    known = {reason.value: reason for reason in EndReason}
    rows = sorted(run_rows(directory), key=lambda row: natural_key(row["id"]))
    scores = [
        RecordedScore(RecordedTask(row["task_id"]), row["reward"], known[row["end_reason"]])
        for row in rows
        if row["end_reason"] is not None and row["end_reason"] in known
    ]
    return scores, len(rows) - len(scores)


def _checked_ks(ks: Iterable[int] | None, most: int) -> list[int]:
    if ks is None:
        powers = [1 << number for number in range(max(most, 1).bit_length()) if 1 << number <= max(most, 1)]
        return sorted({*powers, max(most, 1)})
    chosen = sorted(set(ks))
    if not chosen or any(type(k) is not int or k < 1 for k in chosen):
        raise ConfigurationError(f"ks must be positive integers, got {chosen!r:.100}")
    return chosen


def _task(
    id: str, episodes: int, rewards: list[float], ks: Sequence[int], threshold: float, confidence: float
) -> TaskEvaluation:
    count, passed = len(rewards), sum(reward >= threshold for reward in rewards)
    mean = math.fsum(rewards) / count if rewards else None
    pass_at = {}
    for k in ks:
        interval = wilson_interval(passed, count, confidence) if k == 1 else None
        pass_at[k] = Estimate(pass_at_k(count, passed, k), interval, count)
    reward = Estimate(mean, mean_interval(rewards, confidence), count)
    return TaskEvaluation(id, episodes, tuple(rewards), passed, reward, pass_at)


def _overall(estimates: Sequence[Estimate], confidence: float, *, share: bool = False) -> Estimate:
    """Return the mean over tasks that have a value; `share`: the figures are probabilities."""
    known = [(one, one.value) for one in estimates if one.value is not None]
    values = [value for _, value in known]
    if not values:
        return Estimate(None)
    if len(values) == 1:
        return Estimate(values[0], known[0][0].interval, 1)
    interval = mean_interval(values, confidence)
    if share and interval is None and values[0] in (0.0, 1.0):
        interval = wilson_interval(math.fsum(values), len(values), confidence)
    if share and interval is not None:
        interval = max(interval[0], 0.0), min(interval[1], 1.0)
    return Estimate(math.fsum(values) / len(values), interval, len(values))


def _markdown(cell: str) -> str:
    """Return text of a table cell that Markdown and HTML leave as it is."""
    text = escape_for_terminal(cell).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join("\\" + one if one in "\\`*_[]|~!" else one for one in text)


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of `k` samples passes.

    It is the share of all subsets of `k` of the samples that contain one that passed: 1 - C(n-c, k) / C(n, k). Raising
    the pass rate to a power instead, 1 - (1 - c/n)^k, is biased.
    """
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(f"passed must be 0 to {samples} and k 1 to {samples}, got {passed} and {k}")
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return Student's t interval of the mean of independent values; None for fewer than two, or if all are equal."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    if variance <= 0:
        return None
    half = t_quantile(confidence, count - 1) * math.sqrt(variance / count)
    return mean - half, mean + half


def wilson_interval(passed: float, count: int, confidence: float = 0.95) -> Interval | None:
    """Return Wilson's interval of a proportion, right for few samples and at 0 and 1; None without trials."""
    if count < 1:
        return None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, square = passed / count, z * z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = z / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def t_quantile(confidence: float, freedom: int) -> float:
    """Return the t for which a Student variable is between -t and t with a probability.

    The distribution function of an integer number of degrees of freedom is a finite sum (Abramowitz and Stegun 26.7.3
    and 26.7.4), which is inverted by bisection.
    """
    if not 0 < confidence < 1 or freedom < 1:
        raise ValueError(f"confidence must be between 0 and 1 and freedom at least 1, got {confidence} and {freedom}")
    if freedom > _NORMAL:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _covered(middle, freedom) < confidence else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _covered(angle: float, freedom: int) -> float:
    """Return P(-t < T < t) for t = tan(angle) * sqrt(freedom)."""
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for number in range(1 + odd, freedom, 2):
        total += term
        term *= square * number / (number + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
