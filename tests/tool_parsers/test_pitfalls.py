"""Ways in which tool calls were seen to go wrong, each for every parser it can happen to.

A call here is written by hand, with a place for its arguments: `BODY` for formats in which they are one JSON object,
`VALUE` for formats that write each value bare.
"""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang.tool_parsers import ParsedTurn, get_tool_parser, tool_parser_names
from strands_sglang.tool_parsers import ParseFailure as Failure
from support.tool_parsers.checks import rows, shown

JSON = {
    "hermes": '<tool_call>\n{"name": "t", "arguments": BODY}\n</tool_call>',
    "llama3_json": '{"name": "t", "parameters": BODY}',
    "mistral": "[TOOL_CALLS]t[ARGS]BODY",
    "phi4": '<|tool_call|>[{"name": "t", "arguments": BODY}]<|/tool_call|>',
    "nemotron": '<TOOLCALL>[{"name": "t", "arguments": BODY}]</TOOLCALL>',
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>t\n```json\nBODY\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>t<｜tool▁sep｜>BODY<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.t:0<|tool_call_argument_begin|>BODY<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    ),
    "harmony": "<|channel|>commentary to=functions.t <|constrain|>json<|message|>BODY<|call|>",
}
"""Formats whose arguments are one JSON object."""
BARE = {
    "qwen3_coder": (
        "<tool_call>\n<function=t>\n<parameter=a>\nVALUE\n</parameter>\n<parameter=b>\nx\n</parameter>\n</function>\n"
        "</tool_call>"
    ),
    "glm": (
        "<tool_call>t\n<arg_key>a</arg_key>\n<arg_value>VALUE</arg_value>\n"
        "<arg_key>b</arg_key>\n<arg_value>x</arg_value>\n"
        "</tool_call>"
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="t">\n'
        '<parameter name="a">VALUE</parameter>\n<parameter name="b">x</parameter>\n'
        "</invoke>\n</minimax:tool_call>"
    ),
    "deepseek_v32": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="t">\n'
        '<｜DSML｜parameter name="a" string="true">VALUE</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="b" string="true">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    ),
}
"""Formats that write every value bare."""
LITERAL = {
    "pythonic": '[t(a="VALUE", b="x")]',
    "gemma": '<|tool_call>call:t{a:<|"|>VALUE<|"|>,b:<|"|>x<|"|>}<tool_call|>',
}
"""Formats with literals of their own."""
CLOSING = {
    "hermes": "\n</tool_call>",
    "phi4": "<|/tool_call|>",
    "nemotron": "</TOOLCALL>",
    "deepseek_v3": "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi_k2": "<|tool_call_end|><|tool_calls_section_end|>",
    "harmony": "<|call|>",
    "llama3_json": "}",
    "qwen3_coder": "\n</function>\n</tool_call>",
    "glm": "\n</tool_call>",
    "minimax_m2": "\n</invoke>\n</minimax:tool_call>",
    "deepseek_v32": "\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "pythonic": ")]",
    "gemma": "<tool_call|>",
    "mistral": "}",
}
"""How a call of each format ends."""
PARAMETER_END = {
    "qwen3_coder": "\n</parameter>",
    "glm": "</arg_value>",
    "minimax_m2": "</parameter>",
    "deepseek_v32": "</｜DSML｜parameter>",
}
SCHEMAS = {"t": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}}
EVERY = sorted({*JSON, *BARE, *LITERAL})


def good(name: str, value: str = "v") -> str:
    """Return a well-formed call of a format, with a value that needs no quoting."""
    if name in JSON:
        return JSON[name].replace("BODY", f'{{"a": "{value}", "b": "x"}}')
    return (BARE.get(name) or LITERAL[name]).replace("VALUE", value)


def parse(name: str, text: str, *, reasoning_open: bool = False) -> ParsedTurn:
    return get_tool_parser(name).parse(text, reasoning_open=reasoning_open, schemas=SCHEMAS)


def no_call(turn: ParsedTurn) -> bool:
    """Return whether nothing would run, and that is not silent."""
    return not turn.calls and bool(turn.failures)


def test_every_parser_has_samples() -> None:
    assert set(EVERY) == set(tool_parser_names()) and set(CLOSING) == set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_samples_are_well_formed(name: str) -> None:
    (call,) = parse(name, good(name)).calls
    assert (call.name, call.arguments) == ("t", {"a": "v", "b": "x"})


@pytest.mark.parametrize("name", sorted(JSON))
@pytest.mark.parametrize(
    ("body", "failure"),
    [
        *rows(
            Failure.INVALID_JSON, '{"a": "v",}', '{"a": "v", }', '{"a": 1,, "b": 2}', "{,}", "{'a': 'v'}", '{"a": v}'
        ),
        *rows(Failure.INVALID_JSON, "{a: 1}", '{"a": "x\ny"}', '{"a": "\\x"}', '{"a": 01}', '{"a": NaN}', "f(1)", ""),
        *rows(
            Failure.INVALID_JSON, '{"a": -Infinity}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"\\udfff": 1}', "\u00a0{}"
        ),
        *rows(
            Failure.INVALID_JSON, '{"a": "\ud800"}', '{"a": ' + "1" * 4301 + "}", '{"a": ' + "[" * 100 + "]" * 100 + "}"
        ),
        *rows(Failure.INVALID_JSON, '{"a": ' + "[" * 50_000 + "]" * 50_000 + "}", "```json\n{}\n```"),
        *rows(Failure.DUPLICATE_KEY, '{"a": 1, "a": 1}', '{"a": [{"b": 1, "b": 1}]}'),
        *rows(Failure.BAD_ARGUMENTS, '"{}"', '"{\\"a\\": 1}"', "[]", '[{"a": 1}]', "null", "0", "true", "false", '""'),
    ],
    ids=shown,
)
def test_arguments_that_are_no_object_fail(name: str, body: str, failure: Failure) -> None:
    turn = parse(name, JSON[name].replace("BODY", body))
    assert no_call(turn) and turn.failures[0].failure is (failure if body or name != "mistral" else Failure.UNCLOSED)


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "phi4", "nemotron"])
def test_call_without_arguments_key_fails(name: str) -> None:
    key = "parameters" if name == "llama3_json" else "arguments"
    assert no_call(parse(name, JSON[name].replace(f', "{key}": BODY', "")))


@pytest.mark.parametrize("name", EVERY)
def test_prefix_of_call_is_not_a_call(name: str) -> None:
    """Wherever a turn is cut, nothing runs, but for sections whose call has its own end behind it already."""
    whole = good(name)
    assert whole.endswith(CLOSING[name]) and no_call(parse(name, whole.removesuffix(CLOSING[name])))
    sections = {"deepseek_v3", "deepseek_v31", "kimi_k2"}
    for end in range(len(whole)):
        turn = parse(name, whole[:end])
        if turn.calls:
            assert name in sections and turn.calls[0].arguments == {"a": "v", "b": "x"}


@pytest.mark.parametrize("name", sorted(BARE))
def test_closing_marker_inside_bare_value_fails(name: str) -> None:
    for marker in (CLOSING[name], PARAMETER_END[name]):
        assert no_call(parse(name, good(name, f"a{marker}b")))


@pytest.mark.parametrize("name", sorted(BARE))
@pytest.mark.parametrize(
    "value", ["123", "-1.50", "1e5", "true", "True", "null", "None", "[]", '{"a": 1}', '"q"', " 7 "]
)
def test_string_parameter_is_a_string(name: str, value: str) -> None:
    (call,) = parse(name, good(name, value)).calls
    assert call.arguments["a"] == value


@pytest.mark.parametrize("name", sorted(BARE))
@pytest.mark.parametrize(
    "value",
    [
        *("", "\n", "\n\n", "  x  ", "\n  x\n", "\tx\r\n", "é😀\u2028", "&lt;<b>", "<think>x</think>", "</param"),
        *("    indented = 1\n    more = 2", "\n  after an empty line\n", "  ", "\ttab", "x = 1  ", "a\r\nb"),
        "def f():\n\treturn 1",
    ],
)
def test_whitespace_of_value_is_kept(name: str, value: str) -> None:
    (call,) = parse(name, good(name, value)).calls
    assert call.arguments["a"] == value


@pytest.mark.parametrize("name", ["qwen3_coder", "glm", "minimax_m2"])
@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *(
            *(("integer", "12", 12), ("integer", "\n12\n", 12), ("integer", "twelve", "twelve")),
            ("number", "1e-07", 1e-07),
        ),
        *(("boolean", "True", True), ("boolean", "false", False), ("null", "None", None), ("null", "null", None)),
        *((["string", "null"], "null", None), (["string", "null"], "nothing", "nothing")),
        *(("object", '{\n  "a": [1, null]\n}', {"a": [1, None]}), ("array", '\n["\\u003c"]\n', ["<"])),
    ],
)
def test_other_values_are_typed_by_the_schema(name: str, kind: Any, text: str, value: Any) -> None:
    parser, typed = get_tool_parser(name), {"t": {"type": "object", "properties": {"a": {"type": kind}}}}
    (call,) = parser.parse(good(name, text), schemas=typed).calls
    assert repr(call.arguments) == repr({"a": value, "b": "x"})
    for schemas in (None, {}, {"other": typed["t"]}, SCHEMAS):
        (call,) = parser.parse(good(name, text), schemas=schemas).calls
        assert call.arguments == {"a": text, "b": "x"}


@pytest.mark.parametrize("name", sorted(BARE))
def test_unclosed_parameter_fails(name: str) -> None:
    assert no_call(parse(name, good(name).replace(PARAMETER_END[name], "", 1)))
    last = PARAMETER_END[name].join(good(name).rsplit(PARAMETER_END[name], 1)[:1]) + CLOSING[name]
    assert no_call(parse(name, last))


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"llama3_json", "harmony", "pythonic"}))
def test_valid_calls_next_to_malformed_call_are_parsed(name: str) -> None:
    """Where the format has several calls in a turn, one that fails takes no other with it; a Python list is one."""
    whole = good(name)
    if name in ("phi4", "nemotron"):
        inner = whole[whole.index("[") + 1 : whole.rindex("]")]
        text = whole.replace(inner, f'{inner}, {{"name": "t", "arguments": 1}}, {inner}')
    elif name in JSON:
        text = f"{whole}\n{JSON[name].replace('BODY', '[]')}\n{whole}"
    elif name == "gemma":
        text = f"{whole}<|tool_call>call:t{{a:nope}}<tool_call|>{whole}"
    else:
        text = f"{whole}\n{whole.replace(PARAMETER_END[name], '', 1)}\n{whole}"
    turn = parse(name, text)
    assert turn.failures
    assert [call.arguments for call in turn.calls] == [{"a": "v", "b": "x"}] * 2
