"""GLM calls: a name, keys and values between tags, values typed by the schema, and nothing else is a call."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.tool_parsers import FailedCall, ParsedTurn, ParseFailure, SampledText, ToolCall, ToolParser
from strands_sglang.tool_parsers.glm import GlmToolParser
from support.examples import examples
from support.families import tokenizer
from support.tool_parsers.checks import SECONDS, check_turn, least_seconds

OPENING, CLOSING = "<tool_call>", "</tool_call>"
WORDS = (OPENING, CLOSING, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
PROPERTIES: dict[str, Any] = {
    **{key: {"type": "string"} for key in ("s", "path", "text")},
    **{"n": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"}, "z": {"type": "null"}},
    **{"o": {"type": "object"}, "a": {"type": "array"}, "u": {"type": ["string", "null"]}},
}
SCHEMAS = {"f": {"type": "object", "properties": PROPERTIES}}
CALL = "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>12*7+3</arg_value>\n</tool_call>"


def parse(text: str, *, reasoning_open: bool = False) -> ParsedTurn:
    turn = GlmToolParser().parse(text, reasoning_open=reasoning_open, schemas=SCHEMAS)
    check(text, turn)
    return turn


def check(text: str, turn: ParsedTurn) -> None:
    """Hold a turn against its text, in other ways than the parser's own."""
    check_turn(text, turn)
    both: list[ToolCall | FailedCall] = [*turn.calls, *turn.failures]
    for item in both:
        assert item.raw.startswith(OPENING)
    for call in turn.calls if type(text) is str else ():
        no_word = f"(?:(?!{'|'.join(map(re.escape, WORDS))}).)*"
        pair = rf"<arg_key>({no_word})</arg_key>\s*<arg_value>({no_word})</arg_value>"
        match = re.fullmatch(rf"<tool_call>\s*([^<>\s]+)(\s*(?:{pair}\s*)*)</tool_call>", call.raw, re.DOTALL)
        assert match is not None and match[1] == call.name
        found = re.findall(pair, match[2], re.DOTALL)
        assert [key for key, _ in found] == list(call.arguments)
        for key, value in found:
            known = PROPERTIES.get(key, {"type": "string"})["type"] if call.name == "f" else "string"
            assert call.arguments[key] == value if known == "string" else read_back(call.arguments[key], value)


def read_back(value: Any, text: str) -> bool:
    if value == text:
        return True
    words = {"True": True, "False": False, "None": None}
    bare = text.strip(" \t\n\r")
    return repr(words[bare] if bare in words else json.loads(bare)) == repr(value)


def failed(text: str) -> FailedCall:
    """Return the one failed call of a text that has no call."""
    turn = parse(text)
    assert turn.calls == () and len(turn.failures) == 1
    return turn.failures[0]


def call_of(name: str, arguments: dict[str, Any], gap: str = "\n") -> str:
    """Write a call as the templates do: GLM-4.7 with no gap."""
    written = f"<tool_call>{name}{gap}"
    for key, value in arguments.items():
        value = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        written += f"<arg_key>{key}</arg_key>{gap}<arg_value>{value}</arg_value>{gap}"
    return f"{written}</tool_call>"


def pair(key: str, value: str) -> str:
    return f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"


# --- what is read ----------------------------------------------------------------------------------------------------


def test_well_formed_call_is_parsed() -> None:
    (call,) = parse(f"Let me see.\n{CALL}").calls
    assert (call.name, call.arguments, call.id) == ("f", {"s": "12*7+3"}, None)
    assert (call.raw, call.start) == (CALL, 12)


def test_parser_name() -> None:
    assert isinstance(GlmToolParser(), ToolParser) and GlmToolParser.name == "glm"
    assert set(GlmToolParser.markers) == set(WORDS) and GlmToolParser.call_markers == (OPENING,)


