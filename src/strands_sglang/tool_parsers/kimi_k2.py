"""The format of Kimi K2.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.calculator:0<|tool_call_argument_begin|>
    {"expression": "12*7+3"}<|tool_call_end|><|tool_calls_section_end|>

Invariant: the head of a call is its id, `functions.NAME:INDEX`, with nothing around it. NAME may contain dots and
colons. INDEX is what follows the last colon: decimal digits of any value, because the model counts through a whole
conversation and the parser does not check its counting. Everything else: `_json_blocks.py`.
"""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers._json_blocks import Head, SectionMarkers, SectionToolParser
from strands_sglang.tool_parsers.parsed import CallFault, Mark, ParseFailure, SampledText

_BEGIN, _END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL_BEGIN, _SEPARATOR, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_SPACE = "functions."


class KimiK2ToolParser(SectionToolParser):
    """Strict parser of calls with the head `functions.NAME:INDEX`, in a section."""

    name: ClassVar[str] = "kimi_k2"
    call_markers: ClassVar[tuple[str, ...]] = (_BEGIN, _CALL_BEGIN, _SEPARATOR)
    markers: ClassVar[tuple[str, ...]] = (_BEGIN, _CALL_BEGIN, _SEPARATOR, _CALL_END, _END)
    section: ClassVar[SectionMarkers] = SectionMarkers(_BEGIN, _END, _CALL_BEGIN, _SEPARATOR, _CALL_END)

    @override
    def head(self, text: SampledText, start: int, separator: Mark, stop: int) -> Head:
        call_id = text[start : separator.start]
        path, _, index = call_id.rpartition(":")
        name = path[len(_SPACE) :]
        if not path.startswith(_SPACE) or not name.strip() or not (index.isascii() and index.isdigit()):
            message = (
                f"Between {_CALL_BEGIN} and {_SEPARATOR} there must be functions.NAME:INDEX, as in functions.search:0"
            )
            raise CallFault(ParseFailure.MISSING_NAME, message, past=separator.end, at=start)
        return Head(name, call_id, separator.end)
