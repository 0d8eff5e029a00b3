"""Calls written with tags around bare values, as several families do.

    <minimax:tool_call>                                         a block
    <invoke name="calculator">                                  a call
    <parameter name="expression">12*7+3</parameter>             a parameter
    </invoke>
    </minimax:tool_call>

A family defines its tags and how the value of a parameter is read. This module decides where calls begin and end. Only
JSON whitespace is allowed between tags.

Most of these tags are plain letters that a value could contain as well, and the formats have no escapes. So a value
contains none of them, a call is closed by its own tag, and a block is read to its end before any of its calls counts: a
value that quotes whole calls leaves tags over. A block with other text between its calls, or without its closing
marker, is one failed call as a whole. A call that is malformed in itself ends with its closing tag and does not affect
the others.

Invariant: every call has all of its own tags and those of its block, in the right order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from strands_sglang.tool_parsers._json import skip_space
from strands_sglang.tool_parsers.base import Schemas
from strands_sglang.tool_parsers.parsed import (
    CallFault,
    FailedCall,
    Markers,
    ParseFailure,
    SampledText,
    ToolCall,
    quoted,
)
from strands_sglang.tool_parsers.schemas import Values, checked_text

_NAME = re.compile(r"[^\s<>\"'{}]+")
_INSIDE_TAG = re.compile(r'[^<>"\n]*')

ReadParameter: TypeAlias = Callable[[str, str, int], tuple[Any, int]]
"""Takes the tool, the parameter's name and the offset after the name in its opening tag. Returns the value and the
offset after the closing tag; raises `CallFault`."""


class Tag(NamedTuple):
    opening: str
    named: str
    closing: str


class Block(NamedTuple):
    opening: str
    closing: str


def checked_name(text: str, start: int, end: int) -> str:
    """One word without quotes, angle brackets or braces."""
    name = checked_text(text, start, end, "The name of the tool")
    if not _NAME.fullmatch(name):
        message = (
            f"The name of a tool must be one word, not {quoted(name)}" if name else "The name of the tool is missing"
        )
        raise CallFault(ParseFailure.MISSING_NAME, message, past=start, at=start)
    return name


def checked_key(text: str, start: int, end: int) -> str:
    """Blanks are allowed inside of a parameter's name, but not at its ends."""
    key = checked_text(text, start, end, "The name of a parameter")
    if not key or key != key.strip() or key[0] in "\"'" or _INSIDE_TAG.match(key).end() < len(key):  # type: ignore[union-attr]
        message = f"{quoted(key)} is not the bare name of a parameter"
        raise CallFault(ParseFailure.BAD_ARGUMENTS, message, past=start, at=start)
    return key


