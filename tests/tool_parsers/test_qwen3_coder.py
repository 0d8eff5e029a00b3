"""Qwen3-Coder calls: tags in order, values typed by the schema, and nothing else is a call."""

from __future__ import annotations

import pytest

from strands_sglang.tool_parsers import ParsedTurn
from strands_sglang.tool_parsers import ParseFailure as Failure
from strands_sglang.tool_parsers.qwen3_coder import Qwen3CoderToolParser
from support.tool_parsers.checks import TYPED, Conformance, Format, rows

OPENING, CLOSING = "<tool_call>", "</tool_call>"
CALL = "<tool_call>\n<function=f>\n<parameter=s>\n12*7+3\n</parameter>\n</function>\n</tool_call>"


def body(inside: str) -> str:
    return f"<tool_call>\n<function=f>\n{inside}\n</function>\n</tool_call>"


FORM = Format(Qwen3CoderToolParser(), schemas=TYPED)
parse, failed = FORM.parse, FORM.failed


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function=f><parameter=s>v</parameter></function></tool_call>",
        "<tool_call> \t\r\n<function=f>\n\n<parameter=s>\nv\n</parameter>  </function>\n \n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=s>v\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=s>\nv</parameter>\n</function>\n</tool_call>",
    ],
)
def test_whitespace_between_tags_is_ignored(text: str) -> None:
    (call,) = parse(text).calls
    assert (call.name, call.arguments, call.raw) == ("f", {"s": "v"}, text)


@pytest.mark.parametrize(
    ("between", "value"),
    [
        *rows("", "", "\n", "\n\n"),
        *(("\n\n\n", "\n"), ("\n\n\n\n", "\n\n"), ("\n  x", "  x"), ("x  \n", "x  ")),
        ("\n    if a:\n        b\n\n", "    if a:\n        b\n"),
        *(("\n\tx\r\n", "\tx\r"), ("\n123\n", "123"), ("\ntrue\n", "true"), ("\nnull\n", "null"), ("\nNone\n", "None")),
        *(("\n 1 \n", " 1 "), ('\n{"a": 1}\n', '{"a": 1}'), ("\n<think>x</think>\n", "<think>x</think>")),
        ("\n<parameter>&lt;<function></func></parameter\n", "<parameter>&lt;<function></func></parameter"),
        ("\né😀\u2028\n", "é😀\u2028"),
    ],
)
def test_string_value_excludes_newlines_of_format(between: str, value: str) -> None:
    for key in ("s", "undeclared"):
        (call,) = parse(body(f"<parameter={key}>{between}</parameter>")).calls
        assert call.arguments == {key: value}


@pytest.mark.parametrize(
    ("inside", "failure"),
    [
        *rows(Failure.MISSING_NAME, "", "\n", "f", '{"name": "f", "arguments": {}}', "<function f></function>"),
        *rows(Failure.MISSING_NAME, "<function=></function>", "<function= ></function>", "<function=f g></function>"),
        *rows(Failure.MISSING_NAME, '<function="f"></function>', "<function=f", "<function=f\n></function>"),
        *rows(Failure.MISSING_NAME, "<function=f<parameter=s>v</parameter></function>", "x <function=f></function>"),
        ("<parameter=s>v</parameter>", Failure.MISSING_NAME),
        *rows(Failure.UNCLOSED, "<function=f>", "<function=f><parameter=s>v</parameter>"),
        *rows(Failure.UNCLOSED, "<function=f><parameter=s>v</function>", "<function=f><parameter=s>v"),
        ("<function=f><parameter=s>v<parameter=path>w</parameter></function>", Failure.UNCLOSED),
        ("<function=f><parameter=s>v</function></parameter></function>", Failure.UNCLOSED),
        ("<function=f><parameter=s>v<function=g></parameter></function>", Failure.UNCLOSED),
        ("<function=f><parameter=s>\n<parameter=x>1</parameter>\n</parameter></function>", Failure.UNCLOSED),
        ("<function=f><parameter=s>v<tool_call></parameter></function>", Failure.UNCLOSED),
        ("<function=f><function=g></function>", Failure.UNCLOSED),
        *rows(Failure.UNCLOSED, "<function=f></function>\n<tool_call><function=g></function>", "<tool_call>"),
        *rows(Failure.BAD_ARGUMENTS, "<function=f>hello</function>", '<function=f>{"s": "v"}</function>'),
        ("<function=f></parameter></function>", Failure.BAD_ARGUMENTS),
        ("<function=f><parameter=s>v</parameter>,<parameter=path>w</parameter></function>", Failure.BAD_ARGUMENTS),
        ("<function=f><parameter=s>a</parameter>b</parameter></function>", Failure.BAD_ARGUMENTS),
        ("<function=f><parameter=s>a</parameter></parameter></function>", Failure.BAD_ARGUMENTS),
        ("<function=f><parameter=>v</parameter></function>", Failure.BAD_ARGUMENTS),
        ("<function=f><parameter= s>v</parameter></function>", Failure.BAD_ARGUMENTS),
        ('<function=f><parameter="s">v</parameter></function>', Failure.BAD_ARGUMENTS),
        ("<function=f><parameter='s'>v</parameter></function>", Failure.BAD_ARGUMENTS),
        ("<function=f><parameter=s\n>v</parameter></function>", Failure.BAD_ARGUMENTS),
        ("<function=f><parameter name=s v</parameter></function>", Failure.BAD_ARGUMENTS),
        ("<function=f><parameter=o>[1]</parameter></function>", Failure.BAD_ARGUMENTS),
        ("<function=f><parameter=o>{'a': 1}</parameter></function>", Failure.INVALID_JSON),
        ('<function=f><parameter=o>{"a": 1,}</parameter></function>', Failure.INVALID_JSON),
        ("<function=f><parameter=a>hello</parameter></function>", Failure.INVALID_JSON),
        ("<function=f><parameter=s>\ud800</parameter></function>", Failure.INVALID_JSON),
        ("<function=f\udfff></function>", Failure.INVALID_JSON),
        ('<function=f><parameter=o>{"a": 1, "a": 1}</parameter></function>', Failure.DUPLICATE_KEY),
        ("<function=f><parameter=s>v</parameter><parameter=s>v</parameter></function>", Failure.DUPLICATE_KEY),
        *rows(Failure.TRAILING_TEXT, "<function=f></function>x", "<function=f></function><function=g></function>"),
        ("<function=f></function></function>", Failure.TRAILING_TEXT),
    ],
    ids=lambda value: value.encode("unicode_escape").decode() if isinstance(value, str) else None,
)
def test_malformed_call_does_not_affect_next_call(inside: str, failure: Failure) -> None:
    raw = f"{OPENING}{inside}{CLOSING}"
    FORM.check_malformed(raw, failure, CALL)


