"""A section of calls, each between markers of its own; what DeepSeek and Kimi write.

    SECTION_BEGIN CALL_BEGIN head SEPARATOR {...} CALL_END CALL_BEGIN head SEPARATOR {...} CALL_END SECTION_END

Invariant: a call is a head that names the tool, and one JSON object, between the call's own markers and inside a
section. JSON whitespace may stand around the JSON and between calls, and nothing else may.

- Each call is closed by its own marker, so the calls of a section that is not closed count. A section ends at its end
  marker, at the begin of another section, or with the turn; what is written behind its end is text.
- What stands in a section outside of calls is a failed call of its own (`MISPLACED`), up to the next call or the
  section's end.
- A call outside of a section is `MISPLACED`, also if it lacks its begin. End markers alone are text.
- A section without a call is a failed call (`MISSING_NAME`), or `UNCLOSED` when the turn ends there.
- A broken call ends behind its end marker, or before the section's end, whichever is first; markers inside its JSON do
  not count.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import ClassVar, NamedTuple

from typing_extensions import override

from strands_sglang.tool_parsers.base import Schemas
from strands_sglang.tool_parsers.call_object import as_arguments
from strands_sglang.tool_parsers.fault import CallFault
from strands_sglang.tool_parsers.framed import FramedToolParser
from strands_sglang.tool_parsers.parsed import FailedCall, Found, Frame, ParseFailure, ToolCall
from strands_sglang.tool_parsers.sampled import Mark, Markers, SampledText
from strands_sglang.tool_parsers.strict_json import skip_space
from strands_sglang.tool_parsers.turn_json import TurnJson


class SectionWords(NamedTuple):
    """The markers of a format with sections."""

    begin: str
    """Begins a section."""
    end: str
    """Ends a section."""
    call_begin: str
    """Begins a call."""
    separator: str
    """Stands between a call's head and its arguments."""
    call_end: str
    """Ends a call."""


class Head(NamedTuple):
    """What a call says before its arguments."""

    name: str
    """The tool."""
    id: str | None
    """The id of the call, where the format has one."""
    past: int
    """Where the arguments begin."""