class CallTags:
    def __init__(self, *blocks: Block, call: Tag, parameter: Tag, several: bool) -> None:
        """A block may contain more than one call if `several`."""
        self._blocks = {block.opening: block for block in blocks}
        self._closings = tuple(block.closing for block in blocks)
        self._call, self._parameter, self._several = call, parameter, several
        self._begin = Markers(*self._blocks, call.opening)
        self._close = Markers(*self._closings)
        self._end = Markers(call.closing, *self._blocks, *self._closings)
        self.markers = (
            *self._blocks,
            *self._closings,
            call.opening,
            call.closing,
            parameter.opening,
            parameter.closing,
        )
        self._any = Markers(*self.markers)

    def scan(self, text: SampledText, at: int, read: ReadParameter) -> Iterator[ToolCall | FailedCall]:
        scan_start = at
        while mark := self._begin.next(text, at):
            at = mark.end
            if mark.marker != self._call.opening:
                found = self._block(text, mark.start, self._blocks[mark.marker], read)
            elif mark.start == scan_start or text[mark.start - 1] == "\n":
                found = self._misplaced(text, mark.start)
            else:
                continue
            yield from found
            if found:
                at = found[-1].start + len(found[-1].raw)

    def value_end(self, text: SampledText, at: int, key: str) -> int:
        """Return where the bare value at `at` ends: before the closing tag, which no other tag may precede."""
        mark = self._any.next(text, at)
        closing = self._parameter.closing
        if mark is None:
            message = f"The parameter {quoted(key)} has no {closing}"
            raise CallFault(ParseFailure.UNCLOSED, message, past=len(text))
        if mark.marker != closing:
            message = f"{mark.marker} comes before the {closing} of parameter {quoted(key)}; a value cannot contain it"
            raise CallFault(ParseFailure.UNCLOSED, message, past=mark.start, at=mark.start)
        return mark.start

    def scan_bare(
        self, text: SampledText, at: int, schemas: Schemas, *, newlines: bool = False
    ) -> Iterator[ToolCall | FailedCall]:
        """Scan calls whose values are bare; `newlines`: one at each end of a value belongs to the format."""
        values = Values(schemas)

        def read(tool: str, key: str, start: int) -> tuple[Any, int]:
            end = closing = self.value_end(text, start, key)
            if newlines:
                start += text.startswith("\n", start, closing)
                end -= text.endswith("\n", start, closing)
            return values.read(tool, key, text, start, end), closing + len(self._parameter.closing)

        return self.scan(text, at, read)

    def _block(self, text: SampledText, start: int, block: Block, read: ReadParameter) -> list[ToolCall | FailedCall]:
        found: list[ToolCall | FailedCall] = []
        first: CallFault | None = None
        at = skip_space(text, start + len(block.opening))
        closed = False
        try:
            while not closed:
                self._expect_call(text, at, block, bool(found))
                name, outcome, end = self._read(text, at, read)
                begin, at = at if found else start, skip_space(text, end)
                closed = text.marks(block.closing, at)
                end = at + len(block.closing) if closed else end
                if isinstance(outcome, CallFault):
                    found.append(outcome.failed(text, begin, end, name))
                    first = first or outcome
                else:
                    found.append(ToolCall(name=name or "", arguments=outcome, raw=text[begin:end], start=begin))
        except CallFault as fault:
            name = found[0].name if len(found) == 1 else None
            return [self._failed(text, start, block, name, first or fault, fault.past)]
        return found

    def _expect_call(self, text: SampledText, at: int, block: Block, another: bool) -> None:
        if text.marks(self._call.opening, at) and (self._several or not another):
            return
        failure = ParseFailure.UNCLOSED
        if text.marks(block.closing, at):
            failure = ParseFailure.MISSING_NAME
            message = f"Between {block.opening} and {block.closing} there is no call, {self._call.opening}…"
        elif marker := next((tag for tag in self._blocks if text.marks(tag, at)), None):
            message = f"Another {marker} begins before {block.closing}"
        elif marker := next((tag for tag in self._closings if text.marks(tag, at)), None):
            message = f"{block.opening} must be closed with {block.closing}, not with {marker}"
        elif another:
            failure = ParseFailure.TRAILING_TEXT
            allowed = "only further calls" if self._several else "nothing else: a block contains one call"
            message = f"Between {self._call.closing} and {block.closing} there must be {allowed}"
        else:
            failure = ParseFailure.MISSING_NAME
            message = f"After {block.opening} there must be {self._call.opening}…"
        raise CallFault(failure, message, past=at, at=at)

    def _read(
        self, text: SampledText, start: int, read: ReadParameter
    ) -> tuple[str | None, dict[str, Any] | CallFault, int]:
        name = None
        try:
            at = self._tag_end(text, start, self._call, ParseFailure.MISSING_NAME)
            name = checked_name(text, start + len(self._call.opening), at)
            return name, *self._arguments(text, name, at + len(self._call.named), read)
        except CallFault as fault:
            mark = self._end.next(text, fault.past)
            end = len(text) if mark is None else mark.end if mark.marker == self._call.closing else mark.start
            return name, fault, end

    def _arguments(self, text: SampledText, tool: str, at: int, read: ReadParameter) -> tuple[dict[str, Any], int]:
        arguments: dict[str, Any] = {}
        while not text.marks(self._call.closing, at := skip_space(text, at)):
            if not text.marks(self._parameter.opening, at):
                raise self._no_parameter(text, at)
            start, past = at + len(self._parameter.opening), at
            at = self._tag_end(text, at, self._parameter, ParseFailure.BAD_ARGUMENTS)
            key = checked_key(text, start, at)
            if key in arguments:
                message = f"The parameter {quoted(key)} is given twice"
                raise CallFault(ParseFailure.DUPLICATE_KEY, message, past=past, at=past)
            arguments[key], at = read(tool, key, at + len(self._parameter.named))
        return arguments, at + len(self._call.closing)

    def _no_parameter(self, text: SampledText, at: int) -> CallFault:
        enders = (self._call.opening, *self._blocks, *self._closings) if text.startswith("<", at) else ()
        if marker := next((tag for tag in enders if text.marks(tag, at)), None):
            message = f"{marker} comes before the {self._call.closing} of the call"
            return CallFault(ParseFailure.UNCLOSED, message, past=at, at=at)
        message = f"A call contains only parameters, each {self._parameter.opening}…{self._parameter.closing}"
        return CallFault(ParseFailure.BAD_ARGUMENTS, message, past=at, at=at)

    def _tag_end(self, text: SampledText, at: int, tag: Tag, failure: ParseFailure) -> int:
        end = _INSIDE_TAG.match(text, at + len(tag.opening)).end()  # type: ignore[union-attr]  # matches everywhere
        if text.startswith(tag.named, end):
            return end
        message = f"{tag.opening} must be followed by a name and {tag.named}"
        raise CallFault(failure, message, past=at + len(tag.opening), at=end)

    def _failed(
        self, text: SampledText, start: int, block: Block, name: str | None, fault: CallFault, past: int
    ) -> FailedCall:
        mark = self._close.next(text, past)
        if mark is not None:
            return fault.failed(text, start, mark.end, name)
        message = f"{block.opening} is not closed with {block.closing}, so nothing after it was run"
        return CallFault(ParseFailure.UNCLOSED, message, past=len(text)).failed(text, start, len(text), name)

    def _misplaced(self, text: SampledText, start: int) -> list[ToolCall | FailedCall]:
        """Return the call that begins outside of a block, if it is more than the first markers of one."""
        try:
            end = self._tag_end(text, start, self._call, ParseFailure.MISSING_NAME)
            name = checked_name(text, start + len(self._call.opening), end)
        except CallFault:
            return []
        at = skip_space(text, end + len(self._call.named))
        if not text.marks(self._call.closing, at) and not text.marks(self._parameter.opening, at):
            return []
        closing = text.mark(self._call.closing, at)
        end = len(text) if closing < 0 else closing + len(self._call.closing)
        after = skip_space(text, end)
        end = next((after + len(tag) for tag in self._closings if text.marks(tag, after)), end)
        message = f"A call must be between {' or '.join(self._blocks)} and its closing marker; the first is missing"
        return [CallFault(ParseFailure.MISPLACED, message, past=end).failed(text, start, end, name)]
