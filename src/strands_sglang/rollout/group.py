"""All episodes of one task: `Group`, the filters that keep or drop it, and `Wanted`, which says when there is enough.

Invariant: what counts as complete, kept and enough depends on numbers and rewards alone, never on time; more
episodes never make a complete group incomplete. A filter that raises drops nothing.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeAlias

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout.bounds import check_above_zero
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.reward import described
from strands_sglang.rollout.task import Task

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Group:
    """The finished episodes of one task, as a trainer compares them."""

    task: Task
    """What all of them were asked."""
    episodes: list[Episode] = field(default_factory=list)
    """Those that finished, by the number of their sample."""

    @property
    def rewards(self) -> list[float | None]:
        """The reward of each episode, in their order; None where there is none."""
        return [episode.reward for episode in self.episodes]

    @property
    def reward_mean(self) -> float | None:
        """Mean of the rewards there are; None: there are none."""
        scored = self._scored()
        return math.fsum(scored) / len(scored) if scored else None

    @property
    def reward_std(self) -> float | None:
        """Standard deviation of the rewards there are, divided by their number; None: there are none."""
        scored, mean = self._scored(), self.reward_mean
        if mean is None:
            return None
        return math.sqrt(math.fsum((reward - mean) ** 2 for reward in scored) / len(scored))

    def _scored(self) -> list[float]:
        return [reward for reward in self.rewards if reward is not None]


GroupFilter: TypeAlias = Callable[[Group], "bool | Awaitable[bool]"]
"""Says whether a group is worth training on. A plain function runs on the event loop: one that waits is async."""


def rewards_differ(group: Group) -> bool:
    """Return whether a group has at least two different rewards: else no episode is better than another.

    Episodes without a reward are passed over.
    """
    return len({reward for reward in group.rewards if reward is not None}) > 1


class Filters:
    """All filters of a run, asked in order until one drops the group."""

    def __init__(self, filters: Sequence[GroupFilter] = ()) -> None:
        """Take the filters.

        Args:
            filters: Each says whether a group is kept; none at all keeps everything.

        Raises:
            ConfigurationError: One of them is not a function.
        """
        self._filters = list(filters)
        for one in self._filters:
            if not callable(one):
                raise ConfigurationError(f"a filter is a function of a group, not {one!r:.200}")
        self._reported: set[int] = set()
        self.errors = 0
        """How often a filter raised."""

    async def keep(self, group: Group) -> bool:
        """Return whether every filter keeps the group.

        One that raises keeps it: to lose what was sampled is worse than to train on a group too many. Its first error
        is logged, all are counted.
        """
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
                        "filter=<%s>, task=<%s>, error=<%s> | a group filter raised and keeps what it cannot judge",
                        name,
                        group.task.id,
                        described(error, one),
                    )
        return True


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much a run is for; None: all there is."""

    groups: int | None = None
    """Groups to be kept; then the run ends and what is still under way is aborted."""
    samples: int | None = None
    """Episodes of a task that make its group complete; those still under way then are aborted."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            check_above_zero(f"Wanted.{one.name}", value, "whole number above 0 or None", whole=True)

    def needed(self, samples_per_task: int) -> int:
        """Return how many episodes complete a group of `samples_per_task`: never more than there are."""
        return samples_per_task if self.samples is None else min(self.samples, samples_per_task)

    def complete(self, finished: int, samples_per_task: int) -> bool:
        """Return whether a group is complete with `finished` episodes out of `samples_per_task`."""
        return finished >= self.needed(samples_per_task)

    def enough(self, kept: int) -> bool:
        """Return whether a run has enough with `kept` groups; one that wants all never has."""
        return self.groups is not None and kept >= self.groups

    def within_reach(self, kept: int, open_groups: int) -> bool:
        """Return whether the groups wanted can still come together.

        Args:
            kept: Groups kept so far.
            open_groups: Groups not yet complete, begun or not.
        """
        return self.groups is None or kept + open_groups >= self.groups
