"""Kimi K2 calls: what is well-formed is read exactly, and nothing else is a call."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from families import tokenizer
from strands_sglang.tool_parsers.base import ToolParser
from strands_sglang.tool_parsers.kimi_k2 import KimiK2ToolParser
from strands_sglang.tool_parsers.parsed import FailedCall, ParsedTurn, ParseFailure, ToolCall
from strands_sglang.tool_parsers.sampled import SampledText

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, SEPARATOR, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
HEAD, TAIL = f"functions.f:0{SEPARATOR}", ""
BAD_HEAD = f"f{SEPARATOR}"
HEADLESS = f"functions.f:0{SEPARATOR}{{}}{CALL_END}"
OPEN = f"{CALL_BEGIN}{HEAD}{{}}"
ESCAPED = f"{CALL_BEGIN}functions.calculator:0{SEPARATOR}{{}}{CALL_END}"
PATTERN = (
    re.escape(CALL_BEGIN)
    + rf"(?P<id>functions\.(?P<name>(?:(?!{re.escape(SEPARATOR)}).)+):[0-9]+)"
    + f"{re.escape(SEPARATOR)}(?P<arguments>.*){re.escape(CALL_END)}"
)
PARSER = KimiK2ToolParser()
Failure = ParseFailure
LONGEST = 300
"""Characters of a detail, which are 300 where none of those it shows has to be written as `\\U0001f600`."""


def call_of(name: str, arguments: Any, number: int = 0, *, ascii_only: bool = False) -> str:
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    return f"{CALL_BEGIN}functions.{name}:{number}{SEPARATOR}{written}{CALL_END}"


def section(*calls: str, between: str = "") -> str:
    return f"{BEGIN}{between.join(calls)}{END}"


CALL = call_of("calculator", {"expression": "12*7+3"})


def parse(text: str, *, reasoning_open: bool = False) -> ParsedTurn:
    turn = PARSER.parse(text, reasoning_open=reasoning_open)
    check(text, turn)
    return turn


def check(text: str, turn: ParsedTurn) -> None:
    """Hold a turn against its text, in other ways than the parser's own."""
    both: list[ToolCall | FailedCall] = [*turn.calls, *turn.failures]
    end = 0
    for item in sorted(both, key=lambda item: item.start):
        assert item.raw and item.start >= end and text[item.start :].startswith(item.raw)
        end = item.start + len(item.raw)
    for call in turn.calls:
        match = re.fullmatch(PATTERN, call.raw, re.DOTALL)
        assert match is not None and BEGIN in text[: call.start]
        value = json.loads(match["arguments"], object_pairs_hook=once, parse_constant=pytest.fail)
        assert isinstance(value, dict) and same(value, call.arguments)
        assert (match["name"], match["id"]) == (call.name, call.id) and call.name.strip()
        assert json.dumps(call.arguments, allow_nan=False, ensure_ascii=False).encode() is not None
    for failed in turn.failures:
        assert failed.detail.endswith(".") and failed.detail.encode() is not None and len(failed.detail) < LONGEST
    if not turn.reasoning_closed:
        assert not both and turn.text == ""


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict(pairs)


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def found(text: str) -> tuple[list[str], list[tuple[ParseFailure, str]], str]:
    """Return the names of the calls of a turn, kind and text of its failures, and what remains for the reader."""
    turn = parse(text)
    return [call.name for call in turn.calls], [(item.failure, item.raw) for item in turn.failures], turn.text


def failed(text: str) -> FailedCall:
    """Return the one failed call of a text that has no call."""
    turn = parse(text)
    assert turn.calls == () and len(turn.failures) == 1
    return turn.failures[0]


# --- what is read ---------------------------------------------------------------------------------------------------


def test_a_call() -> None:
    (call,) = parse(f"Let me see.\n{BEGIN}{CALL}{END}").calls
    assert (call.name, call.arguments, call.id) == ("calculator", {"expression": "12*7+3"}, "functions.calculator:0")
    assert (call.raw, call.start) == (CALL, len(f"Let me see.\n{BEGIN}"))


def test_it_is_a_parser_with_a_name_and_every_marker() -> None:
    assert isinstance(PARSER, ToolParser) and PARSER.name == "kimi_k2"
    assert set(PARSER.markers) == {BEGIN, END, CALL_BEGIN, SEPARATOR, CALL_END}
    assert set(PARSER.call_markers) == {BEGIN, CALL_BEGIN, SEPARATOR}


