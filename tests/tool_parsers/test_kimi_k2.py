"""Kimi K2 calls: what is special to them beside what every format of sections shares (test_json_sections.py)."""

from __future__ import annotations

import pytest

from strands_sglang.tool_parsers.parsed import ParseFailure as Failure
from support.tool_parsers.checks import Conformance, rows, shown
from support.tool_parsers.sections import KIMI_K2 as FORM


@pytest.mark.parametrize(
    ("call_id", "name"),
    [
        *rows("f", "functions.f:0", "functions.f:007", "functions.f:" + "9" * 5000),
        *(("functions.a.b:12", "a.b"), ("functions.a:b:1", "a:b"), ("functions.a:1:2", "a:1")),
        *(("functions.functions.f:0", "functions.f"), ("functions. f :0", " f "), ("functions..:0", ".")),
    ],
)
def test_id_is_verbatim_and_has_the_name(call_id: str, name: str) -> None:
    (call,) = FORM.parse(FORM.fill(f"{{BEGIN}}{{CALL_BEGIN}}{call_id}{{SEPARATOR}}{{}}{{CALL_END}}{{END}}")).calls
    assert (call.name, call.id) == (name, call_id)


@pytest.mark.parametrize(
    ("raw", "failure"),
    [
        *(
            (f"{{CALL_BEGIN}}{call_id}{{SEPARATOR}}{{}}{{CALL_END}}", Failure.MISSING_NAME)
            for call_id in [
                *("", " ", "f", "f:0", "functions.f", "functions.f:", "functions.f:x", "functions.f:-1"),
                *("functions.f:1.5", "functions.f: 0", "functions.f:0 ", " functions.f:0", "\nfunctions.f:0\n"),
                *("functions.:0", "functions. :0", "functions:f:0", "Functions.f:0", "functions.f:٣", "functions.f:²"),
                *("call00001", "functions.f:0:", ":0", "."),
            ]
        ),
        ("{CALL_BEGIN}functions.f:0{SEPARATOR}{SEPARATOR}{}{CALL_END}", Failure.INVALID_JSON),
        ("{CALL_BEGIN}functions.f:0{SEPARATOR}{}{SEPARATOR}{CALL_END}", Failure.TRAILING_TEXT),
    ],
    ids=shown,
)
def test_malformed_call_does_not_affect_other_calls(raw: str, failure: Failure) -> None:
    FORM.check_bad_call(raw, failure)


class TestKimiK2(Conformance):
    forms = [FORM]
    details = [("{BEGIN}{CALL_BEGIN}f{SEPARATOR}{}{CALL_END}{END}", "there must be functions.NAME:INDEX", None)]
