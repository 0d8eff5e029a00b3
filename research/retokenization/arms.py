"""The arms of the experiment: what each one changes between the engine and the trainer.

Three choices make an arm, and nothing else differs between two arms:

- the tokens that are trained: the sampled ones, the sampled text encoded again, or the messages rendered again;
- the logprobs that the loss divides by: those that the trainer computes itself, or those that the engine reported,
  put on the trained tokens by position;
- a truncated importance weight between the trainer's logprobs and the engine's, or none.

Two arms sample with top-p, one of them with the kept sets in the loss. One arm trains only the turns that encoding
again would not change. One arm has a teacher instead of a reward. The engine samples from exact tokens in every arm:
only what is trained differs. `retokenize.py` makes the samples of an arm. Needs only the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Tokens(str, Enum):
    """Where the trained tokens come from."""

    EXACT = "exact"
    """The sampled tokens."""
    CANONICAL = "canonical"
    """The sampled tokens of the turns that are the same after decoding and encoding; the others are not trained."""
    DECODED = "decoded"
    """The text of each turn, encoded again."""
    RENDERED = "rendered"
    """The messages, with parsed tool calls, rendered with the chat template and encoded again."""


class Old(str, Enum):
    """Which logprobs are the denominator of the loss's ratio."""

    RECOMPUTED = "recomputed"
    """Those of the trainer for the tokens that it trains."""
    ENGINE = "engine"
    """Those of the engine, by position: shifted wherever the trained tokens are not the sampled ones."""


@dataclass(frozen=True)
class Arm:
    """One arm."""

    name: str
    """Name on the command line and in results."""
    letter: str
    """Short name in tables."""
    about: str
    """Description in a few words."""
    tokens: Tokens = Tokens.EXACT
    """Tokens that are trained."""
    old: Old = Old.RECOMPUTED
    """Denominator of the loss's ratio."""
    weight_cap: float | None = None
    """Upper limit of the importance weight, trainer over engine; None: no such weight."""
    top_p: float = 1.0
    """Truncation of the sampling distribution; 1.0: none."""
    kept: bool = False
    """Whether the trainer's logprobs are normalised over the kept set of each token, as the engine sampled."""
    distilled: bool = False
    """Whether the advantage of a token is the teacher's logprob minus the student's, instead of the group's reward."""


_CAP = 2.0
ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("exact", "A", "sampled tokens"),
        Arm("decode", "B", "text encoded again", Tokens.DECODED),
        Arm("render", "C", "messages rendered again", Tokens.RENDERED),
        Arm("decode-engine", "B′", "B, engine's logprobs by position", Tokens.DECODED, Old.ENGINE),
        Arm("render-engine", "C′", "C, engine's logprobs by position", Tokens.RENDERED, Old.ENGINE),
        Arm("decode-tis", "D(B)", "B, truncated importance weight", Tokens.DECODED, weight_cap=_CAP),
        Arm("render-tis", "D(C)", "C, truncated importance weight", Tokens.RENDERED, weight_cap=_CAP),
        Arm("top-p-kept", "E+", "top-p 0.8, kept sets in the loss", top_p=0.8, kept=True),
        Arm("top-p", "E−", "top-p 0.8, loss over the whole vocabulary", top_p=0.8),
        # Controls: on exact tokens, the engine's logprobs and the weight must change nothing.
        Arm("exact-engine", "A′", "sampled tokens, engine's logprobs", old=Old.ENGINE),
        Arm("exact-tis", "D(A)", "sampled tokens, truncated importance weight", weight_cap=_CAP),
        Arm("exact-masked", "M", "sampled tokens, without the turns that B changes", Tokens.CANONICAL),
        Arm("distill", "T", "sampled tokens, scored by a teacher", distilled=True),
    )
}
"""All arms, by name. The first nine are the main comparison, then come controls, and distillation."""

MAIN = tuple(ARMS)[:9]
"""Names of the arms of the main comparison."""
REWARDED = tuple(name for name, arm in ARMS.items() if not arm.distilled)
"""Names of the arms that learn from rewards."""
