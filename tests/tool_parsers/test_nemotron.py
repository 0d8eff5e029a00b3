"""Nemotron calls: what is special to them beside what every format of lists shares (test_json_list.py)."""

from __future__ import annotations

from strands_sglang.tool_parsers.base import ToolParser
from support.tool_parsers.json_lists import NEMOTRON


def test_parser_name_and_markers() -> None:
    parser, opening, closing = NEMOTRON.parser, "<TOOLCALL>", "</TOOLCALL>"
    assert isinstance(parser, ToolParser) and parser.name == "nemotron"
    assert (parser.call_markers, set(parser.markers)) == ((opening,), {opening, closing})
