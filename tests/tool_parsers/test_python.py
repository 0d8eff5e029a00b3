"""Python literals: what is read is what Python means, and nothing else is read."""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import sys
import unicodedata
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.tool_parsers import ParseFailure as Failure
from strands_sglang.tool_parsers._json import MAX_DEPTH, MAX_DIGITS
from strands_sglang.tool_parsers._python import PythonReader, skip_blanks
from strands_sglang.tool_parsers.parsed import CallFault
from support.examples import examples
from support.tool_parsers.checks import SECONDS, json_values, least_seconds, rows


def read(text: str) -> Any:
    """Return the one literal that a text is."""
    value, end = PythonReader(text).read(0)
    assert skip_blanks(text, end) == len(text)
    return value


def fault_of(text: str, *, keywords: bool = False) -> CallFault:
    reader = PythonReader(text)
    with pytest.raises(CallFault) as caught:
        reader.read_keywords(0) if keywords else reader.read(0)
    return caught.value


def python(text: str) -> Any:
    """Return what Python makes of a literal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.literal_eval(text)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same, types included."""
    return type(one) is type(other) and repr(one) == repr(other)


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *("0", "00", "7", "-7", "+7", "-0", "123456789012345678901234567890", "1" * MAX_DIGITS, "-" + "1" * MAX_DIGITS),
        *("0.0", "-0.0", "1.", ".5", "+.5", "012.5", "1e5", "1E+5", "1.5e-5", "1e300", "-1.5e10", "1" * 30 + ".5"),
        *("True", "False", "None"),
        *(
            *("''", '""', "'a'", '"a"', "'\"'", '"\'"', "'''a'''", '"""a"""', "''''a'''", '"""a"b""c"""', "''''''"),
            "'''\na\n'''",
        ),
        *(
            *(r"'\n\t\\\'\"\a\b\f\r\v'", r"'\0\12\123\1234\400\777\8'", r"'\x41\xe9'", r"'é\U0001F600'"),
            r"'\N{DIGIT ONE}'",
        ),
        *(
            *(r"'\N{greek small letter alpha}'", r"'\d\.\/\ \é'", r"'a\'b'", r'"""a\"""b"""', r"'\\'", r"'\\\''"),
            r"'\x41g'",
        ),
        *("'a\\\nb'", "'a\\\r\nb'", "'a\\\rb'", "'''a\r\nb\rc\nd'''", "'a\tb\x0bc\x0c\x7f\x85\u2028'", "'😀 é'"),
        *("[]", "[1]", "[1,]", "[ 1 , 2 ]", "[\n1,\r\n\t2\f]", "[[],[[]],{}]", "['a',True,None,1.5,-1]", "[[1],[2],]"),
        *("{}", "{'a':1}", "{'a' : 1 , \"b\" : [ ] ,}", "{'a':{'b':{'a':None}}}", "{'': ''}", "{'a\\n': 1}"),
        *("[" * MAX_DEPTH + "]" * MAX_DEPTH, "{'a':" * MAX_DEPTH + "1" + "}" * MAX_DEPTH),
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_value_equals_pythons(text: str) -> None:
    assert same(read(text), python(text))
    assert same(read(f" \t\n\r\f{text} \n"), python(text))
    if MAX_DEPTH not in (text.count("["), text.count("{")):
        assert same(read(f"[{text},{text} , {text}]"), [python(text)] * 3)
        assert same(read(f"{{'k':{text},'l' : {text}\n}}"), dict.fromkeys("kl", python(text)))
    json.dumps(read(text), allow_nan=False, ensure_ascii=False).encode()


def test_every_escaped_character() -> None:
    for number in [*range(1, 0x300), 0x2028, 0xFFFF, 0x1F600]:
        for text in (f"'\\{chr(number)}'", f"'''\\{chr(number)}'''", f"'\\{chr(number)}4z{{'", f'"\\\\{chr(number)}"'):
            try:
                meant = python(text)
            except SyntaxError:
                fault_of(f"[{text}]")
            else:
                assert same(read(text), meant), text


