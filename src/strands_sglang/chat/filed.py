"""A recorded turn as it is filed: under the conversation that led to it, and the reply it gave. `Entry`.

Invariant: what is filed is a copy of its own; whether a conversation begins with it is decided by what both say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from strands_sglang.chat.canonical import canonical, same_numbers
from strands_sglang.chat.compare import Said
from strands_sglang.chat.shape import Shape, Step

Message = Mapping[str, Any]


class Stands(IntEnum):
    """Whether the reply of a turn stands in some conversation."""

    NOWHERE = 0
    """It was thrown away."""
    PERHAPS = 1
    """It seems to have been thrown away, and nobody said so."""
    SURELY = 2
    """It does."""


@dataclass(frozen=True, slots=True)
class Preamble:
    """What stands in front of the messages: another one begins another branch."""

    system: str | None = field(compare=False)
    """The system prompt; None when there is none."""
    tools: tuple[Any, ...] = field(compare=False)
    """The tools, as they came."""
    key: str
    """Both, in a form that can be compared and looked up."""


@dataclass(slots=True, eq=False)
class Entry:
    """A recorded turn, filed."""

    turn: int
    """Its id in the tree."""
    parent: Entry | None
    """The turn it goes on from; None when it began a branch."""
    branch: int
    """Id of the turn that began its branch: kept by the first that goes on from a turn, not by later ones."""
    preamble: Preamble
    """What stood in front of its messages."""
    history: list[Any]
    """Its conversation, shared with its branch: the first `count - 1` messages, copies of our own."""
    numeric: list[int]
    """Which of those messages hold numbers, shared likewise: `1`, `1.0` and `True` are equal and say three things."""
    count: int
    """Messages up to and including its reply."""
    reply: Any
    """Its reply, in canonical form."""
    shape: Shape
    """The shape of its conversation, reply included."""
    ended_by: int | None
    """Its last sampled token, if that is a control token."""
    end: int
    """Tokens of its branch up to and including what it sampled."""
    said: Said | None = None
    """Its prompt and what was sampled, as text; None when that is not kept."""
    exact: bool = False
    """Whether its prompt is one rendering of its conversation, as far as is known."""
    step: Step | None = None
    """How its prompt was appended; None when it began a branch."""
    children: int = 0
    """Turns that go on from it."""
    passing: bool = False
    """Whether it was shown something that its conversation does not keep: it is in its tokens, not in `history`."""

    @property
    def prompt_count(self) -> int:
        """Messages without its reply."""
        return self.count - 1

    def leads_to(self, preamble: Preamble, messages: Sequence[Message]) -> bool:
        """Return whether the conversation begins with this turn's, reply included."""
        at = self.prompt_count
        return (
            len(messages) > at
            and self.asked(preamble, messages)
            and messages[at]["role"] == "assistant"
            and canonical(messages[at]) == self.reply
        )

    def asked(self, preamble: Preamble, messages: Sequence[Message]) -> bool:
        """Return whether the conversation begins with what this turn was asked."""
        at = self.prompt_count
        return preamble == self.preamble and len(messages) >= at and self._says(messages[:at], 0)

    def left_behind(self, preamble: Preamble, messages: Sequence[Message], reply_at: int) -> bool:
        """Return whether the conversation is this turn's, but for its oldest messages, with its reply at `reply_at`."""
        dropped = self.prompt_count - reply_at
        return (
            dropped > 0
            and preamble == self.preamble
            and canonical(messages[reply_at]) == self.reply
            and self._says(messages[:reply_at], dropped)
        )

    def _says(self, messages: Sequence[Message], start: int) -> bool:
        """Return whether messages say what this turn's conversation says from `start` on."""
        end = start + len(messages)
        return list(messages) == self.history[start:end] and all(
            same_numbers(messages[at - start], self.history[at]) for at in self.numeric if start <= at < end
        )
