"""The two formats of Mistral models.

    [TOOL_CALLS][{"name": "calculator", "arguments": {"expression": "12*7+3"}, "id": "call00001"}]

    [TOOL_CALLS]calculator[CALL_ID]call00001[ARGS]{"expression": "12*7+3"}[TOOL_CALLS]...

Invariant: after the marker there is either one JSON list of calls, or one call: a name, an optional id, and a JSON
object. JSON whitespace is allowed around the JSON; after it only another `[TOOL_CALLS]` or the end of the turn.

- Names and ids of the second format are not blank and contain none of `[]{}`, so a missing marker never becomes part of
  a name.
- The `id` of the first format is optional, and otherwise a non-blank string.
- A malformed call ends at the next `[TOOL_CALLS]` after what was read of it, or with the turn. The text of a call in a
  list is that of its object (`_json_blocks.py`).
- `[ARGS]` and `[CALL_ID]` alone are text, because older tokenizers have no such tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers._json import TurnJson, as_arguments, skip_space
from strands_sglang.tool_parsers._json_blocks import CallList, Head, ListEnd
from strands_sglang.tool_parsers.base import FramedToolParser, Schemas
from strands_sglang.tool_parsers.parsed import (
    CallFault,
    FailedCall,
    Found,
    Mark,
    Markers,
    ParseFailure,
    SampledText,
    ToolCall,
)

_OPENING = "[TOOL_CALLS]"
_ID = "[CALL_ID]"
_ARGUMENTS = "[ARGS]"
_MARKERS = Markers(_OPENING, _ID, _ARGUMENTS)
_END = ListEnd(_OPENING, closes=False)


class MistralToolParser(FramedToolParser):
    """Strict parser of `[TOOL_CALLS][{...}, ...]` and `[TOOL_CALLS]NAME[ARGS]{...}`."""

    name: ClassVar[str] = "mistral"
    reasoning_markers: ClassVar[tuple[str, str]] = ("[THINK]", "[/THINK]")
    call_markers: ClassVar[tuple[str, ...]] = (_OPENING,)
    markers: ClassVar[tuple[str, ...]] = (_OPENING, _ID, _ARGUMENTS)

    @override
    def read(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        start = text.mark(_OPENING, at)
        if start < 0:
            return
        json = TurnJson(text)
        lists = CallList(text, json, _END, id_key="id")
        while start >= 0:
            begin = skip_space(text, start + len(_OPENING))
            if text.startswith("[", begin) and not text.startswith(self.markers, begin):
                at = yield from lists.read(start, begin)
            else:
                found = _read(text, start, json)
                yield found
                at = start + len(found.raw)
            start = text.mark(_OPENING, at)


def _read(text: SampledText, start: int, json: TurnJson) -> ToolCall | FailedCall:
    name: str | None = None
    try:
        head = _head(text, start + len(_OPENING))
        name = head.name
        value, past = json.read(head.past, _OPENING)
        arguments = as_arguments(value, past)
        _END.block_end(text, past)
    except CallFault as fault:
        return fault.failed(text, start, _END.limit(text, fault.past, json), name)
    return ToolCall(name=name, arguments=arguments, raw=text[start:past], start=start, id=head.id)


def _head(text: SampledText, begin: int) -> Head:
    if text.startswith("{", skip_space(text, begin)):
        message = (
            f"{_OPENING} must be followed by a list of tool calls, or by a name and {_ARGUMENTS}, not by an object"
        )
        raise CallFault(ParseFailure.MISSING_NAME, message, past=begin)
    mark = _next(text, begin)
    name, call_id = _head_part(text, begin, mark, "name"), None
    if mark.marker == _ID:
        begin = mark.end
        mark = _next(text, begin)
        call_id = _head_part(text, begin, mark, "id")
    if mark.marker != _ARGUMENTS:
        message = f"The tool call has no {_ARGUMENTS} followed by its arguments"
        raise CallFault(ParseFailure.BAD_ARGUMENTS, message, past=mark.start, at=mark.start)
    return Head(name, call_id, mark.end)


def _next(text: SampledText, at: int) -> Mark:
    mark = _MARKERS.next(text, at)
    if mark is None:
        raise CallFault(ParseFailure.UNCLOSED, f"The turn ended before the {_ARGUMENTS} of a tool call", past=at)
    return mark


def _head_part(text: SampledText, begin: int, mark: Mark, what: str) -> str:
    part = text[begin : mark.start]
    if not part.strip() or any(bracket in part for bracket in "[]{}"):
        message = f"The {what} of a tool call must come before {mark.marker}, without brackets"
        past = mark.start if mark.marker == _OPENING else mark.end
        raise CallFault(ParseFailure.MISSING_NAME, message, past=past, at=begin)
    return part
