"""The Hermes format, written by Qwen2.5, Qwen3 and many fine-tunes.

    <tool_call>
    {"name": "calculator", "arguments": {"expression": "12*7+3"}}
    </tool_call>

Invariant: a call is the opening marker, one JSON object with a `name` and an object as `arguments`, and the closing
marker, with only JSON whitespace between them. The JSON decides where the object ends, so a marker inside a string is
part of the string. Other keys of the object are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers._json import JsonReader, arguments_of, name_of, skip_space
from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.parsed import CallFault, FailedCall, ParseFailure, SampledText, ToolCall

_OPENING = "<tool_call>"
_CLOSING = "</tool_call>"


class HermesToolParser(ToolParser):
    """Strict parser of `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

    name: ClassVar[str] = "hermes"
    call_markers: ClassVar[tuple[str, ...]] = (_OPENING,)
    markers: ClassVar[tuple[str, ...]] = (_OPENING, _CLOSING)

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        start = text.mark(_OPENING, at)
        if start < 0:
            return
        reader = JsonReader(text)
        while start >= 0:
            found = _read(text, start, reader)
            yield found
            start = text.mark(_OPENING, start + len(found.raw))


def _read(text: SampledText, start: int, reader: JsonReader) -> ToolCall | FailedCall:
    name = None
    try:
        value, past = reader.read(start + len(_OPENING))
        name = name_of(value, past)
        arguments = arguments_of(value, past)
        end = _end(text, past)
    except CallFault as fault:
        return _failed(text, start, name, fault, reader)
    return ToolCall(name=name, arguments=arguments, raw=text[start:end], start=start)


def _end(text: SampledText, past: int) -> int:
    at = skip_space(text, past)
    if text.marks(_CLOSING, at):
        return at + len(_CLOSING)
    if text.marks(_OPENING, at):
        message = f"Another {_OPENING} begins before {_CLOSING} closes this tool call"
        raise CallFault(ParseFailure.UNCLOSED, message, past=past, at=at)
    if text.mark(_CLOSING, at) < 0:
        raise CallFault(ParseFailure.UNCLOSED, f"The tool call has no {_CLOSING}", past=past)
    message = f"Between the JSON object of a tool call and {_CLOSING} there must be nothing else"
    raise CallFault(ParseFailure.TRAILING_TEXT, message, past=past, at=at)


def _failed(text: SampledText, start: int, name: str | None, fault: CallFault, reader: JsonReader) -> FailedCall:
    closing = text.mark(_CLOSING, fault.past)
    if closing >= 0:
        return fault.failed(text, start, closing + len(_CLOSING), name)
    if fault.failure is ParseFailure.INVALID_JSON and reader.was_cut(fault):
        message = f"The turn ended in the middle of the JSON of a tool call, before {_CLOSING}"
        fault = CallFault(ParseFailure.UNCLOSED, message, past=len(text))
    return fault.failed(text, start, len(text), name)