def test_every_character_in_a_string() -> None:
    for number in [*range(0x300), 0x85, 0x2028, 0x2029, 0xFEFF, 0xFFFF, 0x10FFFF]:
        for quote in ("'", '"', "'''", '"""'):
            text = f"{quote}a{chr(number)}b{quote}"
            try:
                meant = python(text)
            except (SyntaxError, ValueError):
                fault_of(f"[{text}]")
            else:
                assert same(read(text), meant), text


def test_value_ends_before_following_text() -> None:
    for value in ("1", "1.5", "'a'", '"""a"""', "None", "[1, 2]", "{'a': []}"):
        for before in ("", "x", "  x"):
            for after in ("", ")", ", b", " ]", "\n", "}"):
                text = f"{before}{value}{after}"
                assert PythonReader(text).read(len(before)) == (ast.literal_eval(value), len(before) + len(value))


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        *rows({}, ")", " \n)"),
        *rows({"a": 1}, "a=1)", "a=1,)"),
        (" a = 1 ,\n b = 'x' )", {"a": 1, "b": "x"}),
        ("a=[1, {'a': 2}], b={})", {"a": [1, {"a": 2}], "b": {}}),
        ("from='here', class=1, lambda=None)", {"from": "here", "class": 1, "lambda": None}),
        ("_=1, é1=2, a_b=3)", {"_": 1, "é1": 2, "a_b": 3}),
        ("a=')', b=\"b=1)\")", {"a": ")", "b": "b=1)"}),
        ("a=" + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + ")", None),
    ],
)
def test_keyword_arguments(text: str, arguments: dict[str, Any] | None) -> None:
    found, end = PythonReader(f"f({text} ]").read_keywords(2)
    assert end == 2 + len(text) and (arguments is None or same(found, arguments))


def test_deep_value_does_not_recurse() -> None:
    """Limits are ours: a value of the greatest depth is read where the interpreter itself has hardly any room left."""
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH

    def deep_down(left: int) -> Any:
        return read(text) if left == 0 else deep_down(left - 1)

    depth = 0
    frame = sys._getframe()
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    assert deep_down(sys.getrecursionlimit() - depth - 60)


# --- what is not read ------------------------------------------------------------------------------------------------

LITERAL, KEY = Failure.INVALID_LITERAL, Failure.DUPLICATE_KEY


