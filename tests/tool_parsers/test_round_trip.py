"""What a family's own chat template writes for a call is read back as that call: token for token, in every family."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from strands_sglang.tool_parsers import ParsedTurn, get_tool_parser
from support.examples import long_families, size
from support.tool_parsers.generated import Call, turn
from support.tool_parsers.grammars import GRAMMARS
from support.tool_parsers.grammars import Call as Written
from support.tool_parsers.written import WITH_TOOLS, most_of, read

CASES = size(250, 1000)
IDS = {
    **dict.fromkeys(("kimi-k2", "kimi-k2-thinking"), r"functions\.(.*):\d+"),
    **dict.fromkeys(("mistral-nemo", "mistral-small-3.2"), "[0-9a-z]{9}"),
}
"""Ids in the families whose calls have them."""


def exact(value: Any) -> str:
    """Return a value in a form that is equal only for equal values of equal types, keys in order."""
    return json.dumps(value, ensure_ascii=False)


def same_calls(parsed: ParsedTurn, calls: list[Call]) -> bool:
    return [(call.name, exact(call.arguments)) for call in parsed.calls] == [
        (call.name, exact(call.arguments)) for call in calls
    ]


@pytest.mark.parametrize("family", long_families(WITH_TOOLS))
def test_template_output_round_trips(family: str) -> None:
    for seed in range(CASES):
        calls = turn(seed, most=most_of(family))
        text, parsed = read(family, calls)
        assert same_calls(parsed, calls) and not parsed.failures, (seed, text, parsed)
        for call in parsed.calls:
            assert text[call.start :].startswith(call.raw)
            assert (call.id is not None) == (family in IDS)
            assert call.id is None or (call.id in call.raw and re.fullmatch(IDS[family], call.id))


@pytest.mark.parametrize("family", long_families(WITH_TOOLS))
def test_markers_inside_values_never_become_another_call(family: str) -> None:
    """Formats that quote nothing cannot carry their own words: such a call fails, and is never a different one."""
    read_back = 0
    for seed in range(size(100, 200)):
        calls = turn(seed, most=1, structure=True)
        text, parsed = read(family, calls)
        assert same_calls(parsed, calls) or (not parsed.calls and parsed.failures), (seed, text, parsed)
        read_back += bool(parsed.calls)
    assert read_back > size(50, 100)


def plain_keys(value: Any, *, depth: int = 100) -> Any:
    """Return a value whose keys are words, down to some depth."""
    if isinstance(value, dict) and depth:
        return {f"k{number}": plain_keys(item, depth=depth - 1) for number, item in enumerate(value.values())}
    if isinstance(value, list) and depth:
        return [plain_keys(item, depth=depth - 1) for item in value]
    return value


@pytest.mark.parametrize("name", ["gemma", "nemotron", "phi4", "pythonic"])
def test_grammar_output_round_trips(name: str) -> None:
    """No template of these is among the fixtures that writes calls: they are written by the second grammar."""
    parser = get_tool_parser(name)
    for seed in range(CASES):
        calls = turn(seed)
        if name == "gemma":  # bare keys, at any depth
            calls = [replace(call, arguments=plain_keys(call.arguments)) for call in calls]
        elif name == "pythonic":  # names and keywords of Python
            calls = [
                replace(call, name=call.name.replace("-", "_"), arguments=plain_keys(call.arguments, depth=1))
                for call in calls
            ]
        text = GRAMMARS[name].write([Written(call.name, call.arguments) for call in calls], Random(seed))
        parsed = parser.parse(text, schemas={call.name: call.schema for call in calls})
        assert same_calls(parsed, calls) and not parsed.failures, (seed, text, parsed)
