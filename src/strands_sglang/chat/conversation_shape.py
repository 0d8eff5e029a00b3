"""The shape of a conversation: the properties that can affect what a chat template writes next.

A stand-in conversation of the same shape is rendered instead of the real one. Whether the shape covers everything that
a template depends on is not assumed: `soundness` proves it for each template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import count
from typing import Any

from strands_sglang.chat.messages import TemplateMessage, function_call

PROBE_WORD = "xQz"
"""Every word that is made up for a rendering starts so; a model must never see one."""
ANCHOR = f"{PROBE_WORD}AnchorqZx"
"""The text after this last word of the stand-in is what the template writes after a turn."""
REASONING = f"{PROBE_WORD}ThoughtqZx"
_EARLIER = f"{PROBE_WORD}BeforeqZx"
"""The argument of earlier calls. As long as `ANCHOR`: a template may ask for its length."""


class Step(str, Enum):
    """What is appended to a branch."""

    TOOL = "tool"
    USER = "user"
    USER_AFTER_TOOL = "user after tool"
    ANSWER = "answer after tool"
    """An answer that ends a series of tool calls: some templates then drop the reasoning of these turns."""


@dataclass(frozen=True, slots=True)
class ConversationShape:
    """Properties of the conversation that new messages are appended to."""

    calls: tuple[tuple[str, str], ...] = ()
    reasoning: bool = False
    """Whether assistant turns after the opening have reasoning."""
    no_reasoning: bool = False
    """Whether assistant turns after the opening have none."""
    tool_rounds: bool = False
    """Whether calls were answered before the last turn, since the last user message."""
    exchanges: bool = False
    """Whether there are earlier exchanges: an earlier user message that has an answer."""
    earlier_rounds: bool = False
    """Whether calls were answered in these earlier exchanges."""
    system: str | None = None
    in_tool_run: bool = False
    """Whether the last turn continues or ends a series of calls (some were answered since a turn without calls)."""
    plain: bool = True
    """Whether the template treats the conversation's texts like those of the stand-in (see `soundness.inspection`)."""
    given: tuple[bool, ...] = ()
    """Whether assistant turns of the opening, which were not sampled after it, have reasoning: the kinds that occur."""

    def after(self, new: Iterable[Mapping[str, Any]]) -> ConversationShape:
        """Return the shape of the conversation with these messages appended, before the next assistant turn."""
        return _extended(self, new, opening=False, run=self.in_tool_run and bool(self.calls))

    def with_reply(self, calls: tuple[tuple[str, str], ...], reasoning: bool) -> ConversationShape:
        """Return the shape with an assistant turn appended."""
        return replace(
            self,
            calls=calls,
            reasoning=self.reasoning or reasoning,
            no_reasoning=self.no_reasoning or not reasoning,
        )

    @property
    def kind(self) -> ConversationShape:
        """The shape without names and system prompt: equal for conversations with the same structure."""
        return ConversationShape(
            _numbered_calls(len(self.calls)),
            self.reasoning,
            self.no_reasoning,
            self.tool_rounds,
            self.exchanges,
            self.earlier_rounds,
            given=self.given,
        )

    @property
    def history(self) -> tuple[bool, bool, bool]:
        """What precedes the last turn: calls answered, earlier exchanges, calls in earlier exchanges."""
        return self.tool_rounds, self.exchanges, self.exchanges and self.earlier_rounds

    def stand_in(self) -> list[TemplateMessage]:
        """Return a short conversation of this shape. Its last assistant turn ends with `ANCHOR`."""
        messages: list[TemplateMessage] = []
        if self.system is not None:
            messages.append({"role": "system", "content": self.system})
        first = self.given[-1] if self.given else self.reasoning
        if self.exchanges:
            messages.append({"role": "user", "content": "x"})
            messages += _round("xQzId8000", first) if self.earlier_rounds else []
            messages.append(_assistant("x", first))
        messages.append({"role": "user", "content": "x"})
        messages += _round("xQzId9000", self.reasoning if self.exchanges else first) if self.tool_rounds else []
        return [*messages, _assistant("" if self.calls else ANCHOR, self.reasoning, stand_in_calls(self.calls))]

    @property
    def anchor_count(self) -> int:
        """How often `ANCHOR` occurs in the stand-in: in its last turn only, whose end is after the last."""
        return max(1, len(self.calls))


