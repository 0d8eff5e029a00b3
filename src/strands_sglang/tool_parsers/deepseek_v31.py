"""The format of DeepSeek V3.1.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

Invariant: the head of a call is the tool's name, exactly as it stands between the markers; see `section.py` for
everything around it.
"""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers.fault import CallFault
from strands_sglang.tool_parsers.parsed import ParseFailure
from strands_sglang.tool_parsers.sampled import Mark, SampledText
from strands_sglang.tool_parsers.section import Head, SectionToolParser, SectionWords

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL_BEGIN, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


class DeepSeekV31ToolParser(SectionToolParser):
    """Strict parser of `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>` in a section."""

    name: ClassVar[str] = "deepseek_v31"
    call_markers: ClassVar[tuple[str, ...]] = (_BEGIN, _CALL_BEGIN, _SEPARATOR)
    markers: ClassVar[tuple[str, ...]] = (_BEGIN, _CALL_BEGIN, _SEPARATOR, _CALL_END, _END)
    words: ClassVar[SectionWords] = SectionWords(_BEGIN, _END, _CALL_BEGIN, _SEPARATOR, _CALL_END)

    @override
    def head(self, text: SampledText, start: int, separator: Mark, stop: int) -> Head:
        """Read the name of the tool; see `SectionToolParser.head`."""
        name = text[start : separator.start]
        if not name.strip():
            said = f"Between {_CALL_BEGIN} and {_SEPARATOR} the name of a tool must stand"
            raise CallFault(ParseFailure.MISSING_NAME, said, past=separator.end)
        return Head(name, None, separator.end)
