"""Collects the episodes of a run into groups, one per task (`GroupCollector`), and returns them as a `RunResult`.

Invariant: whether a group is kept depends only on its episodes, never on time. A filter that raises drops nothing. Each
episode is counted once. The filters are called once for each group, when it is complete; episodes that end later
are added to `left_over`. A `RunResult` contains every episode of every kept group once, in the order of tasks and
samples.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, overload

from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.fingerprint import differing
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode, Staleness, StalenessDecision
from strands_sglang.runs.monitoring.metrics import RunMetrics
from strands_sglang.runs.reward import describe_error
from strands_sglang.runs.staleness import StalenessGate
from strands_sglang.runs.stop_criteria import StopCriteria
from strands_sglang.runs.task import Task

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Group:
    """The finished episodes of one task, as a trainer compares them.

    Example:
        >>> advantages = [reward - group.reward_mean for reward in group.rewards if reward is not None]
    """

    task: Task
    episodes: list[Episode] = field(default_factory=list)
    """The finished episodes, ordered by sample number."""

    @property
    def rewards(self) -> list[float | None]:
        """The reward of each episode, aligned with `episodes`; None for an episode without a reward."""
        return [episode.reward for episode in self.episodes]

    @property
    def reward_mean(self) -> float | None:
        """Mean over the episodes that have a reward; None if no episode has one."""
        scored = self._scored()
        return math.fsum(scored) / len(scored) if scored else None

    @property
    def reward_std(self) -> float | None:
        """Population standard deviation over the episodes that have a reward; None if no episode has one."""
        scored, mean = self._scored(), self.reward_mean
        if mean is None:
            return None
        return math.sqrt(math.fsum((reward - mean) ** 2 for reward in scored) / len(scored))

    @property
    def mixed(self) -> dict[str, dict[str, int]]:
        """The parts of the experiment in which the episodes differ: each value with its number of episodes.

        Empty unless `RunOptions.allow_changed` allowed it, or a corrected agent continued recorded turns, whose episode
        then has both values. Advantages within a mixed group compare two experiments.
        """
        return differing([one.fingerprint, *one.earlier_fingerprints] for one in self.episodes)

    def _scored(self) -> list[float]:
        return [reward for reward in self.rewards if reward is not None]


GroupFilter: TypeAlias = Callable[[Group], "bool | Awaitable[bool]"]
"""A function, plain or async, that returns whether to keep a complete `Group`. It must not block the event loop."""


def rewards_differ(group: Group) -> bool:
    """Return whether a group has different rewards, None ignored: otherwise group-relative advantages are all zero."""
    return len({reward for reward in group.rewards if reward is not None}) > 1


class GroupFilters:
    """All filters of a run, called in order until one drops the group."""

    def __init__(self, filters: Sequence[GroupFilter] = ()) -> None:
        """Store the filters; without filters every group is kept. ConfigurationError if one is not callable."""
        self._filters = list(filters)
        for one in self._filters:
            if not callable(one):
                raise ConfigurationError(f"a filter must be a function of a Group, got {one!r:.200}")
        self._reported: set[int] = set()
        self.errors = 0

    async def keep(self, group: Group) -> bool:
        """Return whether every filter keeps the group. One that raises keeps it, so that no episodes are lost."""
        for number, one in enumerate(self._filters):
            try:
                answer = one(group)
                if not (await answer if inspect.isawaitable(answer) else answer):
                    return False
            except Exception as error:
                self.errors += 1
                if number not in self._reported:
                    self._reported.add(number)
                    name = getattr(one, "__name__", type(one).__name__)
                    logger.warning(
                        "filter=<%s>, task=<%s>, error=<%s> | group filter raised, group is kept (logged once)",
                        name,
                        group.task.id,
                        describe_error(error, one),
                    )
        return True


@dataclass(slots=True)
class _GroupState:
    group: Group
    """The group; its episodes are in the order in which they ended, and sorted by sample once it is complete."""
    number: int
    expected: int
    ended: int = 0
    """Number of episodes that ended, including those stopped as `not_needed`."""
    failed: list[Episode] = field(default_factory=list)
    """Episodes that failed. They count towards a complete group only when no other episode is outstanding."""
    complete: bool = False
    kept: bool = False
    first: int = 0
    """Number of the first sample; above 0 if the task is run again because its group became too old."""
    versions: dict[int, set[str | None]] = field(default_factory=dict)
    """Weight versions of the tokens that its episodes sampled so far, by sample number."""


@dataclass(slots=True)
class GroupCollector:
    """The groups of a run."""

    stop_criteria: StopCriteria
    filters: GroupFilters
    on_complete: Callable[[Task], None] = lambda task: None
    """Called when a group is complete before all episodes of its task have ended."""
    gate: StalenessGate | None = None
    """Decides whether a complete group is too old; None: none is."""
    on_retry: Callable[[Task, int], None] = lambda task, first: None
    """Called with a task that is run again, and the number of its first new sample."""
    by_task: dict[str, _GroupState] = field(default_factory=dict)
    replaced: list[Group] = field(default_factory=list)
    """Groups that were too old, of tasks that were run again."""
    left_over: list[Episode] = field(default_factory=list)
    """As `RunResult.left_over`."""
    kept: int = 0
    dropped: int = 0
    stale: int = 0
    """Groups that were too old; part of `dropped`."""
    _open: dict[str, _GroupState] = field(default_factory=dict)
    """Groups that are not complete and have tokens, by task."""
    _lost: dict[tuple[str, int], Staleness] = field(default_factory=dict)
    """What was decided about groups that were too old, by task and by how often it was run again before."""

    def expect(self, task: Task, samples: int, number: int | None = None) -> None:
        """Register a task and its number of episodes; `number`: index of the task, None: those registered so far."""
        self.by_task[task.id] = _GroupState(Group(task), len(self.by_task) if number is None else number, samples)

    @property
    def enough(self) -> bool:
        """Whether the run has enough kept groups."""
        return self.stop_criteria.enough(self.kept)

    async def add(self, episode: Episode) -> bool:
        """Add an episode that ended; return whether the run has enough groups now."""
        entry = self.by_task[episode.task.id]
        self.sampled(episode.task.id, episode.sample, episode.metrics.versions)
        attempt = episode.sample // entry.expected
        if self.gate is not None and (decided := self._lost.get((episode.task.id, attempt))) is not None:
            self.gate.note(episode, decided)
        if episode.sample < entry.first:  # of a group that was replaced
            self.left_over.append(episode)
            return self.enough
        entry.ended += 1
        if episode.end_reason is EndReason.NOT_NEEDED or entry.complete or self.enough:
            self.left_over.append(episode)
        elif episode.end_reason.failed:
            entry.failed.append(episode)
        else:
            entry.group.episodes.append(episode)
        good = len(entry.group.episodes)
        exhausted = good + len(entry.failed) == entry.expected
        if not entry.complete and (exhausted or good >= self.stop_criteria.needed(entry.expected)):
            await self._close(entry, entry.group.episodes if exhausted else self.left_over)
        return self.enough

    async def _close(self, entry: _GroupState, failed_to: list[Episode]) -> None:
        """Close a complete group and apply the filters; its failed episodes are appended to `failed_to`."""
        entry.complete = True
        failed_to.extend(entry.failed)
        entry.group.episodes.sort(key=lambda one: one.sample)
        if entry.ended < entry.expected:
            self.on_complete(entry.group.task)
        if self.gate is not None:
            fresh = self._is_fresh(entry, await self.gate.current())
            await self.gate.flushed()
        else:
            fresh = not any(one.staleness is not None and one.staleness.dropped for one in entry.group.episodes)
        kept = fresh and await self.filters.keep(entry.group)
        entry.kept = kept and not self.enough  # another group may have become the last one while a filter was awaited
        self.kept += entry.kept
        self.dropped += not entry.kept

    def sampled(self, task: str, sample: int, versions: Iterable[str | None]) -> None:
        """Register the weight versions of tokens of an episode that is running or has ended."""
        entry, versions = self.by_task[task], set(versions)
        if self.gate is not None:
            self.gate.sampled(versions)
        if not entry.complete and sample >= entry.first:
            entry.versions.setdefault(sample, set()).update(versions)
            self._open[task] = entry

    def discard_lost(self, current: str | None) -> None:
        """Drop the groups that are not complete and too old already, and stop their running episodes."""
        if self.gate is None or not self.gate.rule.stops_running:
            return
        # A group that is complete already is just being decided.
        for entry in [one for one in self._open.values() if not one.complete and self._is_lost(one, current)]:
            # Nothing is awaited from here on: the run does not end before the task is run again.
            entry.complete = True
            self.left_over.extend(entry.failed)
            self.on_complete(entry.group.task)
            self.dropped += 1
            self._is_fresh(entry, current, others=set().union(*entry.versions.values()))

    def _is_lost(self, entry: _GroupState, current: str | None) -> bool:
        """Return whether a group has an episode that is too old, or cannot be complete without one."""
        assert self.gate is not None
        rule, ended = self.gate.rule, {one.sample for one in entry.group.episodes}
        old = {sample for sample, versions in entry.versions.items() if rule.stale(versions, current)}
        return not old.isdisjoint(ended) or entry.expected - len(old) < self.stop_criteria.needed(entry.expected)

    def _is_fresh(self, entry: _GroupState, current: str | None, others: Iterable[str | None] = ()) -> bool:
        """Return whether a complete group may be trained; if not, its task may be run again.

        `others`: weight versions of episodes that are not in the group.
        """
        assert self.gate is not None
        task, attempt = entry.group.task, entry.first // entry.expected
        self._open.pop(task.id, None)
        retry = attempt < self.gate.rule.retries and not self.enough
        decided = self.gate.decide(entry.group.episodes, current, retry=retry, others=others)
        if not decided.dropped:
            return True
        self.stale += 1
        self._lost[task.id, attempt] = decided
        if decided.decision is StalenessDecision.RETRIED:
            self.replaced.extend([entry.group] if entry.group.episodes else [])
            first = entry.first + entry.expected
            self.by_task[task.id] = _GroupState(Group(task), entry.number, entry.expected, first=first)
            self.on_retry(task, first)
        return False

    def groups(self, kept: bool) -> list[Group]:
        """Return the kept groups, or the dropped ones with those not complete, in the order of their tasks."""
        entries = sorted(self.by_task.values(), key=lambda entry: entry.number)
        found = [entry.group for entry in entries if entry.kept is kept and entry.group.episodes]
        return found if kept else [*self.replaced, *found]


@dataclass(slots=True)
class RunResult:
    """The episodes and metrics of a run: a sequence of the episodes of all kept groups.

    Example:
        >>> run = await rollout(build, tasks, ..., samples_per_task=4)
        >>> print(len(run), run[0].reward, run.metrics.reward_mean, run.groups[0].rewards)
    """

    groups: list[Group]
    """The kept groups, in the order of their tasks; the episodes of each are ordered by sample number."""
    metrics: RunMetrics
    dropped: list[Group] = field(default_factory=list)
    """Groups that a filter dropped, that were too old, or that were not complete when the run had enough groups."""
    left_over: list[Episode] = field(default_factory=list)
    """Episodes in no group: stopped as `not_needed`, or failed or ended when their group was complete without them."""
    directory: Path | None = None
    """Directory of the ledger; None if no ledger was written."""
    run_id: str = ""

    episodes: list[Episode] = field(init=False, repr=False)
    """The episodes of all kept groups, in the order of tasks and samples."""

    def __post_init__(self) -> None:
        self.episodes = [episode for group in self.groups for episode in group.episodes]

    def __iter__(self) -> Iterator[Episode]:
        return iter(self.episodes)

    def __len__(self) -> int:
        return len(self.episodes)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> list[Episode]: ...
    def __getitem__(self, index: int | slice) -> Episode | list[Episode]:
        return self.episodes[index]
