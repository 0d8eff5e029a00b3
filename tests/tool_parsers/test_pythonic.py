"""Calls written as Python: a turn is a list of well-formed calls, or holds a failed one, or is text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.tool_parsers import ParsedTurn
from strands_sglang.tool_parsers import ParseFailure as Failure
from strands_sglang.tool_parsers.pythonic import PythonicToolParser
from support.tool_parsers.checks import Conformance, Format, json_values, rows

OPENING, CLOSING = "<|python_start|>", "<|python_end|>"
CALL = '[calculator(expression="12*7+3")]'


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


def written(*calls: tuple[str, dict[str, Any]]) -> str:
    """Return what a model writes for some calls."""
    return f"[{', '.join(f'{name}({arguments_of(arguments)})' for name, arguments in calls)}]"


def arguments_of(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


FORM = Format(PythonicToolParser())
parse, failed = FORM.parse, FORM.failed


def test_call_between_markers() -> None:
    turn = parse(f"Let me see.\n{OPENING}{CALL}{CLOSING}")
    (call,) = turn.calls
    assert (call.name, call.arguments, turn.text) == ("calculator", {"expression": "12*7+3"}, "Let me see.")
    assert (call.raw, call.start) == (f"{OPENING}{CALL}{CLOSING}", 12)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        *rows([("f", {})], "[f()]", "[f(),]", " \n[ f( ) ]\t\n"),
        ("[\n    f(\n        a=1,\n        b='x',\n    ),\n    g(),\n]", [("f", {"a": 1, "b": "x"}), ("g", {})]),
        ("[f(a = 1)]", [("f", {"a": 1})]),
        ("[a.b.c(d=None)]", [("a.b.c", {"d": None})]),
        ("[_f1(é=True), f1(g=False)]", [("_f1", {"é": True}), ("f1", {"g": False})]),
        ("[mail(from='a', to='b', class=1)]", [("mail", {"from": "a", "to": "b", "class": 1})]),
        ("[f(a=[1, {'b': [2.5, -3]}, []], c={'d': {}})]", [("f", {"a": [1, {"b": [2.5, -3]}, []], "c": {"d": {}}})]),
        ("[f(a='é 😀 日本')]", [("f", {"a": "é 😀 日本"})]),
        (r"[f(a='It\'s', b=\"\")]".replace('\\"', '"'), [("f", {"a": "It's", "b": ""})]),
        ("[f(a='''two\nlines''')]", [("f", {"a": "two\nlines"})]),
        ("[f(a=1), f(a=1)]", [("f", {"a": 1}), ("f", {"a": 1})]),
        ("[print(x=1)]", [("print", {"x": 1})]),
    ],
)
def test_calls_with_markers_and_without(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    for whole in (text, f"{OPENING}{text}{CLOSING}", f"\n{OPENING} {text}\n{CLOSING}\n", f"<think>hm</think>\n{text}"):
        turn = parse(whole)
        assert [call.name for call in turn.calls] == [name for name, _ in calls] and turn.failures == ()
        assert same([call.arguments for call in turn.calls], [arguments for _, arguments in calls])
        assert turn.text == ""


def test_calls_of_list_divide_its_text() -> None:
    text = f"a{OPENING}[ f(a=1) , g(b='),') ,\n h() , ]{CLOSING}b"
    assert [call.raw for call in parse(text).calls] == [f"{OPENING}[ f(a=1)", " , g(b='),')", f" ,\n h() , ]{CLOSING}"]
    assert parse(text).text == "a\nb"
    assert [call.raw for call in parse("  [f(), g()]  ").calls] == ["[f()", ", g()]"]


def test_several_lists_between_markers() -> None:
    turn = parse(f"a{OPENING}[f()]{CLOSING}b{OPENING}[g(), h()]{CLOSING}c")
    assert [call.name for call in turn.calls] == ["f", "g", "h"] and turn.text == "a\nb\nc"


@pytest.mark.parametrize(
    "text",
    [
        *("", "hello", "\n hello \n", "[a link](https://example.org/f(a=1))", "[link](f())"),
        *('[{"name": "f", "arguments": {}}]', "[1, 2, 3]", "[]", "['f()']", "[f]", "[f, g()]", "[see (this)]"),
        *("[f (a=1)]", "[(f())]", "[1f()]", "[.f()]", "f(a=1)", "```python\n[f(a=1)]\n```", f"I would call {CALL}"),
        *(f"Sure!\n{CALL}", f"{CLOSING}{CALL}", "<|python_start|", CLOSING, f"a {CLOSING} b"),
    ],
)
def test_text_is_not_a_call(text: str) -> None:
    assert parse(text) == ParsedTurn(reasoning=None, text=text)


LITERAL, ARGUMENTS, NAME = Failure.INVALID_LITERAL, Failure.BAD_ARGUMENTS, Failure.MISSING_NAME
KEY, TRAILING, UNCLOSED = Failure.DUPLICATE_KEY, Failure.TRAILING_TEXT, Failure.UNCLOSED

BROKEN: list[tuple[str, Failure, str | None]] = [
    *rows((ARGUMENTS, "f"), "[f(1)]", "[f('a', b=1)]", "[f(x)]", "[f(*a)]", "[f(**{'a': 1})]", "[f({'a': 1})]"),
    *rows((ARGUMENTS, "f"), "[f(a: 1)]", "[f(,)]"),
    *rows((ARGUMENTS, None), "[f(), g]", "[f(), g (a=1)]", "[f(), g[0]]", "[f(), lambda: g()]"),
    *rows((KEY, "f"), "[f(a=1, a=2)]", "[f(a={'b': 1, 'b': 1})]"),
    ("[f(a=1), g(b=1, b=2), h()]", KEY, None),
    *rows((LITERAL, "f"), "[f(a=x)]", "[f(a=true)]", "[f(a=null)]", "[f(a=(1, 2))]", "[f(a={1, 2})]", "[f(a={1: 2})]"),
    *rows((LITERAL, "f"), "[f(a=1 + 2)]", "[f(a=g())]", "[f(a=1_000)]", "[f(a=f'x')]", "[f(a='x' 'y')]"),
    *rows((LITERAL, "f"), "[f(a='x\ny')]", "[f(a='It's')]", r"[f(a='\x4')]", r"[f(a='\ud800')]", "[f(a='\ud800')]"),
    *rows((LITERAL, "f"), "[f(a=1e999)]", "[f(a=" + "1" * 4301 + ")]", "[f(a=" + "[" * 100 + "]" * 100 + ")]"),
    *rows((LITERAL, "f"), "[f(a=" + "[" * 100_000 + ")]", "[f(a=1]", "[f(a=1)}", "[f(a=1))]", "[f(a=1) g(b=2)]"),
    *rows((LITERAL, "f"), "[f(a=1); g(b=2)]", "[f(a=1) for a in range(3)]", "[f(a=1) if x else g(b=2)]"),
    *rows((LITERAL, "f"), "[f(a=1).b, g()]", "[f(a=1)(b=2)]"),
    *rows((LITERAL, None), "[f(a=1), g(b=2) for b in c]", "[f(a=1), g(b=c)]"),
    *rows((NAME, None), "[f(a=1),, g()]", "[f(a=1), 1]", "[f(a=1), 'g()']", "[f(), (g())]"),
    *rows((NAME, None), "[get-weather(city='Paris')]", "[f..g()]", "[f.()]", "[f.1g()]", "[x²(a=1)]", "[f(), *g()]"),
    ("[\u00a0f()]", NAME, None),
]


@pytest.mark.parametrize(("text", "failure", "name"), BROKEN, ids=lambda value: ascii(value)[:50])
def test_malformed_list_is_one_failed_call(text: str, failure: Failure, name: str | None) -> None:
    """Nothing behind it is trusted, also not what looks like a list of its own."""
    for before in ("", "\n ", "<think>hm</think>\n\n"):
        item = failed(f"{before}{text}\n{CALL}")
        assert (item.failure, item.name, item.raw) == (failure, name, f"{text}\n{CALL}")
        assert item.start == len(before) and parse(f"{before}{text}").text == ""
    between = f"{OPENING}{text}{CLOSING}{OPENING}{CALL}{CLOSING}"
    item = failed(f"a{between}")
    assert (item.failure, item.name, item.raw, item.start) == (failure, name, between, 1)
    assert parse(f"a{between}").text == "a"


@pytest.mark.parametrize(
    ("text", "failure", "name"),
    [
        *rows((TRAILING, "f"), "[f(a=1)] done", "[f(a=1)][0]", "[f(a=1)]]", "[f(a=1)](https://example.org)"),
        *rows((TRAILING, "f"), f"[f(a=1)]{CLOSING}", f"[f(a=1)]\n{OPENING}[g()]{CLOSING}"),
        *rows((TRAILING, "f"), f"{OPENING}[f()] x{CLOSING}", f"{OPENING}[f()]{OPENING}[g()]{CLOSING}"),
        ("[f(), g()] and more", TRAILING, None),
        *rows((UNCLOSED, "f"), f"{OPENING}[f()]", f"{OPENING}[f()] x", f"{OPENING}[f(a='x{CLOSING}"),
        *rows((UNCLOSED, None), f"{OPENING}[f(), g()]\n", OPENING, f"{OPENING}\n"),
        *rows((LITERAL, None), f"{OPENING}f(){CLOSING}", f"{OPENING}print('hi'){CLOSING}", f"{OPENING}{{}}{CLOSING}"),
        *rows((LITERAL, None), f"{OPENING}{CLOSING}", f"{OPENING}{OPENING}[f()]{CLOSING}"),
        *rows((NAME, None), f"{OPENING}[]{CLOSING}", f"{OPENING}[,]{CLOSING}", f"{OPENING}[1]{CLOSING}"),
        (f"{OPENING}[f]{CLOSING}", ARGUMENTS, None),
    ],
)
def test_list_with_invalid_end_fails(text: str, failure: Failure, name: str | None) -> None:
    item = failed(text)
    assert (item.failure, item.name, item.raw, item.start) == (failure, name, text, 0)


LIST_WITH_EVERYTHING = (
    r"""[f(s='a\'\x41\N{DIGIT ONE} é', t='''x'y''', n=[-1.5e+10, 0, True, None, {"x": {}}]), a.g(b="[f()]", ), h()]"""
)


@pytest.mark.parametrize("length", range(3, len(LIST_WITH_EVERYTHING)))
def test_truncated_list_is_unclosed(length: int) -> None:
    for before in ("", OPENING):
        text = f"{before}{LIST_WITH_EVERYTHING[:length]}"
        item = failed(text)
        assert (item.failure, item.raw) == (UNCLOSED, text)


def test_depth_counts_from_the_arguments() -> None:
    assert len(parse("[f(a=" + "[" * 99 + "]" * 99 + ")]").calls) == 1


identifiers = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
names = st.lists(identifiers, min_size=1, max_size=3).map(".".join)
calls = st.lists(st.tuples(names, st.dictionaries(identifiers, json_values, max_size=3)), min_size=1, max_size=4)


@settings(deadline=None)
@given(calls, st.booleans())
def test_written_values_are_parsed(made: list[tuple[str, dict[str, Any]]], marked: bool) -> None:
    text = written(*made)
    turn = parse(f"before {OPENING}{text}{CLOSING} after" if marked else text)
    assert turn.failures == () and [call.name for call in turn.calls] == [name for name, _ in made]
    assert same([call.arguments for call in turn.calls], [arguments for _, arguments in made])
    assert turn.text == ("before \n after" if marked else "")


class TestPythonic(Conformance):
    forms = [FORM]
    details = [
        ("[f(1)]", "must be written as name=value, at character 3 of the call, near '[f(1)]'."),
        (
            "[f(a=x)]",
            "not valid: expecting a string in quotes, a number, a list, a dict, True, False or None, at character 5",
        ),
        ("[f(a=1, a=2)]", "The key 'a' occurs twice in one call, at character 8 of the call"),
        ("[f(a=1) b]", "After a call there must be , or ], at character 8 of the call, near '[f(a=1) b]'."),
        ("[f(a=1)] b", "After a list of calls there must be nothing else, at character 9"),
        ("[get-it()]", "must be a Python identifier, or several joined by dots, at character 1"),
        ("[f(), g]", "must be followed by its arguments in parentheses, as in name(key=value), at character 6"),
        ("[f(a=1", "The turn ended in the middle of a list of calls."),
        (f"{OPENING}[f()]", f"The list of calls is not followed by {CLOSING}."),
        (f"{OPENING}x{CLOSING}", "there must be a list of calls, as in [name(key=value)], at character 16"),
    ]
