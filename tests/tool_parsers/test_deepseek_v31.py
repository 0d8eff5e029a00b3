"""DeepSeek V3.1 calls: what is special to them beside what every format of sections shares (test_json_sections.py)."""

from __future__ import annotations

import pytest

from strands_sglang.tool_parsers.parsed import ParseFailure as Failure
from support.tool_parsers.checks import Conformance, shown
from support.tool_parsers.sections import DEEPSEEK_V31 as FORM


@pytest.mark.parametrize("name", [" f", "f\n", "a.b:0", "function", "ü", '{"name": "f"}', "<|tool_call|>"])
def test_name_is_text_between_markers(name: str) -> None:
    (call,) = FORM.parse(FORM.section(FORM.call_of(name, {}))).calls
    assert call.name == name


@pytest.mark.parametrize(
    ("raw", "failure"),
    [
        ("{CALL_BEGIN}{SEPARATOR}{}{CALL_END}", Failure.MISSING_NAME),
        ("{CALL_BEGIN} \n\u00a0{SEPARATOR}{}{CALL_END}", Failure.MISSING_NAME),
        ("{CALL_BEGIN}function{SEPARATOR}f\n```json\n{}\n```{CALL_END}", Failure.INVALID_JSON),
        ("{CALL_BEGIN}f{SEPARATOR}g{SEPARATOR}{}{CALL_END}", Failure.INVALID_JSON),
        ("{CALL_BEGIN}f{SEPARATOR}```json\n{}\n```{CALL_END}", Failure.INVALID_JSON),
        ("{CALL_BEGIN}f{SEPARATOR}{}{SEPARATOR}{CALL_END}", Failure.TRAILING_TEXT),
    ],
    ids=shown,
)
def test_malformed_call_does_not_affect_other_calls(raw: str, failure: Failure) -> None:
    FORM.check_bad_call(raw, failure)


class TestDeepSeekV31(Conformance):
    forms = [FORM]
    details = [("{BEGIN}{CALL_BEGIN}{SEPARATOR}{}{CALL_END}{END}", "and {SEPARATOR} there must be the name", None)]