@pytest.mark.parametrize("family", ["kimi-k2", "kimi-k2-thinking"])
def test_what_the_template_writes_is_read(family: str) -> None:
    arguments = {"path": 'a\n"b"', "lines": [1, None]}
    calls = [
        {"type": "function", "id": f"functions.{name}:{number}", "function": {"name": name, "arguments": arguments}}
        for number, name in enumerate(("f", "g.h"))
    ]
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok", "tool_calls": calls}]
    text = tokenizer(family).apply_chat_template(messages, tokenize=False)
    turn = parse(text.partition("<|im_assistant|>assistant<|im_middle|>")[2].removesuffix("<|im_end|>"))
    assert [(call.name, call.arguments) for call in turn.calls] == [("f", arguments), ("g.h", arguments)]
    assert [call.id for call in turn.calls] == ["functions.f:0", "functions.g.h:1"]
    assert (turn.failures, turn.text) == ((), "ok")


@pytest.mark.parametrize(
    "raw",
    [
        f"{CALL_BEGIN}functions.f:0{SEPARATOR}{{}}{CALL_END}",
        f"{CALL_BEGIN}functions.f:0{SEPARATOR} \t\r\n{{ \n}}\n\n{CALL_END}",
    ],
)
def test_whitespace_around_json_does_not_matter(raw: str) -> None:
    (call,) = parse(f"{BEGIN}\n {raw} \n{END}").calls
    assert (call.name, call.arguments, call.raw) == ("f", {}, raw)


@pytest.mark.parametrize(
    ("call_id", "name"),
    [
        ("functions.f:0", "f"),
        ("functions.f:007", "f"),
        ("functions.f:" + "9" * 5000, "f"),
        ("functions.a.b:12", "a.b"),
        ("functions.a:b:1", "a:b"),
        ("functions.a:1:2", "a:1"),
        ("functions.functions.f:0", "functions.f"),
        ("functions. f :0", " f "),
        ("functions..:0", "."),
    ],
)
def test_an_id_is_kept_as_written_and_holds_the_name(call_id: str, name: str) -> None:
    (call,) = parse(section(f"{CALL_BEGIN}{call_id}{SEPARATOR}{{}}{CALL_END}")).calls
    assert (call.name, call.id) == (name, call_id)


@pytest.mark.parametrize("between", ["", "\n", " \t\r\n\n"])
def test_parallel_calls_keep_their_order(between: str) -> None:
    names = [f"tool_{number}" for number in range(12)]
    written = [call_of(name, {"n": number}, number) for number, name in enumerate(names)]
    turn = parse(f"Go.{section(*written, between=between)}")
    assert [call.name for call in turn.calls] == names and [call.raw for call in turn.calls] == written
    assert [call.arguments["n"] for call in turn.calls] == list(range(12)) and turn.text == "Go."


def test_arguments_are_what_was_written() -> None:
    arguments: dict[str, Any] = {
        "s": 'a"\\ é 😀\n',
        "n": [-1.5e10, 0, True, None, {"x": {"y": [[]]}}],
        "": "",
        "ключ": " x ",
    }
    for ascii_only in (False, True):
        (call,) = parse(section(call_of("f", arguments, ascii_only=ascii_only))).calls
        assert same(call.arguments, arguments) and list(call.arguments) == list(arguments)


@pytest.mark.parametrize(
    ("text", "remains"),
    [
        ("", ""),
        ("hello", "hello"),
        ("\n hello \n", "\n hello \n"),
        (section(CALL), ""),
        (f"before\n{section(CALL)}", "before"),
        (f"{section(CALL)}\nafter", "after"),
        (f"before\n\n{section(CALL, CALL, between=chr(10))}\nafter", "before\nafter"),
        (f"a{section(CALL)}b{section(CALL)}c", "a\nb\nc"),
        (f"a{BEGIN}{CALL}", "a"),
        (f"a{BEGIN}{END}b", "a\nb"),
        (f"a {CALL_END} b {END} c", f"a {CALL_END} b {END} c"),
        (f"a {BEGIN[:-1]}", f"a {BEGIN[:-1]}"),
    ],
)
def test_what_remains_for_the_reader(text: str, remains: str) -> None:
    assert parse(text).text == remains