def test_template_output_is_parsed() -> None:
    arguments: dict[str, Any] = {
        **{"s": "123", "path": "", "text": "  def f():\n\n      return '<b>' & 1\n"},
        **{"n": -7, "x": 1e-07, "b": True, "z": None, "u": None, "a": []},
        **{"o": {"<é'&\"\n>": [1, 2.0, None, True, {"x": {}}]}},
    }
    calls = [{"function": {"name": "f", "arguments": chosen}} for chosen in (arguments, {})]
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "Now.", "tool_calls": calls}]
    text = tokenizer("glm-4.6").apply_chat_template(messages, tokenize=False)
    turn = parse(text[text.rindex("Now.") :])
    assert [repr(call.arguments) for call in turn.calls] == [repr(arguments), "{}"]
    assert (turn.text, turn.failures) == ("Now.", ())


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>f<arg_key>s</arg_key><arg_value>v</arg_value></tool_call>",
        "<tool_call>\n f \n<arg_key>s</arg_key> \t\r\n<arg_value>v</arg_value>\n\n</tool_call>",
    ],
)
def test_whitespace_between_tags_is_ignored(text: str) -> None:
    (call,) = parse(text).calls
    assert (call.name, call.arguments, call.raw) == ("f", {"s": "v"}, text)


def test_call_without_arguments() -> None:
    assert [call.arguments for call in parse("<tool_call>f\n</tool_call><tool_call>f</tool_call>").calls] == [{}, {}]


@pytest.mark.parametrize(
    "value",
    [
        *("", "\n", "\n\n", "  x  ", "\n  x\n", "    if a:\n        b\n", "\tx\r\n", " 1 ", "é😀\u2028"),
        *("123", "true", "null", "None", '{"a": 1}', "<think>x</think>", "<arg_key", "&lt;<arg_value >", "</tool>"),
    ],
)
def test_string_value_is_verbatim_text(value: str) -> None:
    for key in ("s", "undeclared"):
        (call,) = parse(f"{OPENING}f{pair(key, value)}{CLOSING}").calls
        assert call.arguments == {key: value}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("n", "12", 12),
        ("n", "\n12\n", 12),
        ("n", "twelve", "twelve"),
        ("x", "1e-07", 1e-07),
        ("b", "true", True),
        ("z", "null", None),
        ("u", "null", None),
        ("u", "nothing", "nothing"),
        ("o", '{\n  "a": [1, null]\n}', {"a": [1, None]}),
        ("a", '\n["\\u003c"]\n', ["<"]),
    ],
)
def test_other_values_are_typed_by_schema(key: str, text: str, value: Any) -> None:
    (call,) = parse(f"{OPENING}f{pair(key, text)}{CLOSING}").calls
    assert repr(call.arguments) == repr({key: value})


def test_values_are_text_without_schema() -> None:
    text = call_of("g", {"n": 1, "o": {"a": 1}, "b": True})
    for schemas in (None, {}, SCHEMAS):
        (call,) = GlmToolParser().parse(text, schemas=schemas).calls
        assert call.arguments == {"n": "1", "o": '{"a": 1}', "b": "true"}


@pytest.mark.parametrize(
    ("text", "remains"),
    [
        ("", ""),
        ("\n hello \n", "\n hello \n"),
        (CALL, ""),
        (f"before\n\n{CALL}\n{CALL}\nafter", "before\nafter"),
        (f"a{CALL}b{CALL}c", "a\nb\nc"),
        (f"a </tool_call>{CALL}", "a </tool_call>"),
        (f"a <arg_key>k</arg_key>{CALL}", "a <arg_key>k</arg_key>"),
        ("a\n<tool_call>{}</tool_call>", "a"),
        ("a <tool_call", "a <tool_call"),
    ],
)
def test_remaining_text(text: str, remains: str) -> None:
    assert parse(text).text == remains


def test_parallel_calls_keep_their_order() -> None:
    names = [f"tool_{number}" for number in range(12)]
    for gap in ("", "\n"):
        assert [call.name for call in parse(gap.join(call_of(name, {}, gap) for name in names)).calls] == names


def test_draft_in_reasoning_is_not_a_call() -> None:
    turn = parse(f"maybe {CALL}</think>{call_of('real', {})}", reasoning_open=True)
    assert [call.name for call in turn.calls] == ["real"] and turn.failures == ()
    assert parse(f"\n<think>{CALL}").calls == () and parse(CALL, reasoning_open=True).calls == ()


