"""Strict parsers of tool calls, one module per model family.

    parser = get_tool_parser("hermes")
    turn = parser.parse('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    turn.calls[0].name, turn.calls[0].arguments

Invariant: a malformed call is never executed and never repaired. It becomes a `FailedCall` with the error and its
position, in a sentence for the model. A parser never raises, whatever the text is. A name means one parser: registering
another class under the same name is an error. To add one to this package: docs/contributing/add-a-parser.md.
"""

from __future__ import annotations

import threading
from typing import TypeVar

from strands_sglang._checks import did_you_mean
from strands_sglang.errors import ConfigurationError
from strands_sglang.tool_parsers._json import JsonReader, arguments_of, name_of
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
from strands_sglang.tool_parsers.parsed import CallFault, FailedCall, ParsedTurn, ParseFailure, SampledText, ToolCall
from strands_sglang.tool_parsers.phi4 import Phi4ToolParser
from strands_sglang.tool_parsers.pythonic import PythonicToolParser
from strands_sglang.tool_parsers.qwen3_coder import Qwen3CoderToolParser, QwenXMLToolParser

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


P = TypeVar("P", bound=type[ToolParser])

_known: dict[str, type[ToolParser]] = {
    parser.name: parser
    for parser in map(globals().get, __all__)
    if isinstance(parser, type) and issubclass(parser, ToolParser) and parser not in (ToolParser, PlainTextParser)
}
_OTHER_NAMES = {"qwen_xml": Qwen3CoderToolParser.name}
"""Names of the published package for parsers that have another name here."""
_lock = threading.Lock()


def register_tool_parser(parser: P) -> P:
    """Register a parser by its name, so that it can be named and detected from a chat template.

    Example:
        @register_tool_parser
        class MyToolParser(ToolParser):
            name = "my_format"
    """
    if not (isinstance(parser, type) and issubclass(parser, ToolParser)):
        raise ConfigurationError(f"parser must be a subclass of ToolParser, got {parser!r}")
    name = getattr(parser, "name", None)
    if not isinstance(name, str) or name in ("", "auto", PlainTextParser.name, *_OTHER_NAMES):
        raise ConfigurationError(
            f'{parser.__name__}.name must be a name of its own, got {name!r}; set name = "my_format"'
        )
    with _lock:
        if _is_other(_known.get(name), parser):
            raise ConfigurationError(f"the tool parser name {name!r} is taken by {_known[name]!r}; choose another name")
        _known[name] = parser
    return parser


def tool_parser_names() -> tuple[str, ...]:
    """Return the names of all registered parsers."""
    return tuple(_known)


def is_tool_parser_name(name: object) -> bool:
    """Return whether `get_tool_parser` accepts a name."""
    return name == PlainTextParser.name or (isinstance(name, str) and _OTHER_NAMES.get(name, name) in _known)


def registered() -> tuple[type[ToolParser], ...]:
    """Return all registered parser classes."""
    return tuple(_known.values())


def get_tool_parser(name: str) -> ToolParser:
    """Return a new parser by name.

    Args:
        name: A registered name, a name of the published package ("qwen_xml"), or "none" for no tool calls.

    Example:
        >>> get_tool_parser("hermes").name
        'hermes'
    """
    if name == PlainTextParser.name:
        return PlainTextParser()
    name = _OTHER_NAMES.get(name, name)
    if not is_tool_parser_name(name):
        hint = did_you_mean(name, _known)
        raise ConfigurationError(f"unknown tool parser {name!r}{hint} Known: {', '.join(_known)}, 'auto', 'none'")
    return _known[name]()


def _is_other(known: type[ToolParser] | None, parser: type[ToolParser]) -> bool:
    """A notebook cell that runs again defines the same class again."""
    return known is not None and (known.__module__, known.__qualname__) != (parser.__module__, parser.__qualname__)
