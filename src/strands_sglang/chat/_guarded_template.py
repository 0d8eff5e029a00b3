"""Renders a chat template so that data cannot become a control token, whatever the template does with it.

The template is rendered with a mark (`ControlTokens.marked`) in place of each control token in its source. Any other
control-token literal in the rendered text comes from data, and one character of it is escaped. Some templates
concatenate a literal from parts (`<|`, a role, `|>`), which leaves no mark. These *composed* literals are found by
rendering a second time with data that cannot contribute to them.

A template that does more with data than write it, such as escaping, cutting or searching it, treats a placeholder
differently from the text that it stands for. So whenever something was replaced in the data, the result is compared
with the official rendering of the real data; if they differ, the data is passed in the other forms of `DataForm`.

Invariants: every control-token literal in the rendered text was written by the template. With its placeholders
restored, the text is the official rendering.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from strands_sglang.chat.control_tokens import ControlTokens, DataForm, Escapes, Occurrence, without_surrogates
from strands_sglang.chat.messages import TemplateMessage, function_call
from strands_sglang.errors import TemplateRefusedError

# Constants of a template that it only searches for in other texts and never writes.
_SEARCHED = re.compile(
    r"""[.|]\s*(?:r?split|r?partition|startswith|endswith|r?find|r?index|count|replace|[lr]?strip|remove(?:pre|suf)fix)"""
    r"""\(\s*(?:"[^"]*"|'[^']*')|(?:"[^"]*"|'[^']*')\s+(?:not\s+)?in\b|[=!]=\s*(?:"[^"]*"|'[^']*')"""
)

PROBE = "xQzProbeqZx"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "xQzToolqZx", "description": "x", "parameters": {"type": "object", "properties": {}}},
}

Arguments: TypeAlias = Mapping[str, Any]
Samples: TypeAlias = Sequence[tuple[list[TemplateMessage], Any]]
Render: TypeAlias = Callable[[Sequence[TemplateMessage], Any, bool, Arguments], str]
"""Takes messages in the template's form, tools, whether to add the prompt for the next turn, and the arguments."""


class _Rendering(NamedTuple):
    text: str
    own: list[Occurrence]
    escapes: Escapes
    foreign: Sequence[str] = ()
    """The control-token literals in it that have no mark, in order."""
    composed: Sequence[str] = ()
    """Those of them that the template composed."""


class GuardedTemplate:
    def __init__(
        self, control: ControlTokens, render: Render, own: Arguments, special: Arguments, samples: Samples
    ) -> None:
        """`samples` are conversations and tools that must render the same with and without marks."""
        self._control, self._plain = control, own
        self._composed: frozenset[str] = frozenset()
        self.marked = self._find_marked(render, own, special, samples)

    def render(
        self, render: Render, fitted: Sequence[TemplateMessage], tools: Any, generate: bool
    ) -> tuple[str, Escapes]:
        rendering = self._render_escaped(render, fitted, tools, generate)
        if not rendering.escapes.replaced:
            return self._guarded(rendering), rendering.escapes
        official = without_surrogates(render(fitted, tools, generate, self._plain))
        for form in DataForm:
            if form is not DataForm.PLACEHOLDERS:
                composing = self._composed if form is DataForm.SEARCHED else frozenset()
                try:
                    other = self._render_marked(render, fitted, tools, generate, composing, form=form)
                except TemplateRefusedError:
                    continue
                foreign = foreign_literals(self._control, other.text, other.own)
                composed = [literal for literal in foreign if literal in self._composed]
                if composed != list(rendering.composed):
                    continue  # it is not certain which of them are the template's own
                rendering = other._replace(foreign=foreign, composed=composed)
            text = self._guarded(rendering)
            if rendering.escapes.restore(text) == official:
                return text, rendering.escapes
        raise TemplateRefusedError(
            "the chat template changes text of this conversation that looks like a control token, so it cannot be told "
            "which control tokens are the template's own; remove such text from the messages and tools",
            template_message="it changes text of the conversation that looks like a control token",
        )

    def _guarded(self, rendering: _Rendering) -> str:
        if not rendering.foreign:
            return rendering.text
        text, own, escapes, _, composed = rendering
        return escape_foreign_literals(self._control, text, own, escapes, frozenset(composed))

    def _render_escaped(
        self, render: Render, fitted: Sequence[TemplateMessage], tools: Any, generate: bool
    ) -> _Rendering:
        rendering = self._render_marked(render, fitted, tools, generate, self._composed)
        foreign = foreign_literals(self._control, rendering.text, rendering.own)
        if not foreign:
            return rendering
        # From data, or composed by the template? A composed literal is still there if data cannot contribute to it.
        unsure = self._composed.union(foreign)
        try:
            blind = self._render_marked(render, fitted, tools, generate, unsure, blind=True)
        except TemplateRefusedError:
            blind = self._render_marked(render, fitted, tools, generate, unsure)
        own = [literal for literal in foreign_literals(self._control, blind.text, blind.own) if literal in unsure]
        composed = frozenset(own)
        if not composed <= self._composed:
            self._composed |= composed
            rendering = self._render_marked(render, fitted, tools, generate, self._composed)
        if composed and own != [
            literal for literal in foreign_literals(self._control, rendering.text, rendering.own) if literal in composed
        ]:
            rendering = blind
        return rendering._replace(foreign=foreign, composed=own)

    def _render_marked(
        self,
        render: Render,
        fitted: Sequence[TemplateMessage],
        tools: Any,
        generate: bool,
        composed: frozenset[str],
        *,
        blind: bool = False,
        form: DataForm = DataForm.PLACEHOLDERS,
    ) -> _Rendering:
        escapes, arguments = Escapes(self._control, form), self.marked
        if form is DataForm.SEARCHED and (source := arguments["chat_template"]) is not None:
            source = _SEARCHED.sub(lambda found: escapes.escape(self._control.unmarked(found[0])[0]), source)
            arguments = {**arguments, "chat_template": source}
        safe = [
            escapes.escape(message, trusted=message["role"] == "system", composed=composed, blind=blind)
            for message in fitted
        ]
        safe_tools = escapes.escape(tools, composed=composed, blind=blind)
        text, own = self._control.unmarked(render(safe, safe_tools, generate, arguments))
        return _Rendering(without_surrogates(text), own, escapes)

    def _find_marked(self, render: Render, plain: Arguments, special: Arguments, samples: Samples) -> Arguments:
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
                        texts.append(self._control.unmarked(render(messages, tools, generate, arguments))[0])
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
