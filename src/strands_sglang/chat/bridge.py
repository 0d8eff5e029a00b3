"""The bridge: turns new messages into the tokens that continue a branch.

New messages are rendered after a stand-in conversation of the same shape as the real one; what the template writes
after the stand-in's last assistant turn continues the branch. History is not rendered, so the cost of a turn depends
only on what is new. `extend_with_history` takes the text from a rendering of the real conversation instead, where the
stand-in is not proved.

After an assistant turn a template writes a fixed sequence of control tokens: closing markers, perhaps an end-of-turn
token, the header of the next role. The sampled turn has some of them already. `TurnBoundary` says where in this
sequence the rendered text continues the sampled turn.

A truncated turn has no end-of-turn token. It is closed here, when the next messages are appended: `closing_span` finds
the token in the rendered text, and `PromptText.closing` carries it, apart from the context.

Invariant: the ids of a branch are only ever extended. No sampled token is written again, and nothing that the template
writes after the turn is left out. `soundness` proves whether the result equals one rendering of the whole conversation;
the bridge itself returns None only if the continuation cannot be derived.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from strands_sglang.chat.control_tokens import ControlTokens, Escapes, Occurrence
from strands_sglang.chat.conversation_shape import (
    ANCHOR,
    PROBE_WORD,
    ConversationShape,
    absent_word,
    offset_after,
    stand_in_calls,
)
from strands_sglang.chat.messages import TemplateMessage
from strands_sglang.chat.template import ChatTemplate, Rendered
from strands_sglang.chat.tokenization import Encoder
from strands_sglang.errors import TemplateRefusedError

_REPLY = "xQzReplyqZx"
Tools = Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True, slots=True)
class PromptText:
    """Rendered text that starts or continues a branch, not yet encoded."""

    closing: str
    context: str
    escapes: Escapes
    absorbed: str = ""
    """White space between both that the control token before it absorbs: in the text, but not a token."""
    starts_branch: bool = False
    """Whether it is the first prompt of a branch, of which other episodes often have parts."""

    @property
    def text(self) -> str:
        """The whole text with data restored."""
        return self.escapes.restore(f"{self.closing}{self.absorbed}{self.context}")

    @property
    def has_probe_word(self) -> bool:
        """Whether a word of a stand-in is in the text, or data has such a word."""
        return PROBE_WORD in self.context


class Anchored(NamedTuple):
    """A rendered conversation whose last turn ends with the last of some first occurrences of a word."""

    text: str
    word: str
    occurrences: int


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The tokens that start or continue a branch."""

    closing: array[int]
    context: array[int]
    tail: str
    """Shows whether the prompt opened a reasoning block."""


