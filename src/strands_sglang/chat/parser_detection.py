"""Detects the tool parser of a chat template: the one that parses the calls that the template itself writes.

Probe calls are rendered with the template and parsed with every registered parser. Model names are not used, so this
also works for a fine-tune, a renamed checkpoint or a custom template.

Invariant: a parser is chosen only if it is the only one that parses every probe exactly.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product, takewhile
from typing import Any

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.messages import TemplateMessage, function_call
from strands_sglang.errors import TemplateRefusedError
from strands_sglang.tool_parsers import SampledText, ToolParser, get_tool_parser, registered, tool_parser_names

logger = logging.getLogger(__name__)

_TOOL = "probe_tool"
_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}, "number": {"type": "integer"}}}
_TOOLS = [{"type": "function", "function": {"name": _TOOL, "description": "x", "parameters": _SCHEMA}}]
_PROBES: tuple[dict[str, Any], ...] = ({"text": "a probe", "number": 7}, {"text": "x"})
# Some templates require an id of nine letters and digits; others read the tool's name from the id.
_IDS = (f"functions.{_TOOL}:0", "probe0000")


@dataclass(frozen=True, slots=True)
class ParserDetection:
    """Result of detecting a template's tool parser."""

    parser: ToolParser | None
    problem: str = ""
    """Why `parser` is None, and what to do."""


def resolve_tool_parser(chosen: ToolParser | str | None, bridge: Bridge) -> ParserDetection:
    """Return the given or named parser; for None and "auto", detect it."""
    if isinstance(chosen, ToolParser):
        return ParserDetection(chosen)
    return detect_tool_parser(bridge) if chosen in (None, "auto") else ParserDetection(get_tool_parser(str(chosen)))


def detect_tool_parser(bridge: Bridge) -> ParserDetection:
    """Detect the parser of a template's calls. Cached for each bridge and set of registered parsers."""
    parsers = registered()
    known = _cache.get(bridge)
    if known is None or known[0] != parsers:
        known = (parsers, _detect(bridge, tool_parser_names()))
        _cache[bridge] = known
    return known[1]


_cache: weakref.WeakKeyDictionary[Bridge, tuple[tuple[type[ToolParser], ...], ParserDetection]] = (
    weakref.WeakKeyDictionary()
)


def _detect(bridge: Bridge, names: tuple[str, ...]) -> ParserDetection:
    if not bridge.template.writes_calls:
        return ParserDetection(
            None, f"the chat template writes no tool calls. {_advice(_by_vocabulary(bridge, names))}"
        )
    found = [name for name in names if all(_parses(bridge, get_tool_parser(name), probe) for probe in _PROBES)]
    if len(found) == 1:
        return ParserDetection(get_tool_parser(found[0]))
    if found:
        return ParserDetection(None, f"several parsers parse the calls of this chat template. {_advice(found)}")
    written = next((str(turn) for _, turn, _ in _turns(bridge, _PROBES[0])), "nothing")
    return ParserDetection(
        None,
        f"no known parser parses a call as this chat template writes it: {written!r}. Write a subclass of "
        f"ToolParser (see docs/tools.md) and pass it as tool_parser=. {_advice(_by_vocabulary(bridge, names))}",
    )


def _parses(bridge: Bridge, parser: ToolParser, arguments: dict[str, Any]) -> bool:
    for opened, turn, tail in _turns(bridge, arguments):
        text = SampledText(turn + tail) if tail in parser.endings else turn
        is_open = opened.rstrip().endswith(parser.reasoning_markers[0])
        try:
            parsed = parser.parse(text, reasoning_open=is_open, schemas={_TOOL: _SCHEMA})
        except Exception as error:  # a custom parser may fail on a template that it was not written for
            logger.warning(
                "parser=<%s>, error=<%r> | parser raised on a tool call that the chat template wrote",
                parser.name,
                error,
            )
            return False
        if [(call.name, call.arguments) for call in parsed.calls] == [(_TOOL, arguments)] and not parsed.failures:
            return True
    return False


def _turns(bridge: Bridge, arguments: dict[str, Any]) -> Iterator[tuple[str, SampledText, str]]:
    encoder, template = bridge.encoder, bridge.template
    user: TemplateMessage = {"role": "user", "content": "x"}
    # Some templates write calls only if tools are available.
    for call_id, tools in product(_IDS, (None, _TOOLS)):
        call = function_call(_TOOL, arguments, call_id)
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
    return token_id in bridge.encoder.control.special or not bridge.encoder.decode([token_id]).strip()


def _by_vocabulary(bridge: Bridge, names: tuple[str, ...]) -> list[str]:
    tokens = bridge.encoder.control.ids
    return [name for name in names if any(marker in tokens for marker in get_tool_parser(name).call_markers)]


def _advice(candidates: list[str]) -> str:
    if not candidates:
        return f"Set the parser of your model, such as tool_parser='hermes'. Known: {', '.join(tool_parser_names())}"
    return f"Set the parser of your model, such as tool_parser={candidates[0]!r}. Candidates: {', '.join(candidates)}"
