"""Hermes calls: what is well-formed is read exactly, and nothing else is a call."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.tool_parsers import FailedCall, HermesToolParser, ParsedTurn, ParseFailure, ToolCall, ToolParser
from support.examples import examples
from support.tool_parsers.checks import SECONDS, check_turn, least_seconds, once, same

OPENING, CLOSING = "<tool_call>", "</tool_call>"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12*7+3"}}\n</tool_call>'


def parse(text: str, *, reasoning_open: bool = False) -> ParsedTurn:
    turn = HermesToolParser().parse(text, reasoning_open=reasoning_open)
    check(text, turn)
    return turn


def check(text: str, turn: ParsedTurn) -> None:
    """Hold a turn against its text, in other ways than the parser's own."""
    check_turn(text, turn)
    both: list[ToolCall | FailedCall] = [*turn.calls, *turn.failures]
    for item in both:
        assert item.raw.startswith(OPENING)
    for call in turn.calls:
        match = re.fullmatch(r"<tool_call>[ \t\n\r]*(\{.*\})[ \t\n\r]*</tool_call>", call.raw, re.DOTALL)
        assert match is not None
        value = json.loads(match[1], object_pairs_hook=once, parse_constant=pytest.fail)
        assert isinstance(value["arguments"], dict)
        assert same((value["name"], value["arguments"]), (call.name, call.arguments))


def failed(text: str) -> FailedCall:
    """Return the one failed call of a text that has no call."""
    turn = parse(text)
    assert turn.calls == () and len(turn.failures) == 1
    return turn.failures[0]


def call_of(name: str, arguments: Any) -> str:
    return f"{OPENING}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{CLOSING}"


# --- what is read ---------------------------------------------------------------------------------------------------


def test_well_formed_call_is_parsed() -> None:
    (call,) = parse(f"Let me see.\n{CALL}").calls
    assert (call.name, call.arguments, call.id) == ("calculator", {"expression": "12*7+3"}, None)
    assert (call.raw, call.start) == (CALL, 12)


def test_parser_name() -> None:
    assert isinstance(HermesToolParser(), ToolParser) and HermesToolParser.name == "hermes"


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
    ("text", "remains"),
    [
        ("", ""),
        ("hello", "hello"),
        ("\n hello \n", "\n hello \n"),
        (CALL, ""),
        (f"before\n{CALL}", "before"),
        (f"{CALL}\nafter", "after"),
        (f"before\n\n{CALL}\n{CALL}\nafter", "before\nafter"),
        (f"a{CALL}b{CALL}c", "a\nb\nc"),
        (f"a </tool_call>{CALL}", "a </tool_call>"),
        ("a\n<tool_call>{}</tool_call>", "a"),
        (f"{CALL}\n<tool_call>{{}}</tool_call>b", "b"),
        ("a <tool_call", "a <tool_call"),
    ],
)
def test_remaining_text(text: str, remains: str) -> None:
    assert parse(text).text == remains


def test_parallel_calls_keep_their_order() -> None:
    names = [f"tool_{number}" for number in range(11)]
    assert [call.name for call in parse("\n".join(call_of(name, {}) for name in names)).calls] == names


# --- reasoning -------------------------------------------------------------------------------------------------------


def test_draft_in_prompt_opened_reasoning_is_not_a_call() -> None:
    turn = parse(f"maybe {CALL}\n</think>\n\n{call_of('real', {})}", reasoning_open=True)
    assert turn.reasoning == f"maybe {CALL}"
    assert [call.name for call in turn.calls] == ["real"] and turn.failures == ()


def test_draft_in_reasoning_is_not_a_call() -> None:
    turn = parse(f"<think>{CALL}</think>done")
    assert (turn.reasoning, turn.text, turn.calls, turn.reasoning_closed) == (CALL, "done", (), True)


@pytest.mark.parametrize(("text", "reasoning_open"), [(f"<think>\n{CALL}", False), (CALL, True), (f"\n{CALL}\n", True)])
def test_unclosed_reasoning_has_no_calls(text: str, reasoning_open: bool) -> None:
    turn = parse(text, reasoning_open=reasoning_open)
    assert (turn.reasoning, turn.text, turn.calls, turn.reasoning_closed) == (CALL, "", (), False)


