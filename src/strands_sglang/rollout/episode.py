"""One finished episode: `Episode`, what a run gives back for each sample of each task.

Invariant: what it says is what the ledger says; one that was read back equals the one that was written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strands_sglang.engine.routed_experts import RoutedExperts
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.half_turn import HalfTurn
from strands_sglang.rollout.measures import EpisodeMetrics
from strands_sglang.rollout.reward import Reward
from strands_sglang.rollout.task import Task
from strands_sglang.tokens import TokenTree, Trajectory


@dataclass(frozen=True, slots=True)
class Failure:
    """What broke in an episode."""

    kind: str
    """Name of the error's class."""
    message: str
    """Its words."""
    where: str = ""
    """Its traceback; "" where there is none."""


@dataclass(slots=True)
class Episode:
    """One agent on one task, from its beginning to its end."""

    id: str
    """Task id, "/", number of the sample."""
    task: Task
    """What it was asked."""
    sample: int
    """Number among the samples of its task, from 0."""
    ended: Ended
    """Why it ended."""
    source: TokenTree | Callable[[], TokenTree] = field(repr=False)
    """All its turns, or how to get them (they may still be on another machine)."""
    score: Reward = field(default_factory=Reward)
    """What it is worth, in full."""
    metrics: EpisodeMetrics = field(default_factory=EpisodeMetrics)
    """What it used."""
    failure: Failure | None = None
    """What broke; None when nothing did."""
    text: str = ""
    """The agent's last words."""
    conversation: list[dict[str, Any]] | Callable[[], list[dict[str, Any]]] = field(default_factory=list, repr=False)
    """Its messages, or how to get them; see `messages`."""
    epoch: int = 0
    """How often it was resumed."""
    time: float = 0.0
    """When it ended, in seconds since 1970."""
    record: EpisodeRecord | None = field(default=None, repr=False)
    """Of one that was set aside (`Ended.SUSPENDED`): what it goes on from; else None."""
    halves: list[HalfTurn] = field(default_factory=list, repr=False)
    """Of one that was set aside: the turns that were cut; they are in none of its trajectories."""
    earlier: dict[int, int] = field(default_factory=dict, repr=False)
    """Tokens of each turn, by its id, that were sampled before the episode was last taken up again."""
    routed_experts: dict[int, RoutedExperts] = field(default_factory=dict, repr=False)
    """The experts of each branch, by the id of its last turn, where they were asked for."""
    restored: bool = False
    """Whether an earlier process ran it, and this one read it back."""

    @property
    def reward(self) -> float | None:
        """What it is worth in one number; None when nobody scored it, or scoring failed (see `score.error`)."""
        return self.score.value

    @property
    def tree(self) -> TokenTree:
        """All its turns."""
        if not isinstance(self.source, TokenTree):
            self.source = self.source()
        return self.source

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The agent's conversation.

        Of a graph, a swarm or a function those of its agents one after the other. Of one that was read back from the
        ledger, as far as it is plain data.
        """
        if not isinstance(self.conversation, list):
            self.conversation = self.conversation()
        return self.conversation

    @property
    def trajectories(self) -> list[Trajectory]:
        """Every branch laid flat; each sampled token is trained in one of them only."""
        return self.tree.trajectories()
