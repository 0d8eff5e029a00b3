"""What becomes of every token on record: `TokenCounts`.

Invariant: every sampled token is trained once, or is in exactly one of the counts that say why not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields

from strands_sglang.proof.calls import CallFacts
from strands_sglang.proof.flat import FlatTrajectory


@dataclass(slots=True)
class TokenCounts:
    """Tokens of an episode or a run, each counted once however many branches share it."""

    trained: int = 0
    """Sampled, with loss mask 1 in one trajectory."""
    rejected: int = 0
    """Sampled, and thrown away by the agent."""
    side: int = 0
    """Sampled for the framework itself: a summary, say."""
    constrained: int = 0
    """Sampled under a grammar."""
    cut: int = 0
    """Sampled, and cut away when a resumed agent went another way."""
    unfinished: int = 0
    """Sampled in episodes without an end, whatever their purpose."""
    context: int = 0
    """Rendered from the template."""
    closing: int = 0
    """Added to close turns that were cut."""
    shared: int = 0
    """Places where a token trained in an earlier branch stands in a later one, masked. No further tokens."""

    @property
    def sampled(self) -> int:
        """All that were sampled."""
        return self.trained + self.rejected + self.side + self.constrained + self.cut + self.unfinished

    def count(
        self,
        turns: Sequence[CallFacts],
        trained: Collection[int],
        trajectories: Iterable[FlatTrajectory],
        *,
        finished: bool,
    ) -> None:
        """Count the tokens of an episode.

        Args:
            turns: Its turns.
            trained: Ids of those that are trained somewhere.
            trajectories: Its trajectories.
            finished: Whether it has an end: before that nothing is trained.
        """
        for turn in turns:
            self.context += len(turn.context)
            self.closing += len(turn.closing)
            if not finished:
                self.unfinished += len(turn.sampled)
            elif turn.purpose == "side":
                self.side += len(turn.sampled)
            elif turn.purpose == "constrained":
                self.constrained += len(turn.sampled)
            elif turn.turn not in trained:
                self.rejected += len(turn.sampled)
        if not finished:
            return
        for flat in trajectories:
            loss = int(flat.loss_mask.sum(dtype=int))
            self.trained += loss
            self.shared += sum(len(turns[id].sampled) for id in flat.turn_ids if id in trained) - loss

    def add(self, other: TokenCounts) -> None:
        """Add the counts of another episode."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def to_dict(self) -> dict[str, int]:
        """Return it as plain data."""
        return {**asdict(self), "sampled": self.sampled}
