"""Calls written as one JSON list: what every format of lists reads and refuses alike."""

from __future__ import annotations

import json

import pytest

from strands_sglang.tool_parsers.parsed import ParseFailure as Failure
from support.tool_parsers.checks import Conformance, rows, shown
from support.tool_parsers.json_lists import CLOSED_FORMATS, LIST_FORMATS, ONE, ListFormat

each_format = pytest.mark.parametrize("form", LIST_FORMATS, ids=lambda form: form.name)
each_closed_format = pytest.mark.parametrize("form", CLOSED_FORMATS, ids=lambda form: form.name)


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


WHOLE = [
    ('{"name": "f", "name": "g", "arguments": {}}', Failure.DUPLICATE_KEY),
    *rows(Failure.NOT_AN_OBJECT, "[]", '[{"name": "f", "arguments": {}}]', '"f"', "12", "null"),
    *rows(Failure.MISSING_NAME, "{}", '{"arguments": {}}', '{"name": " \\n", "arguments": {}}'),
    *rows(Failure.MISSING_NAME, '{"name": null, "arguments": {}}', '{"Name": "f", "arguments": {}}'),
    ('{"function": {"name": "f", "arguments": {}}}', Failure.MISSING_NAME),
    *rows(Failure.BAD_ARGUMENTS, '{"name": "f"}', '{"name": "f", "parameters": {}}'),
]
"""Values that are JSON, and no call."""

BROKEN = [
    *rows(Failure.INVALID_JSON, '{"name": "f", "arguments": {"a": 1,}}', '{"name": "f", "arguments": {},}'),
    *rows(Failure.INVALID_JSON, "{'name': 'f', 'arguments': {}}", '{name: "f", "arguments": {}}'),
    *rows(Failure.INVALID_JSON, '{"name": "f", "arguments": {}', '{"name": "f", "arguments": {}}}'),
    *rows(Failure.INVALID_JSON, '{"name": "f", "arguments": {}} {}', '{"name": "f", "arguments": {}},'),
    *rows(Failure.INVALID_JSON, '{"name": "f", "arguments": {}},, {}', '{"name": "f", "arguments": {}} x', "f(1)"),
    *rows(Failure.INVALID_JSON, "\u00a0{}", "[" * 50_000 + "]" * 50_000),
    ('{"name": 3, "arguments": {}},', Failure.MISSING_NAME),
]
"""What is no JSON, so that where the value ends cannot be told."""


@each_format
@pytest.mark.parametrize(("raw", "failure"), WHOLE, ids=shown)
def test_invalid_object_fails_alone(form: ListFormat, raw: str, failure: Failure) -> None:
    form.check_bad_object(raw, failure)


@each_format
@pytest.mark.parametrize(("raw", "failure"), BROKEN, ids=shown)
def test_rest_of_malformed_list_is_one_failed_call(form: ListFormat, raw: str, failure: Failure) -> None:
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
        *rows(Failure.MISSING_NAME, "{OPENING}[]{CLOSING}", "{OPENING} [ \n]\n{CLOSING}"),
        *rows(Failure.TRAILING_TEXT, "{OPENING}[{ONE}] x{CLOSING}", "{OPENING}[{ONE}][{ONE}]{CLOSING}"),
        *rows(Failure.TRAILING_TEXT, "{OPENING}[{ONE}]]{CLOSING}", "{OPENING}[] x{CLOSING}"),
        *rows(Failure.INVALID_JSON, "{OPENING}[,{ONE}]{CLOSING}", "{OPENING}[{ONE},]{CLOSING}"),
        ("{OPENING}[{ONE}, ,{ONE}]{CLOSING}", Failure.INVALID_JSON),
    ],
    ids=shown,
)
def test_blocks_without_a_call(form: ListFormat, block: str, failure: Failure) -> None:
    form.check_block(block, failure)


@each_closed_format
@pytest.mark.parametrize(
    ("block", "failure"),
    [
        *rows(Failure.INVALID_JSON, "{OPENING}[{ONE}, {CLOSING}", "{OPENING}[{ONE}{CLOSING}", "{OPENING}{CLOSING}"),
        *rows(Failure.INVALID_JSON, "{OPENING}\n{CLOSING}", "{OPENING}[{CLOSING}", "{OPENING}{ONE}{CLOSING}"),
        *rows(Failure.INVALID_JSON, "{OPENING}{{CLOSING}", "{OPENING}f(1){CLOSING}", "{OPENING}x[{ONE}]{CLOSING}"),
        *rows(Failure.INVALID_JSON, "{OPENING}```json\n[{ONE}]\n```{CLOSING}", "{OPENING}{CALL}"),
        ('{OPENING}{"name": "f", "arguments": {"a": "{CLOSING}"}}{CLOSING}', Failure.INVALID_JSON),
        ('{OPENING}nope {"a": "{CLOSING}{OPENING}[]{CLOSING}"}{CLOSING}', Failure.INVALID_JSON),
        *rows(Failure.NOT_AN_OBJECT, '{OPENING}"f"{CLOSING}', "{OPENING}null{CLOSING}", "{OPENING}12{CLOSING}"),
        ("{OPENING}[{ONE}]{CALL}", Failure.TRAILING_TEXT),
    ],
    ids=shown,
)
def test_closed_blocks_without_a_call(form: ListFormat, block: str, failure: Failure) -> None:
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


class TestLists(Conformance):
    forms = LIST_FORMATS
    remaining = [
        *rows("", "", "{CALL}", "{OPENING}[{ONE}, {ONE}, {ONE}]{CLOSING}", "{CALL}\n{CALL}"),
        *rows("a", "a\n\n{CALL}{CALL}", "a{OPENING}[]{CLOSING}"),
        ("a [{ONE}]", "a [{ONE}]"),
    ]
    details = [
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
    ]


class TestClosedLists(Conformance):
    forms = CLOSED_FORMATS
    remaining = [
        ("a {CLOSING}{CALL}", "a {CLOSING}"),
    ]
    details = [
        ("{OPENING}[{ONE}]", "has no {CLOSING}", "calculator"),
        ("{OPENING}{ONE}{CLOSING}", "must be a JSON list of objects, [{...}, ...], not an object", None),
        ("{OPENING}7{CLOSING}", "must be a JSON list of objects, [{...}, ...], not a number", None),
    ]
