"""Llama 3 calls: a turn that is one, and nothing else; an answer in JSON stays an answer."""

from __future__ import annotations

import json

import pytest

from strands_sglang.tool_parsers.base import Schemas
from strands_sglang.tool_parsers.llama3_json import Llama3JsonToolParser
from strands_sglang.tool_parsers.parsed import ParsedTurn
from strands_sglang.tool_parsers.parsed import ParseFailure as Failure
from support.tool_parsers.checks import Conformance, Format, rows, shown

TAG = "<|python_tag|>"
CALL = '{"name": "calculator", "parameters": {"expression": "12*7+3"}}'
KNOWN: Schemas = {"calculator": {"type": "object"}, "f": {}}
PARSER = Llama3JsonToolParser()


FORM = Format(Llama3JsonToolParser())
parse, failed = FORM.parse, FORM.failed


@pytest.mark.parametrize("schemas", [None, KNOWN, {"other": {}}])
@pytest.mark.parametrize(
    "raw",
    [
        *('{"name":"f","parameters":{}}', '{"parameters": {}, "name": "f"}'),
        '{"type": "function", "name": "f", "parameters": {}, "id": 7}',
        *('{\n  "name": "f",\n  "parameters": {\n  }\n}', f'{TAG}{{"name": "f", "parameters": {{}}}}'),
        f'{TAG} \r\n\t{{"name": "f", "parameters": {{}}}}',
    ],
)
def test_tag_whitespace_key_order_and_other_keys_are_ignored(raw: str, schemas: Schemas | None) -> None:
    for before in ("", " \n", "<think>hm</think>\n\n"):
        turn = parse(f"{before}{raw} \r\n\t", schemas=schemas)
        (call,) = turn.calls
        assert (call.name, call.arguments, call.raw, turn.text) == ("f", {}, raw, "")


@pytest.mark.parametrize("schemas", [None, KNOWN])
@pytest.mark.parametrize(
    "text",
    [
        *("", "\n", "hello", "\n hello \n", "{", "{}", "{ }", "{{", "[", "[]", f"[{CALL}]", "12", '"f"', "null", "{x}"),
        *('{"answer": 42}', '{"answer": 42} and more', '{"parameters": {}}', '{"function": "f", "parameters": {}}'),
        *('{"Name": "f", "parameters": {}}', '{"a": {"name": "f", "parameters": {}}}'),
        *('{"parameters": {}, "name": "f"', '{"parameters": {"a": NaN}, "name": "f"}'),
        *('{"a": 1, "name": "f", "name": "g"}', "{'name': 'f', 'parameters': {}}", '{name: "f", "parameters": {}}'),
        *(f"a\n{CALL}", "{" * 100_000, '{"a":' * 100_000),
    ],
    ids=shown,
)
def test_other_json_and_text_are_text(text: str, schemas: Schemas | None) -> None:
    assert parse(text, schemas=schemas) == ParsedTurn(reasoning=None, text=text)


@pytest.mark.parametrize(
    ("text", "known", "unknown"),
    [
        *rows((Failure.BAD_ARGUMENTS, Failure.BAD_ARGUMENTS), '{"name": "f"}', '{"name": "f", "arguments": {}}'),
        ('{"name": "f", "age": 7} x', Failure.BAD_ARGUMENTS, Failure.BAD_ARGUMENTS),
        ('{"name": "Bob", "parameters": 7}', Failure.BAD_ARGUMENTS, Failure.BAD_ARGUMENTS),
        *rows((None, Failure.BAD_ARGUMENTS), '{"name": "Bob"}', '{"name": "Bob", "arguments": {}}'),
        ('{"name": "Bob", "parameters": {}} x', Failure.TRAILING_TEXT, Failure.TRAILING_TEXT),
        ('{"name": "Bob", ', Failure.UNCLOSED, Failure.UNCLOSED),
        *rows((None, Failure.MISSING_NAME), '{"name": ["f"], "parameters": {}}', '{"name": null}'),
        ('{"name": " ", "parameters": {}}', Failure.MISSING_NAME, Failure.MISSING_NAME),
    ],
)
def test_json_that_counts_as_a_call(text: str, known: Failure | None, unknown: Failure | None) -> None:
    for schemas, failure in ((KNOWN, known), (None, unknown), ({}, unknown)):
        turn = parse(text, schemas=schemas)
        assert [item.failure for item in turn.failures] == ([failure] if failure else [])
        assert (turn.calls, turn.text) == ((), "" if failure else text)


