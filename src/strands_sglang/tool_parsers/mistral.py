"""The two formats of Mistral models.

    [TOOL_CALLS][{"name": "calculator", "arguments": {"expression": "12*7+3"}, "id": "call00001"}]

    [TOOL_CALLS]calculator[CALL_ID]call00001[ARGS]{"expression": "12*7+3"}[TOOL_CALLS]...

Invariant: behind the marker stands either one JSON list of calls, or one call: a name, maybe an id, and a JSON object.
JSON whitespace may stand around the JSON; behind it only another `[TOOL_CALLS]` or the end of the turn.

- Names and ids of the second format hold something, and none of `[]{}`: a lost marker is never part of a name.
- The `id` of the first format may be absent; else it is a string with something in it.
- A broken call ends at the next `[TOOL_CALLS]` behind what was read of it, or with the turn. The text of a call in a
  list is that of its object; see `json_list.py` for what happens when one is bad.
- `[ARGS]` and `[CALL_ID]` on their own are text: older tokenizers have no such token, and manuals have such words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from typing_extensions import override

from strands_sglang.tool_parsers.base import Schemas
from strands_sglang.tool_parsers.call_object import as_arguments
from strands_sglang.tool_parsers.fault import CallFault
from strands_sglang.tool_parsers.framed import FramedToolParser
from strands_sglang.tool_parsers.json_list import CallList, ListEnd
from strands_sglang.tool_parsers.parsed import FailedCall, Found, ParseFailure, ToolCall
from strands_sglang.tool_parsers.sampled import Mark, Markers, SampledText
from strands_sglang.tool_parsers.strict_json import skip_space
from strands_sglang.tool_parsers.turn_json import TurnJson

_OPENING = "[TOOL_CALLS]"
_ID = "[CALL_ID]"
_ARGUMENTS = "[ARGS]"
_WORDS = Markers(_OPENING, _ID, _ARGUMENTS)
_END = ListEnd(_OPENING, closes=False)


class MistralToolParser(FramedToolParser):
    """Strict parser of `[TOOL_CALLS][{...}, ...]` and `[TOOL_CALLS]NAME[ARGS]{...}`."""

    name: ClassVar[str] = "mistral"
    reasoning_markers: ClassVar[tuple[str, str]] = ("[THINK]", "[/THINK]")
    call_markers: ClassVar[tuple[str, ...]] = (_OPENING,)
    markers: ClassVar[tuple[str, ...]] = (_OPENING, _ID, _ARGUMENTS)

    @override
    def read(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        """Yield what begins with the marker; see `FramedToolParser.read`. JSON has types of its own."""
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


class _Head(NamedTuple):
    """What a call says before its arguments."""

    name: str
    id: str | None
    past: int


def _read(text: SampledText, start: int, json: TurnJson) -> ToolCall | FailedCall:
    """Return the call of the second format that begins at `start`."""
    name: str | None = None
    try:
        head = _head(text, start + len(_OPENING))
        name = head.name
        value, past = json.read(head.past, _OPENING)
        arguments = as_arguments(value, past)
        _END.behind(text, past)
    except CallFault as fault:
        return fault.failed(text, start, _END.limit(text, fault.past, json), name)
    return ToolCall(name=name, arguments=arguments, raw=text[start:past], start=start, id=head.id)


def _head(text: SampledText, begin: int) -> _Head:
    """Read name and id of the call whose marker ends at `begin`."""
    if text.startswith("{", skip_space(text, begin)):
        words = f"Behind {_OPENING} a list of tool calls must stand, or a name and {_ARGUMENTS}, but no object"
        raise CallFault(ParseFailure.MISSING_NAME, words, past=begin)
    mark = _next(text, begin)
    name, call_id = _word(text, begin, mark, "name"), None
    if mark.marker == _ID:
        begin = mark.end
        mark = _next(text, begin)
        call_id = _word(text, begin, mark, "id")
    if mark.marker != _ARGUMENTS:
        words = f"The tool call has no {_ARGUMENTS} with its arguments behind it"
        raise CallFault(ParseFailure.BAD_ARGUMENTS, words, past=mark.start, at=mark.start)
    return _Head(name, call_id, mark.end)


def _next(text: SampledText, at: int) -> Mark:
    mark = _WORDS.next(text, at)
    if mark is None:
        raise CallFault(ParseFailure.UNCLOSED, f"The turn ended before the {_ARGUMENTS} of a tool call", past=at)
    return mark


def _word(text: SampledText, begin: int, mark: Mark, what: str) -> str:
    word = text[begin : mark.start]
    if not word.strip() or any(bracket in word for bracket in "[]{}"):
        words = f"The {what} of a tool call must stand before {mark.marker}, without brackets"
        past = mark.start if mark.marker == _OPENING else mark.end
        raise CallFault(ParseFailure.MISSING_NAME, words, past=past, at=begin)
    return word
