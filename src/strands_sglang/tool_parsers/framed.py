"""Calls inside a frame: words of the format that stand around calls and belong to none of them.

    <TOOLCALL>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]</TOOLCALL>

Here each object is a call, with a text of its own; the markers, the brackets and the comma are the frame.

Invariant: a frame is no call and no failure, and the reader never sees it. A list of half a million zeros is one
mistake, not half a million, so a turn is not looked at any further behind its `MAX_FAILED`th failed call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from typing_extensions import override

from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.parsed import FailedCall, Found
from strands_sglang.tool_parsers.sampled import SampledText

MAX_FAILED = 1000
"""Failed calls of one turn; the last of them takes the rest of the turn along."""


class FramedToolParser(ToolParser):
    """A parser whose calls stand in frames; its `read` is what `scan` is to others."""

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        """Yield what `read` finds, up to the last failed call that is looked at."""
        failed = 0
        for item in self.read(text, at, schemas):
            if isinstance(item, FailedCall):
                failed += 1
                if failed == MAX_FAILED:
                    yield replace(item, raw=text[item.start :])
                    return
            yield item

    def read(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        """Yield calls, failed calls and frames in the order of the text; see `ToolParser.scan`."""
        raise NotImplementedError(f"{type(self).__name__} must define read")
