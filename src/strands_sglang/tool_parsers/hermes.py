"""The Hermes format, which Qwen2.5, Qwen3 and many fine-tunes write.

    <tool_call>
    {"name": "calculator", "arguments": {"expression": "12*7+3"}}
    </tool_call>

Invariant: a call is the opening marker, one JSON object with a `name` and an object as `arguments`, and the closing
marker, with JSON whitespace between them and nothing else. The JSON decides where the object ends, so either marker
inside a string is part of the string. Other keys of the object are ignored: they say nothing about what to execute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from strands_sglang.tool_parsers.base import ToolParser, assemble
from strands_sglang.tool_parsers.fault import CallFault
from strands_sglang.tool_parsers.parsed import FailedCall, ParsedTurn, ParseFailure, ToolCall
from strands_sglang.tool_parsers.reasoning import split_reasoning
from strands_sglang.tool_parsers.strict_json import JsonReader, skip_space

_OPENING = "<tool_call>"
_CLOSING = "</tool_call>"


class HermesToolParser(ToolParser):
    """Strict parser of `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

    name: ClassVar[str] = "hermes"
    call_markers: ClassVar[tuple[str, ...]] = (_OPENING,)

    def parse(
        self, text: str, *, reasoning_open: bool = False, schemas: Mapping[str, Mapping[str, Any]] | None = None
    ) -> ParsedTurn:
        """Take one turn apart; see `ToolParser.parse`. JSON has types of its own, so the schemas are not needed."""
        split = split_reasoning(text, reasoning_open)
        return assemble(text, split, _scan(text, split.rest_start))


def _scan(text: str, at: int) -> Iterator[ToolCall | FailedCall]:
    """Yield what begins with an opening marker at or behind `at`, each from behind the end of the one before."""
    start = text.find(_OPENING, at)
    if start < 0:
        return
    reader = JsonReader(text)
    while start >= 0:
        found = _read(text, start, reader)
        yield found
        start = text.find(_OPENING, start + len(found.raw))


def _read(text: str, start: int, reader: JsonReader) -> ToolCall | FailedCall:
    name = None
    try:
        value, past = reader.read(start + len(_OPENING))
        name = _name(value, past)
        arguments = _arguments(value, past)
        end = _end(text, past)
    except CallFault as fault:
        return _failed(text, start, name, fault, reader)
    return ToolCall(name=name, arguments=arguments, raw=text[start:end], start=start)


def _name(value: Any, past: int) -> str:
    if not isinstance(value, dict):
        words = f"A tool call must be a JSON object, not {_kind(value)}"
        raise CallFault(ParseFailure.NOT_AN_OBJECT, words, past=past)
    if "name" not in value:
        raise CallFault(ParseFailure.MISSING_NAME, 'The tool call has no key "name"', past=past)
    name = value["name"]
    if not isinstance(name, str) or not name.strip():
        kind = "a blank one" if isinstance(name, str) else _kind(name)
        words = f'The "name" of a tool call must be a string that names a tool, not {kind}'
        raise CallFault(ParseFailure.MISSING_NAME, words, past=past)
    return name


def _arguments(value: dict[str, Any], past: int) -> dict[str, Any]:
    if "arguments" not in value:
        words = 'The tool call has no key "arguments"; a call without arguments needs "arguments": {}'
        raise CallFault(ParseFailure.BAD_ARGUMENTS, words, past=past)
    arguments = value["arguments"]
    if not isinstance(arguments, dict):
        words = f'The "arguments" of a tool call must be a JSON object, not {_kind(arguments)}'
        raise CallFault(ParseFailure.BAD_ARGUMENTS, words, past=past)
    return arguments


def _end(text: str, past: int) -> int:
    """Return where the call ends whose JSON ends at `past`."""
    at = skip_space(text, past)
    if text.startswith(_CLOSING, at):
        return at + len(_CLOSING)
    if text.startswith(_OPENING, at):
        words = f"Another {_OPENING} begins before {_CLOSING} has ended this tool call"
        raise CallFault(ParseFailure.UNCLOSED, words, past=past, at=at)
    if text.find(_CLOSING, at) < 0:
        raise CallFault(ParseFailure.UNCLOSED, f"The tool call has no {_CLOSING}", past=past)
    words = f"Between the JSON object of a tool call and {_CLOSING} there must be nothing else"
    raise CallFault(ParseFailure.TRAILING_TEXT, words, past=past, at=at)


def _failed(text: str, start: int, name: str | None, fault: CallFault, reader: JsonReader) -> FailedCall:
    """Return the failed call: up to the next closing marker behind what was read, else to the end of the text."""
    closing = text.find(_CLOSING, fault.past)
    if closing >= 0:
        return fault.failed(text, start, closing + len(_CLOSING), name)
    if fault.failure is ParseFailure.INVALID_JSON and reader.was_cut(fault):
        words = f"The turn ended in the middle of the JSON of a tool call, before {_CLOSING}"
        fault = CallFault(ParseFailure.UNCLOSED, words, past=len(text))
    return fault.failed(text, start, len(text), name)


def _kind(value: Any) -> str:
    """Return what a JSON value that is no object is, in JSON's own words."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "a number"
