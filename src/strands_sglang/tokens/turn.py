"""One engine call: `Turn`, its `Segment`s, and the `PreparedTurn` before it is sampled.

Invariant: a turn holds only what it added to its branch: closing, then context, then sampled tokens. Every token has
exactly one origin, and loss is only on sampled tokens. There is one logprob and one weight version per sampled token; a
`Turn` or `Segment` that violates this cannot be created. Preparing a turn changes nothing: a prepared turn that is
never committed leaves no trace.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, overload

from strands_sglang.errors import CountMismatchError
from strands_sglang.tokens.arrays import VersionSpan, check_spans
from strands_sglang.tokens.images import ImageSpan, compact
from strands_sglang.tokens.kept_sets import KeptSets
from strands_sglang.tokens.teacher import TeacherLogprobs


class Origin(IntEnum):
    """Where a token came from. An int, so that it fits into an int8 array; the numbers never change."""

    CONTEXT = 0
    """Rendered from the chat template: system, tools, users, tool results, generation prompts."""
    SAMPLED = 1
    """Sampled by the engine."""
    CLOSING = 2
    """An end-of-turn token that was added because the model did not sample it: its turn was cut off."""


@dataclass(slots=True)
class Segment:
    """Consecutive tokens of one turn and one origin. Read-only: the turn shares the arrays."""

    origin: Origin
    token_ids: array[int]
    logprobs: array[float] | None
    """Log-probability of each token as reported by the engine, same length as the ids; None unless sampled."""
    versions: tuple[VersionSpan, ...]
    """Spans of weight versions, counted from the first token of the segment; empty unless sampled."""
    turn: int

    def __post_init__(self) -> None:
        count = len(self.token_ids)
        if self.origin is not Origin.SAMPLED:
            if self.logprobs is not None or self.versions:
                raise CountMismatchError(f"{self.origin.name} tokens have no logprobs and no weight versions")
            return
        if self.logprobs is None or len(self.logprobs) != count:
            got = "no" if self.logprobs is None else len(self.logprobs)
            raise CountMismatchError(f"{count} sampled tokens but {got} logprobs")
        check_spans(self.versions, count)

    @property
    def sampled(self) -> bool:
        """Whether these tokens were sampled by the engine."""
        return self.origin is Origin.SAMPLED

    def __len__(self) -> int:
        return len(self.token_ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.token_ids)

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> array[int]: ...

    def __getitem__(self, at: int | slice) -> int | array[int]:
        return self.token_ids[at]


class TurnPurpose(str, Enum):
    """The purpose of a turn."""

    EPISODE = "episode"
    """A step of the agent on its task."""
    SIDE = "side"
    """A call by the framework itself, such as a summary; recorded separately."""
    CONSTRAINED = "constrained"
    """A step of the agent decoded under a grammar. It is part of its branch, but not trained by default: the grammar's
    choices and logprobs are not the policy's."""


class TurnStatus(str, Enum):
    """Whether a turn's output is part of the conversation."""

    KEPT = "kept"
    """The output is part of the conversation."""
    REJECTED = "rejected"
    """The agent discarded the output; not trained by default."""


class Join(str, Enum):
    """How a turn's prompt was joined to the tokens before it."""

    ROOT = "root"
    """The whole conversation was rendered; there was nothing to join to."""
    PROVED = "proved"
    """Appended by a bridge that is proved for this step."""
    KEPT = "kept"
    """Appended unchanged although the template would rewrite the history."""
    FORKED = "forked"
    """The history differs, or the template rewrites it: a new branch, from the root or from an earlier turn."""


