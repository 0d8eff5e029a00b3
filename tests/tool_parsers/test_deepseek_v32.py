"""DeepSeek-V3.2 calls: blocks of calls whose values say what they are, and nothing else is a call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strands_sglang.tool_parsers import ParseFailure as Failure
from strands_sglang.tool_parsers.deepseek import DeepSeekV32ToolParser
from support.tool_parsers.checks import Conformance, Format, rows

OPENING, CLOSING = "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"
OPENING_4, CLOSING_4 = "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"
BEGIN, END = '<｜DSML｜invoke name="f">', "</｜DSML｜invoke>"
PARAMETER, PARAMETER_END = '<｜DSML｜parameter name="', "</｜DSML｜parameter>"


def string(key: str, value: str) -> str:
    return f'{PARAMETER}{key}" string="true">{value}{PARAMETER_END}'


def other(key: str, value: str) -> str:
    return f'{PARAMETER}{key}" string="false">{value}{PARAMETER_END}'


INVOKE = f"{BEGIN}\n{string('s', '12*7+3')}\n{END}"
CALL = f"{OPENING}\n{INVOKE}\n{CLOSING}"


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def invoke_of(name: str, arguments: dict[str, Any]) -> str:
    """Write a call as the templates do."""
    parameters = [
        string(key, value) if isinstance(value, str) else other(key, written(value)) for key, value in arguments.items()
    ]
    return "\n".join([f'<｜DSML｜invoke name="{name}">', *parameters, END])


def block(*invokes: str, word: str = "function_calls") -> str:
    return "\n".join([f"<｜DSML｜{word}>", *invokes, f"</｜DSML｜{word}>"])


FORM = Format(DeepSeekV32ToolParser())
parse, failed = FORM.parse, FORM.failed


# --- what is read ----------------------------------------------------------------------------------------------------


def test_calls_of_one_block_share_its_markers() -> None:
    one, two, three = (invoke_of(name, {"s": name}) for name in "fgh")
    text = f"a{block(one, two, three)}b"
    turn = parse(text)
    assert [call.raw for call in turn.calls] == [f"{OPENING}\n{one}", two, f"{three}\n{CLOSING}"]
    assert [call.start for call in turn.calls] == [1, text.index(two), text.index(three)]
    assert [call.arguments["s"] for call in turn.calls] == ["f", "g", "h"] and turn.text == "a\nb"


@pytest.mark.parametrize(
    "text",
    [
        *(f"{OPENING}{BEGIN}{string('s', 'v')}{END}{CLOSING}", f"{OPENING_4}{BEGIN}{string('s', 'v')}{END}{CLOSING_4}"),
        f"{OPENING} \t\r\n{BEGIN}\n\n{string('s', 'v')} {END}\n \n{CLOSING}",
        OPENING + BEGIN + other("s", ' \n\t"v"\r\n') + END + CLOSING,
    ],
)
def test_whitespace_between_tags_is_ignored(text: str) -> None:
    (call,) = parse(text).calls
    assert (call.name, call.arguments, call.raw) == ("f", {"s": "v"}, text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("12", 12), ("1.0", 1.0), ("1e-07", 1e-07), ("true", True), ("null", None), ('"12"', "12"), ("[]", [])),
        ('{\n  "a": [1, null]\n}', {"a": [1, None]}),
        (written(CALL), CALL),
        (written({PARAMETER_END: [END, CLOSING, '\\"']}), {PARAMETER_END: [END, CLOSING, '\\"']}),
    ],
)
def test_other_values_are_json(text: str, value: Any) -> None:
    turn = parse(block(f"{BEGIN}{other('a', text)}{string('s', 'v')}{END}", INVOKE))
    assert [repr(call.arguments) for call in turn.calls] == [repr({"a": value, "s": "v"}), repr({"s": "12*7+3"})]
    assert turn.failures == ()


def test_schemas_have_no_effect() -> None:
    text = block(invoke_of("f", {"s": "1", "n": 1}))
    schemas = {"f": {"properties": {"s": {"type": "integer"}, "n": {"type": "string"}}}}
    (call,) = DeepSeekV32ToolParser().parse(text, schemas=schemas).calls
    assert call.arguments == {"s": "1", "n": 1}


# --- a call that is none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "failure"),
    [
        *rows(Failure.MISSING_NAME, f'<｜DSML｜invoke name="">{END}', f'<｜DSML｜invoke name="f g">{END}'),
        *rows(Failure.MISSING_NAME, f'<｜DSML｜invoke name="f>{END}', f'<｜DSML｜invoke name="f" id="1">{END}'),
        (f'{BEGIN}{PARAMETER}s" string="true">v{END}', Failure.UNCLOSED),
        *rows(Failure.UNCLOSED, f'{BEGIN}{PARAMETER}s" string="true">v{string("n", "1")}{END}', f"{BEGIN}{BEGIN}{END}"),
        *rows(Failure.BAD_ARGUMENTS, f"{BEGIN}hello{END}", f'{BEGIN}{{"s": "v"}}{END}', f"{BEGIN}{PARAMETER_END}{END}"),
        (f"{BEGIN}{string('s', f'a{PARAMETER_END}b')}{END}", Failure.BAD_ARGUMENTS),
        *rows(Failure.BAD_ARGUMENTS, f"{BEGIN}{string('', 'v')}{END}", f"{BEGIN}{string(' s', 'v')}{END}"),
        (f'{BEGIN}{PARAMETER}s">v{PARAMETER_END}{END}', Failure.BAD_ARGUMENTS),
        (f'{BEGIN}{PARAMETER}s" string=true>v{PARAMETER_END}{END}', Failure.BAD_ARGUMENTS),
        (f'{BEGIN}{PARAMETER}s" string="True">v{PARAMETER_END}{END}', Failure.BAD_ARGUMENTS),
        (f'{BEGIN}{PARAMETER}s" string="true" >v{PARAMETER_END}{END}', Failure.BAD_ARGUMENTS),
        (f'{BEGIN}<parameter name="s">v</parameter>{END}', Failure.BAD_ARGUMENTS),
        *(
            (f"{BEGIN}{other('a', value)}{END}", Failure.INVALID_JSON)
            for value in (
                *("", "hello", "True", "NaN", '{"a": 1,}', "{'a': 1}", "[1", '"\\ud800"', "1e999"),
                "[" * 101 + "]" * 101,
            )
        ),
        (f"{BEGIN}{other('a', '{' + written(END + CLOSING) + ': nope}')}{END}", Failure.INVALID_JSON),
        (f"{BEGIN}" + string("s", "\ud800") + END, Failure.INVALID_JSON),
        *rows(Failure.TRAILING_TEXT, f"{BEGIN}{other('a', '1 2')}{END}", f"{BEGIN}{other('a', '{}}')}{END}"),
        (f"{BEGIN}{other('a', '01')}{END}", Failure.TRAILING_TEXT),
        (f'{BEGIN}{PARAMETER}a" string="false">1 {END}', Failure.UNCLOSED),
        (f'{BEGIN}{PARAMETER}a" string="false">1{string("s", "v")}{END}', Failure.UNCLOSED),
        (f"{BEGIN}" + other("a", '[{"a": 1, "a": 1}]') + END, Failure.DUPLICATE_KEY),
        (f"{BEGIN}{string('s', 'v')}{other('s', '1')}{END}", Failure.DUPLICATE_KEY),
    ],
    ids=lambda value: value[:60].encode("unicode_escape").decode() if isinstance(value, str) else None,
)
def test_malformed_call_does_not_affect_rest_of_block(raw: str, failure: Failure) -> None:
    text = f"a{OPENING}{raw}{CLOSING}b{block(INVOKE, raw, INVOKE)}c{CALL}"
    turn = parse(text)
    assert [item.failure for item in turn.failures] == [failure, failure]
    assert [item.raw for item in turn.failures] == [f"{OPENING}{raw}{CLOSING}", raw]
    assert [item.start for item in turn.failures] == [1, text.index(raw, len(raw) + 40)]
    assert [call.raw for call in turn.calls] == [f"{OPENING}\n{INVOKE}", f"{INVOKE}\n{CLOSING}", CALL]
    assert turn.text == "a\nb\nc"


def test_unclosed_json_string_includes_markers_after_it() -> None:
    """It runs into the next call: whose text that is cannot be told, so nothing of it is executed."""
    text = f'{OPENING}{BEGIN}{PARAMETER}a" string="false">"open{PARAMETER_END}{END}{INVOKE}{CLOSING}{CALL}'
    turn = parse(text)
    assert [item.raw + CALL for item in turn.failures] == [text] and [call.raw for call in turn.calls] == [CALL]


def test_unclosed_last_call_of_block_fails_alone() -> None:
    """The block's own marker ends it, and that is certain."""
    for cut in (BEGIN, f'{BEGIN}{PARAMETER}s" string="true">v', BEGIN[:-2], f'{BEGIN}{PARAMETER}a" string="false">[1'):
        turn = parse(f"{OPENING}{INVOKE}{cut}{CLOSING}")
        assert [call.raw for call in turn.calls] == [OPENING + INVOKE]
        assert [item.raw for item in turn.failures] == [cut + CLOSING]