# --- what is none ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "failure"),
    [
        ("", ParseFailure.MISSING_NAME),
        (" \n", ParseFailure.MISSING_NAME),
        (pair("s", "v"), ParseFailure.MISSING_NAME),
        ('{"name": "f", "arguments": {}}', ParseFailure.MISSING_NAME),
        ("{}", ParseFailure.MISSING_NAME),
        ("I will call f", ParseFailure.MISSING_NAME),
        ("f\ng", ParseFailure.MISSING_NAME),
        ('"f"', ParseFailure.MISSING_NAME),
        ("<function=f>", ParseFailure.MISSING_NAME),
        ('f {"s": "v"}', ParseFailure.MISSING_NAME),
        ("f<arg_key>s</arg_key>", ParseFailure.UNCLOSED),
        ("f<arg_key>s", ParseFailure.UNCLOSED),
        ("f<arg_key>s</arg_key><arg_value>v", ParseFailure.UNCLOSED),
        ("f<arg_key>s<arg_value>v</arg_value>", ParseFailure.UNCLOSED),
        (f"f<arg_key>s</arg_key><arg_value>v{pair('n', '1')}", ParseFailure.UNCLOSED),
        (f"f{pair('s', '<arg_value>')}", ParseFailure.UNCLOSED),
        (f"f{pair('s', 'a</arg_key>b')}", ParseFailure.UNCLOSED),
        (f"f{pair('s', 'a<tool_call>b')}", ParseFailure.UNCLOSED),
        (f"f{pair('a<arg_key>b', 'v')}", ParseFailure.UNCLOSED),
        (f"f{pair('s', 'v')}<tool_call>g", ParseFailure.UNCLOSED),
        ("f<tool_call>g", ParseFailure.UNCLOSED),
        ("f<arg_value>v</arg_value>", ParseFailure.BAD_ARGUMENTS),
        ("f</arg_key>", ParseFailure.BAD_ARGUMENTS),
        ("f<arg_key>s</arg_key><arg_key>n</arg_key><arg_value>v</arg_value>", ParseFailure.BAD_ARGUMENTS),
        (f"f{pair('s', 'v')}</arg_value>", ParseFailure.BAD_ARGUMENTS),
        (f"f{pair('s', 'v')}, {pair('n', '1')}", ParseFailure.BAD_ARGUMENTS),
        ("f<arg_key>s</arg_key>:<arg_value>v</arg_value>", ParseFailure.BAD_ARGUMENTS),
        (f"f{pair('s', 'v')}x", ParseFailure.BAD_ARGUMENTS),
        (f"f{pair('s', 'a</arg_value>b')}", ParseFailure.BAD_ARGUMENTS),
        (f"f{pair('', 'v')}", ParseFailure.BAD_ARGUMENTS),
        (f"f{pair(' ', 'v')}", ParseFailure.BAD_ARGUMENTS),
        (f"f{pair(' s', 'v')}", ParseFailure.BAD_ARGUMENTS),
        (f"f{pair('s' + chr(10), 'v')}", ParseFailure.BAD_ARGUMENTS),
        (f"f{pair('<s>', 'v')}", ParseFailure.BAD_ARGUMENTS),
        ("f" + pair('"s"', "v"), ParseFailure.BAD_ARGUMENTS),
        (f"f{pair('o', '[1]')}", ParseFailure.BAD_ARGUMENTS),
        ("f" + pair("o", "{'a': 1}"), ParseFailure.INVALID_JSON),
        ("f" + pair("o", '{"a": 1,}'), ParseFailure.INVALID_JSON),
        (f"f{pair('a', 'hello')}", ParseFailure.INVALID_JSON),
        ("f" + pair("s", "\ud800"), ParseFailure.INVALID_JSON),
        ("f\udfff", ParseFailure.INVALID_JSON),
        ("f" + pair("o", '{"a": 1, "a": 1}'), ParseFailure.DUPLICATE_KEY),
        (f"f{pair('s', 'v')}{pair('s', 'v')}", ParseFailure.DUPLICATE_KEY),
    ],
    ids=lambda value: value.encode("unicode_escape").decode() if isinstance(value, str) else None,
)
def test_malformed_call_does_not_affect_next_call(inside: str, failure: ParseFailure) -> None:
    raw = f"{OPENING}{inside}{CLOSING}"
    turn = parse(f"a{raw}b{CALL}c{raw}")
    assert [item.failure for item in turn.failures] == [failure, failure]
    assert [item.raw for item in turn.failures] == [raw, raw]
    assert [item.start for item in turn.failures] == [1, len(f"a{raw}b{CALL}c")]
    assert [call.raw for call in turn.calls] == [CALL]
    assert turn.text == "a\nb\nc"