# --- reasoning -------------------------------------------------------------------------------------------------------


def test_a_draft_in_reasoning_the_prompt_opened_is_no_call() -> None:
    turn = parse(f"maybe {section(CALL)}\n</think>\n\n{section(call_of('real', {}))}", reasoning_open=True)
    assert turn.reasoning == f"maybe {section(CALL)}"
    assert [call.name for call in turn.calls] == ["real"] and turn.failures == ()


@pytest.mark.parametrize(("text", "reasoning_open"), [(f"<think>{section(CALL)}", False), (section(CALL), True)])
def test_unterminated_reasoning_holds_no_call(text: str, reasoning_open: bool) -> None:
    turn = parse(text, reasoning_open=reasoning_open)
    assert (turn.reasoning, turn.calls, turn.reasoning_closed) == (section(CALL), (), False)


@pytest.mark.parametrize(
    "marker", ["<think>", "</think>", BEGIN, END, CALL_BEGIN, SEPARATOR, CALL_END, "```", section(CALL), "}" + CALL_END]
)
def test_a_marker_inside_an_argument_is_part_of_it(marker: str) -> None:
    written = section(call_of("f", {"code": f"a {marker} b", f"k{marker}": 1}), call_of("g", {}, 1))
    for text in (written, f"<think>hm</think>{written}"):
        turn = parse(text)
        assert turn.calls[0].arguments == {"code": f"a {marker} b", f"k{marker}": 1}
        assert len(turn.calls) == 2 and turn.failures == () and turn.text == ""


def test_letters_that_were_not_sampled_as_a_token_are_text() -> None:
    quoted, text = section(call_of("rm", {})), section(CALL)
    words = re.compile("|".join(map(re.escape, PARSER.markers)))

    def offsets(marker: str) -> list[int]:
        return [match.start() for match in words.finditer(marker)]

    sampled = SampledText(quoted + text, {len(quoted) + at for at in offsets(text)}, offsets)
    turn = PARSER.parse(sampled)
    assert [call.name for call in turn.calls] == ["calculator"] and turn.failures == () and turn.text == quoted
    assert PARSER.parse(SampledText(quoted, set(), offsets)).text == quoted


# --- what is not a call ----------------------------------------------------------------------------------------------

