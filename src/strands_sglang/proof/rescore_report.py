"""What an engine said of recorded logprobs: `RescoreReport`.

Invariant: every sampled token of the trajectories that were looked at is compared once, or counted by why it was not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from strands_sglang.ledger.shown import counted, shown


class NotCompared(str, Enum):
    """Why a sampled token was not compared."""

    OTHER_VERSION = "other_version"
    """Other weights sampled it than the engine has now."""
    CONSTRAINED = "constrained"
    """It was sampled under a grammar, which is part of its logprob and not of a prompt's."""
    TEMPERATURE = "temperature"
    """It was sampled at a temperature other than 0 and 1, which is part of its logprob and not of a prompt's."""
    REFUSED = "refused"
    """The engine did not answer for its trajectory."""


class RescoreVerdict(str, Enum):
    """What can be said after asking an engine."""

    AGREES = "agrees"
    """Every logprob that was compared is within the tolerance."""
    DIFFERS = "differs"
    """Some are not."""
    NOTHING = "nothing"
    """Nothing could be compared, or the engine did not answer for all that could."""


@dataclass(frozen=True, slots=True)
class TurnScore:
    """How far an engine is from what is on record for one turn."""

    episode: str
    """Id of the episode."""
    turn: int
    """Id of the turn."""
    tokens: int
    """Sampled tokens that were compared."""
    largest: float
    """Largest difference of a logprob."""
    mean: float
    """Mean of the differences, all taken as positive."""
    beyond: int
    """Tokens whose difference is beyond the tolerance."""
    token: int
    """Position in the branch of the token with the largest difference."""


@dataclass(slots=True)
class RescoreReport:
    """Recorded logprobs against those of a live engine. `text` is for people, `to_dict` for programs."""

    url: str
    """Base URL of the engine."""
    model: str
    """What it says its model is."""
    weight_version: str | None
    """The version of its weights; None: it does not say."""
    tolerance: float
    """Largest difference that passes."""
    episodes: int = 0
    """Episodes that were looked at."""
    turns: list[TurnScore] = field(default_factory=list)
    """Every turn with tokens that were compared, by episode and turn."""
    not_compared: Counter[NotCompared] = field(default_factory=Counter)
    """Sampled tokens that were not compared."""
    failures: list[str] = field(default_factory=list)
    """What the engine said where it did not answer."""

    @property
    def tokens(self) -> int:
        """Sampled tokens that were compared."""
        return sum(score.tokens for score in self.turns)

    @property
    def largest(self) -> float:
        """Largest difference of all; 0 when nothing was compared."""
        return max((score.largest for score in self.turns), default=0.0)

    @property
    def mean(self) -> float:
        """Mean difference over all tokens that were compared; 0 when none were."""
        return sum(score.mean * score.tokens for score in self.turns) / (self.tokens or 1)

    @property
    def verdict(self) -> RescoreVerdict:
        """What can be said."""
        if any(score.beyond for score in self.turns):
            return RescoreVerdict.DIFFERS
        whole = self.turns and not self.not_compared[NotCompared.REFUSED]
        return RescoreVerdict.AGREES if whole else RescoreVerdict.NOTHING

    def note(self, score: TurnScore) -> None:
        """Add what was found for a turn, or for more of its tokens."""
        self.turns.append(score)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "verdict": self.verdict.value,
            "url": self.url,
            "model": self.model,
            "weight_version": self.weight_version,
            "tolerance": self.tolerance,
            "episodes": self.episodes,
            "tokens": self.tokens,
            "largest": self.largest,
            "mean": self.mean,
            "not_compared": {why.value: self.not_compared[why] for why in NotCompared},
            "failures": self.failures,
            "turns": [asdict(score) for score in self.turns],
        }

    def text(self, turns: int = 10) -> str:
        """Return it for people to read.

        Args:
            turns: How many of the turns beyond the tolerance are shown, the worst first.
        """
        left = ", ".join(f"{count:,} {why.value}" for why, count in self.not_compared.items() if count)
        lines = [
            f"{self.verdict.value.upper()}  {self.url}",
            f"  model        {self.model}, weights {self.weight_version or 'unknown'}",
            f"  compared     {counted(self.tokens, 'token')} of {counted(len(self.turns), 'turn')}, "
            f"{counted(self.episodes, 'episode')}",
            f"  not compared {left or 'none'}",
            f"  difference   largest {self.largest:.3g}, mean {self.mean:.3g}, tolerance {self.tolerance:g}",
        ]
        beyond = sorted((score for score in self.turns if score.beyond), key=lambda score: -score.largest)
        lines += [
            f"    episode {score.episode}, turn {score.turn}: {score.beyond} of {score.tokens} tokens differ, "
            f"by {score.largest:.3g} at token {score.token}"
            for score in beyond[:turns]
        ]
        lines += [f"    and {counted(len(beyond) - turns, 'more turn')}"] if len(beyond) > turns else []
        lines += [f"    {failure}" for failure in self.failures[:turns]]
        return "\n".join(map(shown, lines))