@pytest.mark.parametrize("marker", ["<think>", "</think>", "<think>x</think>", "<tool_call>", "</tool_call>", CALL])
def test_marker_inside_argument_is_data(marker: str) -> None:
    written = call_of("f", {"code": f"a {marker} b"})
    for text in (written, f"<think>hm</think>{written}"):
        turn = parse(text)
        assert turn.calls[0].arguments == {"code": f"a {marker} b"}
        assert len(turn.calls) == 1 and turn.failures == () and turn.text == ""


# --- what is not a call ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ('{"name": "f", "arguments": {"a": 1,}}', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {},}', ParseFailure.INVALID_JSON),
        ("{'name': 'f', 'arguments': {}}", ParseFailure.INVALID_JSON),
        ('{name: "f", "arguments": {}}', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": "x\ny"}}', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": "\\x"}}', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": "}}\n', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {}', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": 01}}', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {}} // why', ParseFailure.TRAILING_TEXT),
        ("", ParseFailure.INVALID_JSON),
        ("\n", ParseFailure.INVALID_JSON),
        ("f(1)", ParseFailure.INVALID_JSON),
        ("\u00a0{}", ParseFailure.INVALID_JSON),
        ('```json\n{"name": "f", "arguments": {}}\n```', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": NaN}}', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": -Infinity}}', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": 1e999}}', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": "\\ud800"}}', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {"\\udfff": 1}}', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": "\ud800"}}', ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": ' + "1" * 4301 + "}}", ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": ' + "[" * 99 + "]" * 99 + "}}", ParseFailure.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": ' + "[" * 5000 + "]" * 5000 + "}}", ParseFailure.INVALID_JSON),
        ("[" * 500_000, ParseFailure.INVALID_JSON),
        ('{"name": "f", "name": "g", "arguments": {}}', ParseFailure.DUPLICATE_KEY),
        ('{"name": "f", "arguments": {}, "arguments": {}}', ParseFailure.DUPLICATE_KEY),
        ('{"name": "f", "arguments": {"a": [{"b": 1, "b": 1}]}}', ParseFailure.DUPLICATE_KEY),
        ("[]", ParseFailure.NOT_AN_OBJECT),
        ('[{"name": "f", "arguments": {}}]', ParseFailure.NOT_AN_OBJECT),
        ('"f"', ParseFailure.NOT_AN_OBJECT),
        ("12", ParseFailure.NOT_AN_OBJECT),
        ("null", ParseFailure.NOT_AN_OBJECT),
        ("{}", ParseFailure.MISSING_NAME),
        ('{"arguments": {}}', ParseFailure.MISSING_NAME),
        ('{"name": "", "arguments": {}}', ParseFailure.MISSING_NAME),
        ('{"name": " \\n", "arguments": {}}', ParseFailure.MISSING_NAME),
        ('{"name": null, "arguments": {}}', ParseFailure.MISSING_NAME),
        ('{"name": ["f"], "arguments": {}}', ParseFailure.MISSING_NAME),
        ('{"Name": "f", "arguments": {}}', ParseFailure.MISSING_NAME),
        ('{"name": "f"}', ParseFailure.BAD_ARGUMENTS),
        ('{"name": "f", "parameters": {}}', ParseFailure.BAD_ARGUMENTS),
        ('{"name": "f", "arguments": null}', ParseFailure.BAD_ARGUMENTS),
        ('{"name": "f", "arguments": "{}"}', ParseFailure.BAD_ARGUMENTS),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', ParseFailure.BAD_ARGUMENTS),
        ('{"name": "f", "arguments": []}', ParseFailure.BAD_ARGUMENTS),
        ('{"name": "f", "arguments": 0}', ParseFailure.BAD_ARGUMENTS),
        ('{"name": "f", "arguments": false}', ParseFailure.BAD_ARGUMENTS),
        ('{"name": "f", "arguments": {}} {"name": "g", "arguments": {}}', ParseFailure.TRAILING_TEXT),
        ('{"name": "f", "arguments": {}}}', ParseFailure.TRAILING_TEXT),
        ('{"name": "f", "arguments": {}}\n<tool_call>\n{"name": "g", "arguments": {}}', ParseFailure.UNCLOSED),
        ("<tool_call>", ParseFailure.INVALID_JSON),
    ],
    ids=lambda value: value[:50].encode("unicode_escape").decode() if isinstance(value, str) else None,
)
def test_malformed_call_does_not_affect_next_call(body: str, failure: ParseFailure) -> None:
    raw = f"{OPENING}{body}{CLOSING}"
    turn = parse(f"a{raw}b{CALL}c{raw}")
    assert [item.failure for item in turn.failures] == [failure, failure]
    assert [item.raw for item in turn.failures] == [raw, raw]
    assert [item.start for item in turn.failures] == [1, len(f"a{raw}b{CALL}c")]
    assert [call.name for call in turn.calls] == ["calculator"]
    assert turn.text == "a\nb\nc"


