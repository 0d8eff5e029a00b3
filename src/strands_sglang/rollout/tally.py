"""Episodes as they come in, put together into groups: `Tally`.

Invariant: an episode is counted once. A group is judged once, when it is complete; what comes in later for it is kept
apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.group import Filters, Group, Wanted
from strands_sglang.rollout.task import Task


@dataclass(slots=True)
class Place:
    """The group of one task, and what became of it."""

    group: Group
    """Its episodes so far, in the order in which they ended."""
    number: int
    """Which task it is, counted from 0."""
    expected: int
    """Episodes that can come in."""
    ended: int = 0
    """Episodes that ended, cut short ones included."""
    failed: list[Episode] = field(default_factory=list)
    """Episodes that failed: they complete no group while better ones may still come."""
    complete: bool = False
    """Whether it has all its episodes."""
    kept: bool = False
    """Whether the filters keep it, once it is complete."""


@dataclass(slots=True)
class Tally:
    """The groups of a run."""

    wanted: Wanted
    """When a group is complete, and when there are enough."""
    filters: Filters
    """Which groups are kept."""
    complete: Callable[[Task], None] = lambda task: None
    """Called when a group is complete before all its episodes have ended."""
    places: dict[str, Place] = field(default_factory=dict)
    """The group of each task, by its id."""
    left_over: list[Episode] = field(default_factory=list)
    """Episodes that are part of no group: cut short, or too late."""
    kept: int = 0
    """Groups that the filters kept."""
    dropped: int = 0
    """Groups that they did not."""

    def expect(self, task: Task, samples: int, number: int | None = None) -> None:
        """Expect so many episodes of a task; `number`: which one it is, None: the next."""
        self.places[task.id] = Place(Group(task), len(self.places) if number is None else number, samples)

    @property
    def enough(self) -> bool:
        """Whether no more episodes are wanted."""
        return self.wanted.enough(self.kept)

    async def add(self, episode: Episode) -> bool:
        """Take an episode in.

        Returns:
            Whether there are enough groups now.
        """
        place = self.places[episode.task.id]
        place.ended += 1
        if episode.ended is Ended.CUT_SHORT or place.complete or self.enough:
            self.left_over.append(episode)
        elif episode.ended.failed:
            place.failed.append(episode)
        else:
            place.group.episodes.append(episode)
        good = len(place.group.episodes)
        exhausted = good + len(place.failed) == place.expected
        if not place.complete and (exhausted or self.wanted.complete(good, place.expected)):
            await self._judge(place, place.group.episodes if exhausted else self.left_over)
        return self.enough

    async def _judge(self, place: Place, failed: list[Episode]) -> None:
        """Close a group that is complete and see whether it is kept; `failed`: where those go that failed."""
        place.complete = True
        failed.extend(place.failed)
        place.group.episodes.sort(key=lambda one: one.sample)
        if place.ended < place.expected:
            self.complete(place.group.task)
        kept = await self.filters.keep(place.group)
        place.kept = kept and not self.enough  # while the filters looked, another group may have been the last wanted
        self.kept += place.kept
        self.dropped += not place.kept

    def groups(self, kept: bool) -> list[Group]:
        """Return the groups that were kept, or that were dropped, in the order of their tasks.

        A group whose last episodes were cut short with the run was judged by nobody, and counts as dropped.
        """
        places = sorted(self.places.values(), key=lambda place: place.number)
        return [place.group for place in places if place.kept is kept and place.group.episodes]