@pytest.mark.parametrize(
    ("text", "failure", "words", "at"),
    [
        ("", LITERAL, "expecting a string in quotes, a number", 0),
        ("a", LITERAL, "expecting a string in quotes", 0),
        *rows((LITERAL, "expecting", 0), "true", "null", "Truex", "None_", "nan", "f()", "()", "(1)", "(1, 2)", "..."),
        *rows((LITERAL, "expecting", 0), "# no", "-", "--1", "- 1", "-True", "~1", "01", "0x1f", "0o17", "0b1"),
        *rows((LITERAL, "expecting", 0), "1_000", "1.0_0", "1j", "1.5j", "1.2.3", "1e", "1e+", ".", "१", "r'a'"),
        *rows((LITERAL, "expecting", 0), "b'a'", "f'a'", "u'a'"),
        *rows((LITERAL, "too large", 0), "1e999", "-1e999"),
        ("[" + "9" * 400 + ".0]", LITERAL, "too large", 1),
        ("1" * (MAX_DIGITS + 1), LITERAL, "4301 digits, which is too many", 0),
        ("1." + "1" * MAX_DIGITS, LITERAL, "digits, which is too many", 0),
        ("'a\nb'", LITERAL, "must end in the line it begins in; write a line break as \\n", 2),
        ("'a\rb'", LITERAL, "must end in the line", 2),
        *rows((LITERAL, "U+0000", 2), "'a\0b'", "'a\\\0b'"),
        ('"""a\0"""', LITERAL, "U+0000", 4),
        ("'a", LITERAL, "a string has no closing '", 2),
        ('"""a""', LITERAL, 'a string has no closing """', 6),
        ("'a\\'", LITERAL, "a string has no closing '", 4),
        (r"'ab\x4'", LITERAL, r"the escape '\\x' means no character", 3),
        (r"['a','ab\x4g']", LITERAL, "means no character", 8),
        *rows((LITERAL, "means no character", 1), r"'\u004'", r"'\U00110000'", r"'\UFFFFFFFF'", r"'\N'", r"'\N{}'"),
        *rows((LITERAL, "means no character", 1), r"'\N{NO SUCH CHARACTER}'", r"'\N{DIGIT ONE'"),
        (r"'\N{KEYCAP NUMBER SIGN}'", LITERAL, "means no character", 1),
        *rows((LITERAL, "a lone surrogate", 0), r"'\ud800'", r"'\ud83d\ude00'", "'\ud800'"),
        ("['a', '\udfff']", LITERAL, "a lone surrogate", 6),
        ("{'\\udc00': 1}", LITERAL, "a lone surrogate", 1),
        ("[", LITERAL, "expecting", 1),
        *rows((LITERAL, "expecting , or ]", 2), "[1", "[1)", "[1}", "[1\xa0]", "[1\x0b]"),
        *rows((LITERAL, "expecting , or ]", 3), "[1 2]", "[1 + 2]", "[[1}]", "[{}}", "[1 \\\n]"),
        ("['a' 'b']", LITERAL, "expecting , or ]", 5),
        ("['a''b']", LITERAL, "expecting , or ]", 4),
        *rows((LITERAL, "expecting a string", 1), "[,]", "[x for x in y]", "[*a]"),
        ("[1,,]", LITERAL, "expecting a string", 3),
        ("[1, # one\n]", LITERAL, "expecting a string", 4),
        *rows((LITERAL, "expecting : after a key", 4), "{'a'}", "{'a', 'b'}"),
        *rows((LITERAL, "expecting , or }", 7), "{'a': 1", "{'a': 1]"),
        ("{'a': }", LITERAL, "expecting a string", 6),
        ("{'a' 'b': 1}", LITERAL, "expecting : after a key", 5),
        ("{1: 2}", LITERAL, "expecting a key of a dict, which is a string in quotes", 1),
        *rows((LITERAL, "expecting a key", 1), "{a: 2}", "{None: 2}", "{**a}", "{,}"),
        ("{'a': 1, 'a': 1}", KEY, "The key 'a' occurs twice in one dict", 9),
        ("[{'b': {'\\x61': 1, 'a': 2}}]", KEY, "The key 'a' occurs twice in one dict", 19),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), LITERAL, "nested more than 100 levels deep", None),
        *rows((LITERAL, "nested more than 100 levels deep", None), "{'a':[" * 51 + "]}" * 51, "[" * 1_000_000),
    ],
    ids=lambda value: ascii(value)[:40] if isinstance(value, str) else None,
)
def test_invalid_literals_fail(text: str, failure: Failure, words: str, at: int | None) -> None:
    fault = fault_of(text)
    assert (fault.failure, fault.at) == (failure, at) and words in fault.message
    assert len(fault.message) < 140 and not fault.message.endswith(".") and fault.past <= len(text)


