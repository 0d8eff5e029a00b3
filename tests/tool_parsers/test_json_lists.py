"""Calls written as one JSON list: what every format of lists reads and refuses alike."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.tool_parsers import SampledText
from strands_sglang.tool_parsers.parsed import ParseFailure
from support.examples import examples
from support.tool_parsers.checks import SECONDS, json_values, megabyte, same, shown
from support.tool_parsers.json_lists import CLOSED_FORMATS, LIST_FORMATS, ONE, ListFormat, call_of

Failure = ParseFailure
each_format = pytest.mark.parametrize("form", LIST_FORMATS, ids=lambda form: form.name)
each_closed_format = pytest.mark.parametrize("form", CLOSED_FORMATS, ids=lambda form: form.name)
EACH_MARKER = [(form, marker) for form in LIST_FORMATS for marker in form.parser.markers]


# --- what is read ---------------------------------------------------------------------------------------------------


@each_format
def test_well_formed_call_is_parsed(form: ListFormat) -> None:
    (call,) = form.parse(f"Let me see.\n{form.call}").calls
    assert (call.name, call.arguments, call.id) == ("calculator", {"expression": "12*7+3"}, None)
    assert (call.raw, call.start) == (ONE, len(f"Let me see.\n{form.opening}["))


@each_format
@pytest.mark.parametrize(
    "block",
    [
        '{OPENING}[{"name":"f","arguments":{}}]{CLOSING}',
        '{OPENING} \t\r\n[ {"arguments": {}, "name": "f"}\n]\n\n{CLOSING}',
        '{OPENING}[{"name":"f","arguments":{},"type":"function","parameters":1}]{CLOSING}',
        '{OPENING}[\n{\n  "name": "f",\n  "arguments": {\n  }\n}\n]{CLOSING}',
    ],
)
def test_whitespace_key_order_and_other_keys_are_ignored(form: ListFormat, block: str) -> None:
    (call,) = form.parse(form.fill(block)).calls
    assert (call.name, call.arguments, call.id) == ("f", {}, None)


@each_format
def test_parallel_calls_keep_their_order(form: ListFormat) -> None:
    objects = [json.dumps({"name": f"tool_{number}", "arguments": {"n": number}}) for number in range(12)]
    for comma in (",", ", ", "\n ,\r\n\t"):
        turn = form.parse(f"Go. {form.opening}[{comma.join(objects)}]{form.closing}")
        assert [call.name for call in turn.calls] == [f"tool_{number}" for number in range(12)]
        assert [call.raw for call in turn.calls] == objects and (turn.failures, turn.text) == ((), "Go. ")


@each_format
def test_arguments_are_verbatim(form: ListFormat) -> None:
    arguments: dict[str, Any] = {
        "s": 'a"\\ é 😀\n',
        "n": [-1.5e10, 0, True, None, {"x": {"y": [[]]}}],
        "": "",
        "ключ": " x ",
    }
    for ascii_only in (False, True):
        written = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=ascii_only)
        (call,) = form.parse(form.listed(written)).calls
        assert same(call.arguments, arguments) and list(call.arguments) == list(arguments)


@each_format
@pytest.mark.parametrize(
    ("text", "remains"),
    [
        ("", ""),
        ("hello", "hello"),
        ("\n hello \n", "\n hello \n"),
        ("{CALL}", ""),
        ("{OPENING}[{ONE}, {ONE}, {ONE}]{CLOSING}", ""),
        ("before\n{CALL}", "before"),
        ("{CALL}\n{CALL}", ""),
        ("a\n\n{CALL}{CALL}", "a"),
        ("a{OPENING}[]{CLOSING}", "a"),
        ("a {CUT_OPENING}", "a {CUT_OPENING}"),
        ("a [{ONE}]", "a [{ONE}]"),
    ],
)
def test_remaining_text(form: ListFormat, text: str, remains: str) -> None:
    assert form.parse(form.fill(text)).text == form.fill(remains)


@each_closed_format
@pytest.mark.parametrize(
    ("text", "remains"),
    [
        ("{CALL}\nafter", "after"),
        ("before\n\n{CALL}\n{CALL}\nafter", "before\nafter"),
        ("a{CALL}b{CALL}c", "a\nb\nc"),
        ("a {CLOSING}{CALL}", "a {CLOSING}"),
    ],
)
def test_remaining_text_after_closed_list(form: ListFormat, text: str, remains: str) -> None:
    assert form.parse(form.fill(text)).text == form.fill(remains)


# --- reasoning -------------------------------------------------------------------------------------------------------


@each_format
def test_draft_in_prompt_opened_reasoning_is_not_a_call(form: ListFormat) -> None:
    real = form.listed(call_of("real", {}))
    turn = form.parse(f"maybe {form.call}\n{form.thought}\n\n{real}", reasoning_open=True)
    assert turn.reasoning == f"maybe {form.call}"
    assert [call.name for call in turn.calls] == ["real"] and turn.failures == ()


@each_format
@pytest.mark.parametrize(("text", "reasoning_open"), [("{THINK}{CALL}", False), ("{CALL}", True)])
def test_unclosed_reasoning_has_no_calls(form: ListFormat, text: str, reasoning_open: bool) -> None:
    turn = form.parse(form.fill(text), reasoning_open=reasoning_open)
    assert (turn.reasoning, turn.calls, turn.reasoning_closed) == (form.call, (), False)


@pytest.mark.parametrize(
    ("form", "word"),
    [
        *EACH_MARKER,
        *(
            (form, word)
            for form in LIST_FORMATS
            for word in ("{THINK}", "{THOUGHT}", "}]", "{CALL}", "]{CLOSING}", "{CLOSING}{CALL}")
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ListFormat) else value,
)
def test_marker_inside_argument_is_data(form: ListFormat, word: str) -> None:
    marker = form.fill(word)
    arguments = {"code": f"a {marker} b", f"k{marker}": 1}
    written = form.listed(call_of("f", arguments), call_of("g", {}))
    for text in (written, f"{form.think}hm{form.thought}{written}"):
        turn = form.parse(text)
        assert turn.calls[0].arguments == arguments
        assert len(turn.calls) == 2 and turn.failures == () and turn.text == ""


@each_format
def test_marker_letters_without_token_are_text(form: ListFormat) -> None:
    quoted = f"x {form.listed(call_of('rm', {}))}\n"
    words = re.compile("|".join(map(re.escape, form.tokens)))

    def offsets(marker: str) -> list[int]:
        return [match.start() for match in words.finditer(marker)]

    sampled = SampledText(quoted + form.call, {len(quoted) + at for at in offsets(form.call)}, offsets)
    turn = form.parser.parse(sampled)
    assert [call.name for call in turn.calls] == ["calculator"] and turn.failures == ()
    assert turn.text == quoted.rstrip("\n")
    assert form.parser.parse(SampledText(quoted, set(), offsets)).text == quoted


# --- what is not a call ----------------------------------------------------------------------------------------------

WHOLE = [
    ('{"name": "f", "arguments": {"a": NaN}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": 1e999}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": "\\ud800"}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": "\ud800"}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": ' + "1" * 4301 + "}}", Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": ' + "[" * 99 + "]" * 99 + "}}", Failure.INVALID_JSON),
    ('{"name": "f", "name": "g", "arguments": {}}', Failure.DUPLICATE_KEY),
    ('{"name": "f", "arguments": {"a": [{"b": 1, "b": 1}]}}', Failure.DUPLICATE_KEY),
    ("[]", Failure.NOT_AN_OBJECT),
    ('[{"name": "f", "arguments": {}}]', Failure.NOT_AN_OBJECT),
    ('"f"', Failure.NOT_AN_OBJECT),
    ("12", Failure.NOT_AN_OBJECT),
    ("null", Failure.NOT_AN_OBJECT),
    ("{}", Failure.MISSING_NAME),
    ('{"arguments": {}}', Failure.MISSING_NAME),
    ('{"name": " \\n", "arguments": {}}', Failure.MISSING_NAME),
    ('{"name": null, "arguments": {}}', Failure.MISSING_NAME),
    ('{"Name": "f", "arguments": {}}', Failure.MISSING_NAME),
    ('{"function": {"name": "f", "arguments": {}}}', Failure.MISSING_NAME),
    ('{"name": "f"}', Failure.BAD_ARGUMENTS),
    ('{"name": "f", "parameters": {}}', Failure.BAD_ARGUMENTS),
    ('{"name": "f", "arguments": null}', Failure.BAD_ARGUMENTS),
    ('{"name": "f", "arguments": "{}"}', Failure.BAD_ARGUMENTS),
    ('{"name": "f", "arguments": "{\\"a\\": 1}"}', Failure.BAD_ARGUMENTS),
    ('{"name": "f", "arguments": []}', Failure.BAD_ARGUMENTS),
]
"""Values that are JSON, and no call."""

BROKEN = [
    ('{"name": "f", "arguments": {"a": 1,}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {},}', Failure.INVALID_JSON),
    ("{'name': 'f', 'arguments': {}}", Failure.INVALID_JSON),
    ('{name: "f", "arguments": {}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": "x\ny"}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": "\\x"}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": 01}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {}}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {}} {}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {}},', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {}},, {}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {}} x', Failure.INVALID_JSON),
    ('{"name": 3, "arguments": {}},', Failure.MISSING_NAME),
    ("f(1)", Failure.INVALID_JSON),
    ("\u00a0{}", Failure.INVALID_JSON),
    ("[" * 50_000 + "]" * 50_000, Failure.INVALID_JSON),
]
"""What is no JSON, so that where the value ends cannot be told."""


@each_format
@pytest.mark.parametrize(("raw", "failure"), WHOLE, ids=shown)
def test_invalid_object_fails_alone(form: ListFormat, raw: str, failure: ParseFailure) -> None:
    form.check_bad_object(raw, failure)


@each_format
@pytest.mark.parametrize(("raw", "failure"), BROKEN, ids=shown)
def test_rest_of_malformed_list_is_one_failed_call(form: ListFormat, raw: str, failure: ParseFailure) -> None:
    """Objects before it were closed by their commas; those behind it are not looked at."""
    broken = f"{raw}, {ONE}]{form.closing}"
    names, failures, remains = form.found(f"a\n{form.opening}[{ONE}, {broken}{form.call}")
    assert names == ["calculator", "calculator"] and failures == [(failure, broken)] and remains == "a"
    alone = form.listed(raw)
    assert form.found(f"a\n{alone}{form.call}") == (["calculator"], [(failure, alone)], "a")


@each_format
@pytest.mark.parametrize(
    ("block", "failure"),
    [
        ("{OPENING}[]{CLOSING}", Failure.MISSING_NAME),
        ("{OPENING} [ \n]\n{CLOSING}", Failure.MISSING_NAME),
        ("{OPENING}[{ONE}] x{CLOSING}", Failure.TRAILING_TEXT),
        ("{OPENING}[{ONE}][{ONE}]{CLOSING}", Failure.TRAILING_TEXT),
        ("{OPENING}[{ONE}]]{CLOSING}", Failure.TRAILING_TEXT),
        ("{OPENING}[] x{CLOSING}", Failure.TRAILING_TEXT),
        ("{OPENING}[,{ONE}]{CLOSING}", Failure.INVALID_JSON),
        ("{OPENING}[{ONE},]{CLOSING}", Failure.INVALID_JSON),
        ("{OPENING}[{ONE}, ,{ONE}]{CLOSING}", Failure.INVALID_JSON),
    ],
    ids=shown,
)
def test_blocks_without_a_call(form: ListFormat, block: str, failure: ParseFailure) -> None:
    form.check_block(block, failure)


@each_closed_format
@pytest.mark.parametrize(
    ("block", "failure"),
    [
        ("{OPENING}[{ONE}, {CLOSING}", Failure.INVALID_JSON),
        ("{OPENING}[{ONE}{CLOSING}", Failure.INVALID_JSON),
        ("{OPENING}{CLOSING}", Failure.INVALID_JSON),
        ("{OPENING}\n{CLOSING}", Failure.INVALID_JSON),
        ("{OPENING}[{CLOSING}", Failure.INVALID_JSON),
        ("{OPENING}{ONE}{CLOSING}", Failure.INVALID_JSON),
        ("{OPENING}{{CLOSING}", Failure.INVALID_JSON),
        ('{OPENING}"f"{CLOSING}', Failure.NOT_AN_OBJECT),
        ("{OPENING}null{CLOSING}", Failure.NOT_AN_OBJECT),
        ("{OPENING}12{CLOSING}", Failure.NOT_AN_OBJECT),
        ("{OPENING}f(1){CLOSING}", Failure.INVALID_JSON),
        ("{OPENING}x[{ONE}]{CLOSING}", Failure.INVALID_JSON),
        ("{OPENING}```json\n[{ONE}]\n```{CLOSING}", Failure.INVALID_JSON),
        ("{OPENING}[{ONE}]{CALL}", Failure.TRAILING_TEXT),
        ("{OPENING}{CALL}", Failure.INVALID_JSON),
        ('{OPENING}{"name": "f", "arguments": {"a": "{CLOSING}"}}{CLOSING}', Failure.INVALID_JSON),
        ('{OPENING}nope {"a": "{CLOSING}{OPENING}[]{CLOSING}"}{CLOSING}', Failure.INVALID_JSON),
    ],
    ids=shown,
)
def test_closed_blocks_without_a_call(form: ListFormat, block: str, failure: ParseFailure) -> None:
    form.check_block(block, failure)


@each_format
def test_failed_calls_are_limited(form: ListFormat) -> None:
    bad = ",".join(["0"] * 999)
    assert form.found(form.fill(f"{{OPENING}}[{bad},{{ONE}}]{{CLOSING}}"))[0] == ["calculator"]
    names, failures, remains = form.found(form.fill(f"{{OPENING}}[{bad},0,{{ONE}}]{{CLOSING}}{{CALL}}"))
    assert (names, len(failures), remains) == ([], 1000, "")
    assert failures[-1][1] == form.fill("0,{ONE}]{CLOSING}{CALL}")


@each_format
def test_last_call_requires_end_of_list(form: ListFormat) -> None:
    names, failures, _ = form.found(form.fill("{OPENING}[{ONE}, {ONE}] x{CLOSING}"))
    assert (names, failures) == (["calculator"], [(Failure.TRAILING_TEXT, form.fill("{ONE}] x{CLOSING}"))])


@each_closed_format
@pytest.mark.parametrize("end", ["", "\n", " more", "\n{CUT_CLOSING}"])
def test_list_without_closing_marker_is_unclosed(form: ListFormat, end: str) -> None:
    end = form.fill(end)
    text = f"{form.opening}[{ONE}]{end}"
    assert form.found(f"a\n{text}") == ([], [(Failure.UNCLOSED, text)], "a")
    last = (Failure.UNCLOSED, f"{ONE}]{end}")
    assert form.found(f"a\n{form.opening}[{ONE}, {ONE}]{end}") == (["calculator"], [last], "a")


@each_closed_format
def test_unclosed_string_includes_markers_after_it(form: ListFormat) -> None:
    """Cut or forgotten: whose text that is cannot be told, so nothing behind is executed."""
    block = form.fill('{OPENING}[{"name": "f", "arguments": {"a": "}}]{CLOSING}')
    raw = f"{block} and so on"
    assert form.found(raw) == ([], [(Failure.INVALID_JSON, raw)], "")
    turn = form.parse(f"{block}{form.call}{form.call}")
    assert len(turn.failures) == 1 and turn.failures[0].raw.endswith(form.call) and len(turn.calls) == 1


@each_format
@pytest.mark.parametrize(
    ("text", "detail", "name"),
    [
        (
            '{OPENING}[{"name": "f", "arguments": {"a": nope}}]{CLOSING}',
            "The JSON is not valid: expecting value, at character",
            None,
        ),
        ('{OPENING}[{"name": "f", "arguments": "{}"}]{CLOSING}', "must be a JSON object, not a string", "f"),
        ('{OPENING}[{"name": "f"}]{CLOSING}', 'has no key "arguments"', "f"),
        ('{OPENING}[{"arguments": {}}]{CLOSING}', 'has no key "name"', None),
        ("{OPENING}[true]{CLOSING}", "must be a JSON object, not true", None),
        ("{OPENING}[]{CLOSING}", "The list of tool calls is empty", None),
        ("{OPENING}[{ONE}]x{CLOSING}", "there must be nothing else, at character", "calculator"),
        ("{OPENING}[{ONE} {ONE}]{CLOSING}", "expecting ] or a comma and another tool call", "calculator"),
        ('{OPENING}[{"name": "f", "arg', "The turn ended in the middle of the JSON", None),
        ("{OPENING}[{ONE}", "The turn ended before the ]", "calculator"),
        ("{OPENING}[", "The turn ended where a list of tool calls begins", None),
    ],
    ids=shown,
)
def test_detail_has_error_and_position(form: ListFormat, text: str, detail: str, name: str | None) -> None:
    form.check_detail(text, detail, name)


@each_closed_format
@pytest.mark.parametrize(
    ("text", "detail", "name"),
    [
        ("{OPENING}[{ONE}]", "has no {CLOSING}", "calculator"),
        ("{OPENING}{ONE}{CLOSING}", "must be a JSON list of objects, [{...}, ...], not an object", None),
        ("{OPENING}7{CLOSING}", "must be a JSON list of objects, [{...}, ...], not a number", None),
    ],
    ids=shown,
)
def test_detail_of_closed_list(form: ListFormat, text: str, detail: str, name: str | None) -> None:
    form.check_detail(text, detail, name)


@each_format
def test_call_text_inside_malformed_call_is_part_of_it(form: ListFormat) -> None:
    """Written without escapes: the decoder got as far as the inner call, so that is not executed."""
    inner = form.fill('{CLOSING}{OPENING}[{"name": "rm", "arguments": {}}]{CLOSING}')
    turn = form.parse(form.listed(f'{{"name": "write", "arguments": {{"text": "{inner}"}}}}'))
    assert turn.calls == () and turn.failures[0].failure is Failure.INVALID_JSON
    repeated = form.fill('{OPENING}[{"name": "w", "name": "{CLOSING}{OPENING}[]"}]{CLOSING}')
    assert form.failed(repeated).failure is Failure.DUPLICATE_KEY


EVERYTHING = json.dumps(
    [{"name": "f", "arguments": {"s": 'a"\\ é 😀', "n": [-1.5e10, 0, True, False, None, {"x": {}}]}}]
)


@each_format
@pytest.mark.parametrize("length", range(len(EVERYTHING)))
def test_truncated_list_is_unclosed(form: ListFormat, length: int) -> None:
    text = f"{form.opening}{EVERYTHING[:length]}"
    assert form.found(f"x\n{text}") == ([], [(Failure.UNCLOSED, text)], "x")
    rest = EVERYTHING[1:length]
    if rest:
        last = (Failure.UNCLOSED, rest)
        assert form.found(f"x\n{form.opening}[{ONE}, {rest}") == (["calculator"], [last], "x")


@each_format
@pytest.mark.parametrize("end", ["", " ", ",", ", \n"])
def test_list_truncated_after_object_is_unclosed(form: ListFormat, end: str) -> None:
    assert form.failed(f"{form.opening}[{ONE}{end}").failure is Failure.UNCLOSED
    assert [call.raw for call in form.parse(f"{form.opening}[{ONE}, {ONE}{end}").calls] == [ONE]


# --- any text ---------------------------------------------------------------------------------------------------------

names = st.text(min_size=1).filter(str.strip)
plain = st.text(alphabet=st.characters(exclude_characters="<[\n", exclude_categories=["Cs"]), max_size=10)
called = st.lists(st.tuples(names, st.dictionaries(st.text(), json_values, max_size=4)), min_size=1, max_size=4)
PIECES = [
    *("{OPENING}", "{CLOSING}", "{THINK}", "{THOUGHT}", "{CALL}", "{ONE}", "{OPENING}[", "]{CLOSING}", "{CUT_OPENING}"),
    *('{"name": "f", ', '"arguments": {"a": ', '"arguments": {}}', "}]", "[{", "null", "NaN", "1e999", "\\ud800"),
    *('{"a": "', "\ud800", "é", "f", '"id": ', *'{}[]":,\\ \n01-.e<>tnf'),
]


def pieces_of(form: ListFormat) -> st.SearchStrategy[str]:
    return st.sampled_from([*form.parser.markers, *map(form.fill, PIECES)])


@each_format
@settings(deadline=None)
@given(plain, st.lists(called, max_size=2), st.booleans(), st.sampled_from([None, 0, 2]))
def test_rendered_calls_are_parsed(
    form: ListFormat,
    before: str,
    written: list[list[tuple[str, dict[str, Any]]]],
    ascii_only: bool,
    indent: int | None,
) -> None:
    text = before
    for calls in written:
        values = [{"name": name, "arguments": arguments} for name, arguments in calls]
        text += f"{form.opening}{json.dumps(values, ensure_ascii=ascii_only, indent=indent)}{form.closing}"
    turn = form.parse(text)
    flat = [call for calls in written for call in calls]
    assert turn.failures == () and [call.name for call in turn.calls] == [name for name, _ in flat]
    assert same([call.arguments for call in turn.calls], [arguments for _, arguments in flat])
    assert turn.text == (before if before.strip() or not flat else "")


@each_format
@settings(deadline=None, max_examples=examples(400))
@given(st.data(), st.booleans())
def test_parse_never_raises(form: ListFormat, data: st.DataObject, reasoning_open: bool) -> None:
    text = data.draw(st.text() | st.lists(pieces_of(form), max_size=20).map("".join))
    form.parse(text, reasoning_open=reasoning_open)


@each_format
@settings(deadline=None, max_examples=examples(300))
@given(st.dictionaries(st.text(max_size=4), json_values, max_size=3), st.data())
def test_damaged_call_is_valid_or_rejected(form: ListFormat, arguments: dict[str, Any], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(form.turns(arguments)))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 6)))
        text = text[:start] + data.draw(st.just("") | pieces_of(form)) + text[end:]
    form.parse(text)


UNITS = [
    *("{CUT_OPENING}", "{THINK}", "{OPENING}{CLOSING}", "{OPENING}[", "{OPENING}[]{CLOSING}", "{OPENING}[{", "{CALL}"),
    '{OPENING}[{"{CLOSING}',
    '{OPENING}["{CLOSING}",',
    '{OPENING}[{"a":"{CLOSING}',
    '{OPENING}[{"a":"\\{CLOSING}',
    "{OPENING}[1,2,nope]{CLOSING}",
    '{OPENING}[{"a":{"a":1}} x{CLOSING}',
    "{OPENING}" + "[" * 3000 + "{CLOSING}",
    "{OPENING}" + '{"a":' * 3000 + "{CLOSING}",
    '{OPENING}x{{"a"{CLOSING}',
    "{OPENING}[{ONE}]x",
    "{OPENING}[{ONE}]" + " " * 50 + "{CLOSING}",
]


@pytest.mark.parametrize(
    ("form", "unit"),
    [*EACH_MARKER, *((form, unit) for form in LIST_FORMATS for unit in UNITS)],
    ids=lambda value: value.name if isinstance(value, ListFormat) else shown(value),
)
def test_megabyte_is_parsed_in_seconds(form: ListFormat, unit: str) -> None:
    assert form.cpu_seconds(megabyte(form.fill(unit))) < SECONDS


@each_format
@pytest.mark.parametrize(
    "text",
    [
        "{OPENING}" + "[" * 500_000,
        "{OPENING}" + '[{"a":' * 150_000,
        "{OPENING}" + " " * 1_000_000,
        "{OPENING}[" + " " * 1_000_000,
        "{OPENING}[" + "0," * 500_000 + "{}]{CLOSING}",
        "{OPENING}[" + "{ONE}," * 15_000,
        "{OPENING}[{ONE}" + " " * 1_000_000,
        '{OPENING}[{"name":"f","arguments":{"a":' + "1" * 1_000_000 + "}}]{CLOSING}",
        '{OPENING}[{"name":"f","arguments":{"a":[' + "1," * 400_000 + "1]}}]{CLOSING}",
        '{OPENING}[{"name":"f","arguments":{"a":"' + "{OPENING}{CLOSING}" * 40_000 + '"}}]{CLOSING}',
        '{OPENING}[{"a":"' + "\\u00e9" * 160_000,
    ],
    ids=shown,
)
def test_huge_list_is_parsed_in_seconds(form: ListFormat, text: str) -> None:
    assert form.cpu_seconds(form.fill(text)) < SECONDS
