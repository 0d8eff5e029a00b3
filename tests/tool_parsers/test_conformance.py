"""Properties of every tool parser, each stated once; the cases of a family are in the module named after it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.tool_parsers import ParsedTurn, ToolParser, get_tool_parser, tool_parser_names
from support.examples import examples, size
from support.tool_parsers.checks import SECONDS, Format, json_values, least_seconds, megabyte
from support.tool_parsers.grammars import GRAMMARS, Call
from support.tool_parsers.judge import Case, judge, judge_smuggled, judge_written, occurrences
from support.tool_parsers.mutations import ATOMS, THINKING, Mutator, tokens, turn

NAMES = [name for name in tool_parser_names() if name in GRAMMARS]
ALONE = {"llama3_json", "harmony", "pythonic"}
"""Formats without text before a call: a call is all that a turn is, or a message of its own."""
each_parser = pytest.mark.parametrize("name", NAMES)
pieces = {
    name: st.sampled_from([*grammar.words, *ATOMS, *THINKING, grammar.write([Call("f", {})], Random(0))])
    for name, grammar in GRAMMARS.items()
}


def written(name: str, *calls: Call, style: Any = 0) -> str:
    return GRAMMARS[name].write(list(calls), Random(style))


def test_every_parser_has_a_grammar() -> None:
    assert set(GRAMMARS) >= {name for name in tool_parser_names() if get_tool_parser(name).markers}
    assert set(GRAMMARS) == set(NAMES)


@each_parser
def test_mutated_turns(name: str) -> None:
    parser, grammar, dice = get_tool_parser(name), GRAMMARS[name], Random(name)
    mutator = Mutator(grammar, dice)
    calls = failures = 0
    for number in range(size(700, 1400)):
        case = Case(mutator.next(), reasoning_open=number % 10 == 0, with_schemas=number % 7 > 0)
        assert judge(parser, grammar, case) is None
        outcome = parser.parse(case.text)
        calls, failures = calls + len(outcome.calls), failures + len(outcome.failures)
    assert calls > size(50, 100) < failures  # else the mutations are too mild or too wild to say anything


@each_parser
def test_drafts_in_a_later_reasoning_block_are_no_finding(name: str) -> None:
    parser, grammar = get_tool_parser(name), GRAMMARS[name]
    for marker in grammar.openings:
        text = marker.join((f"x{parser.reasoning_markers[0]}", parser.reasoning_markers[1]))
        assert judge(parser, grammar, Case(text)) is None


@each_parser
def test_mutated_turns_with_tokens(name: str) -> None:
    parser, grammar, dice = get_tool_parser(name), GRAMMARS[name], Random(name)
    mutator = Mutator(grammar, dice)
    for _ in range(300):
        text = mutator.next()
        controls = tokens(dice, grammar, {*parser.markers, *parser.reasoning_markers})
        sampled = tuple(place for place in occurrences(text, controls) if dice.random() < 0.8)
        assert judge(parser, grammar, Case(text, controls=controls, sampled=sampled)) is None


@each_parser
def test_well_formed_turns_are_read(name: str) -> None:
    parser, grammar, dice = get_tool_parser(name), GRAMMARS[name], Random(name)
    for _ in range(200):
        text, calls = turn(dice, grammar)
        assert judge_written(parser, text, calls) is None


@each_parser
def test_call_inside_another_call_is_not_parsed(name: str) -> None:
    dice = Random(name)
    found = [judge_smuggled(get_tool_parser(name), GRAMMARS[name], dice) for _ in range(size(200, 400))]
    assert [(case, finding) for case, finding in found if finding is not None] == []


@each_parser
def test_turns_truncated_at_every_offset(name: str) -> None:
    parser, grammar, dice = get_tool_parser(name), GRAMMARS[name], Random(f"cut {name}")
    for _ in range(3):
        text, _ = turn(dice, grammar)
        for length in range(min(len(text), 400)):
            assert judge(parser, grammar, Case(text[:length])) is None


# --- one call, several calls, reasoning -------------------------------------------------------------------------------


@each_parser
def test_well_formed_call_is_parsed(name: str) -> None:
    for style in range(8):
        text = written(name, Call("calculator", {"expression": "12*7+3"}), style=style)
        before = "" if name in ALONE or text.startswith("functools") else "Let me see.\n"
        text = before + text
        parsed = Format(get_tool_parser(name)).parse(text)
        (call,) = parsed.calls
        assert (call.name, call.arguments, parsed.failures) == ("calculator", {"expression": "12*7+3"}, ())
        assert call.start >= len(before) and parsed.text == before.rstrip("\n")


@each_parser
def test_name_and_markers(name: str) -> None:
    parser = get_tool_parser(name)
    assert isinstance(parser, ToolParser) and parser.name == name
    words = "".join((*GRAMMARS[name].words, *GRAMMARS[name].openings, *parser.reasoning_markers, *THINKING))
    assert all(marker in words for marker in parser.markers), "a marker that the grammar does not know"
    assert all(opening in parser.call_markers for opening in GRAMMARS[name].openings)
    assert len(parser.reasoning_markers) == 2


@pytest.mark.parametrize("name", [name for name in NAMES if GRAMMARS[name].parallel])
def test_parallel_calls_keep_their_order(name: str) -> None:
    for style in range(8):
        calls = [Call(f"tool_{number}", {"n": f"number {number}"}) for number in range(12)]
        parsed = Format(get_tool_parser(name)).parse(written(name, *calls, style=style))
        assert [Call(call.name, call.arguments) for call in parsed.calls] == calls
        assert (parsed.failures, parsed.text) == ((), "")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "harmony"])
def test_draft_in_reasoning_is_not_a_call(name: str) -> None:
    form = Format(get_tool_parser(name))
    opening, closing = form.parser.reasoning_markers
    draft, real = written(name, Call("f", {"a": "x"})), written(name, Call("real", {}))
    for text, is_open in ((f"maybe {draft}{closing}{real}", True), (f"{opening}maybe {draft}{closing}{real}", False)):
        parsed = form.parse(text, reasoning_open=is_open)
        assert parsed.reasoning == f"maybe {draft}" and parsed.reasoning_closed
        assert [call.name for call in parsed.calls] == ["real"] and (parsed.failures, parsed.text) == ((), "")
    parsed = form.parse(f"{opening}{draft}{closing}done")
    assert (parsed.reasoning, parsed.text, parsed.calls, parsed.failures) == (draft, "done", (), ())
    for text, is_open in ((f"{opening}{draft}", False), (draft, True), (f"\n{draft}\n", True)):
        parsed = form.parse(text, reasoning_open=is_open)
        assert (parsed.reasoning, parsed.text, parsed.calls, parsed.reasoning_closed) == (draft, "", (), False)


@each_parser
def test_marker_inside_argument_is_data(name: str) -> None:
    form, grammar = Format(get_tool_parser(name)), GRAMMARS[name]
    whole = written(name, Call("f", {"a": "x"}))
    markers = [*form.parser.markers, *THINKING, whole, whole[-8:], whole[-8:] + whole, "}]", ")]", "```"]
    for marker in markers:
        value: dict[str, Any] = {"code": f"a {marker} b", "inner": {f"k{marker}": [marker]}}
        if not grammar.writes(value["inner"]):
            del value["inner"]
        if not grammar.writes(value["code"]):
            continue
        text = written(name, Call("f", value))
        thought = "" if name == "harmony" else "hm".join(form.parser.reasoning_markers)
        for one in (text, thought + text):
            parsed = form.parser.parse(one, schemas=SCHEMAS)
            assert [(call.name, call.arguments) for call in parsed.calls] == [("f", value)], marker
            assert (parsed.failures, parsed.text) == ((), "")


SCHEMAS = {"f": {"type": "object", "properties": {"code": {"type": "string"}, "inner": {"type": "object"}}}}


@pytest.mark.parametrize("name", [name for name in NAMES if GRAMMARS[name].openings and name != "pythonic"])
def test_truncated_opening_marker_is_text(name: str) -> None:
    opening = GRAMMARS[name].openings[0]
    for length in range(len(opening)):
        text = "x" + opening[:length]
        assert get_tool_parser(name).parse(text) == ParsedTurn(reasoning=None, text=text)


# --- any text ---------------------------------------------------------------------------------------------------------


@each_parser
@settings(deadline=None, max_examples=examples(300))
@given(st.data())
def test_any_text_is_parsed_without_an_exception(name: str, data: st.DataObject) -> None:
    """Of whatever text, the grammar agrees with each call."""
    text = data.draw(st.text() | st.lists(pieces[name], max_size=25).map("".join))
    assert judge(get_tool_parser(name), GRAMMARS[name], Case(text, data.draw(st.booleans()))) is None


@each_parser
@settings(deadline=None, max_examples=examples(150))
@given(st.data())
def test_written_calls_are_parsed(name: str, data: st.DataObject) -> None:
    grammar = GRAMMARS[name]
    values = json_values if name not in BARE else st.text()
    keys = st.text("abcxyz_", min_size=1)
    arguments = st.dictionaries(keys, values.filter(grammar.writes), max_size=4)
    most = 4 if grammar.parallel else 1
    calls = [Call("f", one) for one in data.draw(st.lists(arguments, min_size=1, max_size=most))]
    assert (
        judge_written(get_tool_parser(name), written(name, *calls, style=data.draw(st.integers(0, 99))), calls) is None
    )


BARE = {"glm", "minimax_m2", "qwen3_coder"}
"""Formats whose values are text where no schema says otherwise."""


@pytest.mark.soak
@each_parser
def test_megabyte_of_markers_is_parsed_in_seconds(name: str) -> None:
    parser = get_tool_parser(name)
    for marker in dict.fromkeys((*parser.markers, *parser.reasoning_markers, *GRAMMARS[name].words)):
        text = megabyte(marker)
        assert least_seconds(lambda text=text: parser.parse(text)) < SECONDS, marker  # type: ignore[misc]
