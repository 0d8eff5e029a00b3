"""A template rendered so that data never becomes a control token by what the template does with it.

Templates write their own words straight behind data, put brackets around keys, take words out. So the template is
rendered with marks in place of the control tokens it names (see `written`), and every other literal in the rendered
text is data. Literals that a template puts together from pieces have no mark; they are found by rendering once more
with data that cannot have a part in them.

Invariant: every control token of a rendered text was written by the template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from strands_sglang.chat.content import TemplateMessage
from strands_sglang.chat.control import ControlTokens, Occurrence
from strands_sglang.chat.escapes import Escapes
from strands_sglang.chat.written import settled, strays
from strands_sglang.errors import TemplateRefusedError

PROBE = "xQzProbeqZx"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "xQzToolqZx", "description": "x", "parameters": {"type": "object", "properties": {}}},
}

Arguments: TypeAlias = Mapping[str, Any]
Samples: TypeAlias = Sequence[tuple[list[TemplateMessage], Any]]


class _Written(NamedTuple):
    """What a template wrote."""

    text: str
    """All of it."""
    own: list[Occurrence]
    """The control tokens that it named."""
    escapes: Escapes
    """What was taken out of data."""


class GuardedTemplate:
    """One template with its arguments."""

    def __init__(
        self, control: ControlTokens, render: Callable[..., str], own: Arguments, special: Arguments, samples: Samples
    ) -> None:
        """Take a template.

        Args:
            control: The tokenizer's control tokens.
            render: Renders messages and tools, with or without a prompt, with a template and its arguments.
            own: The template (`chat_template`) and its arguments.
            special: The tokenizer's special tokens, by the names that templates know them by.
            samples: Conversations and tools to see by whether a template with marks writes the same.
        """
        self._control, self._render = control, render
        self._composed: frozenset[str] = frozenset()
        self._marked = self._find_marked(own, special, samples)

    def render(self, fitted: Sequence[TemplateMessage], tools: Any, generate: bool) -> tuple[str, Escapes]:
        """Return what the template writes for messages in the form it reads, and what was taken out of data."""
        wrote = self._written(fitted, tools, generate, self._composed)
        found = strays(self._control, wrote.text, wrote.own)
        if not found:
            return wrote.text, wrote.escapes
        # Data, or put together from pieces by the template? Those are still there when data can have no part in them.
        unsure = self._composed.union(found)
        try:
            blind = self._written(fitted, tools, generate, unsure, blind=True)
        except TemplateRefusedError:
            blind = self._written(fitted, tools, generate, unsure)
        own = [literal for literal in strays(self._control, blind.text, blind.own) if literal in unsure]
        composed = frozenset(own)
        if not composed <= self._composed:
            self._composed |= composed
            wrote = self._written(fitted, tools, generate, self._composed)
        if composed and own != [one for one in strays(self._control, wrote.text, wrote.own) if one in composed]:
            wrote = blind
        return settled(self._control, wrote.text, wrote.own, wrote.escapes, composed), wrote.escapes

    def _written(
        self,
        fitted: Sequence[TemplateMessage],
        tools: Any,
        generate: bool,
        composed: frozenset[str],
        *,
        blind: bool = False,
    ) -> _Written:
        """Return what the template writes; see `Escapes.escape` for `composed` and `blind`."""
        escapes = Escapes(self._control)
        safe = []
        for message in fitted:
            trusted = message["role"] == "system"
            message = escapes.escape(message, trusted=trusted, composed=composed, blind=blind)
            if trusted and isinstance(message.get("content"), str):
                message = {**message, "content": self._control.marked(message["content"])}
            safe.append(message)
        tools = escapes.escape(tools, composed=composed, blind=blind)
        text, own = self._control.unmarked(self._render(safe, tools, generate, self._marked))
        return _Written(text, own, escapes)

    def _find_marked(self, plain: Arguments, special: Arguments, samples: Samples) -> Arguments:
        """Return the template and its arguments with marks; as they are, if it does not write the same then."""
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
                wrote = []
                for arguments in (plain, marked):
                    try:
                        wrote.append(self._control.unmarked(self._render(messages, tools, generate, arguments))[0])
                    except TemplateRefusedError as error:
                        wrote.append(error.template_message)
                if wrote[0] != wrote[1]:
                    return plain
        return marked


def sample_talks() -> list[tuple[list[TemplateMessage], Any]]:
    """Return conversations of all kinds, to see whether a template with marks writes the same."""
    system: TemplateMessage = {"role": "system", "content": "Be brief."}
    user: TemplateMessage = {"role": "user", "content": "One? "}
    said: TemplateMessage = {"role": "assistant", "content": "Two.", "reasoning_content": "Three."}
    function = {"name": "probe", "arguments": {"key": PROBE}}
    calls = {**said, "tool_calls": [{"type": "function", "id": "probe0000", "function": function}]}
    result: TemplateMessage = {"role": "tool", "tool_call_id": "probe0000", "name": "probe", "content": "4"}
    talks = [[user], [system, user], [user, said, user], [system, user, calls, result], [user, calls, result, said]]
    return [(talk, tools) for talk in talks for tools in (None, [TOOL])]
