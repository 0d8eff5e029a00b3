"""One engine call as the tree keeps it: `Turn`.

Invariant: a turn holds only what it added to its branch (closing, then context, then sampled); what was there
before belongs to its parents. One logprob and one weight version per sampled token: a `Turn` that breaks this
cannot be made.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strands_sglang.errors import CountMismatchError
from strands_sglang.tokens.origin import Origin
from strands_sglang.tokens.segment import Segment
from strands_sglang.tokens.versions import VersionSpan, check_spans


class TurnPurpose(str, Enum):
    """What a turn was sampled for."""

    EPISODE = "episode"
    """A step of the agent on its task."""
    SIDE = "side"
    """A call of the framework itself, such as a summary: recorded apart."""
    CONSTRAINED = "constrained"
    """A step of the agent decoded under a grammar: part of its branch, and not trained by default, because what the
    grammar allowed is not what the policy chose, nor are its logprobs the policy's."""


class TurnStatus(str, Enum):
    """What became of a turn's output."""

    KEPT = "kept"
    """It is part of the conversation."""
    REJECTED = "rejected"
    """The agent threw it away; not trained unless asked for."""


class Join(str, Enum):
    """How a turn's prompt was joined to what was there before."""

    ROOT = "root"
    """The whole conversation was rendered; there was nothing to join."""
    PROVED = "proved"
    """Appended by a bridge that was proved for this step."""
    KEPT = "kept"
    """Appended as it stands although the template would have rewritten history."""
    FORKED = "forked"
    """History differed, or the template rewrites it: a new branch, from the start or from an earlier turn."""


@dataclass(slots=True, eq=False)
class Turn:
    """The tokens one engine call added to a branch. To be read, not changed; equal only to itself."""

    id: int
    """Index in the tree: the order in which turns were committed, from 0."""
    parent: int | None
    """Id of the turn before it in the branch; None: it starts a branch."""
    closing: array[int]
    """Tokens added to close the parent's sampled turn; they come first. Empty when it was closed, or no parent."""
    context: array[int]
    """Tokens rendered from the template, behind `closing`."""
    sampled: array[int]
    """Tokens that came out of the engine, behind `context`; may be empty."""
    logprobs: array[float]
    """Log-probability of each sampled token as the engine reported it; same length as `sampled`."""
    versions: tuple[VersionSpan, ...]
    """Spans of weight versions, counted from the first sampled token, covering all; empty without tokens."""
    start: int
    """Position in the branch of the turn's first token."""
    finish: str = ""
    """Why sampling ended, in the engine's word; "" when unknown."""
    purpose: TurnPurpose = TurnPurpose.EPISODE
    """What it was sampled for."""
    status: TurnStatus = TurnStatus.KEPT
    """What became of its output; the one thing that may change later, by `TokenTree.reject` and `restore`."""
    join: Join = Join.ROOT
    """How its prompt was joined to the branch."""
    forked_from: int | None = None
    """Id of the turn whose history was rewritten into this branch; None: nothing was rewritten."""
    caller: tuple[int, str | None] | None = None
    """Id of the turn, and of its tool call (None: unknown), from within which this branch was started, as a
    sub-agent is; None: from outside."""
    detail: dict[str, Any] = field(default_factory=dict)
    """Plain JSON data about the call: rid, cached tokens, what the caller wants to keep."""

    def __post_init__(self) -> None:
        count = len(self.sampled)
        if len(self.logprobs) != count:
            raise CountMismatchError(f"{count} sampled tokens but {len(self.logprobs)} logprobs")
        check_spans(self.versions, count)

    @property
    def agent(self) -> str | None:
        """Name of the agent, or of the node of a graph, that made it; None: not known."""
        name = self.detail.get("agent")
        return name if isinstance(name, str) else None

    def __len__(self) -> int:
        """Return the number of tokens of its own."""
        return len(self.closing) + len(self.context) + len(self.sampled)

    @property
    def sampled_start(self) -> int:
        """Position in the branch of the first sampled token: also the length of the prompt that was sent."""
        return self.start + len(self.closing) + len(self.context)

    @property
    def end(self) -> int:
        """Position in the branch after the last sampled token: the length of the branch up to here."""
        return self.sampled_start + len(self.sampled)

    @property
    def rejected(self) -> bool:
        """Whether its output was thrown away."""
        return self.status is TurnStatus.REJECTED

    def segments(self) -> list[Segment]:
        """Return closing, context and sampled tokens as segments; empty ones are left out."""
        segments = []
        if self.closing:
            segments.append(Segment(Origin.CLOSING, self.closing, None, (), self.id))
        if self.context:
            segments.append(Segment(Origin.CONTEXT, self.context, None, (), self.id))
        if self.sampled:
            segments.append(Segment(Origin.SAMPLED, self.sampled, self.logprobs, self.versions, self.id))
        return segments
