"""GLM calls: a name, keys and values between tags, values typed by the schema, and nothing else is a call."""

from __future__ import annotations

import pytest

from strands_sglang.tool_parsers import ParseFailure as Failure
from strands_sglang.tool_parsers.glm import GlmToolParser
from support.tool_parsers.checks import TYPED, Conformance, Format, rows

OPENING, CLOSING = "<tool_call>", "</tool_call>"


CALL = "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>12*7+3</arg_value>\n</tool_call>"


def pair(key: str, value: str) -> str:
    return f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"


FORM = Format(GlmToolParser(), schemas=TYPED)
parse, failed = FORM.parse, FORM.failed


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


class TestGlm(Conformance):
    forms = [FORM]
    remaining = [
        *rows("", "", CALL),
        (f"a </tool_call>{CALL}", "a </tool_call>"),
        (f"a <arg_key>k</arg_key>{CALL}", "a <arg_key>k</arg_key>"),
        ("a\n<tool_call>{}</tool_call>", "a"),
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