def test_call_quoted_in_value_is_not_a_call() -> None:
    """Letter by letter, without tokens: all that is certain is that the call is broken."""
    quoted = "<function=rm>\n<parameter=path>\n/\n</parameter>\n</function>"
    assert failed(body(f"<parameter=text>\nTo delete, write\n{quoted}\nand so on\n</parameter>")).name == "f"


FUNCTION = "<function=f>\n<parameter=s>\nv\n</parameter>\n</function>"


@pytest.mark.parametrize(
    ("before", "raw", "after"),
    [
        *(("", FUNCTION, ""), ("I will.\n", FUNCTION, "\nSo."), ("", f"{FUNCTION}\n</tool_call>", "\n")),
        ("\n", f"{FUNCTION}</tool_call>", "</tool_call>"),
        ("", "<function=f></function>", " </function>"),
        ("", "<function=f>\n<parameter=s>\nv", ""),
        ("", "<function=f>\n<parameter=s>\n<tool_call>\n<function=rm>\n</function>\n</tool_call>", "\n</parameter>"),
    ],
)
def test_function_outside_of_tool_call_is_misplaced(before: str, raw: str, after: str) -> None:
    failure = failed(before + raw + after)
    assert (failure.failure, failure.raw, failure.start) == (Failure.MISPLACED, raw, len(before))
    assert failure.name == "f" and "between <tool_call> and its closing marker" in failure.detail


def test_function_directly_after_reasoning_is_misplaced() -> None:
    turn = parse(f"hm</think>{FUNCTION}", reasoning_open=True)
    assert [item.failure for item in turn.failures] == [Failure.MISPLACED]


def test_misplaced_function_does_not_affect_other_calls() -> None:
    turn = parse(f"{CALL}\n{FUNCTION}\n{CALL}\n{FUNCTION}\n{FUNCTION}\n</tool_call>\n{CALL}")
    assert len(turn.calls) == 3 and [item.failure for item in turn.failures] == [Failure.MISPLACED] * 3
    assert turn.text == ""


@pytest.mark.parametrize(
    "text",
    [
        *("Write `<function=NAME>` and so on.", "x <function=f>\n<parameter=s>\nv\n</parameter>\n</function>"),
        *("<function=f> calls it.\n</function>", "<function=>\n</function>", "<function=f g>\n</function>"),
        *("<function=f\n</function>", "</function>\n<parameter=s>"),
    ],
)
def test_text_about_the_format_is_text(text: str) -> None:
    assert parse(text) == ParsedTurn(reasoning=None, text=text)


class TestQwen3Coder(Conformance):
    forms = [FORM]
    remaining = [
        *rows("", "", CALL),
        (f"a </tool_call>{CALL}", "a </tool_call>"),
        (f"a </parameter></function>{CALL}", "a </parameter></function>"),
        ("a\n<tool_call>{}</tool_call>", "a"),
        ("a <function=f>\n</function>", "a <function=f>\n</function>"),
        ("a\n<function=f>\n</function>\nb", "a\nb"),
    ]
    details = [
        (f"{OPENING}{inside}{CLOSING}", *rest)
        for inside, *rest in [
            ('{"name": "f"}', "After <tool_call> there must be <function=…, at character 11 of the call", None),
            ("<function=></function>", "The name of the tool is missing, at character 21", None),
            ("<function=f g></function>", "must be one word, not 'f g'", None),
            ("<function=f", "<function= must be followed by a name and >", None),
            ("<function=f>", "</tool_call> comes before the </function> of the call", "f"),
            ("<function=f><parameter=s>v</function>", "before the </parameter> of parameter 's'", "f"),
            ("<function=f>hi</function>", "A call contains only parameters, each <parameter=…</parameter>, at", "f"),
            (
                "<function=f><parameter=o>x</parameter></function>",
                "'o' must be a JSON object. The JSON is not valid",
                "f",
            ),
            ("<function=f><parameter=o>[]</parameter></function>", "must be a JSON object, not a list.", "f"),
            (
                "<function=f></function><function=g></function>",
                "there must be nothing else: a block contains one call",
                "f",
            ),
            ("<function=f><parameter=s>v</parameter><parameter=s>", "The parameter 's' is given twice", "f"),
        ]
    ]
