"""MiniMax-M2 calls: blocks of calls, values typed by the schema, and nothing else is a call."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.tool_parsers import FailedCall, ParsedTurn, ParseFailure, SampledText, ToolCall, ToolParser
from strands_sglang.tool_parsers.minimax_m2 import MiniMaxM2ToolParser
from support.examples import examples
from support.families import tokenizer
from support.tool_parsers.checks import SECONDS, check_turn, least_seconds

OPENING, CLOSING = "<minimax:tool_call>", "</minimax:tool_call>"
WORDS = (OPENING, CLOSING, '<invoke name="', "</invoke>", '<parameter name="', "</parameter>")
PROPERTIES: dict[str, Any] = {
    **{key: {"type": "string"} for key in ("s", "path", "text")},
    **{"n": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"}, "z": {"type": "null"}},
    **{"o": {"type": "object"}, "a": {"type": "array"}, "u": {"type": ["string", "null"]}},
}
SCHEMAS = {"f": {"type": "object", "properties": PROPERTIES}}
INVOKE = '<invoke name="f">\n<parameter name="s">12*7+3</parameter>\n</invoke>'
CALL = f"{OPENING}\n{INVOKE}\n{CLOSING}"


def parse(text: str, *, reasoning_open: bool = False) -> ParsedTurn:
    turn = MiniMaxM2ToolParser().parse(text, reasoning_open=reasoning_open, schemas=SCHEMAS)
    check(text, turn)
    return turn


def check(text: str, turn: ParsedTurn) -> None:
    """Hold a turn against its text, in other ways than the parser's own."""
    check_turn(text, turn)
    both: list[ToolCall | FailedCall] = [*turn.calls, *turn.failures]
    for item in both:
        assert item.raw.startswith((OPENING, '<invoke name="'))
    for call in turn.calls if type(text) is str else ():
        no_word = f"(?:(?!{'|'.join(map(re.escape, WORDS))}).)*"
        parameter = rf'<parameter name="([^<>"\n]+)">({no_word})</parameter>'
        invoke = rf'<invoke name="([^<>"\s]+)">(\s*(?:{parameter}\s*)*)</invoke>'
        match = re.fullmatch(rf"(?:{OPENING}\s*)?{invoke}(?:\s*{CLOSING})?", call.raw, re.DOTALL)
        assert match is not None and match[1] == call.name
        begun = text.index('<invoke name="', call.start)
        assert text.rfind(OPENING, 0, begun) > text.rfind(CLOSING, 0, begun)
        closed = text.find(CLOSING, begun)
        assert closed >= 0 and OPENING not in text[begun:closed]
        found = re.findall(parameter, match[2], re.DOTALL)
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


def invoke_of(name: str, arguments: dict[str, Any]) -> str:
    """Write a call as the template does."""
    written = f'<invoke name="{name}">\n'
    for key, value in arguments.items():
        value = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        written += f'<parameter name="{key}">{value}</parameter>\n'
    return f"{written}</invoke>"


def block(*invokes: str) -> str:
    return "\n".join([OPENING, *invokes, CLOSING])


def parameter(key: str, value: str) -> str:
    return f'<parameter name="{key}">{value}</parameter>'


# --- what is read ----------------------------------------------------------------------------------------------------


def test_well_formed_call_is_parsed() -> None:
    (call,) = parse(f"Let me see.\n{CALL}").calls
    assert (call.name, call.arguments, call.id) == ("f", {"s": "12*7+3"}, None)
    assert (call.raw, call.start) == (CALL, 12)


def test_calls_of_one_block_share_its_markers() -> None:
    one, two, three = (invoke_of(name, {"s": name}) for name in "fgh")
    text = f"a{block(one, two, three)}b"
    turn = parse(text)
    assert [call.raw for call in turn.calls] == [f"{OPENING}\n{one}", two, f"{three}\n{CLOSING}"]
    assert [call.start for call in turn.calls] == [1, text.index(two), text.index(three)]
    assert [call.arguments["s"] for call in turn.calls] == ["f", "g", "h"] and turn.text == "a\nb"


