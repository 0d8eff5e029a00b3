"""`ToolParser`, the base class of every parser: a sampled turn in, a `ParsedTurn` out.

To add a family, write one module with one subclass that defines `scan`. `SampledText` finds markers, `JsonReader` reads
JSON in place, and `CallFault` describes the error in a call. docs/contributing/add-a-parser.md is a guide.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

from typing_extensions import override

from strands_sglang.tool_parsers.parsed import (
    FailedCall,
    Found,
    ParsedTurn,
    ReasoningSplit,
    SampledText,
    ToolCall,
    outside_reasoning,
    split_reasoning,
)

Schemas: TypeAlias = Mapping[str, Mapping[str, Any]]
"""JSON schema of each tool's parameters, by tool name; empty if unknown."""


class ToolParser(ABC):
    """Parses a sampled turn. A parser has no state: one object serves any number of turns and threads at once."""

    name: ClassVar[str]
    reasoning_markers: ClassVar[tuple[str, str]] = ("<think>", "</think>")
    """Opening and closing marker of reasoning; a prompt that ends with the first has opened it."""
    call_markers: ClassVar[tuple[str, ...]] = ()
    """Texts with which a call may begin. Streaming holds back all text from the first of them on. A single character
    counts only at the beginning of the turn's text."""
    shows_text: ClassVar[bool] = True
    """Whether text before a call marker is certain to be text, so that it may be streamed."""
    markers: ClassVar[tuple[str, ...]] = ()
    """Every fixed text of the format. A turn whose last token is one of them was cut off there."""
    endings: ClassVar[tuple[str, ...]] = ()
    """Markers that may be the last token of a complete turn."""

    def parse(self, text: str, *, reasoning_open: bool = False, schemas: Schemas | None = None) -> ParsedTurn:
        """Parse one turn. Never raises, whatever the text is.

        Args:
            text: The decoded turn, without its end-of-turn token and with every other special token visible. A
                `SampledText` records which markers are tokens.
            reasoning_open: Whether the prompt already opened the reasoning, so that the turn begins inside it.
            schemas: JSON schema of each tool's parameters, by tool name, for formats that write every value as bare
                text (is `123` a number or a string?); None if unknown.
        """
        sampled = SampledText.of(text)
        split = split_reasoning(sampled, reasoning_open, *self.reasoning_markers)
        found = outside_reasoning(
            sampled,
            split.rest_start,
            lambda seen: self.scan(seen, split.rest_start, schemas or {}),
            *self.reasoning_markers,
        )
        return assemble(sampled, split, found)

    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        """Yield calls, failed calls and frames of a turn in text order, without overlaps.

        Nothing before `at`, where the reasoning ends, is a call.
        """
        raise NotImplementedError(f"{type(self).__name__} must define scan, or parse")


def assemble(text: str, split: ReasoningSplit, found: Iterable[Found]) -> ParsedTurn:
    """Build a `ParsedTurn` from its parts.

    The text is everything after the reasoning that was not found. Where something was removed, surrounding newlines are
    removed too, blank pieces are dropped and the others are joined with a newline.
    """
    calls: list[ToolCall] = []
    failures: list[FailedCall] = []
    pieces: list[str] = []
    at = split.rest_start
    for item in found:
        if isinstance(item, FailedCall):
            failures.append(item)
        elif isinstance(item, ToolCall):
            calls.append(item)
        pieces.append(text[at : item.start])
        at = item.start + len(item.raw)
    remains = split.rest
    if pieces:
        pieces.append(text[at:])
        remains = "\n".join(piece.strip("\n") for piece in pieces if piece.strip())
    return ParsedTurn(split.reasoning, remains, tuple(calls), tuple(failures), split.closed, split.rest_start)


MAX_FAILED = 1000
"""Failed calls that are read of one turn. The last of them includes the rest of the turn."""


class FramedToolParser(ToolParser):
    """A parser of calls inside frames: fixed text around calls that belongs to none of them.

        <TOOLCALL>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]</TOOLCALL>

    Each object is a call with a text of its own; the markers, the brackets and the comma are the frame. A list of half
    a million zeros is one mistake rather than half a million, so a turn is not read beyond its `MAX_FAILED`th failed
    call. Subclasses define `read` in place of `scan`.
    """

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        failed = 0
        for item in self.read(text, at, schemas):
            if isinstance(item, FailedCall):
                failed += 1
                if failed == MAX_FAILED:
                    yield replace(item, raw=text[item.start :])
                    return
            yield item

    def read(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        """Yield calls, failed calls and frames in text order; see `ToolParser.scan`."""
        raise NotImplementedError(f"{type(self).__name__} must define read")


class PlainTextParser(ToolParser):
    """The parser of models without tools: reasoning and text, no calls."""

    name: ClassVar[str] = "none"

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        return iter(())