def _round(call_id: str, reasoning: bool) -> list[TemplateMessage]:
    result = {"role": "tool", "tool_call_id": call_id, "name": "x", "content": "x"}
    return [_assistant("", reasoning, stand_in_calls((("x", call_id),), _EARLIER)), result]


def _assistant(text: str, reasoning: bool, calls: Sequence[Any] = ()) -> TemplateMessage:
    message: TemplateMessage = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = REASONING
    if calls:
        message["tool_calls"] = calls
    return message


@lru_cache(maxsize=256)
def _numbered_calls(count: int) -> tuple[tuple[str, str], ...]:
    return tuple((f"x{number}", f"xQzId{number:04d}") for number in range(count))


def stand_in_calls(calls: Iterable[tuple[str, str]], word: str = ANCHOR) -> list[dict[str, Any]]:
    """Return calls with these names and ids whose argument is a word."""
    return [function_call(name, {"x": word}, call_id) for name, call_id in calls]


def absent_word(text: str) -> str:
    """Return a word that a text does not contain: `ANCHOR`, if possible."""
    words = (f"{PROBE_WORD}Anchor{number or ''}qZx" for number in count())
    return next(word for word in words if word not in text)


def offset_after(text: str, word: str, count: int) -> int | None:
    """Return the offset after the `count`-th occurrence of a word; None if the text has fewer.

    Counted from the left, so that further occurrences, such as in the data of new messages, do not matter.
    """
    at = 0
    for _ in range(count):
        found = text.find(word, at)
        if found < 0:
            return None
        at = found + len(word)
    return at


def step_of(new: Iterable[Mapping[str, Any]]) -> Step:
    """Return the step of appending these messages."""
    roles = [message["role"] for message in new]
    if not roles or roles[0] != "tool":
        return Step.USER
    return Step.USER_AFTER_TOOL if "user" in roles else Step.TOOL


def is_probed(shape: ConversationShape, new: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether probes cover it: results of all calls, in order, and perhaps a user message; or that alone."""
    roles = [message["role"] for message in new]
    answered = [message["tool_call_id"] for message in new if message["role"] == "tool"]
    return (
        answered == [call_id for _, call_id in shape.calls]
        and roles[: len(answered)] == ["tool"] * len(answered)
        and roles[len(answered) :] in ([], ["user"])
        and bool(roles)
    )


def opening_shape(messages: Iterable[Mapping[str, Any]]) -> ConversationShape:
    """Return the shape of a conversation that is rendered as a whole, before the next assistant turn."""
    return _extended(ConversationShape(), messages, opening=True, run=False)


def _extended(
    shape: ConversationShape, messages: Iterable[Mapping[str, Any]], *, opening: bool, run: bool
) -> ConversationShape:
    rounds, exchanges, earlier, answered = shape.tool_rounds, shape.exchanges, shape.earlier_rounds, not opening
    kinds, system = set[bool](), shape.system
    for message in messages:
        if message["role"] == "system":
            system = str(message["content"])
        elif message["role"] == "tool":
            rounds = run = True
        elif message["role"] == "assistant":
            answered = True
            kinds.add("reasoning_content" in message)
            run = run and bool(message.get("tool_calls"))
        elif message["role"] == "user":
            rounds, exchanges, earlier = False, answered, earlier or rounds
    given = tuple(sorted(kinds)) if opening else shape.given
    reasoning, no_reasoning = (
        (shape.reasoning, shape.no_reasoning)
        if opening
        else (shape.reasoning or True in kinds, shape.no_reasoning or False in kinds)
    )
    return ConversationShape((), reasoning, no_reasoning, rounds, exchanges, earlier, system, run, shape.plain, given)