# --- a block that is none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "failure"),
    [
        *rows(Failure.MISSING_NAME, "", "hello", f"hello {INVOKE}", '{"name": "f", "arguments": {}}'),
        ('<invoke name="f"></invoke>', Failure.MISSING_NAME),
        *rows(Failure.TRAILING_TEXT, f"{INVOKE}x", f"{INVOKE} and {INVOKE}", f"{INVOKE}{END}"),
        (f"{BEGIN}{other('a', written(CLOSING))}{END}x", Failure.TRAILING_TEXT),
        *rows(Failure.UNCLOSED, f"{INVOKE}{OPENING}{INVOKE}", f"{INVOKE}{OPENING_4}{INVOKE}"),
        (f'{BEGIN}{PARAMETER}s" string="true">{INVOKE} x{PARAMETER_END}{END}', Failure.UNCLOSED),
        (f'{BEGIN}{PARAMETER}s" string="true">{INVOKE}{INVOKE}{PARAMETER_END}{END}', Failure.UNCLOSED),
        (f"{INVOKE}{BEGIN}{string('s', END)}{END}", Failure.UNCLOSED),
    ],
)
def test_malformed_block_has_no_calls(inside: str, failure: Failure) -> None:
    raw = f"{OPENING}{inside}{CLOSING}"
    FORM.check_malformed(raw, failure, CALL)


