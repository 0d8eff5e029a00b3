"""The format of GLM-4.5, GLM-4.6 and GLM-4.7: the tool's name, then keys and bare values between tags.

    <tool_call>calculator
    <arg_key>expression</arg_key>
    <arg_value>12*7+3</arg_value>
    </tool_call>

GLM-4.7 writes the same without newlines: whitespace between tags and around the name is free. A value is everything
between its two tags, whitespace included; the tool's schema decides its type (`schemas.py`). All six tags are tokens of
these models, so the same letters inside a value are part of it. A plain string has no tokens: a tag in a value then
breaks the call.

Invariant: a call is a name and pairs of a key and a value, each between its own tags, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers._json import skip_space
from strands_sglang.tool_parsers._tags import checked_key, checked_name
from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.parsed import (
    CallFault,
    FailedCall,
    Mark,
    Markers,
    ParseFailure,
    SampledText,
    ToolCall,
    quoted,
)
from strands_sglang.tool_parsers.schemas import Values

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_MARKERS = (_OPENING, _CLOSING, _KEY, _KEY_END, _VALUE, _VALUE_END)
_ANY = Markers(*_MARKERS)


class GlmToolParser(ToolParser):
    """Strict parser of `<tool_call>name<arg_key>...</arg_key><arg_value>...</arg_value></tool_call>`."""

    name: ClassVar[str] = "glm"
    call_markers: ClassVar[tuple[str, ...]] = (_OPENING,)
    markers: ClassVar[tuple[str, ...]] = _MARKERS

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        values = Values(schemas)
        start = text.mark(_OPENING, at)
        while start >= 0:
            found = _read(text, start, values)
            yield found
            start = text.mark(_OPENING, start + len(found.raw))


def _read(text: SampledText, start: int, values: Values) -> ToolCall | FailedCall:
    name = None
    try:
        at = skip_space(text, start + len(_OPENING))
        mark = _next(text, at)
        name = checked_name(text, at, at + len(text[at : mark.start].rstrip(" \t\n\r")))
        arguments, end = _arguments(text, name, mark, values)
    except CallFault as fault:
        return _failed(text, start, name, fault)
    return ToolCall(name=name, arguments=arguments, raw=text[start:end], start=start)


def _arguments(text: SampledText, name: str, mark: Mark, values: Values) -> tuple[dict[str, Any], int]:
    arguments: dict[str, Any] = {}
    while mark.marker != _CLOSING:
        _expect(mark, _KEY, f"the next key or {_CLOSING}")
        key_start, mark = mark.end, _next(text, mark.end)
        _expect(mark, _KEY_END, f"the end of the key, {_KEY_END}")
        key = checked_key(text, key_start, mark.start)
        if key in arguments:
            message = f"The key {quoted(key)} is given twice"
            raise CallFault(ParseFailure.DUPLICATE_KEY, message, past=key_start, at=key_start)
        mark = _follow(text, mark)
        _expect(mark, _VALUE, f"the value of {quoted(key)}, {_VALUE}")
        value_start, mark = mark.end, _next(text, mark.end)
        _expect(mark, _VALUE_END, f"the end of the value of {quoted(key)}, {_VALUE_END}")
        arguments[key] = values.read(name, key, text, value_start, mark.start)
        mark = _follow(text, mark)
    return arguments, mark.end


def _next(text: SampledText, at: int) -> Mark:
    mark = _ANY.next(text, at)
    if mark is None:
        raise CallFault(ParseFailure.UNCLOSED, f"The tool call has no {_CLOSING}", past=len(text))
    return mark


def _follow(text: SampledText, mark: Mark) -> Mark:
    at = skip_space(text, mark.end)
    following = _next(text, at)
    if at < following.start:
        message = f"Between {mark.marker} and {following.marker} there must be nothing else"
        raise CallFault(ParseFailure.BAD_ARGUMENTS, message, past=at, at=at)
    return following


def _expect(mark: Mark, marker: str, expected: str) -> None:
    if mark.marker != marker:
        cut = mark.marker in (_OPENING, _CLOSING) or marker in (_KEY_END, _VALUE_END)
        failure = ParseFailure.UNCLOSED if cut else ParseFailure.BAD_ARGUMENTS
        raise CallFault(failure, f"Found {mark.marker} in place of {expected}", past=mark.start, at=mark.start)


def _failed(text: SampledText, start: int, name: str | None, fault: CallFault) -> FailedCall:
    closing = text.mark(_CLOSING, fault.past)
    if closing >= 0:
        return fault.failed(text, start, closing + len(_CLOSING), name)
    message = f"{_OPENING} is not closed with {_CLOSING}, so nothing after it was run"
    return CallFault(ParseFailure.UNCLOSED, message, past=len(text)).failed(text, start, len(text), name)


GLMToolParser = GlmToolParser
"""The published package's name of this parser."""
