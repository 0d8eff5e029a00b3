"""Calls inside a frame: words of the format that stand around calls and belong to none of them.

    <TOOLCALL>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]</TOOLCALL>

Here each object is a call, with a text of its own; the markers, the brackets and the comma are the frame.

Invariant: a frame is no call and no failure, and the reader never sees it. A list of half a million zeros is one
mistake, not half a million, so a turn is not looked at any further behind its `MAX_FAILED`th failed call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from typing_extensions import override

from strands_sglang.tool_parsers.base import Schemas, ToolParser, assemble
from strands_sglang.tool_parsers.parsed import FailedCall, ParsedTurn, ToolCall
from strands_sglang.tool_parsers.reasoning import split_reasoning
from strands_sglang.tool_parsers.sampled import SampledText

MAX_FAILED = 1000
"""Failed calls of one turn; the last of them takes the rest of the turn along."""


class Frame(NamedTuple):
    """A piece of a frame."""

    raw: str
    """The exact text."""
    start: int
    """Where it begins in the parsed text, in characters."""


Found: TypeAlias = ToolCall | FailedCall | Frame
"""Whatever is taken out of the text that the reader sees."""


class FramedToolParser(ToolParser):
    """A parser whose calls stand in frames; its `read` is what `scan` is to others."""

    @override
    def parse(self, text: str, *, reasoning_open: bool = False, schemas: Schemas | None = None) -> ParsedTurn:
        """Take one turn apart; see `ToolParser.parse`. Frames are taken out of the text as calls are."""
        sampled = SampledText.of(text)
        split = split_reasoning(sampled, reasoning_open, *self.reasoning_markers)
        found = list(self._found(sampled, split.rest_start, schemas or {}))
        turn = assemble(sampled, split, (item for item in found if not isinstance(item, Frame)))
        if len(turn.calls) + len(turn.failures) == len(found):
            return turn
        pieces: list[str] = []
        at = split.rest_start
        for item in found:
            pieces.append(sampled[at : item.start])
            at = item.start + len(item.raw)
        pieces.append(sampled[at:])
        return replace(turn, text="\n".join(piece.strip("\n") for piece in pieces if piece.strip()))

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        """Yield what `read` finds, without the frames."""
        return (item for item in self._found(text, at, schemas) if not isinstance(item, Frame))

    def read(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        """Yield calls, failed calls and frames in the order of the text; see `ToolParser.scan`."""
        raise NotImplementedError(f"{type(self).__name__} must define read")

    def _found(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        failed = 0
        for item in self.read(text, at, schemas):
            if isinstance(item, FailedCall):
                failed += 1
                if failed == MAX_FAILED:
                    yield replace(item, raw=text[item.start :])
                    return
            yield item
