"""The format of Kimi K2.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.calculator:0<|tool_call_argument_begin|>
    {"expression": "12*7+3"}<|tool_call_end|><|tool_calls_section_end|>

Invariant: the head of a call is its id, `functions.NAME:INDEX`, with nothing around it. NAME may hold dots and colons;
INDEX is what stands behind the last colon, decimal digits of any value: the model counts through a whole conversation,
and whether it counts right is not the parser's question. See `section.py` for everything around it.
"""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers.fault import CallFault
from strands_sglang.tool_parsers.parsed import ParseFailure
from strands_sglang.tool_parsers.sampled import Mark, SampledText
from strands_sglang.tool_parsers.section import Head, SectionToolParser, SectionWords

_BEGIN, _END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL_BEGIN, _SEPARATOR, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_SPACE = "functions."


class KimiK2ToolParser(SectionToolParser):
    """Strict parser of calls whose head is `functions.NAME:INDEX`, in a section."""

    name: ClassVar[str] = "kimi_k2"
    call_markers: ClassVar[tuple[str, ...]] = (_BEGIN, _CALL_BEGIN, _SEPARATOR)
    markers: ClassVar[tuple[str, ...]] = (_BEGIN, _CALL_BEGIN, _SEPARATOR, _CALL_END, _END)
    words: ClassVar[SectionWords] = SectionWords(_BEGIN, _END, _CALL_BEGIN, _SEPARATOR, _CALL_END)

    @override
    def head(self, text: SampledText, start: int, separator: Mark, stop: int) -> Head:
        """Read the id of the call; see `SectionToolParser.head`."""
        call_id = text[start : separator.start]
        path, _, index = call_id.rpartition(":")
        name = path[len(_SPACE) :]
        if not path.startswith(_SPACE) or not name.strip() or not (index.isascii() and index.isdigit()):
            said = (
                f"Between {_CALL_BEGIN} and {_SEPARATOR} there must be functions.NAME:INDEX, as in functions.search:0"
            )
            raise CallFault(ParseFailure.MISSING_NAME, said, past=separator.end, at=start)
        return Head(name, call_id, separator.end)