@pytest.mark.parametrize(
    ("text", "detail", "name"),
    [
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
    ],
)
def test_detail_has_error_and_position(text: str, detail: str, name: str | None) -> None:
    failure = failed(text)
    assert detail in failure.detail and failure.name == name


def test_call_text_inside_malformed_call_is_part_of_it() -> None:
    """Arguments written without escapes: the decoder got as far as the inner call, so that is not executed."""
    inner = '</tool_call> <tool_call>{"name": "rm", "arguments": {}}</tool_call>'
    turn = parse(f'<tool_call>{{"name": "write", "arguments": {{"text": "{inner}"}}}}</tool_call>')
    assert turn.calls == () and [item.failure for item in turn.failures] == [ParseFailure.INVALID_JSON]
    repeated = '<tool_call>{"name": "w", "name": "</tool_call><tool_call>{}"}</tool_call>'
    assert failed(repeated).raw == repeated


def test_unclosed_string_includes_markers_after_it() -> None:
    """On one line, the string runs into the next call: whose text that is cannot be told, so nothing is executed."""
    turn = parse(f'<tool_call>{{"name": "f", "arguments": {{"a": "}}}}</tool_call>{CALL}{CALL}')
    assert len(turn.failures) == 1 and turn.failures[0].raw.endswith(CALL) and len(turn.calls) == 1


CALL_WITH_EVERYTHING = call_of("f", {"s": 'a"\\ é 😀', "n": [-1.5e10, 0, True, False, None, {"x": {}}]}).replace(
    "é", "\\u00e9\\ud83d\\ude00"
)


@pytest.mark.parametrize("length", range(len(OPENING), len(CALL_WITH_EVERYTHING)))
def test_truncated_call_is_unclosed(length: int) -> None:
    failure = failed("x" + CALL_WITH_EVERYTHING[:length])
    assert failure.failure is ParseFailure.UNCLOSED
    assert failure.raw == CALL_WITH_EVERYTHING[:length]


@pytest.mark.parametrize("length", range(len(OPENING)))
def test_truncated_opening_marker_is_text(length: int) -> None:
    turn = parse("x" + CALL[:length])
    assert turn == ParsedTurn(reasoning=None, text="x" + CALL[:length])


def test_depth_counts_from_the_call_itself() -> None:
    deepest = "[" * 98 + "]" * 98
    assert parse(f'{OPENING}{{"name": "f", "arguments": {{"a": {deepest}}}}}{CLOSING}').failures == ()


# --- any text ---------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
names = st.text(min_size=1).filter(str.strip)
plain = st.text(alphabet=st.characters(exclude_characters="<\n", exclude_categories=["Cs"]), max_size=10)
marks = [OPENING, CLOSING, "<think>", "</think>", CALL]
parts = ['{"name": "f", "arguments": {}}', '{"name": "f", ', '"arguments": {"a": ', *'{}[]":,\\ \n01-.e<>tnf']
values = ["null", "NaN", "Infinity", "1e999", "\\ud800", "\ud800", "é"]
pieces = st.sampled_from(marks + parts + values)


