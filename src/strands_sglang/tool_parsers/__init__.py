"""Strict parsers of tool calls, one module per model family.

    parser = get_tool_parser("hermes")
    turn = parser.parse('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    turn.calls[0].name, turn.calls[0].arguments

Invariant: a malformed call is never executed and never repaired. It becomes a `FailedCall` with the error and its
position, in a sentence for the model. A parser never raises, whatever the text is.
"""

from strands_sglang.tool_parsers._json import JsonReader, arguments_of, name_of
from strands_sglang.tool_parsers._sampled_text import SampledText
from strands_sglang.tool_parsers.base import PlainTextParser, ToolParser
from strands_sglang.tool_parsers.deepseek import DeepSeekV3ToolParser, DeepSeekV31ToolParser, DeepSeekV32ToolParser
from strands_sglang.tool_parsers.gemma import GemmaToolParser
from strands_sglang.tool_parsers.glm import GLMToolParser, GlmToolParser
from strands_sglang.tool_parsers.harmony import HarmonyToolParser
from strands_sglang.tool_parsers.hermes import HermesToolParser
from strands_sglang.tool_parsers.kimi_k2 import KimiK2ToolParser
from strands_sglang.tool_parsers.llama3_json import Llama3JsonToolParser
from strands_sglang.tool_parsers.minimax_m2 import MiniMaxM2ToolParser
from strands_sglang.tool_parsers.mistral import MistralToolParser
from strands_sglang.tool_parsers.nemotron import NemotronToolParser
from strands_sglang.tool_parsers.parsed import CallFault, FailedCall, ParsedTurn, ParseFailure, ToolCall
from strands_sglang.tool_parsers.phi4 import Phi4ToolParser
from strands_sglang.tool_parsers.pythonic import PythonicToolParser
from strands_sglang.tool_parsers.qwen3_coder import Qwen3CoderToolParser, QwenXMLToolParser
from strands_sglang.tool_parsers.registry import get_tool_parser, register_tool_parser, tool_parser_names

__all__ = [
    "ToolParser",
    "HermesToolParser",
    "Qwen3CoderToolParser",
    "QwenXMLToolParser",
    "GlmToolParser",
    "GLMToolParser",
    "DeepSeekV3ToolParser",
    "DeepSeekV31ToolParser",
    "DeepSeekV32ToolParser",
    "KimiK2ToolParser",
    "Llama3JsonToolParser",
    "PythonicToolParser",
    "MistralToolParser",
    "HarmonyToolParser",
    "MiniMaxM2ToolParser",
    "GemmaToolParser",
    "Phi4ToolParser",
    "NemotronToolParser",
    "ParsedTurn",
    "ToolCall",
    "FailedCall",
    "ParseFailure",
    "PlainTextParser",
    "SampledText",
    "CallFault",
    "JsonReader",
    "name_of",
    "arguments_of",
    "get_tool_parser",
    "register_tool_parser",
    "tool_parser_names",
]
