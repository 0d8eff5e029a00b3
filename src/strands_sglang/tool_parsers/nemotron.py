"""The format of Nemotron Nano v2 and other Nemotron models before the third.

    <TOOLCALL>[{"name": "calculator", "arguments": {"expression": "12*7+3"}}]</TOOLCALL>

Invariant: calls are the opening marker, one JSON list of objects with a `name` and an object as `arguments`, and the
closing marker, with JSON whitespace between them and nothing else. The JSON decides where the list ends. The text of a
call is that of its object; see `json_list.py` for what happens when one is bad. A closing marker alone is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers.base import Schemas
from strands_sglang.tool_parsers.framed import FramedToolParser
from strands_sglang.tool_parsers.json_list import CallList, ListEnd
from strands_sglang.tool_parsers.parsed import Found
from strands_sglang.tool_parsers.sampled import SampledText
from strands_sglang.tool_parsers.turn_json import TurnJson

_OPENING = "<TOOLCALL>"
_CLOSING = "</TOOLCALL>"


class NemotronToolParser(FramedToolParser):
    """Strict parser of `<TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>`."""

    name: ClassVar[str] = "nemotron"
    call_markers: ClassVar[tuple[str, ...]] = (_OPENING,)
    markers: ClassVar[tuple[str, ...]] = (_OPENING, _CLOSING)

    @override
    def read(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        """Yield what lists hold; see `FramedToolParser.read`. JSON has types of its own."""
        start = text.mark(_OPENING, at)
        if start < 0:
            return
        lists = CallList(text, TurnJson(text), ListEnd(_CLOSING))
        while start >= 0:
            at = yield from lists.read(start, start + len(_OPENING))
            start = text.mark(_OPENING, at)