@pytest.mark.parametrize(("opening", "closing"), [(OPENING, CLOSING_4), (OPENING_4, CLOSING)])
def test_block_is_closed_by_matching_marker(opening: str, closing: str) -> None:
    for inside in (INVOKE, INVOKE * 2, BEGIN):
        turn = parse(f"{opening}{inside}{closing}{CALL}")
        assert [call.raw for call in turn.calls] == [CALL]
        assert [(item.raw, item.failure) for item in turn.failures] == [
            (f"{opening}{inside}{closing}", Failure.UNCLOSED)
        ]
    assert f"must be closed with </{opening[1:]}, not with {closing}" in failed(f"{opening}{INVOKE}{closing}").detail


# --- the block is missing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "raw", "after"),
    [
        *(("", INVOKE, ""), ("I will.\n", INVOKE, "\nSo."), ("\n", f"{INVOKE}\n{CLOSING}", CLOSING)),
        ("\n", f"{INVOKE}\n{CLOSING_4}", ""),
        ("", f'{BEGIN}{PARAMETER}s" string="true">v', ""),
    ],
)
def test_call_outside_of_block_is_misplaced(before: str, raw: str, after: str) -> None:
    failure = failed(before + raw + after)
    assert (failure.failure, failure.raw, failure.start) == (Failure.MISPLACED, raw, len(before))
    assert failure.name == "f" and f"between {OPENING} or {OPENING_4} and its closing marker" in failure.detail


class TestDeepSeekV32(Conformance):
    forms = [FORM]
    remaining = [
        *rows("", "", CALL),
        (f"before{block(INVOKE, INVOKE, INVOKE, word='tool_calls')}after", "before\nafter"),
        (f"a {CLOSING}{CALL}", f"a {CLOSING}"),
        (f"a {PARAMETER_END}{END}{CALL}", f"a {PARAMETER_END}{END}"),
        *((f"a\n{OPENING}{{}}{CLOSING}", "a"), (f"a {INVOKE}", f"a {INVOKE}"), (f"a\n{INVOKE}\nb", "a\nb")),
    ]
    details = [
        (f"{OPENING}{inside}{CLOSING}", *rest)
        for inside, *rest in [
            ("", 'there is no call, <｜DSML｜invoke name="…, at', None),
            (f"{INVOKE}x", f"Between {END} and {CLOSING} there must be only further calls, at character", "f"),
            (
                f"{BEGIN}{other('a', 'x')}{END}",
                "'a' must be JSON, as string=\"false\" says. The JSON is not valid",
                "f",
            ),
            (
                f"{BEGIN}{other('a', '1 2')}{END}",
                f"of parameter 'a' (string=\"false\") there must be {PARAMETER_END}",
                "f",
            ),
            (f'{BEGIN}{PARAMETER}a" string="no">{END}', '\'a\' must say string="true" or string="false", at', "f"),
            (f'{BEGIN}{PARAMETER}a">{END}', f'{PARAMETER} must be followed by a name and " string=", at', "f"),
        ]
    ]
