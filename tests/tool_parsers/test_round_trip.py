"""What a family's own chat template writes for a call is read back as that call: token for token, in every family."""

from __future__ import annotations

import json
from functools import cache
from itertools import takewhile
from typing import Any

import pytest

from families import FAMILIES, tokenizer
from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.detect import detect_tool_parser
from strands_sglang.chat.encoder import Encoder
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.errors import TemplateRefusedError
from strands_sglang.tool_parsers import ParsedTurn, ToolParser
from strands_sglang.tool_parsers.sampled import SampledText
from tool_parsers.generated import Call, turn

WITHOUT_TOOLS = {"gemma-3", "phi-4-mini", "smollm2", "smollm3"}
"""Families whose template writes no calls."""
SINGLE = {"llama-3.1", "llama-3.2", "llama-3.3", "gpt-oss"}
"""Families whose template takes, or writes, one call a turn."""
WITH_TOOLS = sorted(set(FAMILIES) - WITHOUT_TOOLS)
CASES = 1000


@cache
def bridge_of(family: str) -> Bridge:
    encoder = Encoder(tokenizer(family))
    return Bridge(ChatTemplate(tokenizer(family), encoder.control), encoder)


def parser_of(family: str) -> ToolParser:
    parser = detect_tool_parser(bridge_of(family)).parser
    assert parser is not None
    return parser


def written(family: str, calls: list[Call], parser: ToolParser, *, reasoning: str | None = None) -> Any:
    """Yield the turn that a template writes for calls, as it would be sampled, and whether reasoning was open."""
    bridge = bridge_of(family)
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
        assistant = {"role": "assistant", "content": "", "tool_calls": tool_calls}
        if reasoning is not None:
            assistant["reasoning_content"] = reasoning
        try:
            prompt = template.render([{"role": "user", "content": "x"}])
            whole = template.render([{"role": "user", "content": "x"}, assistant], generate=False)
        except TemplateRefusedError:
            continue
        before, after = encoder.encode(prompt.text), encoder.encode(whole.text, whole.escapes)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
        ended = max(place for place, token in enumerate(after) if encoder.decode([token]).strip()) + 1
        last = encoder.control.texts.get(after[ended - 1], "")
        if last in encoder.control.ids and after[ended - 1] in encoder.control.special and last not in parser.endings:
            ended -= 1
        opened = encoder.decode(before[:same][-8:]).rstrip().endswith(parser.reasoning_markers[0])
        yield encoder.sampled(after[same:ended]), opened


def read(family: str, calls: list[Call], *, reasoning: str | None = None) -> tuple[SampledText, ParsedTurn]:
    """Return what is written and read of calls; of two writings, the one that is read (ids differ)."""
    parser, schemas = parser_of(family), {call.name: call.schema for call in calls}
    text, parsed = SampledText(""), ParsedTurn(None, "")
    for text, opened in written(family, calls, parser, reasoning=reasoning):
        parsed = parser.parse(text, reasoning_open=opened, schemas=schemas)
        if len(parsed.calls) == len(calls):
            break
    return text, parsed


def exact(value: Any) -> str:
    """Return a value in a form that is equal only for equal values of equal types, keys in order."""
    return json.dumps(value, ensure_ascii=False)


def same_calls(parsed: ParsedTurn, calls: list[Call]) -> bool:
    return [(call.name, exact(call.arguments)) for call in parsed.calls] == [
        (call.name, exact(call.arguments)) for call in calls
    ]


def most_of(family: str) -> int:
    # The templates of DeepSeek-V3 and R1 end the section behind the second call already, and go on behind it.
    return 1 if family in SINGLE else 2 if family in ("deepseek-v3", "deepseek-r1") else 12


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_what_the_template_writes_is_read_back(family: str) -> None:
    for seed in range(CASES):
        calls = turn(seed, most=most_of(family))
        text, parsed = read(family, calls)
        assert same_calls(parsed, calls) and not parsed.failures, (seed, text, parsed)
        for call in parsed.calls:
            assert text[call.start :].startswith(call.raw)


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_words_of_the_format_inside_values_never_make_another_call(family: str) -> None:
    """Formats that quote nothing cannot carry their own words: such a call fails, and is never a different one."""
    read_back = 0
    for seed in range(200):
        calls = turn(seed, most=1, structure=True)
        text, parsed = read(family, calls)
        assert same_calls(parsed, calls) or (not parsed.calls and parsed.failures), (seed, text, parsed)
        read_back += bool(parsed.calls)
    assert read_back > 100


@pytest.mark.parametrize("family", [family for family in WITH_TOOLS if bridge_of(family).template.writes_reasoning])
def test_a_draft_in_the_reasoning_is_no_call(family: str) -> None:
    for seed in range(50):
        calls, drafts = turn(seed, most=1), turn(seed + 1, most=1)
        draft, _ = read(family, drafts)
        text, parsed = read(family, calls, reasoning=f"Maybe this:\n{draft}\nNo.")
        assert same_calls(parsed, calls), (seed, text, parsed)
        assert not parsed.failures and "Maybe this:" not in parsed.text