@pytest.mark.parametrize(
    ("inside", "detail", "name"),
    [
        ("", "The name of the tool is missing, at character 11 of the call", None),
        ("I will", "The name of a tool must be one word, not 'I will'", None),
        ("f<arg_key>s</arg_key>", "Found </tool_call> in place of the value of 's', <arg_value>, at", "f"),
        ("f<arg_key>s</arg_key><arg_value>v", "in place of the end of the value of 's', </arg_value>", "f"),
        ("f<arg_key>s", "in place of the end of the key, </arg_key>", "f"),
        (f"f{pair('s', 'v')}x", "Between </arg_value> and </tool_call> there must be nothing else", "f"),
        (f"f{pair('s', 'v')}<arg_value>", "Found <arg_value> in place of the next key or </tool_call>", "f"),
        (f"f{pair('s', 'v')}{pair('s', 'v')}", "The key 's' is given twice", "f"),
        (f"f{pair('o', 'x')}", "'o' must be a JSON object. The JSON is not valid: expecting value, at", "f"),
        (f"f{pair(' s', 'v')}", "' s' is not the bare name of a parameter", "f"),
    ],
)
def test_detail_has_error_and_position(inside: str, detail: str, name: str | None) -> None:
    failure = failed(f"{OPENING}{inside}{CLOSING}")
    assert detail in failure.detail and failure.name == name


FULL = call_of("f", {"s": "  é\n", "n": 1, "o": {"a": ['</x> "', None]}, "b": True})


def test_truncated_call_is_unclosed() -> None:
    for whole in (FULL, FULL.replace("\n", "")):
        for length in range(len(OPENING), len(whole)):
            failure = failed("x\n" + whole[:length])
            assert failure.failure is ParseFailure.UNCLOSED and failure.raw == whole[:length]
            assert "<tool_call> is not closed with </tool_call>" in failure.detail
            assert failure.name == ("f" if "<arg_key>" in failure.raw else None)


def test_truncated_opening_marker_is_text() -> None:
    for length in range(len(OPENING)):
        assert parse("x" + CALL[:length]) == ParsedTurn(reasoning=None, text="x" + CALL[:length])


# --- tokens ----------------------------------------------------------------------------------------------------------


def sampled(*pieces: str) -> SampledText:
    """Return a text in which the markers that are pieces of their own are tokens."""
    starts = [sum(map(len, pieces[:number])) for number in range(len(pieces))]
    tokens = {start for start, piece in zip(starts, pieces, strict=True) if piece in WORDS}
    return SampledText("".join(pieces), tokens, lambda marker: [0] if marker in WORDS else [])


def test_tag_letters_without_token_are_part_of_value() -> None:
    value = f"</arg_value>\n{CLOSING}{CALL}"
    pieces = (OPENING, "f", "<arg_key>", "s", "</arg_key>", "<arg_value>", value, "</arg_value>", CLOSING)
    turn = parse(sampled(f"Write {CALL}: ", *pieces, f" {CALL}"))
    assert [call.arguments for call in turn.calls] == [{"s": value}] and turn.failures == ()


def test_marker_letters_do_not_close_marker_token() -> None:
    turn = parse(sampled(OPENING, f"f{pair('s', 'v')}{CLOSING}{CALL}"))
    assert turn.calls == () and [item.failure for item in turn.failures] == [ParseFailure.UNCLOSED]


# --- any text --------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def writable(value: Any) -> bool:
    text = value if isinstance(value, str) else json.dumps(value)
    return not any(word in text for word in WORDS)


