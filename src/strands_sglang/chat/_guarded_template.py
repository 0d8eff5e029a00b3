"""Renders a chat template so that data cannot become a control token, whatever the template does with it.

The template is rendered with a mark (`ControlTokens.marked`) in place of each control token in its source. Any other
control-token literal in the rendered text comes from data, and one character of it is escaped. Some templates
concatenate a literal from parts (`<|`, a role, `|>`), which leaves no mark. These *composed* literals are found by
rendering a second time with data that cannot contribute to them.

Invariant: every control-token literal in the rendered text was written by the template.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from strands_sglang.chat.control_tokens import ControlTokens, Escapes, Occurrence
from strands_sglang.chat.messages import TemplateMessage, function_call
from strands_sglang.errors import TemplateRefusedError

PROBE = "xQzProbeqZx"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "xQzToolqZx", "description": "x", "parameters": {"type": "object", "properties": {}}},
}

Arguments: TypeAlias = Mapping[str, Any]
Samples: TypeAlias = Sequence[tuple[list[TemplateMessage], Any]]


class _Rendering(NamedTuple):
    text: str
    own: list[Occurrence]
    escapes: Escapes


class GuardedTemplate:
    def __init__(
        self, control: ControlTokens, render: Callable[..., str], own: Arguments, special: Arguments, samples: Samples
    ) -> None:
        """`samples` are conversations and tools that must render the same with and without marks."""
        self._control, self._render = control, render
        self._composed: frozenset[str] = frozenset()
        self.marked = self._find_marked(own, special, samples)

    def render(self, fitted: Sequence[TemplateMessage], tools: Any, generate: bool) -> tuple[str, Escapes]:
        rendering = self._render_marked(fitted, tools, generate, self._composed)
        foreign = foreign_literals(self._control, rendering.text, rendering.own)
        if not foreign:
            return rendering.text, rendering.escapes
        # From data, or composed by the template? A composed literal is still there if data cannot contribute to it.
        unsure = self._composed.union(foreign)
        try:
            blind = self._render_marked(fitted, tools, generate, unsure, blind=True)
        except TemplateRefusedError:
            blind = self._render_marked(fitted, tools, generate, unsure)
        own = [literal for literal in foreign_literals(self._control, blind.text, blind.own) if literal in unsure]
        composed = frozenset(own)
        if not composed <= self._composed:
            self._composed |= composed
            rendering = self._render_marked(fitted, tools, generate, self._composed)
        if composed and own != [
            literal for literal in foreign_literals(self._control, rendering.text, rendering.own) if literal in composed
        ]:
            rendering = blind
        text = escape_foreign_literals(self._control, rendering.text, rendering.own, rendering.escapes, composed)
        return text, rendering.escapes

    def _render_marked(
        self,
        fitted: Sequence[TemplateMessage],
        tools: Any,
        generate: bool,
        composed: frozenset[str],
        *,
        blind: bool = False,
    ) -> _Rendering:
        escapes = Escapes(self._control)
        safe, tools = self.escaped(fitted, tools, escapes, composed, blind=blind)
        text, own = self._control.unmarked(self._render(safe, tools, generate, self.marked))
        return _Rendering(text, own, escapes)

    def escaped(
        self,
        fitted: Sequence[TemplateMessage],
        tools: Any,
        escapes: Escapes,
        composed: frozenset[str],
        *,
        blind: bool = False,
    ) -> tuple[list[TemplateMessage], Any]:
        safe = []
        for message in fitted:
            trusted = message["role"] == "system"
            message = escapes.escape(message, trusted=trusted, composed=composed, blind=blind)
            if trusted and isinstance(message.get("content"), str):
                message = {**message, "content": self._control.marked(message["content"])}
            safe.append(message)
        return safe, escapes.escape(tools, composed=composed, blind=blind)

    def _find_marked(self, plain: Arguments, special: Arguments, samples: Samples) -> Arguments:
        """Return the template with marks; unchanged if that changes what it renders."""
        source = plain["chat_template"]
        if source is None or self._control.unmarked(source)[1]:
            return plain
        names = {name: text for name, text in special.items() if isinstance(text, str)}
        marked = {**names, **plain}
        for name, value in marked.items():
            if name in names or name == "chat_template":
                marked[name] = self._control.marked(value) if isinstance(value, str) else value
        for messages, tools in samples:
            for generate in (True, False):
                texts = []
                for arguments in (plain, marked):
                    try:
                        texts.append(self._control.unmarked(self._render(messages, tools, generate, arguments))[0])
                    except TemplateRefusedError as error:
                        texts.append(error.template_message)
                if texts[0] != texts[1]:
                    return plain
        return marked


def sample_conversations() -> list[tuple[list[TemplateMessage], Any]]:
    system: TemplateMessage = {"role": "system", "content": "Be brief."}
    user: TemplateMessage = {"role": "user", "content": "One? "}
    answer: TemplateMessage = {"role": "assistant", "content": "Two.", "reasoning_content": "Three."}
    calls = {**answer, "tool_calls": [function_call("probe", {"key": PROBE}, "probe0000")]}
    result: TemplateMessage = {"role": "tool", "tool_call_id": "probe0000", "name": "probe", "content": "4"}
    conversations = [
        [user],
        [system, user],
        [user, answer, user],
        [system, user, calls, result],
        [user, calls, result, answer],
    ]
    return [(conversation, tools) for conversation in conversations for tools in (None, [TOOL])]


def foreign_literals(control: ControlTokens, text: str, own: Sequence[Occurrence]) -> list[str]:
    """Return the control-token literals in a text that are not entirely the template's own, in order."""
    found = list(control.find(text))
    if found == own:
        return []
    spans = _OwnSpans(own)
    return [control.texts[token.id] for token in found if spans.first_outside(token) is not None]


def escape_foreign_literals(
    control: ControlTokens, text: str, own: Sequence[Occurrence], escapes: Escapes, composed: Collection[str] = ()
) -> str:
    """Return a text of the same length in which one character of each foreign literal is replaced by a placeholder.

    `composed` literals are the template's own wherever they do not overlap one that had a mark.
    """
    spans = _OwnSpans(own)
    pieces: list[str] = []
    at = done = 0
    while (token := next(control.find(text, at), None)) is not None:
        place = spans.first_outside(token)
        if place is None or (control.texts[token.id] in composed and not spans.overlap(token)):
            at = token.end
            continue
        if place > token.start:
            # A token of the template and the data after it form a longer literal.
            text = f"{text[:place]}{escapes.placeholder(text[place])}{text[place + 1 :]}"
            continue
        pieces += (text[done:place], escapes.placeholder(text[place]))
        at = done = place + 1
    pieces.append(text[done:])
    return "".join(pieces)


class _OwnSpans:
    """Must be queried from left to right."""

    def __init__(self, own: Sequence[Occurrence]) -> None:
        self._own = own
        self._next = 0

    def first_outside(self, token: Occurrence) -> int | None:
        """The first offset of a literal that is not in one of the spans."""
        self._skip_to(token.start)
        at, number = token.start, self._next
        while at < token.end and number < len(self._own) and self._own[number].start <= at:
            at = self._own[number].end
            number += 1
        return at if at < token.end else None

    def overlap(self, token: Occurrence) -> bool:
        self._skip_to(token.start)
        return self._next < len(self._own) and self._own[self._next].start < token.end

    def _skip_to(self, at: int) -> None:
        while self._next < len(self._own) and self._own[self._next].end <= at:
            self._next += 1