def test_parser_name() -> None:
    assert isinstance(MiniMaxM2ToolParser(), ToolParser) and MiniMaxM2ToolParser.name == "minimax_m2"
    assert set(MiniMaxM2ToolParser.markers) == set(WORDS)
    assert MiniMaxM2ToolParser.call_markers == (OPENING, '<invoke name="')


def test_template_output_is_parsed() -> None:
    arguments: dict[str, Any] = {
        **{"s": "123", "path": "", "text": "  def f():\n\n      return '<b>' & 1\n"},
        **{"n": -7, "x": 1e-07, "b": True, "z": None, "u": None, "a": []},
        **{"o": {"<é'&\"\n>": [1, 2.0, None, True, {"x": {}}]}},
    }
    calls = [{"function": {"name": "f", "arguments": chosen}} for chosen in (arguments, {})]
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "Now.", "tool_calls": calls}]
    text = tokenizer("minimax-m2").apply_chat_template(messages, tokenize=False)
    turn = parse(text[text.rindex("Now.") : text.rindex(CLOSING) + len(CLOSING)])
    assert [repr(call.arguments) for call in turn.calls] == [repr(arguments), "{}"]
    assert (turn.text, turn.failures) == ("Now.", ())


@pytest.mark.parametrize(
    "text",
    [
        f'{OPENING}<invoke name="f"><parameter name="s">v</parameter></invoke>{CLOSING}',
        f'{OPENING} \t\r\n<invoke name="f">\n\n<parameter name="s">v</parameter> </invoke>\n \n{CLOSING}',
    ],
)
def test_whitespace_between_tags_is_ignored(text: str) -> None:
    (call,) = parse(text).calls
    assert (call.name, call.arguments, call.raw) == ("f", {"s": "v"}, text)


@pytest.mark.parametrize(
    "value",
    [
        *("", "\n", "\n\n", "  x  ", "\n  x\n", "    if a:\n        b\n", "\tx\r\n", " 1 ", "é😀\u2028"),
        *("123", "true", "null", "None", '{"a": 1}', "<think>x</think>", "<invoke>", "</parameter", "<parameter=a>"),
    ],
)
def test_string_value_is_verbatim_text(value: str) -> None:
    for key in ("s", "un declared"):
        (call,) = parse(block(f'<invoke name="f">{parameter(key, value)}</invoke>')).calls
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
    (call,) = parse(block(f'<invoke name="f">{parameter(key, text)}</invoke>')).calls
    assert repr(call.arguments) == repr({key: value})


def test_values_are_text_without_schema() -> None:
    text = block(invoke_of("g", {"n": 1, "o": {"a": 1}, "b": True}))
    for schemas in (None, {}, SCHEMAS):
        (call,) = MiniMaxM2ToolParser().parse(text, schemas=schemas).calls
        assert call.arguments == {"n": "1", "o": '{"a": 1}', "b": "true"}


@pytest.mark.parametrize(
    ("text", "remains"),
    [
        ("", ""),
        ("\n hello \n", "\n hello \n"),
        (CALL, ""),
        (f"before\n\n{CALL}\n{CALL}\nafter", "before\nafter"),
        (f"before{block(INVOKE, INVOKE, INVOKE)}after", "before\nafter"),
        (f"a {CLOSING}{CALL}", f"a {CLOSING}"),
        (f"a </parameter></invoke>{CALL}", "a </parameter></invoke>"),
        (f"a\n{OPENING}{{}}{CLOSING}", "a"),
        ("a <minimax:tool_call", "a <minimax:tool_call"),
        (f"a {INVOKE}", f"a {INVOKE}"),
        (f"a\n{INVOKE}\nb", "a\nb"),
    ],
)
def test_remaining_text(text: str, remains: str) -> None:
    assert parse(text).text == remains