class SectionToolParser(FramedToolParser):
    """A parser of sections; a family adds its markers and `head`."""

    words: ClassVar[SectionWords]
    """The markers."""
    fence: ClassVar[str] = ""
    """What stands between the JSON and the end of a call, on a line of its own; empty: nothing does."""

    def head(self, text: SampledText, start: int, separator: Mark, stop: int) -> Head:
        """Read the head of a call.

        Args:
            text: The turn.
            start: Where the head begins.
            separator: The separator; no other marker stands before it.
            stop: Where the next marker stands behind that, or the turn ends.

        Raises:
            CallFault: It is none.
        """
        raise NotImplementedError(f"{type(self).__name__} must define head")

    @override
    def read(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        """Yield what sections hold, and calls that stand outside of one; see `FramedToolParser.read`."""
        return _Turn(self, text).read(at)


class _Turn:
    """One turn, while it is read."""

    _json: TurnJson

    def __init__(self, parser: SectionToolParser, text: SampledText) -> None:
        self._parser, self._words, self._text = parser, parser.words, text
        self._markers = Markers(*parser.words)
        self._looked = len(text) + 1
        self._mark: Mark | None = None

    def read(self, at: int) -> Iterator[Found]:
        words = self._words
        mark = self._next(at)
        while mark is not None and mark.marker in (words.end, words.call_end):
            mark = self._next(mark.end)
        if mark is not None:
            self._json = TurnJson(self._text)
        while mark is not None:
            at = mark.end
            if mark.marker == words.begin:
                at = yield from self._section(mark)
            elif mark.marker in (words.call_begin, words.separator):
                at = yield from self._outside(mark)
            mark = self._next(at)

    def _next(self, at: int) -> Mark | None:
        """Return the next marker at or behind an offset; asked again on the way there, it does not look again."""
        if at < self._looked or (self._mark is not None and self._mark.start < at):
            self._looked, self._mark = at, self._markers.next(self._text, at)
        return self._mark

    def _closing(self, at: int) -> Mark | None:
        """Return the next marker at or behind an offset that ends a call."""
        mark = self._next(at)
        while mark is not None and mark.marker not in (self._words.call_end, self._words.end):
            mark = self._next(mark.end)
        return mark

    def _section(self, begin: Mark) -> Generator[Found, None, int]:
        """Yield what a section holds; return where it ends."""
        text, words = self._text, self._words
        at, is_empty = skip_space(text, begin.end), True
        while at < len(text):
            mark = self._next(at)
            here = mark.marker if mark is not None and mark.start == at else None
            if here == words.begin or here == words.end:
                end = at if here == words.begin else at + len(words.end)
                if is_empty:
                    said = f"Behind {words.begin} a tool call must begin with {words.call_begin}, and none does"
                    fault = CallFault(ParseFailure.MISSING_NAME, said, past=end)
                    yield fault.failed(text, begin.start, begin.end if here == words.begin else end)
                elif here == words.end:
                    yield Frame(words.end, at)
                return end
            if is_empty:
                yield Frame(words.begin, begin.start)
                is_empty = False
            found = self._call(at) if here == words.call_begin else self._stray(at)
            yield found
            at = skip_space(text, at + len(found.raw))
        if is_empty:
            fault = CallFault(ParseFailure.UNCLOSED, f"The turn ended behind {words.begin}", past=at)
            yield fault.failed(text, begin.start, at)
        return at

    def _outside(self, opening: Mark) -> Generator[Found, None, int]:
        """Yield the call that begins outside of a section; return where to go on."""
        text, words, start = self._text, self._words, opening.start
        if opening.marker == words.call_begin:
            found = self._call(start)
            name, end = found.name, start + len(found.raw)
        else:
            name, end = None, self._past_stray(start, words.call_end)
        said = f"A tool call stands outside of a section; {words.begin} must stand before the first call"
        yield CallFault(ParseFailure.MISPLACED, said, past=end).failed(text, start, end, name)
        at = skip_space(text, end)
        if not text.marks(words.end, at):
            return end
        yield Frame(words.end, at)
        return at + len(words.end)

    def _stray(self, start: int) -> FailedCall:
        """Return what begins at `start` in a section, and is part of no call."""
        end = self._past_stray(start)
        said = (
            f"In a section nothing may stand outside of tool calls, and each must begin with {self._words.call_begin}"
        )
        return CallFault(ParseFailure.MISPLACED, said, past=end, at=start).failed(self._text, start, end)

    def _past_stray(self, start: int, closing: str | None = None) -> int:
        """Return where that ends which is part of no call: behind `closing`, or before a call or a section's marker."""
        text, words = self._text, self._words
        at, mark = start, self._next(start)
        end = len(text)
        while mark is not None:
            past = self._json.pass_over(at, mark.start)
            if past <= mark.start and mark.marker == closing:
                return mark.end
            if past <= mark.start and mark.marker in (words.begin, words.end, words.call_begin):
                end = mark.start
                break
            at = max(past, mark.end)
            mark = self._next(at)
        return start + len(text[start:end].rstrip(" \t\n\r"))

    def _call(self, start: int) -> ToolCall | FailedCall:
        """Return the call that begins at `start`."""
        text, words = self._text, self._words
        name: str | None = None
        try:
            begin = start + len(words.call_begin)
            separator = self._separator(begin)
            following = self._next(separator.end)
            stop = len(text) if following is None else following.start
            head = self._parser.head(text, begin, separator, stop)
            name = head.name
            value, past = self._json.read(head.past, words.call_end)
            arguments = as_arguments(value, past)
            end = self._end(past)
        except CallFault as fault:
            closing = self._closing(fault.past)
            past = self._json.pass_over(fault.past, len(text) if closing is None else closing.start)
            if closing is not None and past > closing.start:
                closing = self._closing(past)
            end = len(text) if closing is None else closing.start if closing.marker == words.end else closing.end
            return fault.failed(text, start, end, name)
        return ToolCall(name=name, arguments=arguments, raw=text[start:end], start=start, id=head.id)

    def _separator(self, begin: int) -> Mark:
        """Return the separator of the call whose head begins at `begin`."""
        words = self._words
        mark = self._next(begin)
        if mark is not None and mark.marker == words.separator:
            return mark
        if mark is None:
            said = f"The turn ended before the {words.separator} of a tool call"
            raise CallFault(ParseFailure.UNCLOSED, said, past=begin)
        if mark.marker != words.call_end:
            said = f"The tool call is not closed by {words.call_end}: {mark.marker} stands before that"
            raise CallFault(ParseFailure.UNCLOSED, said, past=begin, at=mark.start)
        if not self._text[begin : mark.start].strip():
            raise CallFault(ParseFailure.MISSING_NAME, "The tool call is empty, so it names no tool", past=begin)
        said = f"The tool call has no {words.separator} between its name and its arguments"
        raise CallFault(ParseFailure.BAD_ARGUMENTS, said, past=begin)

    def _end(self, past: int) -> int:
        """Return where the call ends whose JSON ends at `past`."""
        text, words, fence = self._text, self._words, self._parser.fence
        at = skip_space(text, past)
        fenced = text.startswith(fence, at) and (not fence or text[past:at].endswith("\n"))
        behind = at + len(fence) if fenced else at
        if fenced and text.marks(words.call_end, behind):
            return behind + len(words.call_end)
        closing = self._closing(behind)
        behind = skip_space(text, behind)
        if closing is None or closing.marker == words.end or text.marks(words.call_begin, behind):
            said = f"The tool call is not closed by {words.call_end}"
            raise CallFault(ParseFailure.UNCLOSED, said, past=past, at=behind if closing else None)
        if closing.start == at:
            said = f"The JSON of a tool call is not closed by {fence} on a line of its own before {words.call_end}"
            raise CallFault(ParseFailure.UNCLOSED, said, past=past)
        wanted = f"a newline, {fence} and {words.call_end}" if fence else words.call_end
        said = f"Behind the JSON object of a tool call there must be {wanted}, and nothing else before that"
        raise CallFault(ParseFailure.TRAILING_TEXT, said, past=past, at=behind)
