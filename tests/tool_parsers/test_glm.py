"""GLM calls: a name, keys and values between tags, values typed by the schema, and nothing else is a call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import strategies as st

from strands_sglang.tool_parsers import ParseFailure as Failure
from strands_sglang.tool_parsers import SampledText
from strands_sglang.tool_parsers.glm import GlmToolParser
from support.families import tokenizer
from support.tool_parsers.checks import Conformance, Format, rows

OPENING, CLOSING = "<tool_call>", "</tool_call>"
WORDS = (OPENING, CLOSING, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
PROPERTIES: dict[str, Any] = {
    **{key: {"type": "string"} for key in ("s", "path", "text")},
    **{"n": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"}, "z": {"type": "null"}},
    **{"o": {"type": "object"}, "a": {"type": "array"}, "u": {"type": ["string", "null"]}},
}
SCHEMAS = {"f": {"type": "object", "properties": PROPERTIES}}
CALL = "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>12*7+3</arg_value>\n</tool_call>"


def call_of(name: str, arguments: dict[str, Any], gap: str = "\n") -> str:
    """Write a call as the templates do: GLM-4.7 with no gap."""
    written = f"<tool_call>{name}{gap}"
    for key, value in arguments.items():
        value = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        written += f"<arg_key>{key}</arg_key>{gap}<arg_value>{value}</arg_value>{gap}"
    return f"{written}</tool_call>"


def pair(key: str, value: str) -> str:
    return f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"


FORM = Format(GlmToolParser(), schemas=SCHEMAS)
parse, failed = FORM.parse, FORM.failed


# --- what is read ----------------------------------------------------------------------------------------------------


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
        *rows(("null", None), "z", "u"),
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


# --- what is none ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "failure"),
    [
        *rows(Failure.MISSING_NAME, "", " \n", pair("s", "v"), '{"name": "f", "arguments": {}}', "{}", "I will call f"),
        *rows(Failure.MISSING_NAME, "f\ng", '"f"', "<function=f>", 'f {"s": "v"}'),
        *rows(Failure.UNCLOSED, "f<arg_key>s</arg_key>", "f<arg_key>s", "f<arg_key>s</arg_key><arg_value>v"),
        ("f<arg_key>s<arg_value>v</arg_value>", Failure.UNCLOSED),
        *rows(Failure.UNCLOSED, f"f<arg_key>s</arg_key><arg_value>v{pair('n', '1')}", f"f{pair('s', '<arg_value>')}"),
        *rows(Failure.UNCLOSED, f"f{pair('s', 'a</arg_key>b')}", f"f{pair('s', 'a<tool_call>b')}"),
        *rows(Failure.UNCLOSED, f"f{pair('a<arg_key>b', 'v')}", f"f{pair('s', 'v')}<tool_call>g", "f<tool_call>g"),
        *rows(Failure.BAD_ARGUMENTS, "f<arg_value>v</arg_value>", "f</arg_key>"),
        ("f<arg_key>s</arg_key><arg_key>n</arg_key><arg_value>v</arg_value>", Failure.BAD_ARGUMENTS),
        *rows(Failure.BAD_ARGUMENTS, f"f{pair('s', 'v')}</arg_value>", f"f{pair('s', 'v')}, {pair('n', '1')}"),
        *rows(Failure.BAD_ARGUMENTS, "f<arg_key>s</arg_key>:<arg_value>v</arg_value>", f"f{pair('s', 'v')}x"),
        *rows(Failure.BAD_ARGUMENTS, f"f{pair('s', 'a</arg_value>b')}", f"f{pair('', 'v')}", f"f{pair(' ', 'v')}"),
        *rows(Failure.BAD_ARGUMENTS, f"f{pair(' s', 'v')}", f"f{pair('s' + chr(10), 'v')}", f"f{pair('<s>', 'v')}"),
        *rows(Failure.BAD_ARGUMENTS, "f" + pair('"s"', "v"), f"f{pair('o', '[1]')}"),
        *rows(Failure.INVALID_JSON, "f" + pair("o", "{'a': 1}"), "f" + pair("o", '{"a": 1,}')),
        *rows(Failure.INVALID_JSON, f"f{pair('a', 'hello')}", "f" + pair("s", "\ud800"), "f\udfff"),
        *rows(Failure.DUPLICATE_KEY, "f" + pair("o", '{"a": 1, "a": 1}'), f"f{pair('s', 'v')}{pair('s', 'v')}"),
    ],
    ids=lambda value: value.encode("unicode_escape").decode() if isinstance(value, str) else None,
)
def test_malformed_call_does_not_affect_next_call(inside: str, failure: Failure) -> None:
    raw = f"{OPENING}{inside}{CLOSING}"
    FORM.check_malformed(raw, failure, CALL)


FULL = call_of("f", {"s": "  é\n", "n": 1, "o": {"a": ['</x> "', None]}, "b": True})


def test_truncated_call_is_unclosed() -> None:
    for whole in (FULL, FULL.replace("\n", "")):
        for length in range(len(OPENING), len(whole)):
            failure = failed("x\n" + whole[:length])
            assert failure.failure is Failure.UNCLOSED and failure.raw == whole[:length]
            assert "<tool_call> is not closed with </tool_call>" in failure.detail
            assert failure.name == ("f" if "<arg_key>" in failure.raw else None)


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
    assert turn.calls == () and [item.failure for item in turn.failures] == [Failure.UNCLOSED]


# --- any text --------------------------------------------------------------------------------------------------------


tags = [*WORDS, "<arg_key>s</arg_key>", pair("s", "v"), pair("o", "{}"), pair("n", "1"), "<tool_call>f", CALL]
parts = [*"<>=/\n \"'{}[]1,", "f", "s", "true", "None", '{"a": 1}', "<think>", "</think>", "\ud800", "é", "tool_call"]
pieces = st.sampled_from(tags + parts)


class TestGlm(Conformance):
    forms = [FORM]
    remaining = [
        *rows("", "", CALL),
        ("\n hello \n", "\n hello \n"),
        (f"before\n\n{CALL}\n{CALL}\nafter", "before\nafter"),
        (f"a{CALL}b{CALL}c", "a\nb\nc"),
        (f"a </tool_call>{CALL}", "a </tool_call>"),
        (f"a <arg_key>k</arg_key>{CALL}", "a <arg_key>k</arg_key>"),
        ("a\n<tool_call>{}</tool_call>", "a"),
        ("a <tool_call", "a <tool_call"),
    ]
    details = [
        (f"{OPENING}{inside}{CLOSING}", *rest)
        for inside, *rest in [
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
        ]
    ]
    units = [
        *(OPENING, OPENING + CLOSING, OPENING + "f<arg_key>" + CLOSING, OPENING + "f<arg_key>s</arg_key>"),
        *(OPENING + "f<arg_key>s</arg_key><arg_value>" + CLOSING, OPENING + "f" + pair("o", "{") + CLOSING),
        *(OPENING + "f" + pair("a", "[" * 3000) + CLOSING, OPENING + "f" + pair("s", "v") * 2 + CLOSING),
        pair("s", "v"),
        CALL,
    ]
    huge = [
        *(OPENING + " " * 1_000_000, OPENING + "f" * 1_000_000, OPENING + " f" * 500_000 + CLOSING),
        *(OPENING + "f" + "<arg_key>" * 100_000, OPENING + "f" + "".join(pair(f"k{n}", "v") for n in range(20_000))),
        OPENING + "f<arg_key>s</arg_key><arg_value>" + "<" * 1_000_000,
        OPENING + "f<arg_key>s</arg_key><arg_value>" + "</arg_value" * 90_000,
        *(OPENING + "f" + pair("s", "v" * 1_000_000) + CLOSING, OPENING + "f" + pair("o", '{"a":' * 200_000) + CLOSING),
        OPENING + "f" + pair("o", '{"a": "' + "é" * 1_000_000 + '"}') + CLOSING,
    ]
