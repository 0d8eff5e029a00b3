"""What a run gives back: `RolloutResult`.

Invariant: iterating gives every episode of every kept group once, in the order of tasks and samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.group import Group
from strands_sglang.rollout.totals import RunMetrics


@dataclass(slots=True)
class RolloutResult:
    """The episodes of a run."""

    groups: list[Group]
    """The groups that were kept, in the order of their tasks; each with its episodes by the number of their sample."""
    metrics: RunMetrics
    """The numbers of the run, in this process."""
    dropped: list[Group] = field(default_factory=list)
    """Groups that a filter dropped, or that were not complete when the run had enough."""
    left_over: list[Episode] = field(default_factory=list)
    """Episodes of no group: cut short because there was enough without them."""
    directory: Path | None = None
    """Where the ledger is; None: there is none."""
    run_id: str = ""
    """Id of the run."""

    episodes: list[Episode] = field(init=False, repr=False)
    """Every episode of every kept group."""

    def __post_init__(self) -> None:
        self.episodes = [episode for group in self.groups for episode in group.episodes]

    def __iter__(self) -> Iterator[Episode]:
        return iter(self.episodes)

    def __len__(self) -> int:
        return len(self.episodes)

    @overload
    def __getitem__(self, place: int) -> Episode: ...
    @overload
    def __getitem__(self, place: slice) -> list[Episode]: ...
    def __getitem__(self, place: int | slice) -> Episode | list[Episode]:
        """Return an episode by its place."""
        return self.episodes[place]
