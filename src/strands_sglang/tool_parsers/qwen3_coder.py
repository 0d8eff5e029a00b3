"""The format of Qwen3-Coder, Qwen3.5, Qwen3.6 and Nemotron 3: tags around bare values.

    <tool_call>
    <function=calculator>
    <parameter=expression>
    12*7+3
    </parameter>
    </function>
    </tool_call>

One newline after the opening tag of a parameter and one before its closing tag belong to the format; either may be
absent. Everything else is the value, including indentation and blank lines. The tool's schema decides its type
(`schemas.py`). Whitespace between tags is free. One `<tool_call>` contains one function, as the templates write it.
Models sometimes forget `<tool_call>`: a function that begins a line outside of one is a failed call rather than text,
so that the model receives an error.

Invariant: a call is all of these tags in this order, and a value contains none of them (`_tags.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers._tags import Block, CallTags, Tag
from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.parsed import FailedCall, SampledText, ToolCall

_BLOCK = Block("<tool_call>", "</tool_call>")
_FUNCTION = Tag("<function=", ">", "</function>")
_PARAMETER = Tag("<parameter=", ">", "</parameter>")
_TAGS = CallTags(_BLOCK, call=_FUNCTION, parameter=_PARAMETER, several=False)


class Qwen3CoderToolParser(ToolParser):
    """Strict parser of `<tool_call><function=...><parameter=...>...</parameter></function></tool_call>`."""

    name: ClassVar[str] = "qwen3_coder"
    call_markers: ClassVar[tuple[str, ...]] = (_BLOCK.opening, _FUNCTION.opening)
    markers: ClassVar[tuple[str, ...]] = _TAGS.markers

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        return _TAGS.scan_bare(text, at, schemas, newlines=True)


QwenXMLToolParser = Qwen3CoderToolParser
"""The published package's name of this parser."""
