"""The published package's import path of the parser in `qwen3_coder.py`."""

from strands_sglang.tool_parsers.qwen3_coder import QwenXMLToolParser

__all__ = ["QwenXMLToolParser"]
