"""Calls as a family's own chat template writes them, in the family's own tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from typing import NamedTuple

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.messages import TemplateMessage
from strands_sglang.chat.parser_detection import detect_tool_parser
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.chat.tokenization import Encoder
from strands_sglang.errors import TemplateRefusedError
from strands_sglang.tool_parsers import ParsedTurn, SampledText, ToolParser
from support.families import FAMILIES, tokenizer
from support.tool_parsers.generated import Call

WITHOUT_TOOLS = {"gemma-3", "phi-4-mini", "smollm2", "smollm3"}
"""Families whose template writes no calls."""
SINGLE = {"llama-3.1", "llama-3.2", "llama-3.3", "gpt-oss"}
"""Families whose template takes, or writes, one call a turn."""
WITH_TOOLS = sorted(set(FAMILIES) - WITHOUT_TOOLS)


class Written(NamedTuple):
    """A turn that a template wrote."""

    ids: list[int]
    """Its tokens, as they would be sampled behind the prompt, the one that ends it included."""
    text: SampledText
    """Its words."""
    reasoning_open: bool
    """Whether the prompt had opened the reasoning."""


@cache
def bridge_of(family: str) -> Bridge:
    encoder = Encoder(tokenizer(family))
    return Bridge(ChatTemplate(tokenizer(family), encoder.control), encoder)


def parser_of(family: str) -> ToolParser:
    parser = detect_tool_parser(bridge_of(family)).parser
    assert parser is not None
    return parser


def most_of(family: str) -> int:
    """Return how many calls a turn may have.

    The templates of DeepSeek-V3 and R1 end the section behind the second call already, and go on behind it.
    """
    return 1 if family in SINGLE else 2 if family in ("deepseek-v3", "deepseek-r1") else 12


def written(family: str, calls: list[Call], *, reasoning: str | None = None) -> Iterator[Written]:
    """Yield the turn that a template writes for calls, with each kind of ids it takes."""
    bridge, parser = bridge_of(family), parser_of(family)
    encoder, template = bridge.encoder, bridge.template
    for ids in ("functions.{name}:{number}", "call{number:05d}"):
        tool_calls = [
            {
                "type": "function",
                "id": ids.format(name=call.name, number=number),
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(calls)
        ]
        assistant: TemplateMessage = {"role": "assistant", "content": "", "tool_calls": tool_calls}
        if reasoning is not None:
            assistant["reasoning_content"] = reasoning
        try:
            prompt = template.render([{"role": "user", "content": "x"}])
            whole = template.render([{"role": "user", "content": "x"}, assistant], generate=False)
        except TemplateRefusedError:
            continue
        before, after = encoder.encode(prompt.text), encoder.encode(whole.text, whole.escapes)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
        # Templates write a newline behind the token that ends a turn; no model samples it.
        end = max(place for place, token in enumerate(after) if encoder.decode([token]).strip()) + 1
        last = encoder.control.texts.get(after[end - 1], "")
        words = end - (after[end - 1] in encoder.control.special and last not in parser.endings)
        opened = encoder.decode(before[:same][-8:]).rstrip().endswith(parser.reasoning_markers[0])
        yield Written(after[same:end].tolist(), encoder.sampled(after[same:words]), opened)


def read(family: str, calls: list[Call], *, reasoning: str | None = None) -> tuple[SampledText, ParsedTurn]:
    """Return what is written and read of calls; of two writings, the one that is read."""
    parser, schemas = parser_of(family), {call.name: call.schema for call in calls}
    text, parsed = SampledText(""), ParsedTurn(None, "")
    for turn in written(family, calls, reasoning=reasoning):
        text, parsed = turn.text, parser.parse(turn.text, reasoning_open=turn.reasoning_open, schemas=schemas)
        if len(parsed.calls) == len(calls):
            break
    return text, parsed
