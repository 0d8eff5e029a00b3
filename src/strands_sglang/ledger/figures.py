"""Figures of many episodes, computed from their summary rows: `Figures`, with those of each task (`TaskFigures`).

Figures of steps, of weight versions and of whole runs are the same class: `Figures.of` computes them, `merged` adds
them up.

Invariants: figures state nothing that is not in the rows. Merged figures equal those of all rows together, except that
a group (the samples of one task in one run) stays a group of its own. An episode that has not ended is only counted.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from strands_sglang._terminal import natural_key
from strands_sglang.ledger.summary import SummaryRow

_MEANS = {"turns": "turns", "tokens": "tokens", "sampled": "sampled_tokens", "tool_calls": "tool_calls",
          "failed_calls": "failed_calls", "seconds": "seconds", "engine_seconds": "engine_seconds",
          "tool_seconds": "tool_seconds"}  # fmt: skip
"""Figures that are means over episodes, and their columns."""
_SUMMED = (*_MEANS.values(), "prompt_tokens", "cached_tokens", "tool_errors")
_TRUNCATED = ("turn_truncated", "token_limit", "turn_limit", "context_length", "timeout", "tool_limit")
_FAILED = ("engine_error", "tool_unavailable", "other_model_error", "agent_error")
_MOST_KINDS = 8
_MOST_PARTS = 32
_LARGEST_REWARD = 1e60  # beyond it, sums of squares overflow
_NUMBER = re.compile(r"(\d{1,15})\D*$")
_KIND = re.compile(r"[-_/.:# ]?\d+$")

EVALUATION_TASK = "eval."
"""What the id of a task begins with if an evaluation within a run asks it."""
Place = tuple[str, str]
"""Name of a run and id of an episode."""


@dataclass(slots=True)
class TaskFigures:
    """The figures of one task."""

    task: str
    prompt: str = ""
    questions: set[str] = field(default_factory=set)
    """Digests of its prompts: several if its id stands for several questions."""
    episodes: int = 0
    rewards: array[float] = field(default_factory=lambda: array("d"))
    places: list[Place] = field(default_factory=list)
    """Where the episode of each reward is."""
    groups: int = 0
    """Groups with at least two rewards."""
    equal: int = 0
    """The groups in which all rewards are equal: nothing can be learnt from them."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        best, worst = self.extreme(max), self.extreme(min)
        mean, std = mean_and_std(self.rewards)
        low, high = (None, None) if not self.rewards else (min(self.rewards), max(self.rewards))
        return {
            **{"task": self.task, "prompt": self.prompt, "episodes": self.episodes, "scored": len(self.rewards)},
            **{"mean": mean, "std": std, "low": low, "high": high, "best": best, "worst": worst},
            **{"groups": self.groups, "equal": self.equal},
        }

    def extreme(self, choose: Any) -> Place | None:
        """Return where the best (`max`) or worst (`min`) episode is; of several, the newest. None without rewards."""
        if not self.rewards:
            return None
        last = len(self.rewards) - 1
        return self.places[last - self.rewards[::-1].index(choose(self.rewards))]