strings = (st.text() | st.sampled_from(["1", "true", "None", "{}", "\n", " \n x"])).filter(writable)
arguments_of_f = st.fixed_dictionaries(
    {},
    optional={
        **{"s": strings, "text": strings, "undeclared": strings, "n": st.integers(), "b": st.booleans()},
        **{"x": st.floats(allow_nan=False, allow_infinity=False), "z": st.none(), "u": st.none() | st.just("words")},
        **{"o": st.dictionaries(st.text(), json_values, max_size=3).filter(writable)},
        **{"a": st.lists(json_values, max_size=3).filter(writable)},
    },
)
plain = st.text(alphabet=st.characters(exclude_characters="<\n", exclude_categories=["Cs"]), max_size=10)
tags = [*WORDS, "<arg_key>s</arg_key>", pair("s", "v"), pair("o", "{}"), pair("n", "1"), "<tool_call>f", CALL]
parts = [*"<>=/\n \"'{}[]1,", "f", "s", "true", "None", '{"a": 1}', "<think>", "</think>", "\ud800", "é", "tool_call"]
pieces = st.sampled_from(tags + parts)


@settings(deadline=None)
@given(st.lists(st.tuples(plain, arguments_of_f), max_size=4), st.sampled_from(["", "\n"]))
def test_rendered_calls_are_parsed(written: list[tuple[str, dict[str, Any]]], gap: str) -> None:
    turn = parse("".join(before + call_of("f", arguments, gap) for before, arguments in written))
    assert turn.failures == ()
    assert [repr(call.arguments) for call in turn.calls] == [repr(arguments) for _, arguments in written]
    assert turn.text == "\n".join(before for before, _ in written if before.strip())


@settings(deadline=None, max_examples=examples(200))
@given(st.text() | st.lists(pieces, max_size=25).map("".join), st.booleans())
def test_parse_never_raises(text: str, reasoning_open: bool) -> None:
    parse(text, reasoning_open=reasoning_open)


@settings(deadline=None, max_examples=examples(100))
@given(arguments_of_f, st.data())
def test_damaged_call_is_valid_or_rejected(arguments: dict[str, Any], data: st.DataObject) -> None:
    text = f"{call_of('f', arguments)}\n{CALL}"
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 8)))
        text = text[:start] + data.draw(st.just("") | pieces) + text[end:]
    parse(text)


@pytest.mark.parametrize(
    "unit",
    [
        OPENING,
        OPENING + CLOSING,
        OPENING + "f<arg_key>" + CLOSING,
        OPENING + "f<arg_key>s</arg_key>",
        OPENING + "f<arg_key>s</arg_key><arg_value>" + CLOSING,
        OPENING + "f" + pair("o", "{") + CLOSING,
        OPENING + "f" + pair("a", "[" * 3000) + CLOSING,
        OPENING + "f" + pair("s", "v") * 2 + CLOSING,
        pair("s", "v"),
        CALL,
    ],
    ids=lambda unit: unit[:60],
)
def test_megabyte_is_parsed_in_seconds(unit: str) -> None:
    assert cpu_seconds((unit * (1_000_000 // len(unit) + 1))[:1_000_000]) < SECONDS


@pytest.mark.parametrize(
    "text",
    [
        OPENING + " " * 1_000_000,
        OPENING + "f" * 1_000_000,
        OPENING + " f" * 500_000 + CLOSING,
        OPENING + "f" + "<arg_key>" * 100_000,
        OPENING + "f" + "".join(pair(f"k{n}", "v") for n in range(20_000)),
        OPENING + "f<arg_key>s</arg_key><arg_value>" + "<" * 1_000_000,
        OPENING + "f<arg_key>s</arg_key><arg_value>" + "</arg_value" * 90_000,
        OPENING + "f" + pair("s", "v" * 1_000_000) + CLOSING,
        OPENING + "f" + pair("o", '{"a":' * 200_000) + CLOSING,
        OPENING + "f" + pair("o", '{"a": "' + "é" * 1_000_000 + '"}') + CLOSING,
    ],
    ids=lambda text: text[:60],
)
def test_huge_call_is_parsed_in_seconds(text: str) -> None:
    assert cpu_seconds(text) < SECONDS


def cpu_seconds(text: str) -> float:
    return least_seconds(lambda: GlmToolParser().parse(text, schemas=SCHEMAS))
