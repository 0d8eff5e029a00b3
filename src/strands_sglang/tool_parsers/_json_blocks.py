"""Blocks of calls written in JSON: one list of objects, or a section of calls between markers.

    OPENING [{"name": ..., "arguments": {...}}, ...] CLOSING
    SECTION_BEGIN CALL_BEGIN head SEPARATOR {...} CALL_END ... SECTION_END

Lists (`CallList`; Mistral, Phi-4, Nemotron):

- A call is one object of the list. It is closed by what follows: a comma and another value, or `]` and whatever the
  format requires after a list. A bad object that is closed fails alone.
- If it is not closed, or if the JSON is invalid, everything from that object (from the opening marker, if it is the
  first) to the end of the block is one failed call. Earlier objects were closed, and count.
- A list without an object is a failed call.

Sections (`SectionToolParser`; DeepSeek, Kimi):

- A call is a head that names the tool and one JSON object, between the call's own markers, inside a section. JSON
  whitespace is allowed around the JSON and between calls, and nothing else.
- A section ends at its end marker, at the beginning of another section, or with the turn. Each call is closed by its
  own marker, so the calls of an unclosed section count.
- Other text inside a section is a failed call (`MISPLACED`), up to the next call or the end of the section. A call
  outside of a section is `MISPLACED`, even without its begin marker. End markers alone are text.
- A section without a call is a failed call: `MISSING_NAME`, or `UNCLOSED` if the turn ends there.
- A malformed call ends after its end marker or before the end of the section, whichever is first. Markers inside its
  JSON do not count.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, ClassVar, NamedTuple

from typing_extensions import override

from strands_sglang.tool_parsers._json import (
    TurnJson,
    arguments_of,
    as_arguments,
    is_whole,
    kind_of,
    name_of,
    skip_space,
)
from strands_sglang.tool_parsers.base import FramedToolParser, Schemas
from strands_sglang.tool_parsers.parsed import (
    CallFault,
    FailedCall,
    Found,
    Frame,
    Mark,
    Markers,
    ParseFailure,
    SampledText,
    ToolCall,
)


class ListEnd(NamedTuple):
    marker: str | None = None
    """None: the end of the turn."""
    closes: bool = True
    """Whether the marker is required. If not, it begins something new, and the turn may end instead."""

    def block_end(self, text: SampledText, past: int) -> int:
        """Return where the block ends whose list ends at `past`."""
        at = skip_space(text, past)
        must = self.marker if self.closes else None
        if self.marker is not None and text.marks(self.marker, at):
            return at + len(must or "")
        if must is None and at == len(text):
            return at
        if must is not None and text.mark(must, at) < 0:
            raise CallFault(ParseFailure.UNCLOSED, f"The list of tool calls has no {must}", past=past)
        place = f"Between the list of tool calls and {must}" if must else "After the list of tool calls"
        raise CallFault(ParseFailure.TRAILING_TEXT, f"{place} there must be nothing else", past=past, at=at)

    def limit(self, text: SampledText, past: int, json: TurnJson) -> int:
        if self.marker is None:
            return len(text)
        if past and text.marks(self.marker, past - 1):
            past -= 1  # the decoder took the marker's own bracket for a list
        found = text.mark(self.marker, past)
        if 0 <= found < (past := json.pass_over(past, found)):
            found = text.mark(self.marker, past)
        if found < 0:
            return len(text)
        return found + len(self.marker) if self.closes else found


class CallList:
    def __init__(self, text: SampledText, json: TurnJson, end: ListEnd, id_key: str | None = None) -> None:
        self._text = text
        self._json = json
        self._end = end
        self._id_key = id_key

    def read(self, start: int, at: int) -> Generator[Found, None, int]:
        """Yield the contents of one block from `start`, whose list begins at `at`; return where the block ends."""
        try:
            at = self._first(at)
        except CallFault as fault:
            limit = self._end.limit(self._text, fault.past, self._json)
            yield fault.failed(self._text, start, limit)
            return limit
        broken = end = after = start
        more = True
        while more:
            found, after, more = self._call(at, broken)
            if found.start > end:
                yield Frame(self._text[end : found.start], end)
            yield found
            end = found.start + len(found.raw)
            broken = at = after
        if after > end:
            yield Frame(self._text[end:after], end)
        return after

    def between_markers(self, opening: str, at: int) -> Iterator[Found]:
        """Yield the contents of every block from `at` on, each after an opening marker."""
        while (start := self._text.mark(opening, at)) >= 0:
            at = yield from self.read(start, start + len(opening))

    def _first(self, at: int) -> int:
        text, end = self._text, self._end
        at = skip_space(text, at)
        if not text.startswith("[", at):
            value, past = self._json.read(at, end.marker)
            is_object = isinstance(value, dict)
            failure = ParseFailure.INVALID_JSON if is_object else ParseFailure.NOT_AN_OBJECT
            message = "Tool calls must be a JSON list of objects, [{...}, ...], not "
            raise CallFault(failure, message + ("an object" if is_object else kind_of(value)), past=past)
        first = skip_space(text, at + 1)
        if first == len(text):
            raise CallFault(ParseFailure.UNCLOSED, "The turn ended where a list of tool calls begins", past=first)
        if text.startswith("]", first):
            end.block_end(text, first + 1)
            message = "The list of tool calls is empty, so it names no tool"
            raise CallFault(ParseFailure.MISSING_NAME, message, past=first + 1)
        return first

    def _call(self, at: int, broken: int) -> tuple[ToolCall | FailedCall, int, bool]:
        """Return the call at `at`, or the failed call from `broken` on if the list is malformed there.

        Also returns where the list continues or its block ends, and whether it continues.
        """
        text = self._text
        name: str | None = None
        own: CallFault | None = None
        try:
            try:
                value, past = self._json.read(at, self._end.marker)
                name = name_of(value, past)
                call_id = self._id_of(value, past)
                arguments = arguments_of(value, past)
            except CallFault as fault:
                if not is_whole(fault, at):
                    raise
                own, past = fault, fault.past
            after, more = self._next_value(past)
        except CallFault as fault:
            limit = self._end.limit(text, fault.past, self._json)
            return (own or fault).failed(text, broken, limit, name), limit, False
        if own is not None:
            return own.failed(text, at, past, name), after, more
        return ToolCall(name or "", arguments, text[at:past], at, call_id), after, more

    def _id_of(self, value: dict[str, Any], past: int) -> str | None:
        if self._id_key is None or self._id_key not in value:
            return None
        found = value[self._id_key]
        if isinstance(found, str) and found.strip():
            return found
        message = f'The "{self._id_key}" of a tool call must be a non-blank string'
        raise CallFault(ParseFailure.MISSING_NAME, message, past=past)

    def _next_value(self, past: int) -> tuple[int, bool]:
        text = self._text
        at = skip_space(text, past)
        if text.startswith("]", at):
            return self._end.block_end(text, at + 1), False
        if text.startswith(",", at):
            at = skip_space(text, at + 1)
            marker = self._end.marker
            if at < len(text) and text[at] not in ",]" and not (marker is not None and text.marks(marker, at)):
                return at, True
        if at == len(text):
            raise CallFault(ParseFailure.UNCLOSED, "The turn ended before the ] of a list of tool calls", past=past)
        message = "The JSON is not valid: expecting ] or a comma and another tool call"
        raise CallFault(ParseFailure.INVALID_JSON, message, past=past, at=at)


class SectionMarkers(NamedTuple):
    begin: str
    end: str
    call_begin: str
    separator: str
    call_end: str


class Head(NamedTuple):
    name: str
    id: str | None
    past: int


class SectionToolParser(FramedToolParser):
    """A family defines its markers and `head`."""

    section: ClassVar[SectionMarkers]
    fence: ClassVar[str] = ""

    def head(self, text: SampledText, start: int, separator: Mark, stop: int) -> Head:
        """Read the head of a call, which begins at `start`; `stop` is the next marker after the separator."""
        raise NotImplementedError(f"{type(self).__name__} must define head")

    @override
    def read(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        return _Turn(self, text).read(at)


class _Turn:
    _json: TurnJson

    def __init__(self, parser: SectionToolParser, text: SampledText) -> None:
        self._parser, self._format, self._text = parser, parser.section, text
        self._markers = Markers(*parser.section)
        self._looked = len(text) + 1
        self._mark: Mark | None = None

    def read(self, at: int) -> Iterator[Found]:
        section = self._format
        mark = self._next(at)
        while mark is not None and mark.marker in (section.end, section.call_end):
            mark = self._next(mark.end)
        if mark is not None:
            self._json = TurnJson(self._text)
        while mark is not None:
            at = mark.end
            if mark.marker == section.begin:
                at = yield from self._section(mark)
            elif mark.marker in (section.call_begin, section.separator):
                at = yield from self._outside(mark)
            mark = self._next(at)

    def _next(self, at: int) -> Mark | None:
        """The last search is reused where it still holds."""
        if at < self._looked or (self._mark is not None and self._mark.start < at):
            self._looked, self._mark = at, self._markers.next(self._text, at)
        return self._mark

    def _closing(self, at: int) -> Mark | None:
        mark = self._next(at)
        while mark is not None and mark.marker not in (self._format.call_end, self._format.end):
            mark = self._next(mark.end)
        return mark

    def _section(self, begin: Mark) -> Generator[Found, None, int]:
        text, section = self._text, self._format
        at, is_empty = skip_space(text, begin.end), True
        while at < len(text):
            mark = self._next(at)
            here = mark.marker if mark is not None and mark.start == at else None
            if here == section.begin or here == section.end:
                end = at if here == section.begin else at + len(section.end)
                if is_empty:
                    message = f"After {section.begin} a tool call must begin with {section.call_begin}, and none does"
                    fault = CallFault(ParseFailure.MISSING_NAME, message, past=end)
                    yield fault.failed(text, begin.start, begin.end if here == section.begin else end)
                elif here == section.end:
                    yield Frame(section.end, at)
                return end
            if is_empty:
                yield Frame(section.begin, begin.start)
                is_empty = False
            found = self._call(at) if here == section.call_begin else self._stray(at)
            yield found
            at = skip_space(text, at + len(found.raw))
        if is_empty:
            fault = CallFault(ParseFailure.UNCLOSED, f"The turn ended after {section.begin}", past=at)
            yield fault.failed(text, begin.start, at)
        return at

    def _outside(self, opening: Mark) -> Generator[Found, None, int]:
        text, section, start = self._text, self._format, opening.start
        if opening.marker == section.call_begin:
            found = self._call(start)
            name, end = found.name, start + len(found.raw)
        else:
            name, end = None, self._past_stray(start, section.call_end)
        message = f"The tool call is outside of a section; {section.begin} must come before the first call"
        yield CallFault(ParseFailure.MISPLACED, message, past=end).failed(text, start, end, name)
        at = skip_space(text, end)
        if not text.marks(section.end, at):
            return end
        yield Frame(section.end, at)
        return at + len(section.end)

    def _stray(self, start: int) -> FailedCall:
        end = self._past_stray(start)
        message = f"A section may contain only tool calls, and each must begin with {self._format.call_begin}"
        return CallFault(ParseFailure.MISPLACED, message, past=end, at=start).failed(self._text, start, end)

    def _past_stray(self, start: int, closing: str | None = None) -> int:
        """Return where text that belongs to no call ends: after `closing`, or before a call or a section marker."""
        text, section = self._text, self._format
        at, mark = start, self._next(start)
        end = len(text)
        while mark is not None:
            past = self._json.pass_over(at, mark.start)
            if past <= mark.start and mark.marker == closing:
                return mark.end
            if past <= mark.start and mark.marker in (section.begin, section.end, section.call_begin):
                end = mark.start
                break
            at = max(past, mark.end)
            mark = self._next(at)
        return start + len(text[start:end].rstrip(" \t\n\r"))

    def _call(self, start: int) -> ToolCall | FailedCall:
        text, section = self._text, self._format
        name: str | None = None
        try:
            begin = start + len(section.call_begin)
            separator = self._separator(begin)
            following = self._next(separator.end)
            stop = len(text) if following is None else following.start
            head = self._parser.head(text, begin, separator, stop)
            name = head.name
            value, past = self._json.read(head.past, section.call_end)
            arguments = as_arguments(value, past)
            end = self._end(past)
        except CallFault as fault:
            closing = self._closing(fault.past)
            past = self._json.pass_over(fault.past, len(text) if closing is None else closing.start)
            if closing is not None and past > closing.start:
                closing = self._closing(past)
            end = len(text) if closing is None else closing.start if closing.marker == section.end else closing.end
            return fault.failed(text, start, end, name)
        return ToolCall(name=name, arguments=arguments, raw=text[start:end], start=start, id=head.id)

    def _separator(self, begin: int) -> Mark:
        section = self._format
        mark = self._next(begin)
        if mark is not None and mark.marker == section.separator:
            return mark
        if mark is None:
            message = f"The turn ended before the {section.separator} of a tool call"
            raise CallFault(ParseFailure.UNCLOSED, message, past=begin)
        if mark.marker != section.call_end:
            message = f"The tool call is not closed by {section.call_end}: {mark.marker} comes first"
            raise CallFault(ParseFailure.UNCLOSED, message, past=begin, at=mark.start)
        if not self._text[begin : mark.start].strip():
            raise CallFault(ParseFailure.MISSING_NAME, "The tool call is empty, so it names no tool", past=begin)
        message = f"The tool call has no {section.separator} between its name and its arguments"
        raise CallFault(ParseFailure.BAD_ARGUMENTS, message, past=begin)

    def _end(self, past: int) -> int:
        text, section, fence = self._text, self._format, self._parser.fence
        at = skip_space(text, past)
        fenced = text.startswith(fence, at) and (not fence or text[past:at].endswith("\n"))
        after = at + len(fence) if fenced else at
        if fenced and text.marks(section.call_end, after):
            return after + len(section.call_end)
        closing = self._closing(after)
        after = skip_space(text, after)
        if closing is None or closing.marker == section.end or text.marks(section.call_begin, after):
            message = f"The tool call is not closed by {section.call_end}"
            raise CallFault(ParseFailure.UNCLOSED, message, past=past, at=after if closing else None)
        if closing.start == at:
            message = f"The JSON of a tool call is not closed by {fence} on a line of its own before {section.call_end}"
            raise CallFault(ParseFailure.UNCLOSED, message, past=past)
        expected = f"a newline, {fence} and {section.call_end}" if fence else section.call_end
        message = f"After the JSON object of a tool call there must be {expected}, and nothing else before that"
        raise CallFault(ParseFailure.TRAILING_TEXT, message, past=past, at=after)