def test_parallel_calls_keep_their_order() -> None:
    names = [f"tool_{number}" for number in range(12)]
    assert [call.name for call in parse(block(*(invoke_of(name, {}) for name in names))).calls] == names


def test_draft_in_reasoning_is_not_a_call() -> None:
    turn = parse(f"maybe {CALL}\n{INVOKE}</think>\n\n{block(invoke_of('real', {}))}", reasoning_open=True)
    assert [call.name for call in turn.calls] == ["real"] and turn.failures == ()
    assert parse(f"<think>{CALL}").calls == () and parse(CALL, reasoning_open=True).calls == ()


# --- a call that is none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "failure"),
    [
        ('<invoke name=""></invoke>', ParseFailure.MISSING_NAME),
        ('<invoke name=" "></invoke>', ParseFailure.MISSING_NAME),
        ('<invoke name="f g"></invoke>', ParseFailure.MISSING_NAME),
        ('<invoke name="f></invoke>', ParseFailure.MISSING_NAME),
        ('<invoke name="f" id="1"></invoke>', ParseFailure.MISSING_NAME),
        ('<invoke name="f\n"></invoke>', ParseFailure.MISSING_NAME),
        ('<invoke name="f"><parameter name="s">v</invoke>', ParseFailure.UNCLOSED),
        (f'<invoke name="f"><parameter name="s">v{parameter("n", "1")}</invoke>', ParseFailure.UNCLOSED),
        ('<invoke name="f"><invoke name="g"></invoke>', ParseFailure.UNCLOSED),
        ('<invoke name="f"><parameter name="s"><invoke name="g"></invoke>', ParseFailure.UNCLOSED),
        ('<invoke name="f">hello</invoke>', ParseFailure.BAD_ARGUMENTS),
        ('<invoke name="f">{"s": "v"}</invoke>', ParseFailure.BAD_ARGUMENTS),
        ('<invoke name="f"></parameter></invoke>', ParseFailure.BAD_ARGUMENTS),
        (f'<invoke name="f">{parameter("s", "v")},{parameter("n", "1")}</invoke>', ParseFailure.BAD_ARGUMENTS),
        (f'<invoke name="f">{parameter("s", "a</parameter>b")}</invoke>', ParseFailure.BAD_ARGUMENTS),
        (f'<invoke name="f">{parameter("", "v")}</invoke>', ParseFailure.BAD_ARGUMENTS),
        (f'<invoke name="f">{parameter("s ", "v")}</invoke>', ParseFailure.BAD_ARGUMENTS),
        ('<invoke name="f"><parameter name="s" type="x">v</parameter></invoke>', ParseFailure.BAD_ARGUMENTS),
        ('<invoke name="f"><parameter name=s>v</parameter></invoke>', ParseFailure.BAD_ARGUMENTS),
        ('<invoke name="f"><parameter=s>v</parameter></invoke>', ParseFailure.BAD_ARGUMENTS),
        (f'<invoke name="f">{parameter("o", "[1]")}</invoke>', ParseFailure.BAD_ARGUMENTS),
        ('<invoke name="f">' + parameter("o", '{"a": 1,}') + "</invoke>", ParseFailure.INVALID_JSON),
        ('<invoke name="f">' + parameter("s", "\ud800") + "</invoke>", ParseFailure.INVALID_JSON),
        ('<invoke name="f">' + parameter("o", '{"a": 1, "a": 1}') + "</invoke>", ParseFailure.DUPLICATE_KEY),
        (f'<invoke name="f">{parameter("s", "v") * 2}</invoke>', ParseFailure.DUPLICATE_KEY),
    ],
    ids=lambda value: value.encode("unicode_escape").decode() if isinstance(value, str) else None,
)
def test_malformed_call_does_not_affect_rest_of_block(raw: str, failure: ParseFailure) -> None:
    text = f"a{OPENING}{raw}{CLOSING}b{block(INVOKE, raw, INVOKE)}c{CALL}"
    turn = parse(text)
    assert [item.failure for item in turn.failures] == [failure, failure]
    assert [item.raw for item in turn.failures] == [f"{OPENING}{raw}{CLOSING}", raw]
    assert [item.start for item in turn.failures] == [1, text.index(raw, len(raw) + 40)]
    assert [call.raw for call in turn.calls] == [f"{OPENING}\n{INVOKE}", f"{INVOKE}\n{CLOSING}", CALL]
    assert turn.text == "a\nb\nc"


