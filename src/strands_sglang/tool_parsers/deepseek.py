"""The formats of DeepSeek V3 and R1, of V3.1, and of V3.2 and V4.

V3 and R1 write a section of calls with the word `function`, the tool's name and a fenced block of JSON:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>calculator
    ```json
    {"expression": "12*7+3"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

The name ends its line; a line "```json" opens the block and a line "```" closes it, directly before the end of the
call. JSON whitespace is allowed around the JSON inside the block, and nowhere else. The template of V3 omits the end of
a section with one call.

V3.1 writes a section of calls with the name and bare JSON:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.2 and V4 write a block of calls with tags:

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="calculator">
    <｜DSML｜parameter name="expression" string="true">12*7+3</｜DSML｜parameter>
    <｜DSML｜parameter name="digits" string="false">2</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

V4 calls the block `tool_calls`; both names are accepted, and a block is closed by the one that opened it. A parameter
declares its own type, so no schema is needed. `string="true"`: everything between the two tags, whitespace included.
`string="false"`: one strict JSON value; the JSON decides where it ends, so a tag inside one of its strings is part of
the string. An unclosed block contains no call, not even complete ones: the turn was cut off, and an apparent end may be
part of a value. An `<｜DSML｜invoke name="...">` that begins a line outside of a block is a failed call.

Invariant: the head of a section's call is exactly as shown (everything else: `_json_blocks.py`); a call with tags is
all of these tags in this order, and a bare value contains none of them (`_tags.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers._json import JsonReader, skip_space
from strands_sglang.tool_parsers._json_blocks import Head, SectionMarkers, SectionToolParser
from strands_sglang.tool_parsers._tags import Block, CallTags, Tag
from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.parsed import CallFault, FailedCall, Mark, ParseFailure, SampledText, ToolCall, quoted
from strands_sglang.tool_parsers.schemas import checked_text

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL_BEGIN, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_KIND = "function"
_BLOCK = "\n```json\n"


class DeepSeekV3ToolParser(SectionToolParser):
    """Strict parser of `function<｜tool▁sep｜>NAME` and a block of JSON, between the markers of a call in a section."""

    name: ClassVar[str] = "deepseek_v3"
    call_markers: ClassVar[tuple[str, ...]] = (_BEGIN, _CALL_BEGIN, _SEPARATOR)
    markers: ClassVar[tuple[str, ...]] = (_BEGIN, _CALL_BEGIN, _SEPARATOR, _CALL_END, _END)
    section: ClassVar[SectionMarkers] = SectionMarkers(_BEGIN, _END, _CALL_BEGIN, _SEPARATOR, _CALL_END)
    fence: ClassVar[str] = "```"

    @override
    def head(self, text: SampledText, start: int, separator: Mark, stop: int) -> Head:
        past = separator.end
        if text[start : separator.start] != _KIND:
            message = f"Between {_CALL_BEGIN} and {_SEPARATOR} there must be the word {_KIND}, and nothing else"
            raise CallFault(ParseFailure.MISSING_NAME, message, past=past, at=start)
        line = text.find("\n", past, stop)
        opened = text[line : line + len(_BLOCK)] if line >= 0 else ""
        if stop == len(text) and _BLOCK.startswith(opened) and opened != _BLOCK:
            raise CallFault(ParseFailure.UNCLOSED, "The turn ended before the arguments of a tool call", past=past)
        name = text[past : line if line >= 0 else stop]
        if not name.strip():
            message = f"The name of a tool must directly follow {_SEPARATOR}"
            raise CallFault(ParseFailure.MISSING_NAME, message, past=past, at=past)
        if opened != _BLOCK:
            message = "The name of a tool must end its line, and a line ```json must open its arguments"
            raise CallFault(ParseFailure.BAD_ARGUMENTS, message, past=past, at=line if line >= 0 else stop)
        return Head(name, None, line + len(_BLOCK))


class DeepSeekV31ToolParser(SectionToolParser):
    """Strict parser of `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>` in a section."""

    name: ClassVar[str] = "deepseek_v31"
    call_markers: ClassVar[tuple[str, ...]] = (_BEGIN, _CALL_BEGIN, _SEPARATOR)
    markers: ClassVar[tuple[str, ...]] = (_BEGIN, _CALL_BEGIN, _SEPARATOR, _CALL_END, _END)
    section: ClassVar[SectionMarkers] = SectionMarkers(_BEGIN, _END, _CALL_BEGIN, _SEPARATOR, _CALL_END)

    @override
    def head(self, text: SampledText, start: int, separator: Mark, stop: int) -> Head:
        name = text[start : separator.start]
        if not name.strip():
            message = f"Between {_CALL_BEGIN} and {_SEPARATOR} there must be the name of a tool"
            raise CallFault(ParseFailure.MISSING_NAME, message, past=separator.end)
        return Head(name, None, separator.end)


_DSML = "｜DSML｜"
_BLOCKS = tuple(Block(f"<{_DSML}{word}>", f"</{_DSML}{word}>") for word in ("function_calls", "tool_calls"))
_INVOKE = Tag(f'<{_DSML}invoke name="', '">', f"</{_DSML}invoke>")
_PARAMETER = Tag(f'<{_DSML}parameter name="', '" string="', f"</{_DSML}parameter>")
_STRING, _JSON = 'true">', 'false">'
_TAGS = CallTags(*_BLOCKS, call=_INVOKE, parameter=_PARAMETER, several=True)


class DeepSeekV32ToolParser(ToolParser):
    """Strict parser of blocks of `<｜DSML｜invoke name="..."><｜DSML｜parameter name="..." string="...">...`."""

    name: ClassVar[str] = "deepseek_v32"
    call_markers: ClassVar[tuple[str, ...]] = (*(block.opening for block in _BLOCKS), _INVOKE.opening)
    markers: ClassVar[tuple[str, ...]] = (*_TAGS.markers, _DSML)

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        reader = JsonReader(text)

        def read(tool: str, key: str, at: int) -> tuple[Any, int]:
            if text.startswith(_STRING, at):
                start = at + len(_STRING)
                closing = _TAGS.value_end(text, start, key)
                value: Any = checked_text(text, start, closing, f"The value of parameter {quoted(key)}")
            elif text.startswith(_JSON, at):
                value, closing = _json(text, at + len(_JSON), key, reader)
            else:
                message = f'The parameter {quoted(key)} must say string="true" or string="false"'
                raise CallFault(ParseFailure.BAD_ARGUMENTS, message, past=at, at=at)
            return value, closing + len(_PARAMETER.closing)

        return _TAGS.scan(text, at, read)


def _json(text: SampledText, at: int, key: str, reader: JsonReader) -> tuple[Any, int]:
    try:
        value, past = reader.read(at)
    except CallFault as fault:
        message = f'The value of parameter {quoted(key)} must be JSON, as string="false" says. {fault.message}'
        raise CallFault(fault.failure, message, past=fault.past, at=fault.at) from None
    closing = skip_space(text, past)
    if not text.marks(_PARAMETER.closing, closing):
        message = f'After the JSON value of parameter {quoted(key)} (string="false") there must be {_PARAMETER.closing}'
        is_tag = any(text.marks(word, closing) for word in _TAGS.markers)
        raise CallFault(ParseFailure.UNCLOSED if is_tag else ParseFailure.TRAILING_TEXT, message, past=past, at=closing)
    return value, closing
