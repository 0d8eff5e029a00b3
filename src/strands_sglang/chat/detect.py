"""Which parser reads the calls of a chat template: the one that reads what the template itself writes for a call.

The template is given calls, and every known parser what it made of them. No name of a model is looked at, so a
fine-tune, a renamed checkpoint or a template of one's own is found all the same.

Invariant: a parser is chosen only if it is the only one that reads every probe exactly.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product, takewhile
from typing import Any

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.content import TemplateMessage
from strands_sglang.errors import TemplateRefusedError
from strands_sglang.tool_parsers import ToolParser
from strands_sglang.tool_parsers.registry import get_tool_parser, registered, tool_parser_names
from strands_sglang.tool_parsers.sampled import SampledText

logger = logging.getLogger(__name__)

_TOOL = "probe_tool"
_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}, "number": {"type": "integer"}}}
_TOOLS = [{"type": "function", "function": {"name": _TOOL, "description": "x", "parameters": _SCHEMA}}]
_PROBES: tuple[dict[str, Any], ...] = ({"text": "a probe", "number": 7}, {"text": "x"})
# Some templates write the id and demand nine letters and digits, others take the tool's name from it.
_IDS = (f"functions.{_TOOL}:0", "probe0000")


@dataclass(frozen=True, slots=True)
class Detected:
    """What was found out about a template's calls."""

    parser: ToolParser | None
    """The parser; None when it cannot be told for certain."""
    problem: str = ""
    """Why not, and what to do; empty when it can."""


def chosen_tool_parser(chosen: ToolParser | str | None, bridge: Bridge) -> Detected:
    """Return the parser that was given or named; for None and "auto", the one of the template's calls."""
    if isinstance(chosen, ToolParser):
        return Detected(chosen)
    return detect_tool_parser(bridge) if chosen in (None, "auto") else Detected(get_tool_parser(str(chosen)))


def detect_tool_parser(bridge: Bridge) -> Detected:
    """Find the parser of a template's calls."""
    parsers = registered()
    known = _found.get(bridge)
    if known is None or known[0] != parsers:
        known = (parsers, _detect(bridge, tool_parser_names()))
        _found[bridge] = known
    return known[1]


_found: weakref.WeakKeyDictionary[Bridge, tuple[tuple[type[ToolParser], ...], Detected]] = weakref.WeakKeyDictionary()


def _detect(bridge: Bridge, names: tuple[str, ...]) -> Detected:
    if not bridge.template.calls:
        return Detected(None, f"the chat template writes no tool calls. {_advice(_by_vocabulary(bridge, names))}")
    found = [name for name in names if all(_reads(bridge, get_tool_parser(name), probe) for probe in _PROBES)]
    if len(found) == 1:
        return Detected(get_tool_parser(found[0]))
    if found:
        return Detected(None, f"several parsers read the calls of this chat template. {_advice(found)}")
    written = next((str(turn) for _, turn, _ in _turns(bridge, _PROBES[0])), "nothing")
    return Detected(
        None,
        f"no known parser reads what this chat template writes for a call: {written!r}. Write one (a subclass of "
        f"ToolParser, see docs/tools.md) and give it as tool_parser=. {_advice(_by_vocabulary(bridge, names))}",
    )


def _reads(bridge: Bridge, parser: ToolParser, arguments: dict[str, Any]) -> bool:
    """Return whether a parser reads a probe exactly, in one of the forms the template takes it."""
    for opened, turn, tail in _turns(bridge, arguments):
        words = turn + tail if tail in parser.endings else turn
        text = SampledText(words) if words is not turn else turn
        is_open = opened.rstrip().endswith(parser.reasoning_markers[0])
        try:
            parsed = parser.parse(text, reasoning_open=is_open, schemas={_TOOL: _SCHEMA})
        except Exception as error:  # a user's own parser, on a template that may not be meant for it
            logger.warning("parser=<%s>, error=<%r> | a parser failed on what the template writes", parser.name, error)
            return False
        if [(call.name, call.arguments) for call in parsed.calls] == [(_TOOL, arguments)] and not parsed.failures:
            return True
    return False


def _turns(bridge: Bridge, arguments: dict[str, Any]) -> Iterator[tuple[str, SampledText, str]]:
    """Yield what a template writes for a call: the prompt before it, the turn, and the token that ends it."""
    encoder, template = bridge.encoder, bridge.template
    user: TemplateMessage = {"role": "user", "content": "x"}
    # Some templates write calls only where tools are on offer.
    for call_id, tools in product(_IDS, (None, _TOOLS)):
        call = {"type": "function", "id": call_id, "function": {"name": _TOOL, "arguments": arguments}}
        assistant: TemplateMessage = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            prompt = encoder.encode(template.render([user], tools=tools).text)
            whole = encoder.encode(template.render([user, assistant], tools=tools, generate=False).text)
        except TemplateRefusedError:
            continue
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False)))
        end = len(whole)
        while end > same and _is_closing(bridge, whole[end - 1]):
            end -= 1
        tail = encoder.control.texts.get(whole[end], "") if end < len(whole) else ""
        yield encoder.decode(whole[:same][-8:]), encoder.sampled(whole[same:end]), tail


def _is_closing(bridge: Bridge, token_id: int) -> bool:
    """Return whether a token at the end of a turn is none of its words."""
    return token_id in bridge.encoder.control.special or not bridge.encoder.decode([token_id]).strip()


def _by_vocabulary(bridge: Bridge, names: tuple[str, ...]) -> list[str]:
    """Return the parsers whose markers are tokens of this tokenizer."""
    tokens = bridge.encoder.control.ids
    return [name for name in names if any(marker in tokens for marker in get_tool_parser(name).call_markers)]


def _advice(candidates: list[str]) -> str:
    if not candidates:
        return f"Name the parser of your model, as in tool_parser='hermes'. Known: {', '.join(tool_parser_names())}"
    return f"Name the parser of your model, as in tool_parser={candidates[0]!r}. Candidates: {', '.join(candidates)}"