class Bridge:
    """Renders and encodes prompts for one template on one tokenizer."""

    def __init__(self, template: ChatTemplate, encoder: Encoder) -> None:
        self.template = template
        self.encoder = encoder
        self._boundaries: dict[tuple[ConversationShape, str], TurnBoundary | None] = {}

    def at(self, time: datetime | None) -> Bridge:
        """Return this bridge at a time (`ChatTemplate.at`); boundaries do not depend on it."""
        template = self.template.at(time)
        if template is self.template:
            return self
        bound = copy.copy(self)
        bound.template = template
        return bound

    def open(self, messages: Sequence[TemplateMessage], tools: Tools = None) -> PromptText:
        """Render a whole conversation, for a new branch."""
        rendered = self.template.render(messages, tools=tools)
        return PromptText("", rendered.text, rendered.escapes, starts_branch=True)

    def extend(
        self, shape: ConversationShape, ended_by: int | None, new: Sequence[TemplateMessage], tools: Tools = None
    ) -> PromptText | None:
        """Render new messages after a branch, using a stand-in conversation; None if that cannot be derived.

        `ended_by`: the last sampled token if it is a control token; None for a turn that was truncated in its text.
        """
        boundary = self.boundary(shape, new[0]["role"])
        if boundary is None:
            return None
        try:
            rendered = self.template.render([*shape.stand_in(), *new], tools=tools)
        except TemplateRefusedError:
            return None
        anchored = Anchored(rendered.text, ANCHOR, shape.anchor_count)
        return self._continuation(boundary, ended_by, anchored, rendered)

    def extend_with_history(
        self,
        shape: ConversationShape,
        before: Sequence[TemplateMessage],
        ended_by: int | None,
        new: Sequence[TemplateMessage],
        tools: Tools,
        rendered: Rendered,
    ) -> PromptText | None:
        """Take new messages from a rendering of the real conversation. The cost grows with the length of history.

        The last message of `before`, which includes the system prompt, is the assistant turn. `rendered`: all of these
        messages. Otherwise as `extend`.
        """
        boundary = self.boundary(shape, new[0]["role"])
        if boundary is None:
            return None
        last, word = dict(before[-1]), absent_word(rendered.text)
        if shape.calls:
            last["tool_calls"] = stand_in_calls(shape.calls, word)
        else:
            last.pop("tool_calls", None)
            last["content"] = word
        try:
            text = self.template.render([*before[:-1], last, *new], tools=tools).text
        except TemplateRefusedError:
            return None
        return self._continuation(boundary, ended_by, Anchored(text, word, max(1, len(shape.calls))), rendered)

    def _continuation(
        self, boundary: TurnBoundary, ended_by: int | None, anchored: Anchored, rendered: Rendered
    ) -> PromptText | None:
        """Return what a rendering has after its last turn, whose end is found in a rendering with anchors.

        The messages before that turn are the same in both, so its end is the same occurrence of the same token.
        """
        control = self.encoder.control
        at = offset_after(anchored.text, anchored.word, anchored.occurrences)
        if at is None:
            return None
        # Offsets into the text after the anchor, as in the boundary.
        found = [
            Occurrence(token.id, token.start - at, token.end - at)
            for token in islice(control.find(anchored.text, at), len(boundary.tokens))
        ]
        closing = boundary.closing_span(found, ended_by)
        if closing is None:
            return None
        border = next((token for token in found if token.end == closing.end), None)
        text, start, end = rendered.text, at + closing.start, at + closing.end
        if text is not anchored.text:
            token = border or next(iter(found), None)
            if token is None:
                return None
            expected, real = (
                [one.start for one in control.find(whole) if one.id == token.id] for whole in (anchored.text, text)
            )
            if len(real) < len(expected):
                return None  # the template drops the real turn, or ends it otherwise
            moved = real[expected.index(at + token.start)] - token.start
            start, end = moved + closing.start, moved + closing.end
        # Some end-of-turn tokens absorb white space after them, here as in one text.
        rest = text[end:]
        context = control.stripped(rest, border and border.id)
        return PromptText(text[start:end], context, rendered.escapes, rest[: len(rest) - len(context)])

    def is_slow(self, prompt: PromptText) -> bool:
        """Return whether encoding takes long enough to be done in a thread."""
        return self.encoder.is_slow(prompt.context, prompt.escapes, cache=prompt.starts_branch)

    def encode(self, prompt: PromptText) -> PromptTokens:
        """Encode a rendered prompt. Call it in a thread if `is_slow`."""
        escapes = prompt.escapes
        closing = self.encoder.encode(prompt.closing, escapes) if prompt.closing else array("i")
        context = self.encoder.encode(prompt.context, escapes, cache=prompt.starts_branch)
        return PromptTokens(closing, context, prompt.context[-64:])

    def boundary(self, shape: ConversationShape, role: str) -> TurnBoundary | None:
        """Return the boundary between a conversation of a shape and a message of a role; None if not derivable."""
        key = (shape.kind, role)
        if key not in self._boundaries:
            try:
                self._boundaries[key] = self._derive_boundary(shape.kind, role)
            except TemplateRefusedError:
                self._boundaries[key] = None
        return self._boundaries[key]

    def _derive_boundary(self, shape: ConversationShape, role: str) -> TurnBoundary | None:
        text_boundary = None
        if shape.calls:
            text_boundary = self.boundary(replace(shape, calls=()), "user")
            if text_boundary is None:
                return None
        new: list[TemplateMessage] = [{"role": role, "content": _REPLY}]
        if role == "tool":
            new = [{**new[0], "tool_call_id": call_id, "name": name} for name, call_id in shape.calls or (("x", "x"),)]
        stand_in = shape.stand_in()
        last = self.template.render(stand_in, generate=False).text
        followed = self.template.render([*stand_in, *new]).text
        at_last, at_followed = (offset_after(text, ANCHOR, shape.anchor_count) for text in (last, followed))
        if at_last is None or at_followed is None:
            return None
        end = followed.find(_REPLY, at_followed)
        if end < 0:
            return None
        control = self.encoder.control
        before = self.template.render(stand_in[:-1], generate=False).text
        inside = control_tokens_inside(control, before, last[:at_last])
        return derive_boundary(
            control, last[at_last:], followed[at_followed:], end - at_followed, text_boundary, inside
        )