ARGUMENTS = [
    ('{"a": 1,}', Failure.INVALID_JSON),
    ("{'a': 1}", Failure.INVALID_JSON),
    ("{a: 1}", Failure.INVALID_JSON),
    ('{"a": "x\ny"}', Failure.INVALID_JSON),
    ('{"a": "\\x"}', Failure.INVALID_JSON),
    ('{"a": 1', Failure.INVALID_JSON),
    ('{"a": 01}', Failure.INVALID_JSON),
    ('{"a": NaN}', Failure.INVALID_JSON),
    ('{"a": 1e999}', Failure.INVALID_JSON),
    ('{"a": "\\ud800"}', Failure.INVALID_JSON),
    ('{"a": "\ud800"}', Failure.INVALID_JSON),
    ('{"a": ' + "1" * 4301 + "}", Failure.INVALID_JSON),
    ('{"a": ' + "[" * 100 + "]" * 100 + "}", Failure.INVALID_JSON),
    ('{"a": ' + "[" * 50_000 + "]" * 50_000 + "}", Failure.INVALID_JSON),
    ("", Failure.INVALID_JSON),
    ("f(1)", Failure.INVALID_JSON),
    ("\u00a0{}", Failure.INVALID_JSON),
    ('{"a": 1, "a": 1}', Failure.DUPLICATE_KEY),
    ('{"a": [{"b": 1, "b": 1}]}', Failure.DUPLICATE_KEY),
    ("[]", Failure.BAD_ARGUMENTS),
    ('[{"a": 1}]', Failure.BAD_ARGUMENTS),
    ('"{}"', Failure.BAD_ARGUMENTS),
    ('"{\\"a\\": 1}"', Failure.BAD_ARGUMENTS),
    ("null", Failure.BAD_ARGUMENTS),
    ("0", Failure.BAD_ARGUMENTS),
    ("false", Failure.BAD_ARGUMENTS),
    ("{} {}", Failure.TRAILING_TEXT),
    ("{}}", Failure.TRAILING_TEXT),
    ("{} // why", Failure.TRAILING_TEXT),
    ('{} {"a": "' + CALL_END + '"}', Failure.TRAILING_TEXT),
]
CALLS = [
    *((f"{CALL_BEGIN}{HEAD}{body}{TAIL}{CALL_END}", failure) for body, failure in ARGUMENTS),
    (f"{CALL_BEGIN}{CALL_END}", Failure.MISSING_NAME),
    (f"{CALL_BEGIN} \n{CALL_END}", Failure.MISSING_NAME),
    (f"{CALL_BEGIN}f{CALL_END}", Failure.BAD_ARGUMENTS),
    (f"{CALL_BEGIN}f{{}}{CALL_END}", Failure.BAD_ARGUMENTS),
    (f'{CALL_BEGIN}f{{"a": "{CALL_END}{CALL_BEGIN}"}}{CALL_END}', Failure.BAD_ARGUMENTS),
    (f"{CALL_BEGIN}{{}}{CALL}", Failure.UNCLOSED),
    (f"{CALL_BEGIN}f{BEGIN}{CALL}", Failure.UNCLOSED),
    (f"{CALL_BEGIN}{HEAD}{{}}{TAIL}\n{CALL}", Failure.UNCLOSED),
    (f"{CALL_BEGIN}{CALL}", Failure.UNCLOSED),
    *(
        (f"{CALL_BEGIN}{call_id}{SEPARATOR}{{}}{CALL_END}", Failure.MISSING_NAME)
        for call_id in [
            *("", " ", "f", "f:0", "functions.f", "functions.f:", "functions.f:x", "functions.f:-1", "functions.f:1.5"),
            *(
                "functions.f: 0",
                "functions.f:0 ",
                " functions.f:0",
                "\nfunctions.f:0\n",
                "functions.:0",
                "functions. :0",
            ),
            *(
                "functions:f:0",
                "Functions.f:0",
                "functions.f:٣",
                "functions.f:²",
                "call00001",
                "functions.f:0:",
                ":0",
                ".",
            ),
        ]
    ),
    (f"{CALL_BEGIN}functions.f:0{SEPARATOR}{SEPARATOR}{{}}{CALL_END}", Failure.INVALID_JSON),
    (f"{CALL_BEGIN}functions.f:0{SEPARATOR}{{}}{SEPARATOR}{CALL_END}", Failure.TRAILING_TEXT),
]


@pytest.mark.parametrize(
    ("raw", "failure"),
    CALLS,
    ids=lambda value: value[:70].encode("unicode_escape").decode() if isinstance(value, str) else None,
)
def test_a_malformed_call_is_none_and_the_others_are_read(raw: str, failure: ParseFailure) -> None:
    turn = parse(f"a{BEGIN}{CALL}{raw}\n{CALL}{END}b{BEGIN}{raw}{END}c")
    assert [item.failure for item in turn.failures] == [failure, failure]
    assert [item.raw for item in turn.failures] == [raw, raw]
    first = len(f"a{BEGIN}{CALL}")
    assert [item.start for item in turn.failures] == [first, first + len(f"{raw}\n{CALL}{END}b{BEGIN}")]
    assert [call.name for call in turn.calls] == ["calculator", "calculator"]
    assert turn.text == "a\nb\nc"


