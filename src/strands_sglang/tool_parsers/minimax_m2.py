"""The format of MiniMax-M2: a block of calls with tags around bare values.

    <minimax:tool_call>
    <invoke name="calculator">
    <parameter name="expression">12*7+3</parameter>
    </invoke>
    </minimax:tool_call>

A value is everything between its two tags, whitespace included; the tool's schema decides its type (`schemas.py`).
Whitespace between tags is free. A block contains one or more calls. The text of the first begins with the block's
opening marker and that of the last ends with its closing marker, so that nothing of a block remains in the turn's text.

An unclosed block contains no call, not even complete ones: the turn was cut off, and `</invoke>`, being plain letters,
may be part of a value. An `<invoke name="...">` that begins a line outside of a block is a failed call.

Invariant: a call is all of these tags in this order, and a value contains none of them (`_tags.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers._tags import Block, CallTags, Tag
from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.parsed import FailedCall, SampledText, ToolCall

_BLOCK = Block("<minimax:tool_call>", "</minimax:tool_call>")
_INVOKE = Tag('<invoke name="', '">', "</invoke>")
_PARAMETER = Tag('<parameter name="', '">', "</parameter>")
_TAGS = CallTags(_BLOCK, call=_INVOKE, parameter=_PARAMETER, several=True)


class MiniMaxM2ToolParser(ToolParser):
    """Strict parser of `<minimax:tool_call><invoke name="..."><parameter name="...">...`."""

    name: ClassVar[str] = "minimax_m2"
    call_markers: ClassVar[tuple[str, ...]] = (_BLOCK.opening, _INVOKE.opening)
    markers: ClassVar[tuple[str, ...]] = _TAGS.markers

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        return _TAGS.scan_bare(text, at, schemas)