@pytest.mark.parametrize("schemas", [None, KNOWN])
@pytest.mark.parametrize("before", ["", TAG, f"{TAG}\n"])
@pytest.mark.parametrize(
    ("body", "failure"),
    [
        *rows(Failure.INVALID_JSON, '{"name": "f", "parameters": {"a": 1,}}', '{"name": "f", "parameters": {},}'),
        *rows(Failure.INVALID_JSON, '{ "name" :\n"f", \'parameters\': {}}', '{"name": f, "parameters": {}}'),
        ('{"name": "f", "parameters": {"a": ' + "[" * 50_000, Failure.INVALID_JSON),
        ('{"name": "f" "parameters": {}}', Failure.INVALID_JSON),
        ('{"name": "f", "name": "g", "parameters": {}}', Failure.DUPLICATE_KEY),
        *rows(Failure.BAD_ARGUMENTS, '{"name": "f"}', '{"name": "f", "arguments": {}}'),
        ('{"name": "f", "parameters": {}, "arguments": {}}', Failure.BAD_ARGUMENTS),
        ('{"name": "", "parameters": {}}', Failure.MISSING_NAME),
        *rows(Failure.TRAILING_TEXT, f"{CALL}; {CALL}", f"{CALL}\n{CALL}", f"{CALL};", f"{CALL}}}", f"{CALL} // why"),
        *rows(Failure.TRAILING_TEXT, f"{CALL}\u00a0", f"{CALL}{TAG}", f"{CALL}{TAG}{CALL}"),
    ],
    ids=shown,
)
def test_malformed_call_fails(before: str, body: str, failure: Failure, schemas: Schemas | None) -> None:
    raw = before + body
    item = failed(f"\n {raw}", schemas)
    assert (item.failure, item.raw, item.start) == (failure, raw, 2)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        *rows(Failure.UNCLOSED, TAG, f"{TAG} \n", f"{TAG}{{"),
        *rows(Failure.MISSING_NAME, f"{TAG}{{}}", f'{TAG}{{"a": 1}}', f'{TAG}{{"name": 7, "parameters": {{}}}}'),
        *rows(Failure.NOT_AN_OBJECT, f"{TAG}[{CALL}]", f'{TAG}"f"', f"{TAG}null"),
        *rows(Failure.INVALID_JSON, f"{TAG}print(1)", f'{TAG}brave_search.call(query="x")', f"{TAG}{TAG}{CALL}"),
        (f"{TAG}; {CALL}", Failure.INVALID_JSON),
    ],
)
def test_tag_always_means_a_call(text: str, failure: Failure) -> None:
    for schemas in (None, KNOWN, {"other": {}}):
        item = failed(text, schemas)
        assert (item.failure, item.raw) == (failure, text)


@pytest.mark.parametrize(
    ("before", "remains"), [("Let me see. ", "Let me see. "), ('{"a": 1}\n', '{"a": 1}'), ("{\n", "{"), (";", ";")]
)
def test_tag_after_text_is_misplaced(before: str, remains: str) -> None:
    turn = parse(f"{before}{TAG}{CALL}")
    assert [(item.failure, item.raw) for item in turn.failures] == [(Failure.MISPLACED, TAG + CALL)]
    assert (turn.calls, turn.text) == ((), remains)


def test_tag_inside_string_of_answer_is_data() -> None:
    for text in (f'{{"a": "{TAG}"}}', f'{{"a": "{TAG}{{}}'):
        assert parse(text) == ParsedTurn(reasoning=None, text=text)


EVERYTHING = json.dumps(
    {"name": "f", "parameters": {"s": 'a"\\ é 😀', "n": [-1.5e10, 0, True, False, None, {"x": {}}]}}
)
BEGUN = len('{"name":')


@pytest.mark.parametrize("length", range(BEGUN, len(EVERYTHING)))
def test_truncated_call_is_unclosed(length: int) -> None:
    for before in ("", TAG):
        failure = failed(before + EVERYTHING[:length])
        assert (failure.failure, failure.raw) == (Failure.UNCLOSED, before + EVERYTHING[:length])


class TestLlama3Json(Conformance):
    forms = [FORM]
    details = [
        ('{"name": "f", "parameters": {"a": nope}}', "expecting value, at character 34 of the call, near", None),
        (
            '{"name": "f", "parameters": "{}"}',
            'The "parameters" of a tool call must be a JSON object, not a string',
            "f",
        ),
        ('{"name": "f", "arguments": {}}', 'has no key "parameters"', "f"),
        ('{"name": "f", "parameters": {}, "arguments": {}}', 'both "parameters" and "arguments"', "f"),
        (f"{CALL}; {CALL}", "A turn can contain one tool call, with nothing after it, at", "calculator"),
        ('{"name": "f", "par', "The turn ended in the middle of the JSON", None),
        (f"ok {TAG}{CALL}", f"{TAG} is allowed only at its beginning", None),
    ]