@pytest.mark.parametrize(
    ("text", "failures", "names", "remains"),
    [
        (f"a{BEGIN}{END}b", [(Failure.MISSING_NAME, BEGIN + END)], [], "a\nb"),
        (f"{BEGIN} \n{END}", [(Failure.MISSING_NAME, f"{BEGIN} \n{END}")], [], ""),
        (f"{BEGIN}\n{section(CALL)}", [(Failure.MISSING_NAME, BEGIN)], ["calculator"], ""),
        (f"a{BEGIN}", [(Failure.UNCLOSED, BEGIN)], [], "a"),
        (f"a{BEGIN}\n ", [(Failure.UNCLOSED, f"{BEGIN}\n ")], [], "a"),
        (f"{BEGIN}{CALL}", [], ["calculator"], ""),
        (f"{BEGIN}{CALL}\n{CALL}\n", [], ["calculator", "calculator"], ""),
        (f"{BEGIN}{CALL}\n{section(CALL)}a", [], ["calculator", "calculator"], "a"),
        (f"{BEGIN}x{END}", [(Failure.MISPLACED, "x")], [], ""),
        (f"{BEGIN} x y \n{CALL}{END}", [(Failure.MISPLACED, "x y")], ["calculator"], ""),
        (f"{BEGIN}{CALL} and {CALL}{END}", [(Failure.MISPLACED, "and")], ["calculator"] * 2, ""),
        (f"{BEGIN}{CALL}, {CALL}\nb", [(Failure.MISPLACED, ","), (Failure.MISPLACED, "b")], ["calculator"] * 2, ""),
        (f"{BEGIN}x", [(Failure.MISPLACED, "x")], [], ""),
        (f"{BEGIN}x{BEGIN}{CALL}", [(Failure.MISPLACED, "x")], ["calculator"], ""),
        (f"{BEGIN}\u00a0{END}", [(Failure.MISPLACED, "\u00a0")], [], ""),
        (f"{BEGIN}{CALL_END}{CALL}{END}", [(Failure.MISPLACED, CALL_END)], ["calculator"], ""),
        # A call that lacks its begin ends where a call ends, and its JSON is not looked into.
        (f"{BEGIN}{HEADLESS}{CALL}{END}", [(Failure.MISPLACED, HEADLESS)], ["calculator"], ""),
        (f'{BEGIN}{{"a": "{CALL}"}}{END}', [(Failure.MISPLACED, f'{{"a": "{ESCAPED}"}}')], [], ""),
        (f"a{CALL}b", [(Failure.MISPLACED, CALL)], [], "a\nb"),
        (f"{CALL}\n{CALL}{END}b", [(Failure.MISPLACED, CALL), (Failure.MISPLACED, CALL)], [], "b"),
        (f"{section(CALL)}{CALL}", [(Failure.MISPLACED, CALL)], ["calculator"], ""),
        (
            f"a{HEADLESS}{section(CALL)}",
            [(Failure.MISPLACED, HEADLESS[HEADLESS.index(SEPARATOR) :])],
            ["calculator"],
            None,
        ),
        (f"{CALL_BEGIN}f", [(Failure.MISPLACED, f"{CALL_BEGIN}f")], [], ""),
        # The section's end ends a call that has no end.
        (f"{BEGIN}{OPEN}{END}b{section(CALL)}", [(Failure.UNCLOSED, OPEN)], ["calculator"], "b"),
        (f"{BEGIN}{CALL_BEGIN}f{END}b", [(Failure.UNCLOSED, f"{CALL_BEGIN}f")], [], "b"),
        (f"{BEGIN}{OPEN}", [(Failure.UNCLOSED, OPEN)], [], ""),
        (f"{BEGIN}{CALL}{OPEN}", [(Failure.UNCLOSED, OPEN)], ["calculator"], ""),
        (f"{BEGIN}{OPEN} b", [(Failure.UNCLOSED, f"{OPEN} b")], [], ""),
    ],
)
def test_sections(text: str, failures: list[Any], names: list[str], remains: str | None) -> None:
    seen = found(text.replace(f'"{CALL}"', f'"{ESCAPED}"'))
    assert seen[:2] == (names, failures) and remains in (None, seen[2])


@pytest.mark.parametrize(
    ("text", "detail", "name"),
    [
        (
            section(f'{CALL_BEGIN}{HEAD}{{"a": nope}}{TAIL}{CALL_END}'),
            "The JSON is not valid: expecting value, at",
            "f",
        ),
        (
            section(f'{CALL_BEGIN}{HEAD}"x"{TAIL}{CALL_END}'),
            "arguments of a tool call must be a JSON object, not a s",
            "f",
        ),
        (section(f"{CALL_BEGIN}{HEAD}{{}}x{TAIL}{CALL_END}"), "and nothing else before that, at character", "f"),
        (section(f"{CALL_BEGIN}f{CALL_END}"), f"has no {SEPARATOR} between", None),
        (section(OPEN), f"not closed by {CALL_END}", "f"),
        (section(), f"a tool call must begin with {CALL_BEGIN}", None),
        (section("x"), "nothing may stand outside of tool calls", None),
        (CALL, f"{BEGIN} must stand before the first call", "calculator"),
        (f'{BEGIN}{CALL_BEGIN}{HEAD}{{"a', "The turn ended in the middle of the JSON", "f"),
        (f"{BEGIN}{CALL_BEGIN}f", f"The turn ended before the {SEPARATOR}", None),
        (section(f"{CALL_BEGIN}f{SEPARATOR}{{}}{CALL_END}"), "there must be functions.NAME:INDEX", None),
    ],
)
def test_the_detail_says_what_is_wrong_and_where(text: str, detail: str, name: str | None) -> None:
    failure = failed(text)
    assert detail in failure.detail and failure.name == name


