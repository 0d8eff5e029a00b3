"""Calls written as one JSON list: `[{"name": ..., "arguments": {...}}, ...]`.

Invariant: a call is one object of the list, and it is closed by what stands behind it: a comma and another value, or
`]` and whatever the format wants behind a list. Where that is so, a bad object fails alone. Where it is not, or where
the JSON breaks, everything from that object (from the opening marker, if it is the first) to the end of the list's
block is one failed call, and nothing in it is looked at again; objects before it were closed, and count. A list
without an object is a failed call, too.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from strands_sglang.tool_parsers.call_object import arguments_of, kind_of, name_of
from strands_sglang.tool_parsers.fault import CallFault
from strands_sglang.tool_parsers.parsed import FailedCall, Found, Frame, ParseFailure, ToolCall
from strands_sglang.tool_parsers.sampled import SampledText
from strands_sglang.tool_parsers.strict_json import skip_space
from strands_sglang.tool_parsers.turn_json import TurnJson, is_whole


class ListEnd(NamedTuple):
    """What stands behind a list, whitespace apart."""

    marker: str | None = None
    """A marker; None: the turn ends there."""
    closes: bool = True
    """Whether the marker belongs to the list, and must be there. Else it begins something new, or the turn ends."""

    def behind(self, text: SampledText, past: int) -> int:
        """Return where the block ends whose list ends at `past`.

        Raises:
            CallFault: Something else stands there.
        """
        at = skip_space(text, past)
        must = self.marker if self.closes else None
        if self.marker is not None and text.marks(self.marker, at):
            return at + len(must or "")
        if must is None and at == len(text):
            return at
        if must is not None and text.mark(must, at) < 0:
            raise CallFault(ParseFailure.UNCLOSED, f"The list of tool calls has no {must}", past=past)
        place = f"Between the list of tool calls and {must}" if must else "Behind the list of tool calls"
        raise CallFault(ParseFailure.TRAILING_TEXT, f"{place} there must be nothing else", past=past, at=at)

    def limit(self, text: SampledText, past: int, json: TurnJson) -> int:
        """Return where a block ends that is broken, and part of which reaches to `past`."""
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
    """The lists of calls of one turn."""

    def __init__(self, text: SampledText, json: TurnJson, end: ListEnd, id_key: str | None = None) -> None:
        """Make one.

        Args:
            text: The turn.
            json: Reads it.
            end: What stands behind a list.
            id_key: What the format calls the id that a call may have; None: ids are not part of it.
        """
        self._text = text
        self._json = json
        self._end = end
        self._id_key = id_key

    def read(self, start: int, at: int) -> Generator[Found, None, int]:
        """Yield what one block holds.

        Args:
            start: Where the block begins.
            at: Where its list should begin, whitespace apart.

        Returns:
            Where the block ends.
        """
        try:
            at = self._first(at)
        except CallFault as fault:
            limit = self._end.limit(self._text, fault.past, self._json)
            yield fault.failed(self._text, start, limit)
            return limit
        broken = end = behind = start
        more = True
        while more:
            found, behind, more = self._call(at, broken)
            if found.start > end:
                yield Frame(self._text[end : found.start], end)
            yield found
            end = found.start + len(found.raw)
            broken = at = behind
        if behind > end:
            yield Frame(self._text[end:behind], end)
        return behind

    def _first(self, at: int) -> int:
        """Return where the first value of a list begins that should begin at `at`."""
        text, end = self._text, self._end
        at = skip_space(text, at)
        if not text.startswith("[", at):
            value, past = self._json.read(at, end.marker)
            is_object = isinstance(value, dict)
            failure = ParseFailure.INVALID_JSON if is_object else ParseFailure.NOT_AN_OBJECT
            words = "Tool calls must be a JSON list of objects, [{...}, ...], not "
            raise CallFault(failure, words + ("an object" if is_object else kind_of(value)), past=past)
        first = skip_space(text, at + 1)
        if first == len(text):
            raise CallFault(ParseFailure.UNCLOSED, "The turn ended where a list of tool calls begins", past=first)
        if text.startswith("]", first):
            end.behind(text, first + 1)
            words = "The list of tool calls is empty, so it names no tool"
            raise CallFault(ParseFailure.MISSING_NAME, words, past=first + 1)
        return first

    def _call(self, at: int, broken: int) -> tuple[ToolCall | FailedCall, int, bool]:
        """Return the call that begins at `at`, or the failed one that begins at `broken` if the list breaks there.

        Also returned are where the list goes on or its block ends, and whether it goes on.
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
            behind, more = self._behind(past)
        except CallFault as fault:
            limit = self._end.limit(text, fault.past, self._json)
            return (own or fault).failed(text, broken, limit, name), limit, False
        if own is not None:
            return own.failed(text, at, past, name), behind, more
        return ToolCall(name or "", arguments, text[at:past], at, call_id), behind, more

    def _id_of(self, value: dict[str, Any], past: int) -> str | None:
        if self._id_key is None or self._id_key not in value:
            return None
        found = value[self._id_key]
        if isinstance(found, str) and found.strip():
            return found
        words = f'The "{self._id_key}" of a tool call must be a string with something in it'
        raise CallFault(ParseFailure.MISSING_NAME, words, past=past)

    def _behind(self, past: int) -> tuple[int, bool]:
        """Return where the next value begins behind one that ends at `past`, or where the block ends; and which."""
        text = self._text
        at = skip_space(text, past)
        if text.startswith("]", at):
            return self._end.behind(text, at + 1), False
        if text.startswith(",", at):
            at = skip_space(text, at + 1)
            marker = self._end.marker
            if at < len(text) and text[at] not in ",]" and not (marker is not None and text.marks(marker, at)):
                return at, True
        if at == len(text):
            raise CallFault(ParseFailure.UNCLOSED, "The turn ended before the ] of a list of tool calls", past=past)
        words = "The JSON is not valid: expecting ] or a comma and another tool call"
        raise CallFault(ParseFailure.INVALID_JSON, words, past=past, at=at)
