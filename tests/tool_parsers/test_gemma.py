"""Calls of FunctionGemma and Gemma 4: what is well-formed is read exactly, and nothing else is a call."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from strands_sglang.tool_parsers import ParsedTurn
from strands_sglang.tool_parsers import ParseFailure as Failure
from strands_sglang.tool_parsers.gemma import GemmaToolParser
from support.tool_parsers.checks import Conformance, Format, rows, same


class Dialect(NamedTuple):
    opening: str
    closing: str
    mark: str

    def string(self, text: str) -> str:
        return f"{self.mark}{text}{self.mark}"

    def raw(self, body: str) -> str:
        return f"{self.opening}{body}{self.closing}"

    def value(self, value: Any) -> str:
        """Write a value as the chat templates do."""
        if isinstance(value, str):
            return self.string(value)
        if isinstance(value, dict):
            return f"{{{','.join(f'{key}:{self.value(value[key])}' for key in sorted(value))}}}"
        if isinstance(value, list):
            return f"[{','.join(map(self.value, value))}]"
        return json.dumps(value)

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        return self.raw(f"call:{name}{self.value(arguments)}")


FUNCTION_GEMMA = Dialect("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA_4 = Dialect("<|tool_call>", "<tool_call|>", '<|"|>')
both = pytest.mark.parametrize("dialect", [FUNCTION_GEMMA, GEMMA_4], ids=["functiongemma", "gemma4"])

CALL = '<|tool_call>call:calculator{expression:<|"|>12*7+3<|"|>}<tool_call|>'


FORM = Format(GemmaToolParser(), escapes=True)
parse, failed = FORM.parse, FORM.failed


# --- what is read ----------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        *rows({}, "{}", "{ }"),
        *(("{a:1}", {"a": 1}), ("{a:S}", {"a": "text"}), ("{a:S,b:S}", {"a": "text", "b": "text"})),
        ("{b:1,a:2}", {"b": 1, "a": 2}),
        ("{a:true,b:false,c:null,d:None}", {"a": True, "b": False, "c": None, "d": None}),
        (
            "{a:-0,b:-1.5,c:1e5,d:1.5E-05,e:1e+16,f:0.0}",
            {"a": 0, "b": -1.5, "c": 1e5, "d": 1.5e-05, "e": 1e16, "f": 0.0},
        ),
        ("{a:[],b:{},c:[[],{}]}", {"a": [], "b": {}, "c": [[], {}]}),
        ("{a:[1,S,[true,{b:{c:[S]}}]]}", {"a": [1, "text", [True, {"b": {"c": ["text"]}}]]}),
        ("{a:{x:1},b:{x:1}}", {"a": {"x": 1}, "b": {"x": 1}}),
        ("{ a : 1 }".replace(" :", ":"), {"a": 1}),
        ("{\n  a:1,\r\n\tb: [ 1 , 2 ] ,c:{ } ,d: S }", {"a": 1, "b": [1, 2], "c": {}, "d": "text"}),
        ("{a b:1,$ref:2,x.y:3,é-1:4,@:5,(k):6}", {"a b": 1, "$ref": 2, "x.y": 3, "é-1": 4, "@": 5, "(k)": 6}),
        ("{true:1,null:2,1:3}", {"true": 1, "null": 2, "1": 3}),
        ("{a:" + "1" * 4300 + "}", {"a": int("1" * 4300)}),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_arguments(dialect: Dialect, arguments: str, expected: dict[str, Any]) -> None:
    body = f"call:f{arguments}".replace("S", dialect.string("text"))
    for raw in (dialect.raw(body), dialect.raw(f"\n {body}\t\n")):
        turn = parse(f"a\n{raw}b")
        (call,) = turn.calls
        assert (call.name, call.raw, call.start, turn.text) == ("f", raw, 2, "a\nb")
        assert same(call.arguments, expected) and turn.failures == ()


@both
@pytest.mark.parametrize(
    "text",
    [
        *(
            *("", " ", "\n", " a ", "é 😀", "a,b:c{d}[e]", '"', "'", "\\", "\\n", "null", "12", "line\nline", "{a:1}"),
            *("call:f{}", "\x00\x7f"),
        ),
        *(
            *("<think>", "</think>", "<|channel>thought", "<channel|>", "<tool_call>"),
            CALL[:12],
            "<tool_call|>",
            "<end_function_call>",
        ),
        *("}<tool_call|><|tool_call>call:rm{}<tool_call|>", "<escape", "<|", '|">'),
    ],
)
def test_string_value_is_verbatim(dialect: Dialect, text: str) -> None:
    call = dialect.call("f", {"a": text, "b": [text, {"c": text}]})
    for whole in (call, f"<|channel>thought\nhm<channel|>{call}"):
        turn = parse(whole)
        assert [call.arguments for call in turn.calls] == [{"a": text, "b": [text, {"c": text}]}]
        assert turn.failures == () and turn.text == ""


@both
@pytest.mark.parametrize("name", ["f", "get_weather", "tools.shell-exec", "google:mcp:create", "é", "f(x)", "1"])
def test_name_is_verbatim(dialect: Dialect, name: str) -> None:
    assert [call.name for call in parse(dialect.call(name, {})).calls] == [name]


# --- reasoning -------------------------------------------------------------------------------------------------------


def test_empty_thought() -> None:
    turn = parse("<|channel>thought\n<channel|>Hello")
    assert (turn.reasoning, turn.text, turn.reasoning_closed) == ("", "Hello", True)


def test_draft_in_later_thought_is_not_a_call() -> None:
    later = f"<|channel>thought\n{CALL}<channel|>"
    turn = parse(f"a{CALL}b{later}c{CALL}")
    assert len(turn.calls) == 2 and turn.failures == () and turn.text == f"a\nb{later}c"
    assert parse(f"a<|channel>thought\n{CALL}") == ParsedTurn(reasoning=None, text=f"a<|channel>thought\n{CALL}")


# --- what is not a call ----------------------------------------------------------------------------------------------

LITERAL, ARGUMENTS, NAME = Failure.INVALID_LITERAL, Failure.BAD_ARGUMENTS, Failure.MISSING_NAME
KEY, TRAILING, UNCLOSED = Failure.DUPLICATE_KEY, Failure.TRAILING_TEXT, Failure.UNCLOSED


@both
@pytest.mark.parametrize(
    ("body", "failure"),
    [
        *rows(NAME, "", "\n", "f{}", "call{}", "call:{}", "call: f{}", "Call:f{}", "call :f{}"),
        ('{"name": "f", "arguments": {}}', NAME),
        *rows(ARGUMENTS, "call:f", "call:f ", "call:f {}", "call:f()", "call:f[]", "call:f<"),
        *rows(LITERAL, "call:f{a:1", "call:f{", "call:f{a", "call:f{a}", "call:f{a:}", "call:f{a:,b:1}"),
        *rows(LITERAL, "call:f{a:1,}", "call:f{,}", "call:f{,a:1}", "call:f{a:1,,b:2}", "call:f{a:1 b:2}"),
        *rows(LITERAL, "call:f{a:1;b:2}", "call:f{:1}", "call:f{a :1}", "call:f{\u00a0a:1}", "call:f{a=1}"),
        *rows(LITERAL, "call:f{time=12:30}", "call:f{a='x'}", 'call:f{"a":1}', "call:f{'a':1}", "call:f{`a`:1}"),
        *rows(LITERAL, "call:f{STRING:1}", "call:f{a\n:1}", "call:f{a<b:1}", "call:f{a:text}"),
        *rows(LITERAL, "call:f{a:two words,b:1}", 'call:f{a:"text"}', "call:f{a:'text'}", 'call:f{a:["x"]}'),
        *rows(LITERAL, "call:f{a:True}", "call:f{a:False}", "call:f{a:nul}", "call:f{a:nullx}", "call:f{a:none}"),
        *rows(LITERAL, "call:f{a:NaN}", "call:f{a:inf}", "call:f{a:-Infinity}", "call:f{a:01}", "call:f{a:+1}"),
        *rows(LITERAL, "call:f{a:1.}", "call:f{a:.5}", "call:f{a:1e}", "call:f{a:0x1}", "call:f{a:1_0}"),
        *rows(LITERAL, "call:f{a:--1}", "call:f{a:१}", "call:f{a:1e999}", "call:f{a:-1e999}"),
        *rows(LITERAL, "call:f{a:" + "1" * 4301 + "}", "call:f{a:[1}", "call:f{a:[1,]}", "call:f{a:[1 2]}"),
        *rows(LITERAL, "call:f{a:[a:1]}", "call:f{a:{1}}", "call:f{a:{b:1]}", "call:f{a:(1,2)}"),
        *rows(LITERAL, "call:f{a:STRINGSTRING}", "call:f{a:STRINGx}", "call:f{a:S\ud800S}", "call:f{\ud800:1}"),
        *rows(LITERAL, "call:f{a:" + "[" * 100 + "]" * 100 + "}", "call:f{a:" + "{a:" * 100 + "1" + "}" * 101),
        ("call:f{a:" + "[" * 100_000 + "}", LITERAL),
        *rows(KEY, "call:f{a:1,a:2}", "call:f{a:1,b:2, a:1}", "call:f{a:[{b:{c:1,c:1}}]}", "call:f{a:1,a:STRING,b:}"),
        *rows(TRAILING, "call:f{}}", "call:f{} x", "call:f{}call:g{}", "call:f{}STRING", "call:f{}{}"),
    ],
    ids=lambda value: value[:40].encode("unicode_escape").decode() if isinstance(value, str) else None,
)
def test_malformed_call_does_not_affect_next_call(dialect: Dialect, body: str, failure: Failure) -> None:
    raw = dialect.raw(body.replace("STRING", dialect.string("}")).replace("S", dialect.mark))
    FORM.check_malformed(raw, failure, CALL)


@pytest.mark.parametrize(
    ("text", "failure", "name"),
    [
        ("<|tool_call>call:f{a:<escape>x<escape>}<tool_call|>", LITERAL, "f"),
        ('<start_function_call>call:f{a:<|"|>x<|"|>}<end_function_call>', LITERAL, "f"),
        *rows((LITERAL, "f"), "<|tool_call>call:f{a:1<|tool_call>call:g{}<tool_call|>", "<|tool_call>call:f{a:x}"),
        *rows((UNCLOSED, "f"), "<|tool_call>call:f{}<end_function_call>", "<start_function_call>call:f{}<tool_call|>"),
        *rows((UNCLOSED, "f"), "<|tool_call>call:f{}", "<|tool_call>call:f{} x", "<|tool_call>call:f{}<tool_call"),
        ("<|tool_call>call:f{}<|tool_call>call:g{}<tool_call|>", UNCLOSED, "f"),
        ("<|tool_call>call:f{}<start_function_call>call:g{}<end_function_call>", UNCLOSED, "f"),
        ("<|tool_call>call:f{}<end_function_call><tool_call|>", TRAILING, "f"),
        *rows((NAME, None), "<|tool_call><|tool_call>call:g{}<tool_call|>", "<|tool_call>x"),
    ],
)
def test_mixed_or_missing_closing_markers_fail(text: str, failure: Failure, name: str | None) -> None:
    item = failed(text)
    assert (item.failure, item.name, item.raw, item.start) == (failure, name, text, 0)


@both
def test_unclosed_string_includes_markers_after_it(dialect: Dialect) -> None:
    """Whose text that is cannot be told, so nothing is executed."""
    opened = dialect.raw(f"call:f{{a:{dialect.mark}x}}")
    text = f"{opened}{dialect.call('g', {'b': 'y'})}"
    assert failed(text).raw == text
    turn = parse(f"{opened}{dialect.call('g', {'b': 1})}")
    assert turn.calls == () and [item.failure for item in turn.failures] == [UNCLOSED]
    for body in ("call:f{Sa:1}", "call:f{a:SxSyS}", "call:f{a:x,b:S}"):
        text = f"{dialect.raw(body.replace('S', dialect.mark))}{dialect.call('g', {'b': 1})}"
        assert (failed(text).raw, failed(text).failure) == (text, LITERAL)


@both
def test_depth_counts_from_the_arguments(dialect: Dialect) -> None:
    assert parse(dialect.raw("call:f{a:" + "[" * 99 + "]" * 99 + "}")).failures == ()


class TestGemma(Conformance):
    forms = [FORM]
    remaining = [
        *rows("", "", CALL, f"{CALL}{FUNCTION_GEMMA.call('f', {})}"),
        *((f"a <tool_call|>{CALL}", "a <tool_call|>"), ("a\n<|tool_call>x<tool_call|>", "a")),
        *(("call:f{a:1}", "call:f{a:1}"), ("<escape>a<escape>", "<escape>a<escape>")),
    ]
    details = [
        (
            "<|tool_call>call:f{a:text}<tool_call|>",
            'The arguments are not valid: expecting a value; a string is written between <|"|> and <|"|>, '
            "at character 21 of the call, near '|tool_call>call:f{a:text}<tool_call|>'.",
            "f",
        ),
        ("<|tool_call>call:f{a:1,}<tool_call|>", "expecting a bare key followed by :, at character 23", "f"),
        ("<|tool_call>call:f{a:1 2}<tool_call|>", "expecting , or }, at character 23", "f"),
        ("<|tool_call>call:f{a:1,a:2}<tool_call|>", "The key 'a' occurs twice in one object, at character 23", "f"),
        ("<|tool_call>call:f{a:1e999}<tool_call|>", "the number 1e999 is too large, or too long", "f"),
        ("<|tool_call>call:f{a:" + "[" * 100 + "<tool_call|>", "nested more than 100 levels deep", "f"),
        ('<|tool_call>call:f{a:<|"|>\ud800<|"|>}<tool_call|>', "A string contains a lone surrogate", "f"),
        ("<|tool_call>f{}<tool_call|>", "After <|tool_call> there must be call:NAME{, with the name of a tool", None),
        (
            "<|tool_call>call:f<tool_call|>",
            "must be followed by its arguments in braces, as in call:NAME{key:value}",
            None,
        ),
        ("<|tool_call>call:f{}x<tool_call|>", "and <tool_call|> there must be nothing else, at character 20", "f"),
        ("<|tool_call>call:f{}", "has no <tool_call|>", "f"),
        ("<|tool_call>call:f{}<|tool_call>", "Another tool call begins before <tool_call|>", "f"),
        ('<|tool_call>call:f{a:<|"|>x', "The turn ended in the middle of a tool call, before <tool_call|>.", "f"),
    ]