def test_a_string_left_open_takes_what_stands_in_it_along() -> None:
    """Cut or forgotten: whose text that is cannot be told, so nothing behind is executed."""
    raw = f'{CALL_BEGIN}{HEAD}{{"a": "x {CALL_END}{ESCAPED}{END}'
    failure = failed(BEGIN + raw)
    assert (failure.failure, failure.raw) == (Failure.INVALID_JSON, raw)
    on_one_line = f'{CALL_BEGIN}{HEAD}{{"a": "}}{CALL_END}{CALL_BEGIN}f{SEPARATOR}{{"b": 1}}{CALL_END}'
    turn = parse(f"{BEGIN}{on_one_line}{CALL}{END}")
    assert [item.raw for item in turn.failures] == [on_one_line] and len(turn.calls) == 1


def test_a_head_that_is_bad_does_not_open_what_stands_in_the_arguments() -> None:
    inner = f"{CALL_END}{CALL_BEGIN}rm{SEPARATOR}{{}}{CALL_END}"
    raw = f'{CALL_BEGIN}{BAD_HEAD}{{"text": "{inner}"}}{TAIL}{CALL_END}'
    assert failed(section(raw)).raw == raw


def test_a_thousand_failures_are_enough() -> None:
    bad = section() * 999
    assert found(bad + section(CALL))[0] == ["calculator"]
    names, failures, remains = found(bad + section() + section(CALL))
    assert (names, len(failures), remains) == ([], 1000, "") and failures[-1][1] == section() + section(CALL)


WHOLE = call_of("f", {"s": 'a"\\ é 😀', "n": [-1.5e10, 0, True, False, None, {"x": {}}]})


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_call_that_was_cut_is_unclosed(length: int) -> None:
    """Where the cut leaves no begin of a call, what it leaves is no text, either."""
    names, failures, remains = found(f"x{BEGIN}{CALL}\n{WHOLE[:length]}")
    whole_begin = length >= len(CALL_BEGIN)
    kind = Failure.UNCLOSED if whole_begin else Failure.MISPLACED
    assert names == ["calculator"] and remains == "x"
    assert failures == ([(kind, WHOLE[:length])] if length else [])


# --- any text ---------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
names = st.text(alphabet=st.characters(exclude_characters="<", exclude_categories=["Cs"]), min_size=1).filter(str.strip)
plain = st.text(alphabet=st.characters(exclude_characters="<\n", exclude_categories=["Cs"]), max_size=10)
pieces = st.sampled_from(
    [
        *(BEGIN, END, CALL_BEGIN, SEPARATOR, CALL_END, BEGIN, CALL_BEGIN, SEPARATOR, CALL_END, CALL, section(CALL)),
        *(HEAD, TAIL or "f", HEADLESS, OPEN, "<think>", "</think>", BEGIN[:-1], CALL_END[1:], "f", "function", ":0"),
        *('{"a": ', '{"a": "', "{}", "```", "```json\n", "\n", "null", "NaN", "1e999", "\\ud800", "\ud800", "é"),
        *'{}[]":,\\ \n01-.e<>tnf',
    ]
)
turns = st.lists(
    st.lists(st.tuples(names, st.dictionaries(st.text(), json_values, max_size=4)), min_size=1, max_size=3), max_size=2
)


@settings(deadline=None)
@given(turns, plain, st.sampled_from(["", "\n", " \r\n\t"]), st.booleans(), st.booleans())
def test_what_is_rendered_is_read(
    written: list[list[tuple[str, dict[str, Any]]]], before: str, between: str, ascii_only: bool, closed: bool
) -> None:
    text = before
    for calls in written:
        text += section(*(call_of(*call, ascii_only=ascii_only) for call in calls), between=between)
    turn = parse(text if closed else text.removesuffix(END))
    flat = [call for calls in written for call in calls]
    assert turn.failures == () and [call.name for call in turn.calls] == [name for name, _ in flat]
    assert same([call.arguments for call in turn.calls], [arguments for _, arguments in flat])
    assert turn.text == (before if before.strip() or not flat else "")


