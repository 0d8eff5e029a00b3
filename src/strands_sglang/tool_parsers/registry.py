"""The parsers that are known by name: those of this package, and those a user adds.

Invariant: a name means one parser. Adding a second under the same name is an error, unless it is the same class.
"""

from __future__ import annotations

import difflib
import threading
from typing import TypeVar

from strands_sglang.errors import ConfigurationError
from strands_sglang.tool_parsers.base import ToolParser
from strands_sglang.tool_parsers.deepseek_v3 import DeepSeekV3ToolParser
from strands_sglang.tool_parsers.deepseek_v31 import DeepSeekV31ToolParser
from strands_sglang.tool_parsers.deepseek_v32 import DeepSeekV32ToolParser
from strands_sglang.tool_parsers.gemma import GemmaToolParser
from strands_sglang.tool_parsers.glm import GlmToolParser
from strands_sglang.tool_parsers.harmony import HarmonyToolParser
from strands_sglang.tool_parsers.hermes import HermesToolParser
from strands_sglang.tool_parsers.kimi_k2 import KimiK2ToolParser
from strands_sglang.tool_parsers.llama3_json import Llama3JsonToolParser
from strands_sglang.tool_parsers.minimax_m2 import MiniMaxM2ToolParser
from strands_sglang.tool_parsers.mistral import MistralToolParser
from strands_sglang.tool_parsers.nemotron import NemotronToolParser
from strands_sglang.tool_parsers.phi4 import Phi4ToolParser
from strands_sglang.tool_parsers.plain import PlainTextParser
from strands_sglang.tool_parsers.pythonic import PythonicToolParser
from strands_sglang.tool_parsers.qwen3_coder import Qwen3CoderToolParser

P = TypeVar("P", bound=type[ToolParser])

_known: dict[str, type[ToolParser]] = {
    parser.name: parser
    for parser in (
        HermesToolParser,
        Qwen3CoderToolParser,
        GlmToolParser,
        DeepSeekV3ToolParser,
        DeepSeekV31ToolParser,
        DeepSeekV32ToolParser,
        KimiK2ToolParser,
        Llama3JsonToolParser,
        PythonicToolParser,
        MistralToolParser,
        HarmonyToolParser,
        MiniMaxM2ToolParser,
        GemmaToolParser,
        Phi4ToolParser,
        NemotronToolParser,
    )
}
_OTHER_NAMES = {"qwen_xml": Qwen3CoderToolParser.name}
"""Names of the published package for parsers that are called otherwise here."""
_lock = threading.Lock()


def register_tool_parser(parser: P) -> P:
    """Make a parser known by its name, so that it can be named and found from a chat template.

    Args:
        parser: The class; it is made without arguments. May be used as a decorator.

    Returns:
        The class.

    Raises:
        ConfigurationError: It is no parser, has no name, or another has that name.
    """
    if not (isinstance(parser, type) and issubclass(parser, ToolParser)):
        raise ConfigurationError(f"a tool parser is a subclass of ToolParser, not {parser!r}")
    name = getattr(parser, "name", None)
    if not isinstance(name, str) or name in ("", "auto", PlainTextParser.name, *_OTHER_NAMES):
        raise ConfigurationError(f'{parser.__name__} needs a name of its own: name = "my_format"')
    with _lock:
        if _is_other(_known.get(name), parser):
            raise ConfigurationError(f"the tool parser {name!r} is there already: {_known[name]!r}; take another name")
        _known[name] = parser
    return parser


def tool_parser_names() -> tuple[str, ...]:
    """Return the name of every known parser."""
    return tuple(_known)


def is_tool_parser_name(name: object) -> bool:
    """Return whether `get_tool_parser` takes a name."""
    return name == PlainTextParser.name or (isinstance(name, str) and _OTHER_NAMES.get(name, name) in _known)


def registered() -> tuple[type[ToolParser], ...]:
    """Return every known parser."""
    return tuple(_known.values())


def get_tool_parser(name: str) -> ToolParser:
    """Return a parser by its name.

    Raises:
        ConfigurationError: No parser has this name.
    """
    if name == PlainTextParser.name:
        return PlainTextParser()
    name = _OTHER_NAMES.get(name, name)
    if not is_tool_parser_name(name):
        close = difflib.get_close_matches(name, list(_known), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ConfigurationError(f"unknown tool parser {name!r}{hint} Known: {', '.join(_known)}, 'auto', 'none'")
    return _known[name]()


def _is_other(known: type[ToolParser] | None, parser: type[ToolParser]) -> bool:
    """Return whether a name is taken; a notebook's cell that is run again makes the same class anew."""
    return known is not None and (known.__module__, known.__qualname__) != (parser.__module__, parser.__qualname__)
