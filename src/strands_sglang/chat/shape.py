"""The shape of a conversation: as much of it as a chat template may look at when it writes what comes next.

The bridge renders new messages behind a stand-in conversation of the same shape instead of the real one, so its cost
does not grow with history. Whether the shape says enough is not assumed: `soundness` proves it on each template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from strands_sglang.chat.content import TemplateMessage

ANCHOR = "xQzAnchorqZx"
"""Ends the stand-in's last assistant turn; what follows it in a rendered text is what the template puts behind."""
THOUGHT = "xQzThoughtqZx"


class Step(str, Enum):
    """What is appended to a branch, and behind what."""

    TOOL = "tool"
    """Tool results behind the calls they answer."""
    USER = "user"
    """A user message behind an answer."""
    USER_AFTER_TOOL = "user after tool"
    """Tool results with a user message straight behind them."""
    ANSWER = "answer after tool"
    """An answer that ends a run of tool calls: some templates drop the reasoning of that run with it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What stands before the place where new messages are appended."""

    calls: tuple[tuple[str, str], ...] = ()
    """Name and id of each call of the last assistant turn, in order."""
    reasoning: bool = False
    """Whether some assistant turn has reasoning."""
    bare: bool = False
    """Whether some assistant turn has none."""
    tool_rounds: bool = False
    """Whether calls were answered before it, since the last user message."""
    exchanges: bool = False
    """Whether an earlier user message had its answer before."""
    earlier_rounds: bool = False
    """Whether calls were answered in those earlier exchanges."""
    system: str | None = None
    """The system prompt; None when there is none."""
    run: bool = False
    """Whether the last turn goes on with, or ends, a run of calls: some were answered since the last turn without."""
    plain: bool = True
    """Whether the template cannot tell its texts from those of a stand-in (see `inspected`)."""

    def behind(self, new: Iterable[Mapping[str, Any]]) -> Shape:
        """Return the shape of the conversation once these messages stand behind it, but for its last turn."""
        return _grown(replace(self, calls=(), run=self.run and bool(self.calls)), new, answered=True)

    def ending(self, calls: tuple[tuple[str, str], ...], reasoning: bool) -> Shape:
        """Return the shape with a last turn that has these calls, and reasoning or not."""
        return replace(self, calls=calls, reasoning=self.reasoning or reasoning, bare=self.bare or not reasoning)

    @property
    def kind(self) -> Shape:
        """The shape without names: equal for conversations that end alike."""
        calls = tuple((f"x{number}", f"xQzId{number:04d}") for number in range(len(self.calls)))
        return replace(self, calls=calls, system=None, run=False, plain=True)

    @property
    def course(self) -> tuple[bool, bool, bool]:
        """How the conversation went before its last turn: calls answered, earlier exchanges, calls in those."""
        return self.tool_rounds, self.exchanges, self.exchanges and self.earlier_rounds

    def stand_in(self) -> list[TemplateMessage]:
        """Return a short conversation of this shape whose last assistant turn ends with `ANCHOR`."""
        messages: list[TemplateMessage] = []
        if self.system is not None:
            messages.append({"role": "system", "content": self.system})
        if self.exchanges:
            messages.append({"role": "user", "content": "x"})
            messages += self._round("xQzId8000") if self.earlier_rounds else []
            messages.append(self._assistant("x"))
        messages.append({"role": "user", "content": "x"})
        messages += self._round("xQzId9000") if self.tool_rounds else []
        return [*messages, self._assistant("" if self.calls else ANCHOR, self.calls)]

    @property
    def anchors(self) -> int:
        """How often `ANCHOR` is in the stand-in; the last one ends its last turn."""
        return max(1, len(self.calls)) + self.tool_rounds + (self.exchanges and self.earlier_rounds)

    def _round(self, call_id: str) -> list[TemplateMessage]:
        result = {"role": "tool", "tool_call_id": call_id, "name": "x", "content": "x"}
        return [self._assistant("", (("x", call_id),)), result]

    def _assistant(self, text: str, calls: tuple[tuple[str, str], ...] = ()) -> TemplateMessage:
        message: TemplateMessage = {"role": "assistant", "content": text}
        if self.reasoning:
            message["reasoning_content"] = THOUGHT
        if calls:
            message["tool_calls"] = stand_in_calls(calls)
        return message


def stand_in_calls(calls: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return calls, given by name and id, whose arguments are `ANCHOR`."""
    return [
        {"type": "function", "id": call_id, "function": {"name": name, "arguments": {"x": ANCHOR}}}
        for name, call_id in calls
    ]


def behind_words(text: str, word: str, times: int) -> int | None:
    """Return the offset behind the given occurrence of a word; None when the text has fewer.

    Counted from the left: what stands behind the ones looked for, such as data of new messages, is not taken for one.
    """
    at = 0
    for _ in range(times):
        found = text.find(word, at)
        if found < 0:
            return None
        at = found + len(word)
    return at


def step_of(new: Iterable[Mapping[str, Any]]) -> Step:
    """Return which step appending these messages is."""
    roles = [message["role"] for message in new]
    if not roles or roles[0] != "tool":
        return Step.USER
    return Step.USER_AFTER_TOOL if "user" in roles else Step.TOOL


def was_tried(shape: Shape, new: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether these messages behind a conversation are such as the probes try.

    That is: results of all its calls, in order, a user message behind them or not; or behind no calls, a user message.
    """
    roles = [message["role"] for message in new]
    answered = [message["tool_call_id"] for message in new if message["role"] == "tool"]
    return (
        answered == [call_id for _, call_id in shape.calls]
        and roles[: len(answered)] == ["tool"] * len(answered)
        and roles[len(answered) :] in ([], ["user"])
        and bool(roles)
    )


def opening_shape(messages: Iterable[Mapping[str, Any]]) -> Shape:
    """Return the shape of a conversation that was rendered whole, but for the turn that is to come."""
    return _grown(Shape(), messages, answered=False)


def _grown(shape: Shape, messages: Iterable[Mapping[str, Any]], *, answered: bool) -> Shape:
    """Return a shape with messages behind it; `answered`: whether an assistant turn stands before them."""
    rounds, exchanges, earlier, run = shape.tool_rounds, shape.exchanges, shape.earlier_rounds, shape.run
    reasoning, bare, system = shape.reasoning, shape.bare, shape.system
    for message in messages:
        if message["role"] == "system":
            system = str(message["content"])
        elif message["role"] == "tool":
            rounds = run = True
        elif message["role"] == "assistant":
            answered, has = True, "reasoning_content" in message
            reasoning, bare, run = reasoning or has, bare or not has, run and bool(message.get("tool_calls"))
        elif message["role"] == "user":
            rounds, exchanges, earlier = False, answered, earlier or rounds
    return Shape((), reasoning, bare, rounds, exchanges, earlier, system, run, shape.plain)
