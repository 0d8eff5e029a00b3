"""The format of MiniMax-M2: a block of calls, tags around bare values.

    <minimax:tool_call>
    <invoke name="calculator">
    <parameter name="expression">12*7+3</parameter>
    </invoke>
    </minimax:tool_call>

A value is everything between its two tags, white space included; whether it is a number or a string is for the tool's
schema to say (`value.py`). White space between tags is free. A block holds any number of calls, and at least one. Each
is a call of its own; the text of the first begins with the block's opening marker and that of the last ends with its
closing marker, so that nothing of a block remains in the turn's text.

An unclosed block holds no call, not even those that are complete: the turn was cut, and `</invoke>`, being letters,
may have been part of a value that goes on. An `<invoke name="...">` that begins a line outside of a block is a failed
call, not text.

Invariant: a call is all of these tags in this order, and a value holds none of them (`tags.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.parsed import FailedCall, ToolCall
from strands_sglang.tool_parsers.sampled import SampledText
from strands_sglang.tool_parsers.tags import Block, CallTags, Tag
from strands_sglang.tool_parsers.value import Values

_BLOCK = Block("<minimax:tool_call>", "</minimax:tool_call>")
_INVOKE = Tag('<invoke name="', '">', "</invoke>")
_PARAMETER = Tag('<parameter name="', '">', "</parameter>")
_TAGS = CallTags(_BLOCK, call=_INVOKE, parameter=_PARAMETER, several=True)


class MiniMaxM2ToolParser(ToolParser):
    """Strict parser of `<minimax:tool_call><invoke name="..."><parameter name="...">...`."""

    name: ClassVar[str] = "minimax_m2"
    call_markers: ClassVar[tuple[str, ...]] = (_BLOCK.opening, _INVOKE.opening)
    markers: ClassVar[tuple[str, ...]] = _TAGS.words

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        """Yield what stands in blocks, and calls that begin a line outside of one; see `ToolParser.scan`."""
        values = Values(schemas)

        def read(tool: str, key: str, at: int) -> tuple[Any, int]:
            closing = _TAGS.value_end(text, at, key)
            return values.read(tool, key, text, at, closing), closing + len(_PARAMETER.closing)

        return _TAGS.scan(text, at, read)