@settings(deadline=None)
@given(st.lists(st.tuples(plain, names, st.dictionaries(st.text(), json_values, max_size=4)), max_size=4), st.data())
def test_rendered_calls_are_parsed(written: list[tuple[str, str, dict[str, Any]]], data: st.DataObject) -> None:
    ascii_only = data.draw(st.booleans())
    indent = data.draw(st.sampled_from([None, 0, 2]))
    text = ""
    for before, name, arguments in written:
        value = {"name": name, "arguments": arguments}
        text += f"{before}{OPENING}\n{json.dumps(value, ensure_ascii=ascii_only, indent=indent)}\n{CLOSING}"
    turn = parse(text)
    assert turn.failures == ()
    assert [call.name for call in turn.calls] == [name for _, name, _ in written]
    assert same([call.arguments for call in turn.calls], [arguments for _, _, arguments in written])
    assert turn.text == "\n".join(before for before, _, _ in written if before.strip())


@settings(deadline=None, max_examples=examples(300))
@given(st.text() | st.lists(pieces, max_size=20).map("".join), st.booleans())
def test_parse_never_raises(text: str, reasoning_open: bool) -> None:
    parse(text, reasoning_open=reasoning_open)


@settings(deadline=None, max_examples=examples(300))
@given(st.dictionaries(st.text(max_size=4), json_values, max_size=3), st.data())
def test_damaged_call_is_valid_or_rejected(arguments: dict[str, Any], data: st.DataObject) -> None:
    text = f"{call_of('f', arguments)}\n{CALL}"
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 6)))
        text = text[:start] + data.draw(st.just("") | pieces) + text[end:]
    parse(text)


@pytest.mark.parametrize(
    "unit",
    [
        OPENING,
        CLOSING,
        "<tool_cal",
        "<think>",
        OPENING + CLOSING,
        OPENING + "{",
        OPENING + "{" + CLOSING,
        OPENING + '{"' + CLOSING,
        OPENING + '["' + CLOSING + '",',
        OPENING + '{"a":"',
        OPENING + '{"a":"' + CLOSING,
        OPENING + '{"a":"\\' + CLOSING,
        OPENING + '{"a":NaN}' + CLOSING,
        OPENING + '{"a":1,"a":1}' + CLOSING,
        OPENING + '{"a":{"a":1}} x' + CLOSING,
        OPENING + "[" * 3000 + CLOSING,
        OPENING + '{"name":"f","arguments":{}}',
        OPENING + '{"name":"f","arguments":{}}' + CLOSING,
        OPENING + '{"name":"f","arguments":{"a":' + "1" * 5000 + "}}" + CLOSING,
    ],
    ids=lambda unit: unit[:40],
)
def test_megabyte_is_parsed_in_seconds(unit: str) -> None:
    assert cpu_seconds((unit * (1_000_000 // len(unit) + 1))[:1_000_000]) < SECONDS


@pytest.mark.parametrize(
    "text",
    [
        OPENING + "[" * 500_000,
        OPENING + '{"a":' * 200_000,
        OPENING + " " * 1_000_000,
        OPENING + '{"name":"f","arguments":{}}' + " " * 1_000_000,
        OPENING + '{"name":"f","arguments":{"a":' + "1" * 1_000_000 + "}}" + CLOSING,
        OPENING + '{"name":"f","arguments":{"a":[' + "1," * 500_000 + "1]}}" + CLOSING,
        OPENING + '{"name":"f","arguments":{"a":"' + "é" * 1_000_000 + '"}}' + CLOSING,
        OPENING + "{" + '"a":1,' * 160_000 + '"b":2}' + CLOSING,
        OPENING + '{"a":"' + "\\u00e9" * 160_000,
    ],
    ids=lambda text: text[:40],
)
def test_huge_call_is_parsed_in_seconds(text: str) -> None:
    assert cpu_seconds(text) < SECONDS


def cpu_seconds(text: str) -> float:
    return least_seconds(lambda: HermesToolParser().parse(text))
