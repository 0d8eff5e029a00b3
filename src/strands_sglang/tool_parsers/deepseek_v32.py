"""The format of DeepSeek-V3.2 and V4: a block of calls, tags with a word in them that only control text has.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="calculator">
    <｜DSML｜parameter name="expression" string="true">12*7+3</｜DSML｜parameter>
    <｜DSML｜parameter name="digits" string="false">2</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

V4 calls the block `tool_calls`. Both words are read, and a block is closed by the one that opened it.

A parameter says itself what it is, so no schema is needed. `string="true"`: everything between its two tags, white
space included. `string="false"`: one JSON value, read strictly; the JSON decides where it ends, so a tag inside one of
its strings is part of the string. White space between tags is free. Each call of a block is one of its own; the text
of the first begins with the block's opening marker and that of the last ends with its closing marker.

An unclosed block holds no call, not even those that are complete: the turn was cut, and what looked like an end may
have been part of a value that goes on. An `<｜DSML｜invoke name="...">` that begins a line outside of a block is a
failed call, not text.

Invariant: a call is all of these tags in this order, and a bare value holds none of them (`tags.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.fault import CallFault, shown
from strands_sglang.tool_parsers.parsed import FailedCall, ParseFailure, ToolCall
from strands_sglang.tool_parsers.sampled import SampledText
from strands_sglang.tool_parsers.strict_json import JsonReader, skip_space
from strands_sglang.tool_parsers.tags import Block, CallTags, Tag
from strands_sglang.tool_parsers.value import whole

_WORD = "｜DSML｜"
_BLOCKS = tuple(Block(f"<{_WORD}{word}>", f"</{_WORD}{word}>") for word in ("function_calls", "tool_calls"))
_INVOKE = Tag(f'<{_WORD}invoke name="', '">', f"</{_WORD}invoke>")
_PARAMETER = Tag(f'<{_WORD}parameter name="', '" string="', f"</{_WORD}parameter>")
_STRING, _JSON = 'true">', 'false">'
_TAGS = CallTags(*_BLOCKS, call=_INVOKE, parameter=_PARAMETER, several=True)


class DeepSeekV32ToolParser(ToolParser):
    """Strict parser of blocks of `<｜DSML｜invoke name="..."><｜DSML｜parameter name="..." string="...">...`."""

    name: ClassVar[str] = "deepseek_v32"
    call_markers: ClassVar[tuple[str, ...]] = (*(block.opening for block in _BLOCKS), _INVOKE.opening)
    markers: ClassVar[tuple[str, ...]] = (*_TAGS.words, _WORD)

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        """Yield what stands in blocks, and calls that begin a line outside of one; see `ToolParser.scan`."""
        reader = JsonReader(text)

        def read(tool: str, key: str, at: int) -> tuple[Any, int]:
            if text.startswith(_STRING, at):
                start = at + len(_STRING)
                closing = _TAGS.value_end(text, start, key)
                value: Any = whole(text, start, closing, f"The value of parameter {shown(key)}")
            elif text.startswith(_JSON, at):
                value, closing = _json(text, at + len(_JSON), key, reader)
            else:
                words = f'The parameter {shown(key)} must say string="true" or string="false"'
                raise CallFault(ParseFailure.BAD_ARGUMENTS, words, past=at, at=at)
            return value, closing + len(_PARAMETER.closing)

        return _TAGS.scan(text, at, read)


def _json(text: SampledText, at: int, key: str, reader: JsonReader) -> tuple[Any, int]:
    """Return the JSON value of a parameter, and where its closing tag stands."""
    try:
        value, past = reader.read(at)
    except CallFault as fault:
        words = f'The value of parameter {shown(key)} must be JSON, as string="false" says. {fault.words}'
        raise CallFault(fault.failure, words, past=fault.past, at=fault.at) from None
    closing = skip_space(text, past)
    if not text.marks(_PARAMETER.closing, closing):
        words = f'Behind the JSON value of parameter {shown(key)} (string="false") there must be {_PARAMETER.closing}'
        is_tag = any(text.marks(word, closing) for word in _TAGS.words)
        raise CallFault(ParseFailure.UNCLOSED if is_tag else ParseFailure.TRAILING_TEXT, words, past=past, at=closing)
    return value, closing
