"""Nemotron calls: what is well-formed is read exactly, and nothing else is a call."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.tool_parsers.base import ToolParser
from strands_sglang.tool_parsers.nemotron import NemotronToolParser
from strands_sglang.tool_parsers.parsed import FailedCall, ParsedTurn, ParseFailure, ToolCall
from strands_sglang.tool_parsers.sampled import SampledText

OPENING, CLOSING = "<TOOLCALL>", "</TOOLCALL>"
THINK, THOUGHT = "<think>", "</think>"
PARSER = NemotronToolParser()
Failure = ParseFailure
LONGEST = 300
"""Characters of a detail, which are 300 where none of those it shows has to be written as `\\U0001f600`."""


def listed(*objects: str) -> str:
    return f"{OPENING}[{', '.join(objects)}]{CLOSING}"


def call_of(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


ONE = '{"name": "calculator", "arguments": {"expression": "12*7+3"}}'
CALL = listed(ONE)


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
        value = json.loads(call.raw, object_pairs_hook=once, parse_constant=pytest.fail)
        assert isinstance(value["arguments"], dict) and call.name.strip() and call.id is None
        assert same((value["name"], value["arguments"]), (call.name, call.arguments))
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
    (call,) = parse(f"Let me see.\n{CALL}").calls
    assert (call.name, call.arguments, call.id) == ("calculator", {"expression": "12*7+3"}, None)
    assert (call.raw, call.start) == (ONE, len(f"Let me see.\n{OPENING}["))


def test_it_is_a_parser_with_a_name_and_every_marker() -> None:
    assert isinstance(PARSER, ToolParser) and PARSER.name == "nemotron"
    assert (PARSER.call_markers, set(PARSER.markers)) == ((OPENING,), {OPENING, CLOSING})


@pytest.mark.parametrize(
    "block",
    [
        listed('{"name":"f","arguments":{}}'),
        f'{OPENING} \t\r\n[ {{"arguments": {{}}, "name": "f"}}\n]\n\n{CLOSING}',
        listed('{"name":"f","arguments":{},"type":"function","parameters":1}'),
        listed('\n{\n  "name": "f",\n  "arguments": {\n  }\n}\n'),
    ],
)
def test_whitespace_order_and_other_keys_do_not_matter(block: str) -> None:
    (call,) = parse(block).calls
    assert (call.name, call.arguments, call.id) == ("f", {}, None)


def test_parallel_calls_keep_their_order() -> None:
    objects = [json.dumps({"name": f"tool_{number}", "arguments": {"n": number}}) for number in range(12)]
    for comma in (",", ", ", "\n ,\r\n\t"):
        turn = parse(f"Go. {OPENING}[{comma.join(objects)}]{CLOSING}")
        assert [call.name for call in turn.calls] == [f"tool_{number}" for number in range(12)]
        assert [call.raw for call in turn.calls] == objects and (turn.failures, turn.text) == ((), "Go. ")


def test_arguments_are_what_was_written() -> None:
    arguments: dict[str, Any] = {
        "s": 'a"\\ é 😀\n',
        "n": [-1.5e10, 0, True, None, {"x": {"y": [[]]}}],
        "": "",
        "ключ": " x ",
    }
    for ascii_only in (False, True):
        (call,) = parse(listed(json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=ascii_only))).calls
        assert same(call.arguments, arguments) and list(call.arguments) == list(arguments)


@pytest.mark.parametrize(
    ("text", "remains"),
    [
        ("", ""),
        ("hello", "hello"),
        ("\n hello \n", "\n hello \n"),
        (CALL, ""),
        (listed(ONE, ONE, ONE), ""),
        (f"before\n{CALL}", "before"),
        (f"{CALL}\n{CALL}", ""),
        (f"a\n\n{CALL}{CALL}", "a"),
        (f"a{listed()}", "a"),
        (f"a {OPENING[:-1]}", f"a {OPENING[:-1]}"),
        (f"a [{ONE}]", f"a [{ONE}]"),
        (f"{CALL}\nafter", "after"),
        (f"before\n\n{CALL}\n{CALL}\nafter", "before\nafter"),
        (f"a{CALL}b{CALL}c", "a\nb\nc"),
        (f"a {CLOSING}{CALL}", f"a {CLOSING}"),
    ],
)
def test_what_remains_for_the_reader(text: str, remains: str) -> None:
    assert parse(text).text == remains


# --- reasoning -------------------------------------------------------------------------------------------------------


def test_a_draft_in_reasoning_the_prompt_opened_is_no_call() -> None:
    turn = parse(f"maybe {CALL}\n{THOUGHT}\n\n{listed(call_of('real', {}))}", reasoning_open=True)
    assert turn.reasoning == f"maybe {CALL}"
    assert [call.name for call in turn.calls] == ["real"] and turn.failures == ()


@pytest.mark.parametrize(("text", "reasoning_open"), [(f"{THINK}{CALL}", False), (CALL, True)])
def test_unterminated_reasoning_holds_no_call(text: str, reasoning_open: bool) -> None:
    turn = parse(text, reasoning_open=reasoning_open)
    assert (turn.reasoning, turn.calls, turn.reasoning_closed) == (CALL, (), False)


@pytest.mark.parametrize("marker", [THINK, THOUGHT, *PARSER.markers, "}]", CALL, "]" + CLOSING, f"{CLOSING}{CALL}"])
def test_a_marker_inside_an_argument_is_part_of_it(marker: str) -> None:
    written = listed(call_of("f", {"code": f"a {marker} b", f"k{marker}": 1}), call_of("g", {}))
    for text in (written, f"{THINK}hm{THOUGHT}{written}"):
        turn = parse(text)
        assert turn.calls[0].arguments == {"code": f"a {marker} b", f"k{marker}": 1}
        assert len(turn.calls) == 2 and turn.failures == () and turn.text == ""


def test_letters_that_were_not_sampled_as_a_token_are_text() -> None:
    quoted = f"x {listed(call_of('rm', {}))}\n"
    words = re.compile("|".join(map(re.escape, (OPENING, CLOSING))))

    def offsets(marker: str) -> list[int]:
        return [match.start() for match in words.finditer(marker)]

    sampled = SampledText(quoted + CALL, {len(quoted) + at for at in offsets(CALL)}, offsets)
    turn = PARSER.parse(sampled)
    assert [call.name for call in turn.calls] == ["calculator"] and turn.failures == ()
    assert turn.text == quoted.rstrip("\n")
    assert PARSER.parse(SampledText(quoted, set(), offsets)).text == quoted


# --- what is not a call ----------------------------------------------------------------------------------------------

WHOLE = [
    ('{"name": "f", "arguments": {"a": NaN}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": 1e999}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": "\\ud800"}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": "\ud800"}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": ' + "1" * 4301 + "}}", Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": ' + "[" * 99 + "]" * 99 + "}}", Failure.INVALID_JSON),
    ('{"name": "f", "name": "g", "arguments": {}}', Failure.DUPLICATE_KEY),
    ('{"name": "f", "arguments": {"a": [{"b": 1, "b": 1}]}}', Failure.DUPLICATE_KEY),
    ("[]", Failure.NOT_AN_OBJECT),
    ('[{"name": "f", "arguments": {}}]', Failure.NOT_AN_OBJECT),
    ('"f"', Failure.NOT_AN_OBJECT),
    ("12", Failure.NOT_AN_OBJECT),
    ("null", Failure.NOT_AN_OBJECT),
    ("{}", Failure.MISSING_NAME),
    ('{"arguments": {}}', Failure.MISSING_NAME),
    ('{"name": " \\n", "arguments": {}}', Failure.MISSING_NAME),
    ('{"name": null, "arguments": {}}', Failure.MISSING_NAME),
    ('{"Name": "f", "arguments": {}}', Failure.MISSING_NAME),
    ('{"function": {"name": "f", "arguments": {}}}', Failure.MISSING_NAME),
    ('{"name": "f"}', Failure.BAD_ARGUMENTS),
    ('{"name": "f", "parameters": {}}', Failure.BAD_ARGUMENTS),
    ('{"name": "f", "arguments": null}', Failure.BAD_ARGUMENTS),
    ('{"name": "f", "arguments": "{}"}', Failure.BAD_ARGUMENTS),
    ('{"name": "f", "arguments": "{\\"a\\": 1}"}', Failure.BAD_ARGUMENTS),
    ('{"name": "f", "arguments": []}', Failure.BAD_ARGUMENTS),
]
"""Values that are JSON, and no call."""

BROKEN = [
    ('{"name": "f", "arguments": {"a": 1,}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {},}', Failure.INVALID_JSON),
    ("{'name': 'f', 'arguments': {}}", Failure.INVALID_JSON),
    ('{name: "f", "arguments": {}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": "x\ny"}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": "\\x"}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {"a": 01}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {}}}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {}} {}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {}},', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {}},, {}', Failure.INVALID_JSON),
    ('{"name": "f", "arguments": {}} x', Failure.INVALID_JSON),
    ('{"name": 3, "arguments": {}},', Failure.MISSING_NAME),
    ("f(1)", Failure.INVALID_JSON),
    ("\u00a0{}", Failure.INVALID_JSON),
    ("[" * 50_000 + "]" * 50_000, Failure.INVALID_JSON),
]
"""What is no JSON, so that where the value ends cannot be told."""


def shown(value: Any) -> str | None:
    return value[:60].encode("unicode_escape").decode() if isinstance(value, str) else None


@pytest.mark.parametrize(("raw", "failure"), WHOLE, ids=shown)
def test_a_bad_object_fails_alone(raw: str, failure: ParseFailure) -> None:
    text = f"a\n{OPENING}[{ONE}, {raw} , {ONE}]{CLOSING}{OPENING}[{raw}]{CLOSING}"
    turn = parse(text)
    assert [(item.failure, item.raw) for item in turn.failures] == [(failure, raw), (failure, raw)]
    first = len(f"a\n{OPENING}[{ONE}, ")
    assert [item.start for item in turn.failures] == [first, text.rindex(raw)]
    assert [call.start for call in turn.calls] == [len(f"a\n{OPENING}["), first + len(f"{raw} , ")]
    assert turn.text == "a"


@pytest.mark.parametrize(("raw", "failure"), BROKEN, ids=shown)
def test_where_the_list_breaks_the_rest_of_it_is_one_failed_call(raw: str, failure: ParseFailure) -> None:
    """Objects before it were closed by their commas; those behind it are not looked at."""
    broken = f"{raw}, {ONE}]{CLOSING}"
    names, failures, remains = found(f"a\n{OPENING}[{ONE}, {broken}{CALL}")
    assert names == ["calculator", "calculator"] and failures == [(failure, broken)] and remains == "a"
    alone = f"{OPENING}[{raw}]{CLOSING}"
    assert found(f"a\n{alone}{CALL}") == (["calculator"], [(failure, alone)], "a")


@pytest.mark.parametrize(
    ("block", "failure"),
    [
        (f"{OPENING}[]{CLOSING}", Failure.MISSING_NAME),
        (f"{OPENING} [ \n]\n{CLOSING}", Failure.MISSING_NAME),
        (f"{OPENING}[{ONE}] x{CLOSING}", Failure.TRAILING_TEXT),
        (f"{OPENING}[{ONE}][{ONE}]{CLOSING}", Failure.TRAILING_TEXT),
        (f"{OPENING}[{ONE}]]{CLOSING}", Failure.TRAILING_TEXT),
        (f"{OPENING}[] x{CLOSING}", Failure.TRAILING_TEXT),
        (f"{OPENING}[,{ONE}]{CLOSING}", Failure.INVALID_JSON),
        (f"{OPENING}[{ONE},]{CLOSING}", Failure.INVALID_JSON),
        (f"{OPENING}[{ONE}, ,{ONE}]{CLOSING}", Failure.INVALID_JSON),
        (f"{OPENING}[{ONE}, {CLOSING}", Failure.INVALID_JSON),
        (f"{OPENING}[{ONE}{CLOSING}", Failure.INVALID_JSON),
        (f"{OPENING}{CLOSING}", Failure.INVALID_JSON),
        (f"{OPENING}\n{CLOSING}", Failure.INVALID_JSON),
        (f"{OPENING}[{CLOSING}", Failure.INVALID_JSON),
        (f"{OPENING}{ONE}{CLOSING}", Failure.INVALID_JSON),
        (f"{OPENING}{{{CLOSING}", Failure.INVALID_JSON),
        (f'{OPENING}"f"{CLOSING}', Failure.NOT_AN_OBJECT),
        (f"{OPENING}null{CLOSING}", Failure.NOT_AN_OBJECT),
        (f"{OPENING}12{CLOSING}", Failure.NOT_AN_OBJECT),
        (f"{OPENING}f(1){CLOSING}", Failure.INVALID_JSON),
        (f"{OPENING}x[{ONE}]{CLOSING}", Failure.INVALID_JSON),
        (f"{OPENING}```json\n[{ONE}]\n```{CLOSING}", Failure.INVALID_JSON),
        (f"{OPENING}[{ONE}]{CALL}", Failure.TRAILING_TEXT),
        (f"{OPENING}{CALL}", Failure.INVALID_JSON),
        (f'{OPENING}{{"name": "f", "arguments": {{"a": "{CLOSING}"}}}}{CLOSING}', Failure.INVALID_JSON),
        (f'{OPENING}nope {{"a": "{CLOSING}{OPENING}[]{CLOSING}"}}{CLOSING}', Failure.INVALID_JSON),
    ],
    ids=shown,
)
def test_blocks_without_a_call(block: str, failure: ParseFailure) -> None:
    assert found(f"a\n{block}") == ([], [(failure, block)], "a")
    assert found(f"a\n{CALL}{block}{CALL}") == (["calculator", "calculator"], [(failure, block)], "a")


def test_a_thousand_failures_are_enough() -> None:
    bad = ",".join(["0"] * 999)
    assert found(f"{OPENING}[{bad},{ONE}]{CLOSING}")[0] == ["calculator"]
    names, failures, remains = found(f"{OPENING}[{bad},0,{ONE}]{CLOSING}{CALL}")
    assert (names, len(failures), remains) == ([], 1000, "") and failures[-1][1] == f"0,{ONE}]{CLOSING}{CALL}"


def test_the_last_call_is_closed_by_what_stands_behind_the_list() -> None:
    names, failures, _ = found(f"{OPENING}[{ONE}, {ONE}] x{CLOSING}")
    assert (names, failures) == (["calculator"], [(Failure.TRAILING_TEXT, f"{ONE}] x{CLOSING}")])


@pytest.mark.parametrize("end", ["", "\n", " more", f"\n{CLOSING[:-1]}"])
def test_a_list_without_its_closing_marker_is_unclosed(end: str) -> None:
    text = f"{OPENING}[{ONE}]{end}"
    assert found(f"a\n{text}") == ([], [(Failure.UNCLOSED, text)], "a")
    assert found(f"a\n{OPENING}[{ONE}, {ONE}]{end}") == (["calculator"], [(Failure.UNCLOSED, f"{ONE}]{end}")], "a")


def test_a_string_left_open_takes_what_stands_in_it_along() -> None:
    """Cut or forgotten: whose text that is cannot be told, so nothing behind is executed."""
    raw = f'{OPENING}[{{"name": "f", "arguments": {{"a": "}}}}]{CLOSING} and so on'
    assert found(raw) == ([], [(Failure.INVALID_JSON, raw)], "")
    turn = parse(f'{OPENING}[{{"name": "f", "arguments": {{"a": "}}}}]{CLOSING}{CALL}{CALL}')
    assert len(turn.failures) == 1 and turn.failures[0].raw.endswith(CALL) and len(turn.calls) == 1


@pytest.mark.parametrize(
    ("text", "detail", "name"),
    [
        (
            listed('{"name": "f", "arguments": {"a": nope}}'),
            "The JSON is not valid: expecting value, at character",
            None,
        ),
        (listed('{"name": "f", "arguments": "{}"}'), "must be a JSON object, not a string", "f"),
        (listed('{"name": "f"}'), 'has no key "arguments"', "f"),
        (listed('{"arguments": {}}'), 'has no key "name"', None),
        (listed("true"), "must be a JSON object, not true", None),
        (listed(), "The list of tool calls is empty", None),
        (f"{OPENING}[{ONE}]x{CLOSING}", "there must be nothing else, at character", "calculator"),
        (f"{OPENING}[{ONE} {ONE}]{CLOSING}", "expecting ] or a comma and another tool call", "calculator"),
        (f'{OPENING}[{{"name": "f", "arg', "The turn ended in the middle of the JSON", None),
        (f"{OPENING}[{ONE}", "The turn ended before the ]", "calculator"),
        (f"{OPENING}[", "The turn ended where a list of tool calls begins", None),
        (f"{OPENING}[{ONE}]", f"has no {CLOSING}", "calculator"),
        (f"{OPENING}{ONE}{CLOSING}", "must be a JSON list of objects, [{...}, ...], not an object", None),
        (f"{OPENING}7{CLOSING}", "must be a JSON list of objects, [{...}, ...], not a number", None),
    ],
    ids=shown,
)
def test_the_detail_says_what_is_wrong_and_where(text: str, detail: str, name: str | None) -> None:
    failure = failed(text)
    assert detail in failure.detail and failure.name == name


def test_text_that_looks_like_a_call_inside_a_broken_one_stays_part_of_it() -> None:
    """Written without escapes: the decoder got as far as the inner call, so that is not executed."""
    inner = f'{CLOSING}{OPENING}[{{"name": "rm", "arguments": {{}}}}]{CLOSING}'
    text = listed(f'{{"name": "write", "arguments": {{"text": "{inner}"}}}}')
    turn = parse(text)
    assert turn.calls == () and turn.failures[0].failure is Failure.INVALID_JSON
    repeated = listed(f'{{"name": "w", "name": "{CLOSING}{OPENING}[]"}}')
    assert failed(repeated).failure is Failure.DUPLICATE_KEY


EVERYTHING = json.dumps(
    [{"name": "f", "arguments": {"s": 'a"\\ é 😀', "n": [-1.5e10, 0, True, False, None, {"x": {}}]}}]
)


@pytest.mark.parametrize("length", range(len(EVERYTHING)))
def test_a_list_that_was_cut_is_unclosed(length: int) -> None:
    text = f"{OPENING}{EVERYTHING[:length]}"
    assert found(f"x\n{text}") == ([], [(Failure.UNCLOSED, text)], "x")
    rest = EVERYTHING[1:length]
    if rest:
        last = (Failure.UNCLOSED, rest)
        assert found(f"x\n{OPENING}[{ONE}, {rest}") == (["calculator"], [last], "x")


@pytest.mark.parametrize("end", ["", " ", ",", ", \n"])
def test_a_list_that_was_cut_behind_an_object_has_not_closed_it(end: str) -> None:
    assert failed(f"{OPENING}[{ONE}{end}").failure is Failure.UNCLOSED
    assert [call.raw for call in parse(f"{OPENING}[{ONE}, {ONE}{end}").calls] == [ONE]


# --- any text ---------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
names = st.text(min_size=1).filter(str.strip)
plain = st.text(alphabet=st.characters(exclude_characters="<[\n", exclude_categories=["Cs"]), max_size=10)
pieces = st.sampled_from(
    [
        *(*PARSER.markers, OPENING, CLOSING, THINK, THOUGHT, CALL, ONE, OPENING + "[", "]" + CLOSING, OPENING[:-1]),
        *('{"name": "f", ', '"arguments": {"a": ', '"arguments": {}}', "}]", "[{", "null", "NaN", "1e999", "\\ud800"),
        *('{"a": "', "\ud800", "é", "f", '"id": ', *'{}[]":,\\ \n01-.e<>tnf'),
    ]
)
called = st.lists(st.tuples(names, st.dictionaries(st.text(), json_values, max_size=4)), min_size=1, max_size=4)


@settings(deadline=None)
@given(plain, st.lists(called, max_size=2), st.booleans(), st.sampled_from([None, 0, 2]))
def test_what_is_rendered_is_read(
    before: str, written: list[list[tuple[str, dict[str, Any]]]], ascii_only: bool, indent: int | None
) -> None:
    text = before
    for calls in written:
        values = [{"name": name, "arguments": arguments} for name, arguments in calls]
        text += f"{OPENING}{json.dumps(values, ensure_ascii=ascii_only, indent=indent)}{CLOSING}"
    turn = parse(text)
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
    text = f"{listed(call_of('f', arguments), ONE)}\n{CALL}"
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 6)))
        text = text[:start] + data.draw(st.just("") | pieces) + text[end:]
    parse(text)


@pytest.mark.parametrize(
    "unit",
    [
        *(*PARSER.markers, OPENING[:-1], THINK, OPENING + CLOSING, OPENING + "[", listed(), OPENING + "[{", CALL),
        OPENING + '[{"' + CLOSING,
        OPENING + '["' + CLOSING + '",',
        OPENING + '[{"a":"' + CLOSING,
        OPENING + '[{"a":"\\' + CLOSING,
        OPENING + "[1,2,nope]" + CLOSING,
        OPENING + '[{"a":{"a":1}} x' + CLOSING,
        OPENING + "[" * 3000 + CLOSING,
        OPENING + '{"a":' * 3000 + CLOSING,
        OPENING + "x{" + '{"a"' + CLOSING,
        OPENING + f"[{ONE}]x",
        OPENING + f"[{ONE}]" + " " * 50 + CLOSING,
    ],
    ids=lambda unit: unit[:40],
)
def test_a_megabyte_takes_less_than_a_second(unit: str) -> None:
    assert cpu_seconds((unit * (1_000_000 // len(unit) + 1))[:1_000_000]) < 1.0


@pytest.mark.parametrize(
    "text",
    [
        OPENING + "[" * 500_000,
        OPENING + '[{"a":' * 150_000,
        OPENING + " " * 1_000_000,
        OPENING + "[" + " " * 1_000_000,
        OPENING + "[" + "0," * 500_000 + "{}]" + CLOSING,
        OPENING + "[" + f"{ONE}," * 15_000,
        OPENING + "[" + ONE + " " * 1_000_000,
        listed('{"name":"f","arguments":{"a":' + "1" * 1_000_000 + "}}"),
        listed('{"name":"f","arguments":{"a":[' + "1," * 400_000 + "1]}}"),
        listed('{"name":"f","arguments":{"a":"' + (OPENING + CLOSING) * 40_000 + '"}}'),
        OPENING + '[{"a":"' + "\\u00e9" * 160_000,
    ],
    ids=lambda text: text[:40],
)
def test_one_huge_list_takes_less_than_a_second(text: str) -> None:
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