@pytest.mark.parametrize(
    ("text", "failure", "at"),
    [
        *rows((Failure.BAD_ARGUMENTS, 0), "1)", "'a')", "x)", "*a)", "**{'a': 1})", "'a'=1)", "1a=1)", "a.b=1)"),
        *rows((Failure.BAD_ARGUMENTS, 0), "a-b=1)", "a==1)", "a:=1)", "a: 1)", ",)", "²=1)"),
        *rows((Failure.BAD_ARGUMENTS, 5), "a=1, 2)", "a=1, b)"),
        ("a=1,,)", Failure.BAD_ARGUMENTS, 4),
        *rows((LITERAL, 4), "a=1 b=2)", "a=1,"),
        *rows((LITERAL, 3), "a=1]", "a=1"),
        *rows((LITERAL, 2), "a=)", "a=b)", "a=f())", "a=(1))", "a ", "a="),
        ("a=1, a=1)", KEY, 5),
        ("a=1, b={'a': 1}, a=2)", KEY, 17),
        ("a=" + "[" * MAX_DEPTH + "]" * MAX_DEPTH + ")", LITERAL, None),
        ("", LITERAL, 0),
        ("a", LITERAL, 1),
    ],
    ids=lambda value: ascii(value)[:40] if isinstance(value, str) else None,
)
def test_invalid_keyword_arguments_fail(text: str, failure: Failure, at: int | None) -> None:
    fault = fault_of(text, keywords=True)
    assert (fault.failure, fault.at) == (failure, at)


WITH_EVERYTHING = (
    r"""a='x\'y\n\x41\N{DIGIT ONE} é', b=[-1.5e+10, 0, True, False, None, {"k": '''t'u"''', }], c_d = {}, e=.5)"""
)


@pytest.mark.parametrize("length", range(len(WITH_EVERYTHING)))
def test_truncated_text_was_cut(length: int) -> None:
    reader = PythonReader(WITH_EVERYTHING[:length])
    with pytest.raises(CallFault) as caught:
        reader.read_keywords(0)
    assert reader.was_cut(caught.value)


@pytest.mark.parametrize(
    "text", ["[1 2", "[x", "['a\nb", "[" * 101, "{1", "[01", "[tru", r"['\x4'", "[1}", "[a.b", "[Non e"]
)
def test_other_errors_were_not_cut(text: str) -> None:
    assert not PythonReader(text).was_cut(fault_of(text))


# --- any text ---------------------------------------------------------------------------------------------------------

pieces = st.sampled_from(
    [
        *"'\"[]{}(),:=+-.\\ \n\r\t\f\0019eExuUNrb#_",
        *("'''", '"""', "True", "False", "None", "true", "\\N{", "\\x", "\\u", "1e", "a="),
    ]
)


def spelled(value: Any, draw: Callable[[Any], Any]) -> str:
    """Write a value as some Python programmer may have."""
    blank = draw(st.sampled_from(["", " ", "\n  "]))
    if isinstance(value, list):
        last = "," if value and draw(st.booleans()) else ""
        return f"[{blank}{f',{blank}'.join(spelled(item, draw) for item in value)}{last}{blank}]"
    if isinstance(value, dict):
        items = [f"{spelled(key, draw)}{blank}:{blank}{spelled(item, draw)}" for key, item in value.items()]
        return f"{{{blank}{f'{blank},'.join(items)}{blank}}}"
    if isinstance(value, str):
        quote = draw(st.sampled_from(["'", '"', "'''", '"""', "", "ascii"]))
        if quote in ("", "ascii"):
            return ascii(value) if quote else repr(value)
        inside = (
            value.replace("\\", "\\\\").replace(quote[0], f"\\{quote[0]}").replace("\r", "\\r").replace("\0", "\\000")
        )
        return f"{quote}{inside if len(quote) == 3 else inside.replace(chr(10), chr(92) + 'n')}{quote}"
    return repr(value)


@settings(deadline=None, max_examples=examples(200))
@given(json_values, st.data())
def test_written_values_are_parsed(value: Any, data: st.DataObject) -> None:
    text = spelled(value, data.draw)
    assert same(python(text), value)
    assert same(read(text), value)