@settings(deadline=None, max_examples=400)
@given(st.text() | st.lists(pieces, max_size=20).map("".join), st.booleans())
def test_no_text_raises(text: str, reasoning_open: bool) -> None:
    parse(text, reasoning_open=reasoning_open)


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.text(max_size=4), json_values, max_size=3), st.data())
def test_a_damaged_call_is_a_good_one_or_none(arguments: dict[str, Any], data: st.DataObject) -> None:
    text = section(call_of("f", arguments), CALL, between="\n")
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 6)))
        text = text[:start] + data.draw(st.just("") | pieces) + text[end:]
    parse(text)


@pytest.mark.parametrize(
    "unit",
    [
        *(BEGIN, CALL_BEGIN, CALL_END, BEGIN[:-1], BEGIN + END, CALL_BEGIN + CALL_END, BEGIN + "x", CALL_BEGIN + HEAD),
        *(HEADLESS, OPEN, section(CALL), SEPARATOR + '{"a":' + CALL_END + '"', '{"a":"' + SEPARATOR + "x" + CALL_END),
        CALL_BEGIN + HEAD + '{"' + CALL_END,
        CALL_BEGIN + HEAD + '{"a":"' + CALL_END,
        CALL_BEGIN + HEAD + '{"a":"\\' + CALL_END,
        CALL_BEGIN + HEAD + '{"a":1,"a":1}' + TAIL + CALL_END,
        CALL_BEGIN + HEAD + "[" * 3000 + CALL_END,
        CALL_BEGIN + BAD_HEAD + '{"a":' * 3000 + CALL_END,
        CALL_BEGIN + HEAD + "{}" + " " * 50 + END,
    ],
    ids=lambda unit: unit[:60],
)
def test_a_megabyte_takes_less_than_a_second(unit: str) -> None:
    assert cpu_seconds((BEGIN + unit * (1_000_000 // len(unit) + 1))[:1_000_000]) < 1.0


@pytest.mark.parametrize("unit", [CALL, CALL_BEGIN, SEPARATOR, SEPARATOR + "{" + CALL_END, CALL_END + END, "{" + OPEN])
def test_a_megabyte_outside_of_sections_takes_less_than_a_second(unit: str) -> None:
    assert cpu_seconds((unit * (1_000_000 // len(unit) + 1))[:1_000_000]) < 1.0


@pytest.mark.parametrize(
    "text",
    [
        BEGIN + CALL_BEGIN + "x" * 1_000_000,
        BEGIN + CALL_BEGIN + HEAD + "[" * 500_000,
        BEGIN + CALL_BEGIN + HEAD + '{"a":' * 200_000,
        BEGIN + CALL_BEGIN + BAD_HEAD + '{"a":' * 200_000,
        BEGIN + " " * 1_000_000,
        BEGIN + "x " * 500_000,
        BEGIN + "{" * 1_000_000,
        BEGIN + '{"' * 500_000,
        BEGIN + CALL_BEGIN + HEAD + "{}" + " " * 1_000_000,
        section(CALL_BEGIN + HEAD + '{"a":' + "1" * 1_000_000 + "}" + TAIL + CALL_END),
        section(CALL_BEGIN + HEAD + '{"a":[' + "1," * 500_000 + "1]}" + TAIL + CALL_END),
        section(CALL_BEGIN + HEAD + '{"a":"' + CALL_END * 50_000 + '"}' + TAIL + CALL_END),
        BEGIN + CALL_BEGIN + HEAD + '{"a":"' + "\\u00e9" * 160_000,
        BEGIN + CALL_BEGIN + "functions." + ":1" * 500_000 + SEPARATOR + "{}" + CALL_END,
        BEGIN + CALL_BEGIN + "functions.f:" + "1" * 1_000_000 + SEPARATOR + "{}" + CALL_END,
    ],
    ids=lambda text: text[:60],
)
def test_one_huge_call_takes_less_than_a_second(text: str) -> None:
    assert cpu_seconds(text) < 1.0


def cpu_seconds(text: str) -> float:
    """Return the least of a few runs: the rest is the machine's."""
    least = float("inf")
    for _ in range(3):
        begun = time.process_time()
        PARSER.parse(text)
        least = min(least, time.process_time() - begun)
        if least < 0.5:
            break
    return least