class ClosingSpan(NamedTuple):
    """The part of a rendered text that closes a sampled turn. Offsets into the text after the turn's last word."""

    start: int
    """Equal to `end` if the turn closed itself."""
    end: int


@dataclass(frozen=True, slots=True)
class TurnBoundary:
    """The control tokens between an assistant turn and the next message, for one kind of both."""

    tokens: tuple[int, ...]
    """Between the turn's last word and the next message's first word, in order."""
    own: int
    """How many of them belong to the assistant turn (closing markers and end-of-turn token)."""
    end_of_turn: int | None
    """Index in `tokens`; None if the template has none."""
    also_ends: frozenset[int] = frozenset()
    """Further tokens that end a turn: those written only in the last turn, or only after a turn without calls."""
    inside: frozenset[int] = frozenset()
    """Tokens inside an assistant turn or its header: they do not end a turn if there is an end-of-turn token."""
    unambiguous: bool = True
    """Whether a turn without an end-of-turn token ends at a token boundary. If False, text would meet text."""

    def closing_span(self, found: Sequence[Occurrence], ended_by: int | None) -> ClosingSpan | None:
        """Return where the rendered text continues a sampled turn; None if its control tokens are others."""
        ended_at = self._ended_at(ended_by)
        if ended_at is None and self.end_of_turn is None and not self.unambiguous:
            return None
        last = ended_at if ended_at is not None else self.own - 1 if self.end_of_turn is None else self.end_of_turn
        needed = found[: last + 1]
        if tuple(token.id for token in needed) != self.tokens[: last + 1]:
            return None
        end = needed[last].end if needed else 0
        closes = ended_at is None and self.end_of_turn is not None
        return ClosingSpan(needed[last].start if closes else end, end)

    def _ended_at(self, ended_by: int | None) -> int | None:
        if ended_by in self.tokens:
            at = self.tokens.index(ended_by)
            if self.end_of_turn is not None and (at < self.end_of_turn or (at >= self.own and ended_by in self.inside)):
                return None
            return at
        return self.end_of_turn if ended_by in self.also_ends else None


def derive_boundary(
    control: ControlTokens,
    last: str,
    followed: str,
    end: int,
    text_boundary: TurnBoundary | None = None,
    inside: frozenset[int] = frozenset(),
) -> TurnBoundary:
    """Derive a boundary from a rendering.

    `last` and `followed` are the text after the turn's last word without and with a next message, whose first word is
    at `end`.
    `text_boundary`: for a turn with calls, the boundary of a turn without calls.
    """
    closing = list(control.find(last))
    following = [token for token in control.find(followed) if token.end <= end]
    alone, tokens = [token.id for token in closing], [token.id for token in following]
    own = _common_prefix(alone, tokens)
    usual: int | None = None
    if text_boundary is None:
        # Both have control tokens but share none: the template writes a different end for the last turn (`also_ends`).
        end_of_turn = own - 1 if own else (0 if alone and tokens else None)
    elif text_boundary.end_of_turn is None:
        end_of_turn = None
    else:
        usual = text_boundary.tokens[text_boundary.end_of_turn]
        end_of_turn = tokens.index(usual) if usual in tokens else (own - 1 if own else None)
    if end_of_turn is not None:
        own = max(own, end_of_turn + 1)
    ends = set(alone[-1:]) | ({usual} if usual is not None else set())
    unambiguous = True
    if end_of_turn is None:
        # Text after the turn's last token may or may not have been sampled, and characters on both sides of the
        # boundary may form one token.
        at_token = len(last) == closing[own - 1].end if own else not last
        unambiguous = at_token and (own > 0 or (bool(following) and following[0].start == 0))
    return TurnBoundary(tuple(tokens), own, end_of_turn, frozenset(ends - set(tokens)), inside, unambiguous)


def control_tokens_inside(control: ControlTokens, before: str, turn: str) -> frozenset[int]:
    """Return the ids of the control tokens in a turn and its header."""
    old, new = ([token.id for token in control.find(text)] for text in (before, turn))
    return frozenset(new[_common_prefix(old, new) :])


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    both = zip(left, right, strict=False)
    return next((at for at, (one, other) in enumerate(both) if one != other), min(len(left), len(right)))
