"""Calls in a section: what every format of sections reads and refuses alike."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.tool_parsers import SampledText
from strands_sglang.tool_parsers.base import ToolParser
from strands_sglang.tool_parsers.parsed import ParseFailure
from support.examples import examples
from support.tool_parsers.checks import SECONDS, json_values, megabyte, same, shown
from support.tool_parsers.sections import SECTION_FORMATS, SectionFormat

Failure = ParseFailure
each_format = pytest.mark.parametrize("form", SECTION_FORMATS, ids=lambda form: form.name)


# --- what is read ---------------------------------------------------------------------------------------------------


@each_format
def test_well_formed_call_is_parsed(form: SectionFormat) -> None:
    (call,) = form.parse(form.fill("Let me see.\n{BEGIN}{CALL}{END}")).calls
    assert (call.name, call.arguments, call.id) == ("calculator", {"expression": "12*7+3"}, form.call_id)
    assert (call.raw, call.start) == (form.call, len(f"Let me see.\n{form.begin}"))


@each_format
def test_parser_name_and_markers(form: SectionFormat) -> None:
    assert isinstance(form.parser, ToolParser) and form.parser.name == form.name
    assert set(form.parser.markers) == {form.begin, form.end, form.call_begin, form.separator, form.call_end}
    assert set(form.parser.call_markers) == {form.begin, form.call_begin, form.separator}


@each_format
@pytest.mark.parametrize("json_text", ["{}", " \t{}", "\n\n{ \n}\r\n\n \n", " \t\r\n{ \n}\n\n"])
def test_whitespace_around_json_is_ignored(form: SectionFormat, json_text: str) -> None:
    raw = form.fill(f"{{CALL_BEGIN}}{{HEAD}}{json_text}{{TAIL}}{{CALL_END}}")
    (call,) = form.parse(f"{form.begin}\n {raw} \n{form.end}").calls
    assert (call.name, call.arguments, call.raw) == ("f", {}, raw)


@each_format
@pytest.mark.parametrize("between", ["", "\n", " \t\r\n\n"])
def test_parallel_calls_keep_their_order(form: SectionFormat, between: str) -> None:
    names = [f"tool_{number}" for number in range(12)]
    written = [form.call_of(name, {"n": number}, number) for number, name in enumerate(names)]
    turn = form.parse(f"Go.{form.section(*written, between=between)}")
    assert [call.name for call in turn.calls] == names and [call.raw for call in turn.calls] == written
    assert [call.arguments["n"] for call in turn.calls] == list(range(12)) and turn.text == "Go."


@each_format
def test_arguments_are_verbatim(form: SectionFormat) -> None:
    arguments: dict[str, Any] = {
        "s": 'a"\\ é 😀\n',
        "n": [-1.5e10, 0, True, None, {"x": {"y": [[]]}}],
        "": "",
        "ключ": " x ",
    }
    for ascii_only in (False, True):
        (call,) = form.parse(form.section(form.call_of("f", arguments, ascii_only=ascii_only))).calls
        assert same(call.arguments, arguments) and list(call.arguments) == list(arguments)


@each_format
@pytest.mark.parametrize(
    ("text", "remains"),
    [
        ("", ""),
        ("hello", "hello"),
        ("\n hello \n", "\n hello \n"),
        ("{SECTION}", ""),
        ("before\n{SECTION}", "before"),
        ("{SECTION}\nafter", "after"),
        ("before\n\n{BEGIN}{CALL}\n{CALL}{END}\nafter", "before\nafter"),
        ("a{SECTION}b{SECTION}c", "a\nb\nc"),
        ("a{BEGIN}{CALL}", "a"),
        ("a{BEGIN}{END}b", "a\nb"),
        ("a {CALL_END} b {END} c", "a {CALL_END} b {END} c"),
        ("a {CUT_BEGIN}", "a {CUT_BEGIN}"),
    ],
)
def test_remaining_text(form: SectionFormat, text: str, remains: str) -> None:
    assert form.parse(form.fill(text)).text == form.fill(remains)


# --- reasoning -------------------------------------------------------------------------------------------------------


@each_format
def test_draft_in_prompt_opened_reasoning_is_not_a_call(form: SectionFormat) -> None:
    real = form.section(form.call_of("real", {}))
    turn = form.parse(form.fill(f"maybe {{SECTION}}\n</think>\n\n{real}"), reasoning_open=True)
    assert turn.reasoning == form.fill("maybe {SECTION}")
    assert [call.name for call in turn.calls] == ["real"] and turn.failures == ()


@each_format
@pytest.mark.parametrize(("text", "reasoning_open"), [("<think>{SECTION}", False), ("{SECTION}", True)])
def test_unclosed_reasoning_has_no_calls(form: SectionFormat, text: str, reasoning_open: bool) -> None:
    turn = form.parse(form.fill(text), reasoning_open=reasoning_open)
    assert (turn.reasoning, turn.calls, turn.reasoning_closed) == (form.section(form.call), (), False)


@each_format
@pytest.mark.parametrize(
    "word",
    [
        *("<think>", "</think>", "{BEGIN}", "{END}", "{CALL_BEGIN}", "{SEPARATOR}", "{CALL_END}", "```", "{SECTION}"),
        "}{CALL_END}",
    ],
)
def test_marker_inside_argument_is_data(form: SectionFormat, word: str) -> None:
    marker = form.fill(word)
    arguments = {"code": f"a {marker} b", f"k{marker}": 1}
    written = form.section(form.call_of("f", arguments), form.call_of("g", {}, 1))
    for text in (written, f"<think>hm</think>{written}"):
        turn = form.parse(text)
        assert turn.calls[0].arguments == arguments
        assert len(turn.calls) == 2 and turn.failures == () and turn.text == ""


@each_format
def test_marker_letters_without_token_are_text(form: SectionFormat) -> None:
    quoted, text = form.section(form.call_of("rm", {})), form.section(form.call)
    words = re.compile("|".join(map(re.escape, form.parser.markers)))

    def offsets(marker: str) -> list[int]:
        return [match.start() for match in words.finditer(marker)]

    sampled = SampledText(quoted + text, {len(quoted) + at for at in offsets(text)}, offsets)
    turn = form.parser.parse(sampled)
    assert [call.name for call in turn.calls] == ["calculator"] and turn.failures == () and turn.text == quoted
    assert form.parser.parse(SampledText(quoted, set(), offsets)).text == quoted


# --- what is not a call ----------------------------------------------------------------------------------------------

ARGUMENTS = [
    ('{"a": 1,}', Failure.INVALID_JSON),
    ("{'a': 1}", Failure.INVALID_JSON),
    ("{a: 1}", Failure.INVALID_JSON),
    ('{"a": "x\ny"}', Failure.INVALID_JSON),
    ('{"a": "\\x"}', Failure.INVALID_JSON),
    ('{"a": 1', Failure.INVALID_JSON),
    ('{"a": 01}', Failure.INVALID_JSON),
    ('{"a": NaN}', Failure.INVALID_JSON),
    ('{"a": 1e999}', Failure.INVALID_JSON),
    ('{"a": "\\ud800"}', Failure.INVALID_JSON),
    ('{"a": "\ud800"}', Failure.INVALID_JSON),
    ('{"a": ' + "1" * 4301 + "}", Failure.INVALID_JSON),
    ('{"a": ' + "[" * 100 + "]" * 100 + "}", Failure.INVALID_JSON),
    ('{"a": ' + "[" * 50_000 + "]" * 50_000 + "}", Failure.INVALID_JSON),
    ("", Failure.INVALID_JSON),
    ("f(1)", Failure.INVALID_JSON),
    ("\u00a0{}", Failure.INVALID_JSON),
    ('{"a": 1, "a": 1}', Failure.DUPLICATE_KEY),
    ('{"a": [{"b": 1, "b": 1}]}', Failure.DUPLICATE_KEY),
    ("[]", Failure.BAD_ARGUMENTS),
    ('[{"a": 1}]', Failure.BAD_ARGUMENTS),
    ('"{}"', Failure.BAD_ARGUMENTS),
    ('"{\\"a\\": 1}"', Failure.BAD_ARGUMENTS),
    ("null", Failure.BAD_ARGUMENTS),
    ("0", Failure.BAD_ARGUMENTS),
    ("false", Failure.BAD_ARGUMENTS),
    ("{} {}", Failure.TRAILING_TEXT),
    ("{}}", Failure.TRAILING_TEXT),
    ("{} // why", Failure.TRAILING_TEXT),
    ('{} {"a": "{CALL_END}"}', Failure.TRAILING_TEXT),
]
CALLS = [
    *((f"{{CALL_BEGIN}}{{HEAD}}{body}{{TAIL}}{{CALL_END}}", failure) for body, failure in ARGUMENTS),
    ("{CALL_BEGIN}{CALL_END}", Failure.MISSING_NAME),
    ("{CALL_BEGIN} \n{CALL_END}", Failure.MISSING_NAME),
    ("{CALL_BEGIN}f{CALL_END}", Failure.BAD_ARGUMENTS),
    ("{CALL_BEGIN}f{}{CALL_END}", Failure.BAD_ARGUMENTS),
    ('{CALL_BEGIN}f{"a": "{CALL_END}{CALL_BEGIN}"}{CALL_END}', Failure.BAD_ARGUMENTS),
    ("{CALL_BEGIN}{}{CALL}", Failure.UNCLOSED),
    ("{CALL_BEGIN}f{BEGIN}{CALL}", Failure.UNCLOSED),
    ("{CALL_BEGIN}{HEAD}{}{TAIL}\n{CALL}", Failure.UNCLOSED),
    ("{CALL_BEGIN}{CALL}", Failure.UNCLOSED),
]


@each_format
@pytest.mark.parametrize(("raw", "failure"), CALLS, ids=shown)
def test_malformed_call_does_not_affect_other_calls(form: SectionFormat, raw: str, failure: ParseFailure) -> None:
    form.check_malformed(raw, failure)


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
        ("{BEGIN}x{END}", [(Failure.MISPLACED, "x")], [], ""),
        ("{BEGIN} x y \n{CALL}{END}", [(Failure.MISPLACED, "x y")], ["calculator"], ""),
        ("{BEGIN}{CALL} and {CALL}{END}", [(Failure.MISPLACED, "and")], ["calculator"] * 2, ""),
        ("{BEGIN}{CALL}, {CALL}\nb", [(Failure.MISPLACED, ","), (Failure.MISPLACED, "b")], ["calculator"] * 2, ""),
        ("{BEGIN}x", [(Failure.MISPLACED, "x")], [], ""),
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
    form: SectionFormat, text: str, failures: list[tuple[ParseFailure, str]], names: list[str], remains: str | None
) -> None:
    seen = form.found(form.fill(text))
    assert seen[:2] == (names, [(failure, form.fill(raw)) for failure, raw in failures])
    assert remains in (None, seen[2])


@each_format
@pytest.mark.parametrize(
    ("text", "detail", "name"),
    [
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
    ],
)
def test_detail_has_error_and_position(form: SectionFormat, text: str, detail: str, name: str | None) -> None:
    form.check_detail(text, detail, name)


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


# --- any text ---------------------------------------------------------------------------------------------------------

plain = st.text(alphabet=st.characters(exclude_characters="<\n", exclude_categories=["Cs"]), max_size=10)
PIECES = [
    *("{BEGIN}", "{END}", "{CALL_BEGIN}", "{SEPARATOR}", "{CALL_END}", "{BEGIN}", "{CALL_BEGIN}", "{SEPARATOR}"),
    *("{CALL_END}", "{CALL}", "{SECTION}", "{HEAD}", "{TAIL}", "{HEADLESS}", "{OPEN}", "<think>", "</think>"),
    *("{CUT_BEGIN}", "{CUT_CALL_END}", "f", "function", ":0"),
    *('{"a": ', '{"a": "', "{}", "```", "```json\n", "\n", "null", "NaN", "1e999", "\\ud800", "\ud800", "é"),
    *'{}[]":,\\ \n01-.e<>tnf',
]


def pieces_of(form: SectionFormat) -> st.SearchStrategy[str]:
    return st.sampled_from([form.fill(piece) or "f" for piece in PIECES])


def turns_of(form: SectionFormat) -> st.SearchStrategy[list[list[tuple[str, dict[str, Any]]]]]:
    letters = st.characters(exclude_characters=form.not_in_names, exclude_categories=["Cs"])
    names = st.text(alphabet=letters, min_size=1).filter(str.strip)
    calls = st.lists(st.tuples(names, st.dictionaries(st.text(), json_values, max_size=4)), min_size=1, max_size=3)
    return st.lists(calls, max_size=2)


@each_format
@settings(deadline=None)
@given(st.data(), plain, st.sampled_from(["", "\n", " \r\n\t"]), st.booleans(), st.booleans())
def test_rendered_calls_are_parsed(
    form: SectionFormat, data: st.DataObject, before: str, between: str, ascii_only: bool, closed: bool
) -> None:
    written = data.draw(turns_of(form))
    text = before
    for calls in written:
        text += form.section(*(form.call_of(*call, ascii_only=ascii_only) for call in calls), between=between)
    turn = form.parse(text if closed else text.removesuffix(form.end))
    flat = [call for calls in written for call in calls]
    assert turn.failures == () and [call.name for call in turn.calls] == [name for name, _ in flat]
    assert same([call.arguments for call in turn.calls], [arguments for _, arguments in flat])
    assert turn.text == (before if before.strip() or not flat else "")


@each_format
@settings(deadline=None, max_examples=examples(400))
@given(st.data(), st.booleans())
def test_parse_never_raises(form: SectionFormat, data: st.DataObject, reasoning_open: bool) -> None:
    text = data.draw(st.text() | st.lists(pieces_of(form), max_size=20).map("".join))
    form.parse(text, reasoning_open=reasoning_open)


@each_format
@settings(deadline=None, max_examples=examples(300))
@given(st.dictionaries(st.text(max_size=4), json_values, max_size=3), st.data())
def test_damaged_call_is_valid_or_rejected(form: SectionFormat, arguments: dict[str, Any], data: st.DataObject) -> None:
    text = form.section(form.call_of("f", arguments), form.call, between="\n")
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 6)))
        text = text[:start] + data.draw(st.just("") | pieces_of(form)) + text[end:]
    form.parse(text)


@each_format
@pytest.mark.parametrize(
    "unit",
    [
        *("{BEGIN}", "{CALL_BEGIN}", "{CALL_END}", "{CUT_BEGIN}", "{BEGIN}{END}", "{CALL_BEGIN}{CALL_END}"),
        *("{BEGIN}x", "{CALL_BEGIN}{HEAD}", "{HEADLESS}", "{OPEN}", "{SECTION}"),
        *('{SEPARATOR}{"a":{CALL_END}"', '{"a":"{SEPARATOR}x{CALL_END}'),
        '{CALL_BEGIN}{HEAD}{"{CALL_END}',
        '{CALL_BEGIN}{HEAD}{"a":"{CALL_END}',
        '{CALL_BEGIN}{HEAD}{"a":"\\{CALL_END}',
        '{CALL_BEGIN}{HEAD}{"a":1,"a":1}{TAIL}{CALL_END}',
        "{CALL_BEGIN}{HEAD}" + "[" * 3000 + "{CALL_END}",
        "{CALL_BEGIN}{BAD_HEAD}" + '{"a":' * 3000 + "{CALL_END}",
        "{CALL_BEGIN}{HEAD}{}" + " " * 50 + "{END}",
    ],
    ids=shown,
)
def test_megabyte_is_parsed_in_seconds(form: SectionFormat, unit: str) -> None:
    assert form.cpu_seconds(megabyte(form.fill(unit), form.begin)) < SECONDS


@each_format
@pytest.mark.parametrize(
    "unit", ["{CALL}", "{CALL_BEGIN}", "{SEPARATOR}", "{SEPARATOR}{{CALL_END}", "{CALL_END}{END}", "{{OPEN}"]
)
def test_megabyte_outside_of_sections_is_parsed_in_seconds(form: SectionFormat, unit: str) -> None:
    assert form.cpu_seconds(megabyte(form.fill(unit))) < SECONDS


@each_format
@pytest.mark.parametrize(
    "text",
    [
        "{BEGIN}{CALL_BEGIN}" + "x" * 1_000_000,
        "{BEGIN}{CALL_BEGIN}{HEAD}" + "[" * 500_000,
        "{BEGIN}{CALL_BEGIN}{HEAD}" + '{"a":' * 200_000,
        "{BEGIN}{CALL_BEGIN}{BAD_HEAD}" + '{"a":' * 200_000,
        "{BEGIN}" + " " * 1_000_000,
        "{BEGIN}" + "x " * 500_000,
        "{BEGIN}" + "{" * 1_000_000,
        "{BEGIN}" + '{"' * 500_000,
        "{BEGIN}{CALL_BEGIN}{HEAD}{}" + " " * 1_000_000,
        '{BEGIN}{CALL_BEGIN}{HEAD}{"a":' + "1" * 1_000_000 + "}{TAIL}{CALL_END}{END}",
        '{BEGIN}{CALL_BEGIN}{HEAD}{"a":[' + "1," * 500_000 + "1]}{TAIL}{CALL_END}{END}",
        '{BEGIN}{CALL_BEGIN}{HEAD}{"a":"' + "{CALL_END}" * 50_000 + '"}{TAIL}{CALL_END}{END}',
        '{BEGIN}{CALL_BEGIN}{HEAD}{"a":"' + "\\u00e9" * 160_000,
    ],
    ids=shown,
)
def test_huge_call_is_parsed_in_seconds(form: SectionFormat, text: str) -> None:
    assert form.cpu_seconds(form.fill(text)) < SECONDS
