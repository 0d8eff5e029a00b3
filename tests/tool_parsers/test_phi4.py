"""Phi-4 calls: what is special to them beside what every format of lists shares (test_json_lists.py)."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang.tool_parsers.parsed import ParseFailure as Failure
from support.tool_parsers.checks import Conformance
from support.tool_parsers.json_lists import ONE, call_of
from support.tool_parsers.json_lists import PHI4 as FORM


@pytest.mark.parametrize("before", ["", "\n \t", "<think>hm</think>", "<think>hm</think>\n\n"])
@pytest.mark.parametrize("behind", ["", "\n "])
def test_functools_list_is_parsed(before: str, behind: str) -> None:
    text = f"{before}functools[{ONE},\n{call_of('g', {'a': [1]})}]{behind}"
    turn = FORM.parse(text)
    assert [(call.name, call.arguments) for call in turn.calls] == [
        ("calculator", {"expression": "12*7+3"}),
        ("g", {"a": [1]}),
    ]
    assert turn.calls[0].start == text.index(ONE) and (turn.failures, turn.text) == ((), "")


@pytest.mark.parametrize(
    ("text", "failures", "names"),
    [
        ("functools[]", [(Failure.MISSING_NAME, "functools[]")], []),
        ("functools[", [(Failure.UNCLOSED, "functools[")], []),
        ("functools[{", [(Failure.UNCLOSED, "functools[{")], []),
        ("functools[f(1)]", [(Failure.INVALID_JSON, "functools[f(1)]")], []),
        (f"functools[{ONE}", [(Failure.UNCLOSED, f"functools[{ONE}")], []),
        (f"functools[{ONE}] x", [(Failure.TRAILING_TEXT, f"functools[{ONE}] x")], []),
        (f"functools[{ONE}]{FORM.call}", [(Failure.TRAILING_TEXT, f"functools[{ONE}]{FORM.call}")], []),
        (f"functools[{ONE}, {ONE}] x", [(Failure.TRAILING_TEXT, f"{ONE}] x")], ["calculator"]),
        (f"functools[{ONE}, 1]", [(Failure.NOT_AN_OBJECT, "1")], ["calculator"]),
        (f"functools[{ONE}, {{]{FORM.call}", [(Failure.INVALID_JSON, f"{{]{FORM.call}")], ["calculator"]),
        (f"functools[{ONE},]", [(Failure.INVALID_JSON, f"functools[{ONE},]")], []),
        ('functools[{"name": "f", "arguments": "{}"}]', None, []),
    ],
)
def test_malformed_functools_list_fails(text: str, failures: list[Any] | None, names: list[str]) -> None:
    seen = FORM.found(text)
    assert (seen[0], seen[2]) == (names, "")
    assert seen[1] == (failures or [(Failure.BAD_ARGUMENTS, text[len("functools[") : -1])])


def test_functools_in_prose_does_not_hide_calls() -> None:
    assert FORM.found(f"functools[ is no list\n{FORM.call}")[0] == []
    assert FORM.found(f"See functools[1].\n{FORM.call}") == (["calculator"], [], "See functools[1].")


class TestPhi4(Conformance):
    forms = [FORM]
    remaining = [
        *(("functools", "functools"), ("functools.reduce", "functools.reduce")),
        (f"functools [{ONE}]", f"functools [{ONE}]"),
        (f"Call functools[{ONE}]", f"Call functools[{ONE}]"),
        (f"\n functools[{ONE}]\n", ""),
        (f"functools[{ONE}, {ONE}]", ""),
    ]
    details = [
        (
            f"functools[{ONE}] {ONE}",
            "After the list of tool calls there must be nothing else, at character",
            "calculator",
        )
    ]
