"""DeepSeek V3 and R1 calls: what is special beside what every format of sections shares (test_json_sections.py)."""

from __future__ import annotations

import pytest

from strands_sglang.tool_parsers.parsed import ParseFailure as Failure
from support.tool_parsers.checks import Conformance, rows, shown
from support.tool_parsers.sections import DEEPSEEK_V3 as FORM


@pytest.mark.parametrize("name", [" f", "f ", "a.b:0", "function", "ü", "```json", '{"name": "f"}', "f\r"])
def test_name_is_rest_of_line(name: str) -> None:
    (call,) = FORM.parse(FORM.section(FORM.call_of(name, {}))).calls
    assert call.name == name


@pytest.mark.parametrize(
    ("raw", "failure"),
    [
        *(
            (f"{{CALL_BEGIN}}{word}{{SEPARATOR}}f\n```json\n{{}}\n```{{CALL_END}}", Failure.MISSING_NAME)
            for word in ("", "f", "Function", " function", "function ", "function\n", "functions", "tool", "f\n")
        ),
        *(
            (f"{{CALL_BEGIN}}function{{SEPARATOR}}{body}{{CALL_END}}", failure)
            for body, failure in [
                *rows(Failure.MISSING_NAME, "", "\n```json\n{}\n```", " \n```json\n{}\n```", "\nf\n```json\n{}\n```"),
                *rows(Failure.BAD_ARGUMENTS, "f", "f\n", "f\n{}", "f{}", "f\n```\n{}\n```", "f\n```python\n{}\n```"),
                *rows(Failure.BAD_ARGUMENTS, "f\n```jsonc\n{}\n```", "f\n```JSON\n{}\n```", "f\n```json{}\n```"),
                *rows(Failure.BAD_ARGUMENTS, "f\n```json {}\n```", "f\n\n```json\n{}\n```", "f\n ```json\n{}\n```"),
                *rows(Failure.BAD_ARGUMENTS, "f ```json\n{}\n```", "f\r\n ```json\n{}\n```"),
                *rows(Failure.BAD_ARGUMENTS, 'f\n{"a": "{CALL_END}{CALL_BEGIN}"}', "f{SEPARATOR}\n```json\n{}\n```"),
                *rows(Failure.INVALID_JSON, "f\n```json\n```", "f\n```json\n```json\n{}\n```"),
                *rows(Failure.UNCLOSED, "f\n```json\n{}", "f\n```json\n{}\n"),
                *rows(Failure.TRAILING_TEXT, "f\n```json\n{}```", "f\n```json\n{} ```", "f\n```json\n{}\n ```"),
                *rows(Failure.TRAILING_TEXT, "f\n```json\n{}\n```\n", "f\n```json\n{}\n````", "f\n```json\n{}\n``"),
                ("f\n```json\n{}\nx\n```", Failure.TRAILING_TEXT),
            ]
        ),
    ],
    ids=shown,
)
def test_malformed_call_does_not_affect_other_calls(raw: str, failure: Failure) -> None:
    FORM.check_bad_call(raw, failure)


class TestDeepSeekV3(Conformance):
    forms = [FORM]
    details = [
        ("{BEGIN}{CALL_BEGIN}f{SEPARATOR}{}{CALL_END}{END}", "there must be the word function", None),
        (
            "{BEGIN}{CALL_BEGIN}function{SEPARATOR}f\n{}{CALL_END}{END}",
            "a line ```json must open its arguments, at",
            None,
        ),
        ("{BEGIN}{CALL_BEGIN}function{SEPARATOR}{CALL_END}{END}", "The name of a tool must directly follow", None),
        ("{BEGIN}{CALL_BEGIN}{HEAD}{}{CALL_END}{END}", "not closed by ``` on a line of its own", "f"),
    ]
