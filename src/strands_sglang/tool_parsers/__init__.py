"""Sampled text -> tool calls, one model family a file.

Invariant: a malformed call is never executed and never repaired. It comes out as a `FailedCall`, which says what is
wrong and where, in words the model can be shown; and a parser raises on no text at all.
"""

from strands_sglang.tool_parsers.base import ToolParser
from strands_sglang.tool_parsers.deepseek_v3 import DeepSeekV3ToolParser
from strands_sglang.tool_parsers.deepseek_v31 import DeepSeekV31ToolParser
from strands_sglang.tool_parsers.deepseek_v32 import DeepSeekV32ToolParser
from strands_sglang.tool_parsers.gemma import GemmaToolParser
from strands_sglang.tool_parsers.glm import GLMToolParser, GlmToolParser
from strands_sglang.tool_parsers.harmony import HarmonyToolParser
from strands_sglang.tool_parsers.hermes import HermesToolParser
from strands_sglang.tool_parsers.kimi_k2 import KimiK2ToolParser
from strands_sglang.tool_parsers.llama3_json import Llama3JsonToolParser
from strands_sglang.tool_parsers.minimax_m2 import MiniMaxM2ToolParser
from strands_sglang.tool_parsers.mistral import MistralToolParser
from strands_sglang.tool_parsers.nemotron import NemotronToolParser
from strands_sglang.tool_parsers.parsed import FailedCall, ParsedTurn, ParseFailure, ToolCall
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
    "get_tool_parser",
    "register_tool_parser",
    "tool_parser_names",
]