@settings(deadline=None, max_examples=examples(300))
@given(json_values, st.data())
def test_damaged_literal_equals_pythons_or_fails(value: Any, data: st.DataObject) -> None:
    text = spelled(value, data.draw)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 3)))
        text = text[:start] + data.draw(st.just("") | pieces) + text[end:]
    agrees_with_python(text)


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(pieces, max_size=12).map("".join) | st.text())
def test_any_text_equals_pythons_or_fails(text: str) -> None:
    agrees_with_python(text)
    agrees_with_python(f"[{text}]")
    agrees_with_python(f"'{text}'")


def agrees_with_python(text: str) -> None:
    reader = PythonReader(text)
    try:
        value, end = reader.read(0)
    except CallFault as fault:
        assert fault.past <= len(text) and fault.message.encode()
        reader.was_cut(fault)
        return
    read_alone = text[:end].lstrip(" \t\n\r\f")
    assert same(value, python(read_alone))
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(pieces, max_size=12).map("".join))
def test_any_arguments_equal_pythons_or_fail(text: str) -> None:
    try:
        arguments, end = PythonReader(text).read_keywords(0)
    except CallFault:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = ast.parse(f"f({text[:end]}", mode="eval").body
    assert isinstance(call, ast.Call) and not call.args
    assert same(arguments, {word.arg: ast.literal_eval(word.value) for word in call.keywords})


def test_named_sequence_is_not_an_escape() -> None:
    assert len(unicodedata.lookup("KEYCAP NUMBER SIGN")) > 1


MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    ("before", "unit", "after"),
    [
        *(("[", "1,", "]"), ("[", "1.5,", "]"), ("[", "1 , ", "]"), ("[", "'',", "]"), ("[", "True,", "]")),
        *(("[", "''' ''',", "]"), ("[", "{'a':1},", "]"), ("[", "1" * 4000 + ",", "]"), ("[", "1e99999,", "]")),
        *(("'", r"\n", "'"), ("'", r"\x41", "'"), ("'", r"\N{DIGIT ONE}", "'"), ("'", r"\N{", "'"), ("'", r"\d", "'")),
        *(("'", "\\\r\n", "'"), ("'''", "\r", "'''"), ("'''", "''\\", ""), ("'''", "'' ", ""), ('"', "é", '"')),
        *rows(("\\", ""), '"', ""),
        *(("", "'", ""), ("", "[", ""), ("", "{'a':", ""), ("", "-", ""), ("", "1", ""), ("", "1.", ""), ("", ".", "")),
        *rows((" ", ""), "", "[", "[1"),
    ],
    ids=lambda value: ascii(value)[:20],
)
@pytest.mark.soak
def test_megabyte_is_parsed_in_seconds(before: str, unit: str, after: str) -> None:
    text = before + unit * ((MEGABYTE - len(before)) // len(unit)) + after
    assert cpu_seconds(lambda: PythonReader(text).read(0)) < SECONDS


@pytest.mark.parametrize("unit", ["[],", "[1],", "[" * 90 + "]" * 90 + ","], ids=len)
@pytest.mark.soak
def test_brackets_take_linear_time(unit: str) -> None:
    """Eight times as many lists take about eight times as long: 64 would be quadratic."""
    few, many = ("[" + unit * (size // len(unit)) + "]" for size in (MEGABYTE // 32, MEGABYTE // 4))
    gc.collect()
    gc.disable()  # a collection's time depends on what other tests left in memory
    try:
        short = min(cpu_seconds(lambda: PythonReader(few).read(0)) for _ in range(3))
        assert cpu_seconds(lambda: PythonReader(many).read(0)) < 30 * short
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "text", ["a" * MEGABYTE, "a" + " " * MEGABYTE, ",".join(f"a{i}=1" for i in range(100_000)) + ")"]
)
@pytest.mark.soak
def test_megabyte_of_arguments_is_parsed_in_seconds(text: str) -> None:
    assert cpu_seconds(lambda: PythonReader(text).read_keywords(0)) < SECONDS


def cpu_seconds(work: Callable[[], Any]) -> float:
    def read_or_not() -> None:
        with contextlib.suppress(CallFault):
            work()

    return least_seconds(read_or_not)
