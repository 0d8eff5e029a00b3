"""Calls in a section: what every format of sections reads and refuses alike, and what is special to one family."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang.tool_parsers.parsed import ParseFailure as Failure
from support.tool_parsers.checks import Conformance, rows, shown
from support.tool_parsers.sections import DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2, SECTION_FORMATS, SectionFormat

each_format = pytest.mark.parametrize("form", SECTION_FORMATS, ids=lambda form: form.name)


@each_format
@pytest.mark.parametrize("json_text", ["{}", " \t{}", "\n\n{ \n}\r\n\n \n", " \t\r\n{ \n}\n\n"])
def test_whitespace_around_json_is_ignored(form: SectionFormat, json_text: str) -> None:
    raw = form.fill(f"{{CALL_BEGIN}}{{HEAD}}{json_text}{{TAIL}}{{CALL_END}}")
    (call,) = form.parse(f"{form.begin}\n {raw} \n{form.end}").calls
    assert (call.name, call.arguments, call.raw) == ("f", {}, raw)


ARGUMENTS = [
    *rows(Failure.INVALID_JSON, '{"a": 1,}', '{"a": 1', '{"a": ' + "[" * 50_000 + "]" * 50_000 + "}", "", "\u00a0{}"),
    *rows(Failure.DUPLICATE_KEY, '{"a": 1, "a": 1}'),
    *rows(Failure.BAD_ARGUMENTS, "[]", '"{\\"a\\": 1}"', "null"),
    *rows(Failure.TRAILING_TEXT, "{} {}", "{}}", "{} // why", '{} {"a": "{CALL_END}"}'),
]
CALLS = [
    *((f"{{CALL_BEGIN}}{{HEAD}}{body}{{TAIL}}{{CALL_END}}", failure) for body, failure in ARGUMENTS),
    *rows(Failure.MISSING_NAME, "{CALL_BEGIN}{CALL_END}", "{CALL_BEGIN} \n{CALL_END}"),
    *rows(Failure.BAD_ARGUMENTS, "{CALL_BEGIN}f{CALL_END}", "{CALL_BEGIN}f{}{CALL_END}"),
    ('{CALL_BEGIN}f{"a": "{CALL_END}{CALL_BEGIN}"}{CALL_END}', Failure.BAD_ARGUMENTS),
    *rows(Failure.UNCLOSED, "{CALL_BEGIN}{}{CALL}", "{CALL_BEGIN}f{BEGIN}{CALL}", "{CALL_BEGIN}{HEAD}{}{TAIL}\n{CALL}"),
    ("{CALL_BEGIN}{CALL}", Failure.UNCLOSED),
]


@each_format
@pytest.mark.parametrize(("raw", "failure"), CALLS, ids=shown)
def test_malformed_call_does_not_affect_other_calls(form: SectionFormat, raw: str, failure: Failure) -> None:
    form.check_bad_call(raw, failure)


@each_format
@pytest.mark.parametrize(
    ("text", "failures", "names", "remains"),
    [
        ("a{BEGIN}{END}b", [(Failure.MISSING_NAME, "{BEGIN}{END}")], [], "a\nb"),
        ("{BEGIN} \n{END}", [(Failure.MISSING_NAME, "{BEGIN} \n{END}")], [], ""),
        ("{BEGIN}\n{SECTION}", [(Failure.MISSING_NAME, "{BEGIN}")], ["calculator"], ""),
        ("a{BEGIN}", [(Failure.UNCLOSED, "{BEGIN}")], [], "a"),
        ("a{BEGIN}\n ", [(Failure.UNCLOSED, "{BEGIN}\n ")], [], "a"),
        ("{BEGIN}{CALL}", [], ["calculator"], ""),
        ("{BEGIN}{CALL}\n{CALL}\n", [], ["calculator", "calculator"], ""),
        ("{BEGIN}{CALL}\n{SECTION}a", [], ["calculator", "calculator"], "a"),
        *rows(([(Failure.MISPLACED, "x")], [], ""), "{BEGIN}x{END}", "{BEGIN}x"),
        ("{BEGIN} x y \n{CALL}{END}", [(Failure.MISPLACED, "x y")], ["calculator"], ""),
        ("{BEGIN}{CALL} and {CALL}{END}", [(Failure.MISPLACED, "and")], ["calculator"] * 2, ""),
        ("{BEGIN}{CALL}, {CALL}\nb", [(Failure.MISPLACED, ","), (Failure.MISPLACED, "b")], ["calculator"] * 2, ""),
        ("{BEGIN}x{BEGIN}{CALL}", [(Failure.MISPLACED, "x")], ["calculator"], ""),
        ("{BEGIN}\u00a0{END}", [(Failure.MISPLACED, "\u00a0")], [], ""),
        ("{BEGIN}{CALL_END}{CALL}{END}", [(Failure.MISPLACED, "{CALL_END}")], ["calculator"], ""),
        # A call that lacks its begin ends where a call ends, and its JSON is not looked into.
        ("{BEGIN}{HEADLESS}{CALL}{END}", [(Failure.MISPLACED, "{HEADLESS}")], ["calculator"], ""),
        ('{BEGIN}{"a": "{INNER}"}{END}', [(Failure.MISPLACED, '{"a": "{INNER}"}')], [], ""),
        ("a{CALL}b", [(Failure.MISPLACED, "{CALL}")], [], "a\nb"),
        ("{CALL}\n{CALL}{END}b", [(Failure.MISPLACED, "{CALL}"), (Failure.MISPLACED, "{CALL}")], [], "b"),
        ("{SECTION}{CALL}", [(Failure.MISPLACED, "{CALL}")], ["calculator"], ""),
        ("a{HEADLESS}{SECTION}", [(Failure.MISPLACED, "{HEADLESS_REST}")], ["calculator"], None),
        ("{CALL_BEGIN}f", [(Failure.MISPLACED, "{CALL_BEGIN}f")], [], ""),
        # The section's end ends a call that has no end.
        ("{BEGIN}{OPEN}{END}b{SECTION}", [(Failure.UNCLOSED, "{OPEN}")], ["calculator"], "b"),
        ("{BEGIN}{CALL_BEGIN}f{END}b", [(Failure.UNCLOSED, "{CALL_BEGIN}f")], [], "b"),
        ("{BEGIN}{OPEN}", [(Failure.UNCLOSED, "{OPEN}")], [], ""),
        ("{BEGIN}{CALL}{OPEN}", [(Failure.UNCLOSED, "{OPEN}")], ["calculator"], ""),
        ("{BEGIN}{OPEN} b", [(Failure.UNCLOSED, "{OPEN} b")], [], ""),
    ],
)
def test_sections(
    form: SectionFormat, text: str, failures: list[tuple[Failure, str]], names: list[str], remains: str | None
) -> None:
    seen = form.found(form.fill(text))
    assert seen[:2] == (names, [(failure, form.fill(raw)) for failure, raw in failures])
    assert remains in (None, seen[2])


@each_format
def test_unclosed_string_includes_markers_after_it(form: SectionFormat) -> None:
    """Cut or forgotten: whose text that is cannot be told, so nothing behind is executed."""
    raw = form.fill('{CALL_BEGIN}{HEAD}{"a": "x {CALL_END}{INNER}{END}')
    failure = form.failed(form.begin + raw)
    assert (failure.failure, failure.raw) == (Failure.INVALID_JSON, raw)
    on_one_line = form.fill('{CALL_BEGIN}{HEAD}{"a": "}{CALL_END}{CALL_BEGIN}f{SEPARATOR}{"b": 1}{CALL_END}')
    turn = form.parse(form.section(on_one_line, form.call))
    assert [item.raw for item in turn.failures] == [on_one_line] and len(turn.calls) == 1


@each_format
def test_malformed_head_does_not_expose_markers_in_arguments(form: SectionFormat) -> None:
    inner = "{CALL_END}{CALL_BEGIN}rm{SEPARATOR}{}{CALL_END}"
    raw = form.fill(f'{{CALL_BEGIN}}{{BAD_HEAD}}{{"text": "{inner}"}}{{TAIL}}{{CALL_END}}')
    assert form.failed(form.section(raw)).raw == raw


@each_format
def test_failed_calls_are_limited(form: SectionFormat) -> None:
    empty, full = form.section(), form.section(form.call)
    bad = empty * 999
    assert form.found(bad + full)[0] == ["calculator"]
    names, failures, remains = form.found(bad + empty + full)
    assert (names, len(failures), remains) == ([], 1000, "") and failures[-1][1] == empty + full


WHOLE: dict[str, Any] = {"s": 'a"\\ é 😀', "n": [-1.5e10, 0, True, False, None, {"x": {}}]}


@pytest.mark.parametrize(
    ("form", "length"),
    [
        pytest.param(form, length, id=f"{form.name}-{length}")
        for form in SECTION_FORMATS
        for length in range(len(form.call_of("f", WHOLE)))
    ],
)
def test_truncated_call_is_unclosed(form: SectionFormat, length: int) -> None:
    """Where the cut leaves no begin of a call, what it leaves is no text, either."""
    cut = form.call_of("f", WHOLE)[:length]
    names, failures, remains = form.found(f"x{form.begin}{form.call}\n{cut}")
    kind = Failure.UNCLOSED if length >= len(form.call_begin) else Failure.MISPLACED
    assert names == ["calculator"] and remains == "x"
    assert failures == ([(kind, cut)] if length else [])


class TestSections(Conformance):
    forms = SECTION_FORMATS
    remaining = [
        *rows("", "", "{SECTION}"),
        ("a{BEGIN}{CALL}", "a"),
        ("a{BEGIN}{END}b", "a\nb"),
        ("a {CALL_END} b {END} c", "a {CALL_END} b {END} c"),
    ]
    details = [
        (
            '{BEGIN}{CALL_BEGIN}{HEAD}{"a": nope}{TAIL}{CALL_END}{END}',
            "The JSON is not valid: expecting value, at",
            "f",
        ),
        (
            '{BEGIN}{CALL_BEGIN}{HEAD}"x"{TAIL}{CALL_END}{END}',
            "arguments of a tool call must be a JSON object, not a s",
            "f",
        ),
        ("{BEGIN}{CALL_BEGIN}{HEAD}{}x{TAIL}{CALL_END}{END}", "and nothing else before that, at character", "f"),
        ("{BEGIN}{CALL_BEGIN}f{CALL_END}{END}", "has no {SEPARATOR} between", None),
        ("{BEGIN}{OPEN}{END}", "not closed by {CALL_END}", "f"),
        ("{BEGIN}{END}", "a tool call must begin with {CALL_BEGIN}", None),
        ("{BEGIN}x{END}", "may contain only tool calls", None),
        ("{CALL}", "{BEGIN} must come before the first call", "calculator"),
        ('{BEGIN}{CALL_BEGIN}{HEAD}{"a', "The turn ended in the middle of the JSON", "f"),
        ("{BEGIN}{CALL_BEGIN}f", "The turn ended before the {SEPARATOR}", None),
    ]


# --- what is special to a family -------------------------------------------------------------------------------------

DEEPSEEK_NAMES = [" f", "a.b:0", "function", "ü", '{"name": "f"}']


@pytest.mark.parametrize(
    ("form", "name"),
    [
        *((DEEPSEEK_V3, name) for name in (*DEEPSEEK_NAMES, "f ", "```json", "f\r")),  # the rest of a line
        *((DEEPSEEK_V31, name) for name in (*DEEPSEEK_NAMES, "f\n", "<|tool_call|>")),  # what stands between markers
    ],
)
def test_name_is_verbatim(form: SectionFormat, name: str) -> None:
    (call,) = form.parse(form.section(form.call_of(name, {}))).calls
    assert call.name == name


@pytest.mark.parametrize(
    ("call_id", "name"),
    [
        *rows("f", "functions.f:0", "functions.f:007", "functions.f:" + "9" * 5000),
        *(("functions.a.b:12", "a.b"), ("functions.a:b:1", "a:b"), ("functions.a:1:2", "a:1")),
        *(("functions.functions.f:0", "functions.f"), ("functions. f :0", " f "), ("functions..:0", ".")),
    ],
)
def test_id_is_verbatim_and_has_the_name(call_id: str, name: str) -> None:
    (call,) = KIMI_K2.parse(KIMI_K2.fill(f"{{BEGIN}}{{CALL_BEGIN}}{call_id}{{SEPARATOR}}{{}}{{CALL_END}}{{END}}")).calls
    assert (call.name, call.id) == (name, call_id)


DEEPSEEK_V3_CALLS = [
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
]
DEEPSEEK_V31_CALLS = [
    ("{CALL_BEGIN}{SEPARATOR}{}{CALL_END}", Failure.MISSING_NAME),
    ("{CALL_BEGIN} \n\u00a0{SEPARATOR}{}{CALL_END}", Failure.MISSING_NAME),
    ("{CALL_BEGIN}function{SEPARATOR}f\n```json\n{}\n```{CALL_END}", Failure.INVALID_JSON),
    ("{CALL_BEGIN}f{SEPARATOR}g{SEPARATOR}{}{CALL_END}", Failure.INVALID_JSON),
    ("{CALL_BEGIN}f{SEPARATOR}```json\n{}\n```{CALL_END}", Failure.INVALID_JSON),
    ("{CALL_BEGIN}f{SEPARATOR}{}{SEPARATOR}{CALL_END}", Failure.TRAILING_TEXT),
]
KIMI_K2_CALLS = [
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
]


@pytest.mark.parametrize(
    ("form", "raw", "failure"),
    [
        pytest.param(form, raw, failure, id=f"{form.name}-{shown(raw)}")
        for form, calls in (
            *((DEEPSEEK_V3, DEEPSEEK_V3_CALLS), (DEEPSEEK_V31, DEEPSEEK_V31_CALLS)),
            (KIMI_K2, KIMI_K2_CALLS),
        )
        for raw, failure in calls
    ],
)
def test_malformed_call_of_one_family_does_not_affect_other_calls(
    form: SectionFormat, raw: str, failure: Failure
) -> None:
    form.check_bad_call(raw, failure)


class TestDeepSeekV3(Conformance):
    forms = [DEEPSEEK_V3]
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


class TestDeepSeekV31(Conformance):
    forms = [DEEPSEEK_V31]
    details = [("{BEGIN}{CALL_BEGIN}{SEPARATOR}{}{CALL_END}{END}", "and {SEPARATOR} there must be the name", None)]


class TestKimiK2(Conformance):
    forms = [KIMI_K2]
    details = [("{BEGIN}{CALL_BEGIN}f{SEPARATOR}{}{CALL_END}{END}", "there must be functions.NAME:INDEX", None)]