def test_unclosed_last_call_of_block_fails_alone() -> None:
    """The block's own marker ends it, and that is certain."""
    for cut in ('<invoke name="f">', '<invoke name="f"><parameter name="s">v', '<invoke name="f'):
        turn = parse(f"{OPENING}{INVOKE}{cut}{CLOSING}")
        assert [call.raw for call in turn.calls] == [OPENING + INVOKE]
        assert [item.raw for item in turn.failures] == [cut + CLOSING]


# --- a block that is none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "failure"),
    [
        ("", ParseFailure.MISSING_NAME),
        (" \n", ParseFailure.MISSING_NAME),
        ("hello", ParseFailure.MISSING_NAME),
        (f"hello {INVOKE}", ParseFailure.MISSING_NAME),
        ('{"name": "f", "arguments": {}}', ParseFailure.MISSING_NAME),
        ("<invoke name=f></invoke>", ParseFailure.MISSING_NAME),
        (parameter("s", "v"), ParseFailure.MISSING_NAME),
        (f"{INVOKE}x", ParseFailure.TRAILING_TEXT),
        (f"{INVOKE} and {INVOKE}", ParseFailure.TRAILING_TEXT),
        (f"{INVOKE}</invoke>", ParseFailure.TRAILING_TEXT),
        (f"{INVOKE}</parameter></invoke>{INVOKE}", ParseFailure.TRAILING_TEXT),
        (f"{INVOKE}{OPENING}{INVOKE}", ParseFailure.UNCLOSED),
        (f"{INVOKE}{OPENING}", ParseFailure.UNCLOSED),
        (OPENING, ParseFailure.UNCLOSED),
        (f'<invoke name="f"><parameter name="s">{INVOKE} x</parameter></invoke>', ParseFailure.UNCLOSED),
        (f'<invoke name="f"><parameter name="s">{INVOKE}{INVOKE}</parameter></invoke>', ParseFailure.UNCLOSED),
        (f'{INVOKE}<invoke name="f">{parameter("s", "</invoke>")}</invoke>', ParseFailure.UNCLOSED),
        (f'{INVOKE}<invoke name="f">{parameter("s", OPENING)}</invoke>', ParseFailure.UNCLOSED),
    ],
)
def test_malformed_block_has_no_calls(inside: str, failure: ParseFailure) -> None:
    raw = f"{OPENING}{inside}{CLOSING}"
    turn = parse(f"a{raw}b{CALL}c{raw}")
    assert [item.failure for item in turn.failures] == [failure, failure]
    assert [item.raw for item in turn.failures] == [raw, raw]
    assert [item.start for item in turn.failures] == [1, len(f"a{raw}b{CALL}c")]
    assert [call.raw for call in turn.calls] == [CALL]
    assert turn.text == "a\nb\nc"


FULL = block(invoke_of("f", {"s": "  é\n", "n": 1}), invoke_of("f", {"o": {"a": ['</x> "', None]}}))


def test_truncated_block_is_unclosed() -> None:
    for length in range(len(OPENING), len(FULL)):
        failure = failed("x\n" + FULL[:length])
        assert failure.failure is ParseFailure.UNCLOSED and failure.raw == FULL[:length]
        assert failure.name == ("f" if failure.raw.count('<invoke name="f">') == 1 else None) or length > 90


