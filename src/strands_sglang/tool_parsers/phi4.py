"""The two formats of Phi-4-mini.

    <|tool_call|>[{"name": "calculator", "arguments": {"expression": "12*7+3"}}]<|/tool_call|>

    functools[{"name": "calculator", "arguments": {"expression": "12*7+3"}}]

Invariant: calls are one JSON list of objects with a `name` and an object as `arguments`. Either the list is between the
markers, with only JSON whitespace between; or the turn, apart from whitespace and reasoning, is `functools` and the
list. Text about Python also contains the word `functools`, so it counts only at the beginning of a turn and directly
before `[`; any text after the list then makes its last call a failed one. The text of a call is that of its object
(`_json_blocks.py`). A closing marker alone is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers._json import TurnJson, skip_space
from strands_sglang.tool_parsers._json_blocks import CallList, ListEnd
from strands_sglang.tool_parsers.base import FramedToolParser, Schemas
from strands_sglang.tool_parsers.parsed import Found, SampledText

_OPENING = "<|tool_call|>"
_CLOSING = "<|/tool_call|>"
_FUNCTOOLS = "functools["


class Phi4ToolParser(FramedToolParser):
    """Strict parser of `<|tool_call|>[{"name": ..., "arguments": {...}}, ...]<|/tool_call|>` and `functools[...]`."""

    name: ClassVar[str] = "phi4"
    call_markers: ClassVar[tuple[str, ...]] = (_OPENING, _FUNCTOOLS)
    markers: ClassVar[tuple[str, ...]] = (_OPENING, _CLOSING, _FUNCTOOLS)

    @override
    def read(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        start = skip_space(text, at)
        if text.marks(_FUNCTOOLS, start):
            yield from CallList(text, TurnJson(text), ListEnd()).read(start, start + len(_FUNCTOOLS) - 1)
            return
        if text.mark(_OPENING, at) >= 0:
            yield from CallList(text, TurnJson(text), ListEnd(_CLOSING)).between_markers(_OPENING, at)
