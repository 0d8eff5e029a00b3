"""The format of DeepSeek V3 and R1.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>calculator
    ```json
    {"expression": "12*7+3"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

Invariant: the head of a call is the word `function`, the separator, and the tool's name to the end of the line; the
arguments are a block that a line "```json" opens and a line "```" closes, directly before the end of the call. More
JSON whitespace may stand around the JSON in the block, and nowhere else. See `section.py` for everything around it;
V3's own template leaves out the end of a section with one call.
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
_KIND = "function"
_BLOCK = "\n```json\n"
"""What opens the block of the arguments, directly behind the name."""


class DeepSeekV3ToolParser(SectionToolParser):
    """Strict parser of `function<｜tool▁sep｜>NAME` and a block of JSON, between the markers of a call in a section."""

    name: ClassVar[str] = "deepseek_v3"
    call_markers: ClassVar[tuple[str, ...]] = (_BEGIN, _CALL_BEGIN, _SEPARATOR)
    markers: ClassVar[tuple[str, ...]] = (_BEGIN, _CALL_BEGIN, _SEPARATOR, _CALL_END, _END)
    words: ClassVar[SectionWords] = SectionWords(_BEGIN, _END, _CALL_BEGIN, _SEPARATOR, _CALL_END)
    fence: ClassVar[str] = "```"

    @override
    def head(self, text: SampledText, start: int, separator: Mark, stop: int) -> Head:
        """Read the name of the tool and the line that opens its arguments; see `SectionToolParser.head`."""
        past = separator.end
        if text[start : separator.start] != _KIND:
            said = f"Between {_CALL_BEGIN} and {_SEPARATOR} there must be the word {_KIND}, and nothing else"
            raise CallFault(ParseFailure.MISSING_NAME, said, past=past, at=start)
        line = text.find("\n", past, stop)
        opened = text[line : line + len(_BLOCK)] if line >= 0 else ""
        if stop == len(text) and _BLOCK.startswith(opened) and opened != _BLOCK:
            raise CallFault(ParseFailure.UNCLOSED, "The turn ended before the arguments of a tool call", past=past)
        name = text[past : line if line >= 0 else stop]
        if not name.strip():
            said = f"Directly behind {_SEPARATOR} the name of a tool must stand"
            raise CallFault(ParseFailure.MISSING_NAME, said, past=past, at=past)
        if opened != _BLOCK:
            said = "The name of a tool must end its line, and a line ```json must open its arguments"
            raise CallFault(ParseFailure.BAD_ARGUMENTS, said, past=past, at=line if line >= 0 else stop)
        return Head(name, None, line + len(_BLOCK))
