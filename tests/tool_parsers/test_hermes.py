"""Hermes calls: what is well-formed is read exactly, and nothing else is a call."""

from __future__ import annotations

import pytest

from strands_sglang.tool_parsers import HermesToolParser
from strands_sglang.tool_parsers import ParseFailure as Failure
from support.tool_parsers.checks import Conformance, Format, rows

OPENING, CLOSING = "<tool_call>", "</tool_call>"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12*7+3"}}\n</tool_call>'


FORM = Format(HermesToolParser())
parse, failed = FORM.parse, FORM.failed


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name":"f","arguments":{}}</tool_call>',
        '<tool_call> \t\r\n{"arguments": {}, "name": "f"}\n\n</tool_call>',
        '<tool_call>{"name":"f","arguments":{},"id":7,"type":"function"}</tool_call>',
        '<tool_call>{\n  "name": "f",\n  "arguments": {\n  }\n}</tool_call>',
    ],
)
def test_whitespace_key_order_and_other_keys_are_ignored(text: str) -> None:
    (call,) = parse(text).calls
    assert (call.name, call.arguments, call.id) == ("f", {}, None)


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        *rows(Failure.INVALID_JSON, '{"name": "f", "arguments": {"a": 1,}}', '{"name": "f", "arguments": {},}'),
        *rows(Failure.INVALID_JSON, "{'name': 'f', 'arguments': {}}", '{name: "f", "arguments": {}}'),
        *rows(Failure.INVALID_JSON, '{"name": "f", "arguments": {"a": "}}\n', '{"name": "f", "arguments": {}'),
        *rows(Failure.INVALID_JSON, '{"name": "f", "arguments": {"a": 01}}', "", "\n", "f(1)", "\u00a0{}"),
        *rows(Failure.INVALID_JSON, "[" * 500_000, "<tool_call>"),
        ('{"name": "f", "arguments": {}} // why', Failure.TRAILING_TEXT),
        ('{"name": "f", "arguments": {}} {"name": "g", "arguments": {}}', Failure.TRAILING_TEXT),
        ('{"name": "f", "arguments": {}}}', Failure.TRAILING_TEXT),
        ('{"name": "f", "name": "g", "arguments": {}}', Failure.DUPLICATE_KEY),
        ('{"name": "f", "arguments": {}, "arguments": {}}', Failure.DUPLICATE_KEY),
        *rows(Failure.NOT_AN_OBJECT, "[]", '[{"name": "f", "arguments": {}}]', '"f"', "12", "null"),
        *rows(Failure.MISSING_NAME, "{}", '{"arguments": {}}', '{"name": "", "arguments": {}}'),
        *rows(Failure.MISSING_NAME, '{"name": " \\n", "arguments": {}}', '{"name": null, "arguments": {}}'),
        *rows(Failure.MISSING_NAME, '{"name": ["f"], "arguments": {}}', '{"Name": "f", "arguments": {}}'),
        *rows(Failure.BAD_ARGUMENTS, '{"name": "f"}', '{"name": "f", "parameters": {}}'),
        ('{"name": "f", "arguments": {}}\n<tool_call>\n{"name": "g", "arguments": {}}', Failure.UNCLOSED),
    ],
    ids=lambda value: value[:50].encode("unicode_escape").decode() if isinstance(value, str) else None,
)
def test_malformed_call_does_not_affect_next_call(body: str, failure: Failure) -> None:
    raw = f"{OPENING}{body}{CLOSING}"
    FORM.check_malformed(raw, failure, CALL)


def test_unclosed_string_includes_markers_after_it() -> None:
    """On one line, the string runs into the next call: whose text that is cannot be told, so nothing is executed."""
    turn = parse(f'<tool_call>{{"name": "f", "arguments": {{"a": "}}}}</tool_call>{CALL}{CALL}')
    assert len(turn.failures) == 1 and turn.failures[0].raw.endswith(CALL) and len(turn.calls) == 1


def test_depth_counts_from_the_call_itself() -> None:
    deepest = "[" * 98 + "]" * 98
    assert parse(f'{OPENING}{{"name": "f", "arguments": {{"a": {deepest}}}}}{CLOSING}').failures == ()


class TestHermes(Conformance):
    forms = [FORM]
    remaining = [
        *rows("", "", CALL),
        (f"a </tool_call>{CALL}", "a </tool_call>"),
        ("a\n<tool_call>{}</tool_call>", "a"),
        (f"{CALL}\n<tool_call>{{}}</tool_call>b", "b"),
    ]
    details = [
        (
            '<tool_call>{"name": "f", "arguments": {"a": nope}}</tool_call>',
            "The JSON is not valid: expecting value, at character 44 of the call, "
            'near \' "arguments": {"a": nope}}</tool_call>\'.',
            None,
        ),
        ('<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "must be a JSON object, not a string", "f"),
        ('<tool_call>{"name": "f"}</tool_call>', 'has no key "arguments"', "f"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'has no key "name"', None),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', "not a number", None),
        ("<tool_call>true</tool_call>", "must be a JSON object, not true", None),
        ('<tool_call>{"a": 1, "a": 2}</tool_call>', "The key 'a' occurs twice", None),
        ('<tool_call>{"a": NaN}</tool_call>', "NaN is not a JSON value", None),
        ('<tool_call>{"a": "x\\ud800"}</tool_call>', "The JSON string 'x\\ud800' contains a lone surrogate", None),
        ('<tool_call>{"name": "f", "arguments": {}} x</tool_call>', "at character 42 of the call, near", "f"),
        ('<tool_call>{"name": "f", "arguments": {}}', "has no </tool_call>", "f"),
        ('<tool_call>{"name": "f", "arg', "The turn ended in the middle of the JSON", None),
    ]