@dataclass(slots=True, eq=False)
class Turn:
    """The tokens that one engine call added to a branch. Read-only; equal only to itself."""

    id: int
    """Index in the tree: the commit order, from 0."""
    parent: int | None
    """Id of the previous turn of the branch; None: the turn starts a branch."""
    closing: array[int]
    """Tokens added to close the parent's sampled turn; they come first. Empty if it was closed, or without a parent."""
    context: array[int]
    """Tokens rendered from the template, after `closing`."""
    sampled: array[int]
    """Tokens sampled by the engine, after `context`; may be empty."""
    logprobs: array[float]
    """Log-probability of each sampled token as reported by the engine; same length as `sampled`."""
    versions: tuple[VersionSpan, ...]
    """Spans of weight versions, counted from the first sampled token, covering all; empty without tokens."""
    start: int
    finish_reason: str = ""
    """Why the engine stopped, as the value of a `FinishReason`; "" if unknown."""
    purpose: TurnPurpose = TurnPurpose.EPISODE
    status: TurnStatus = TurnStatus.KEPT
    """Whether its output is part of the conversation; may change later (`TokenTree.reject`, `restore`)."""
    join: Join = Join.ROOT
    forked_from: int | None = None
    """Id of the turn whose history was rewritten into this branch; None: nothing was rewritten."""
    caller: tuple[int, str | None] | None = None
    """Turn and tool call (None: unknown) that started this branch, as for a sub-agent; None: started from outside."""
    detail: dict[str, Any] = field(default_factory=dict)
    """Plain JSON data about the call: request id, cached tokens, and whatever the caller stores."""
    images: tuple[ImageSpan, ...] = ()
    """Images in `context`, in order; positions count from its first token. Empty without images."""
    kept: KeptSets | None = None
    """The kept set of each sampled token, and its logprob under the behaviour policy; None: sampling has none,
    or the sets were not requested."""
    teacher: TeacherLogprobs | None = None
    """A teacher's logprobs of the sampled tokens (`TokenTree.set_teacher`); None: no teacher scored them."""

    def __post_init__(self) -> None:
        count = len(self.sampled)
        if self.kept is not None and len(self.kept) != count:
            raise CountMismatchError(f"{count} sampled tokens but {len(self.kept)} kept sets")
        if self.teacher is not None and len(self.teacher) != count:
            raise CountMismatchError(f"{count} sampled tokens but {len(self.teacher)} logprobs of a teacher")
        if len(self.logprobs) != count:
            raise CountMismatchError(f"{count} sampled tokens but {len(self.logprobs)} logprobs")
        check_spans(self.versions, count)

    @property
    def agent(self) -> str | None:
        """Name of the agent, or of the node of a graph, that made the turn; None if unknown."""
        name = self.detail.get("agent")
        return name if isinstance(name, str) else None

    def __len__(self) -> int:
        return len(self.closing) + len(self.context) + len(self.sampled)

    @property
    def sampled_start(self) -> int:
        """Position of the first sampled token in the branch, which is also the length of the prompt that was sent."""
        return self.start + len(self.closing) + len(self.context)

    @property
    def end(self) -> int:
        """Position after the last sampled token in the branch: the length of the branch up to here."""
        return self.sampled_start + len(self.sampled)

    @property
    def rejected(self) -> bool:
        """Whether its output was discarded."""
        return self.status is TurnStatus.REJECTED

    def segments(self) -> list[Segment]:
        """Return closing, context and sampled tokens as segments, without empty ones."""
        segments = []
        if self.closing:
            segments.append(Segment(Origin.CLOSING, self.closing, None, (), self.id))
        if self.context:
            segments.append(Segment(Origin.CONTEXT, self.context, None, (), self.id))
        if self.sampled:
            segments.append(Segment(Origin.SAMPLED, self.sampled, self.logprobs, self.versions, self.id))
        return segments


@dataclass(slots=True, eq=False)
class PreparedTurn:
    """A prompt to send, and the place of its answer in the tree. Made by `TokenTree.prepare`; fields as in `Turn`."""

    owner: object
    """The tree that prepared it, and the only one that commits it."""
    parent: Turn | None
    ids: array[int]
    """The whole branch so far, then `closing`, then `context` (32-bit). Checked again at commit."""
    closing: array[int]
    context: array[int]
    purpose: TurnPurpose
    join: Join
    forked_from: int | None
    caller: tuple[int, str | None] | None
    turn: Turn | None = None
    images: tuple[ImageSpan, ...] = ()
    """All images of the prompt, in order; positions count from the first token of `ids`. Empty without images."""
    new_images: tuple[ImageSpan, ...] = ()
    """Those in `context`; positions count from its first token."""

    def __len__(self) -> int:
        return len(self.ids)

    def compact_ids(self) -> array[int]:
        """Return the prompt with one placeholder for each image, as the engine receives it."""
        return compact(self.ids, self.images) if self.images else self.ids