def test_truncated_opening_marker_is_text() -> None:
    for length in range(len(OPENING)):
        assert parse("x" + CALL[:length]) == ParsedTurn(reasoning=None, text="x" + CALL[:length])


@pytest.mark.parametrize(
    ("inside", "detail", "name"),
    [
        ("", 'there is no call, <invoke name="…, at character 19', None),
        ("x", f'After {OPENING} there must be <invoke name="…, at character 19 of the call', None),
        (f"{INVOKE}x", f"Between </invoke> and {CLOSING} there must be only further calls, at character", "f"),
        (f"{INVOKE}{INVOKE}x", "there must be only further calls", None),
        (f"{INVOKE}{OPENING}", f"Another {OPENING} begins before {CLOSING}", "f"),
        ('<invoke name="f>', '<invoke name=" must be followed by a name and ">, at', None),
        ('<invoke name="f"><parameter name="s">v</invoke>', "before the </parameter> of parameter 's'", "f"),
        ('<invoke name="f">hi</invoke>', 'only parameters, each <parameter name="…</parameter>, at', "f"),
        (f'<invoke name="f">{parameter("s", "v") * 2}</invoke>', "The parameter 's' is given twice", "f"),
    ],
)
def test_detail_has_error_and_position(inside: str, detail: str, name: str | None) -> None:
    failure = failed(f"{OPENING}{inside}{CLOSING}")
    assert detail in failure.detail and failure.name == name


# --- the block is missing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "raw", "after"),
    [
        ("", INVOKE, ""),
        ("I will.\n", INVOKE, "\nSo."),
        ("\n", f"{INVOKE}\n{CLOSING}", CLOSING),
        ("", '<invoke name="f"></invoke>', " </invoke>"),
        ("", '<invoke name="f"><parameter name="s">v', ""),
        ("", f'<invoke name="f"><parameter name="s">{CALL}', "</parameter>"),
    ],
)
def test_call_outside_of_block_is_misplaced(before: str, raw: str, after: str) -> None:
    failure = failed(before + raw + after)
    assert (failure.failure, failure.raw, failure.start) == (ParseFailure.MISPLACED, raw, len(before))
    assert failure.name == "f" and f"between {OPENING} and its closing marker" in failure.detail


@pytest.mark.parametrize(
    "text",
    [
        'Write `<invoke name="NAME">` and so on.',
        f"x {INVOKE}",
        '<invoke name="f"> calls it.\n</invoke>',
        '<invoke name="">\n</invoke>',
        "</invoke>\n" + parameter("s", "v"),
    ],
)
def test_text_about_the_format_is_text(text: str) -> None:
    assert parse(text) == ParsedTurn(reasoning=None, text=text)


# --- tokens ----------------------------------------------------------------------------------------------------------


def sampled(*pieces: str) -> SampledText:
    """Return a text in which the markers that are pieces of their own are tokens."""
    starts = [sum(map(len, pieces[:number])) for number in range(len(pieces))]
    tokens = {start for start, piece in zip(starts, pieces, strict=True) if piece in (OPENING, CLOSING)}
    return SampledText("".join(pieces), tokens, lambda marker: [0] if marker in (OPENING, CLOSING) else [])


def test_marker_letters_without_token_are_part_of_value() -> None:
    value = f"{CLOSING}\n{OPENING} as the manual says"
    turn = parse(sampled(f"Write {OPENING}: ", OPENING, invoke_of("f", {"s": value}), INVOKE, CLOSING))
    assert [call.arguments["s"] for call in turn.calls] == [value, "12*7+3"] and turn.failures == ()
    assert turn.text == f"Write {OPENING}: "


