"""The format of Llama-Nemotron and Nemotron Nano v2.

    <TOOLCALL>[{"name": "calculator", "arguments": {"expression": "12*7+3"}}]</TOOLCALL>

Invariant: calls are the opening marker, one JSON list of objects with a `name` and an object as `arguments`, and the
closing marker, with only JSON whitespace between them. The JSON decides where the list ends. The text of a call is that
of its object (`_json_blocks.py`). A closing marker alone is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers._json import TurnJson
from strands_sglang.tool_parsers._json_blocks import CallList, ListEnd
from strands_sglang.tool_parsers.base import FramedToolParser, Schemas
from strands_sglang.tool_parsers.parsed import Found, SampledText

_OPENING = "<TOOLCALL>"
_CLOSING = "</TOOLCALL>"


class NemotronToolParser(FramedToolParser):
    """Strict parser of `<TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>`."""

    name: ClassVar[str] = "nemotron"
    call_markers: ClassVar[tuple[str, ...]] = (_OPENING,)
    markers: ClassVar[tuple[str, ...]] = (_OPENING, _CLOSING)

    @override
    def read(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        if text.mark(_OPENING, at) >= 0:
            yield from CallList(text, TurnJson(text), ListEnd(_CLOSING)).between_markers(_OPENING, at)