class Figures:
    """The figures of a set of episodes."""

    __slots__ = ("_first_versions", "ends", "episodes", "names", "newest", "parts", "stated", "sums", "tasks", "times")

    def __init__(self) -> None:
        """No episodes yet."""
        self.episodes = 0
        self.ends: Counter[str] = Counter()
        """Number of ended episodes by end reason."""
        self.sums: Counter[str] = Counter()
        self.parts: Counter[str] = Counter()
        """Sum of each named part of the rewards."""
        self.stated: Counter[str] = Counter()
        """Number of rewards that have the part."""
        self.tasks: dict[str, TaskFigures] = {}
        self.names: dict[str, None] = {}
        """Names of weight versions."""
        self.newest: int | None = None
        """Number of the newest weight version; None: no version has a number."""
        self._first_versions = [0, 0]  # sum and count of the oldest version of each episode
        self.times: tuple[float, float] | None = None
        """Unix times at which the first and the last episode ended."""

    @classmethod
    def of(cls, run: str, rows: Iterable[SummaryRow]) -> Figures:
        """Return the figures of rows of one run; `run`: its name."""
        figures = cls()
        for row in sorted(rows, key=lambda row: row["id"]):  # sums do not depend on the order of reading
            figures._add(run, row)
        for task in figures.tasks.values():
            task.groups = int(len(task.rewards) > 1)
            task.equal = int(task.groups and min(task.rewards) == max(task.rewards))
        return figures

    @classmethod
    def merged(cls, parts: Iterable[Figures]) -> Figures:
        """Return the figures of all parts together."""
        whole = cls()
        for part in parts:
            whole._merge(part)
        return whole

    def _add(self, run: str, row: SummaryRow) -> None:
        self.episodes += 1
        task = self.tasks.setdefault(row["task_id"], TaskFigures(row["task_id"], row["prompt"]))
        task.episodes += 1
        if row["question"]:
            task.questions.add(row["question"])
        reward = row["reward"]
        if reward is not None and abs(reward) <= _LARGEST_REWARD:
            task.rewards.append(reward)
            task.places.append((run, row["id"]))
        parts = {name: part for name, part in row["parts"].items() if abs(part) <= _LARGEST_REWARD}
        self.parts.update(parts)
        self.stated.update(parts.keys())
        if row["end_reason"] is None:
            return
        self.ends[row["end_reason"]] += 1
        values: Any = row
        for name in _SUMMED:
            self.sums[name] += values[name]
        self.names.update(dict.fromkeys(name for name in row["versions"] if name is not None))
        numbers = [number for name in row["versions"] if (number := version_number(name)) is not None]
        if numbers:
            self.newest = max(numbers) if self.newest is None else max(self.newest, *numbers)
            self._first_versions[0] += min(numbers)
            self._first_versions[1] += 1
        if row["end_time"] is not None:
            self._span(row["end_time"], row["end_time"])

    def _span(self, first: float, last: float) -> None:
        known = self.times or (first, last)
        self.times = min(first, known[0]), max(last, known[1])

    def _merge(self, part: Figures) -> None:
        self.episodes += part.episodes
        self.ends.update(part.ends)
        self.sums.update(part.sums)
        self.parts.update(part.parts)
        self.stated.update(part.stated)
        self.names.update(part.names)
        if part.newest is not None:
            self.newest = part.newest if self.newest is None else max(self.newest, part.newest)
        for number in range(2):
            self._first_versions[number] += part._first_versions[number]
        if part.times is not None:
            self._span(*part.times)
        for id, task in part.tasks.items():
            known = self.tasks.setdefault(id, TaskFigures(id, task.prompt))
            known.episodes += task.episodes
            known.questions |= task.questions
            known.rewards.extend(task.rewards)
            known.places.extend(task.places)
            known.groups += task.groups
            known.equal += task.equal

    @property
    def ended(self) -> int:
        """Number of episodes that have ended."""
        return sum(self.ends.values())

    def rewards(self) -> list[float]:
        """Return all rewards; without those that are not finite, or so large that nothing can be computed of them."""
        return [reward for task in self.tasks.values() for reward in task.rewards]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data; None: the rows do not determine it."""
        ended, sums, rewards = self.ended, self.sums, self.rewards()
        mean, std = mean_and_std(rewards)
        first, known = self._first_versions
        groups, equal = sum(task.groups for task in self.tasks.values()), sum(one.equal for one in self.tasks.values())
        names = sorted(self.names, key=version_order)
        return {
            **{"episodes": self.episodes, "running": self.episodes - ended, "scored": len(rewards)},
            **{"reward": mean, "std": std, "low": min(rewards, default=None), "high": max(rewards, default=None)},
            "passed": _share(sum(reward >= 1 for reward in rewards), len(rewards)),
            **{"tasks": len(self.tasks), "groups": groups, "equal": _share(equal, groups)},
            **{name: _share(sums[column], ended) for name, column in _MEANS.items()},
            "cached": _share(sums["cached_tokens"], sums["prompt_tokens"]),
            "tool_errors": _share(sums["tool_errors"], sums["tool_calls"]),
            "truncated": _share(sum(self.ends[end] for end in _TRUNCATED), ended),
            "failed": _share(sum(self.ends[end] for end in _FAILED), ended),
            "age": None if self.newest is None or not known else self.newest - first / known,
            "versions": names if len(names) < 2 else [names[0], names[-1]],
            "ends": dict(self.ends.most_common()),
            "kinds": self._kinds(),
            "parts": {name: self.parts[name] / count for name, count in self.stated.most_common(_MOST_PARTS)},
            "from": None if self.times is None else self.times[0],
            "to": None if self.times is None else self.times[1],
        }

    def _kinds(self) -> dict[str, float]:
        """Return the mean reward of each kind of task: `add` of `add-1` and `add-2`. Empty for one kind, or many."""
        kinds: dict[str, list[float]] = {}
        for task in self.tasks.values():
            kinds.setdefault(_KIND.sub("", task.task), []).extend(task.rewards)
        if not 1 < len(kinds) <= _MOST_KINDS or len(kinds) == len(self.tasks) > 2:
            return {}
        return {kind: math.fsum(rewards) / len(rewards) for kind, rewards in sorted(kinds.items()) if rewards}


def mean_and_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean of values and their standard deviation (over their number); None without values."""
    if not values:
        return None, None
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def version_number(name: str | None) -> int | None:
    """Return the last number in the name of a weight version; None if there is none."""
    found = None if name is None else _NUMBER.search(name)
    return None if found is None else int(found[1])


def version_order(name: str) -> tuple[Any, ...]:
    """Return a key that sorts weight versions: names without a number, such as "default", are before the others."""
    return version_number(name) is not None, natural_key(name)


def by_version(run: str, rows: Iterable[SummaryRow]) -> dict[str, Figures]:
    """Return the figures of the groups that each weight version finished, by its name.

    A group is trained as a whole, so it counts as a whole for the newest version that finished one of its episodes.
    """
    groups: dict[str, list[SummaryRow]] = {}
    for row in rows:
        groups.setdefault(row["task_id"], []).append(row)
    parts: dict[str, list[SummaryRow]] = {}
    for group in groups.values():
        finished = [name for row in group if row["versions"] and (name := row["versions"][-1]) is not None]
        if finished:
            parts.setdefault(max(finished, key=version_order), []).extend(group)
    return {name: Figures.of(run, part) for name, part in parts.items()}


def evaluation_apart(rows: Iterable[SummaryRow]) -> tuple[list[SummaryRow], list[SummaryRow]]:
    """Return the rows of a run, and apart those of the evaluations within it: their tasks' ids begin with "eval.".

    A run with nothing but evaluations is whole.
    """
    parts: tuple[list[SummaryRow], list[SummaryRow]] = ([], [])
    for row in rows:
        parts[is_evaluation(row)].append(row)
    return parts if parts[0] else (parts[1], [])


def is_evaluation(row: SummaryRow) -> bool:
    """Return whether an episode belongs to an evaluation within a run, as slime makes them."""
    return row["task_id"].startswith(EVALUATION_TASK)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