def test_tags_that_are_not_tokens_break_a_value() -> None:
    """The value quotes a whole block: its calls are never executed, and nothing beside them either."""
    text = sampled(OPENING, invoke_of("f", {"s": f"See:\n{block(INVOKE, invoke_of('rm', {}))}\n"}), INVOKE, CLOSING)
    turn = parse(text)
    assert turn.calls == () and [item.raw for item in turn.failures] == [str(text)]


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
tags = [*WORDS, '<invoke name="f">', '<parameter name="s">', '<parameter name="o">', '">', CALL, INVOKE]
parts = [*"<>=/\n \"'{}[]1,", "f", "s", "true", "None", '{"a": 1}', "<think>", "</think>", "\ud800", "é", "tool_call"]
pieces = st.sampled_from(tags + parts)


@settings(deadline=None)
@given(st.lists(st.tuples(plain, st.lists(arguments_of_f, min_size=1, max_size=3)), max_size=3))
def test_rendered_calls_are_parsed(written: list[tuple[str, list[dict[str, Any]]]]) -> None:
    turn = parse(
        "".join(before + block(*(invoke_of("f", arguments) for arguments in calls)) for before, calls in written)
    )
    assert turn.failures == ()
    expected = [repr(arguments) for _, calls in written for arguments in calls]
    assert [repr(call.arguments) for call in turn.calls] == expected
    assert turn.text == "\n".join(before for before, _ in written if before.strip())


@settings(deadline=None, max_examples=examples(200))
@given(st.text() | st.lists(pieces, max_size=25).map("".join), st.booleans())
def test_parse_never_raises(text: str, reasoning_open: bool) -> None:
    parse(text, reasoning_open=reasoning_open)


@settings(deadline=None, max_examples=examples(100))
@given(arguments_of_f, st.data())
def test_damaged_call_is_valid_or_rejected(arguments: dict[str, Any], data: st.DataObject) -> None:
    text = f"{block(invoke_of('f', arguments), INVOKE)}\n{CALL}"
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 8)))
        text = text[:start] + data.draw(st.just("") | pieces) + text[end:]
    parse(text)


@pytest.mark.parametrize(
    "unit",
    [
        '\n<invoke name="f">',
        '\n<invoke name="f"></invoke>',
        OPENING + CLOSING,
        OPENING + '<invoke name="f">',
        OPENING + '<invoke name="f">' + CLOSING,
        OPENING + '<invoke name="f"><parameter name="s">',
        OPENING + INVOKE,
        OPENING + INVOKE + "x" + CLOSING,
        OPENING + '<invoke name="f">' + parameter("a", "[" * 3000) + "</invoke>" + CLOSING,
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
        OPENING + '<invoke name="' + "f" * 1_000_000,
        OPENING + '<invoke name="f">' * 60_000,
        OPENING + INVOKE * 14_000,
        OPENING + INVOKE * 14_000 + CLOSING,
        OPENING + '<invoke name="f"></invoke>' * 38_000 + "x" + CLOSING,
        OPENING + '<invoke name="f">x</invoke>' * 37_000 + CLOSING,
        OPENING + '<invoke name="f">' + "".join(parameter(f"k{n}", "v") for n in range(28_000)),
        OPENING + '<invoke name="f"><parameter name="s">' + "<" * 1_000_000,
        OPENING + '<invoke name="f"><parameter name="s">' + "</parameter" * 90_000,
        OPENING + '<invoke name="f">' + parameter("s", "v" * 1_000_000) + "</invoke>" + CLOSING,
        OPENING + '<invoke name="f">' + parameter("o", '{"a":' * 200_000) + "</invoke>" + CLOSING,
    ],
    ids=lambda text: f"{text[:60]}…{text[-20:]}",
)
def test_huge_call_is_parsed_in_seconds(text: str) -> None:
    assert cpu_seconds(text) < SECONDS


def cpu_seconds(text: str) -> float:
    return least_seconds(lambda: MiniMaxM2ToolParser().parse(text, schemas=SCHEMAS))
