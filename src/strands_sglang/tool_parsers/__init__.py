"""Sampled text -> tool calls, one model family a file.

Invariant: a malformed call is never executed and never repaired. It comes out as a `FailedCall`, which says what is
wrong and where, in words the model can be shown; and a parser raises on no text at all.
"""

from strands_sglang.tool_parsers.base import ToolParser
from strands_sglang.tool_parsers.hermes import HermesToolParser
from strands_sglang.tool_parsers.parsed import FailedCall, ParsedTurn, ParseFailure, ToolCall

__all__ = [
    "ToolParser",
    "HermesToolParser",
    "ParsedTurn",
    "ToolCall",
    "FailedCall",
    "ParseFailure",
]
