"""Properties of every tool parser, each stated once; the cases of a family are in the module named after it."""

from __future__ import annotations

from itertools import count, islice
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.tool_parsers import ParsedTurn, ParseFailure, ToolParser, get_tool_parser, tool_parser_names
from support.examples import examples, size
from support.tool_parsers.checks import SECONDS, Format, json_values, least_seconds
from support.tool_parsers.grammars import GRAMMARS, Call
from support.tool_parsers.judge import Case, judge, judge_smuggled, judge_written, occurrences
from support.tool_parsers.mutations import ATOMS, THINKING, Mutator, slow_shapes, tokens, turn

NAMES = [name for name in tool_parser_names() if name in GRAMMARS]
ALONE = {"llama3_json", "harmony", "pythonic"}
"""Formats without text before a call: a call is all that a turn is, or a message of its own."""
SECTIONS = ["deepseek_v3", "deepseek_v31", "kimi_k2"]
"""Formats in which a call has an end of its own, whatever becomes of the frame."""
WITH_OPENINGS = [name for name in NAMES if GRAMMARS[name].openings and name not in (*ALONE, *SECTIONS)]
OTHERS = ("<|return|>",)
"""A word of Harmony that ends a turn, and so is never sampled inside one."""
TYPES = ("string", "array", "boolean")
each_parser = pytest.mark.parametrize("name", NAMES)
pieces = {
    name: st.sampled_from([*grammar.words, *ATOMS, *THINKING, grammar.write([Call("f", {})], Random(0))])
    for name, grammar in GRAMMARS.items()
}


def written(name: str, *calls: Call, style: Any = 0) -> str:
    return GRAMMARS[name].write(list(calls), Random(style))


def marked(name: str, *calls: Call, style: int = 0) -> str:
    """Write calls as a family does between markers, where it can also do without."""
    texts = (written(name, *calls, style=one) for one in count(style))
    return next(text for text in texts if text.startswith(GRAMMARS[name].openings))


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
    for _ in range(size(150, 300)):
        text = mutator.next()
        controls = tokens(dice, grammar, {*parser.markers, *parser.reasoning_markers})
        sampled = tuple(place for place in occurrences(text, controls) if dice.random() < 0.8)
        assert judge(parser, grammar, Case(text, controls=controls, sampled=sampled)) is None


@each_parser
def test_well_formed_turns_are_read(name: str) -> None:
    parser, grammar, dice = get_tool_parser(name), GRAMMARS[name], Random(name)
    for _ in range(size(100, 200)):
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
        assert parsed.text == before.rstrip("\n") and (call.id is None or call.id in text)
        assert (call.id is None) or name in ("kimi_k2", "mistral")
        if GRAMMARS[name].framed:
            assert text.startswith(GRAMMARS[name].openings, len(before)) or not before
        else:
            assert text.endswith(call.raw) and call.start + len(call.raw) == len(text)
            assert call.start == len(before) or name == "harmony"  # which may think first


@each_parser
def test_name_and_markers(name: str) -> None:
    parser = get_tool_parser(name)
    assert isinstance(parser, ToolParser) and parser.name == name
    words = "".join((*GRAMMARS[name].words, *GRAMMARS[name].openings, *parser.reasoning_markers, *THINKING))
    assert all(marker in words for marker in parser.markers), "a marker that the grammar does not know"
    assert all(opening in parser.call_markers for opening in GRAMMARS[name].openings)
    assert {word for word in GRAMMARS[name].words if word[0] in "<[" and len(word) > 2} <= {*parser.markers, *OTHERS}
    assert len(parser.reasoning_markers) == 2 and parser.endings == (("<|call|>",) if name == "harmony" else ())


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
    if name not in (*ALONE, "mistral"):  # behind a later block, too
        parsed = form.parse(f"Hm.{opening}{draft}{closing}No. {real}")
        assert [call.name for call in parsed.calls] == ["real"] and not parsed.failures
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


@pytest.mark.parametrize("name", WITH_OPENINGS)
def test_call_truncated_anywhere_is_unclosed(name: str) -> None:
    arguments = {"s": 'a{"\\ é 😀', "n": [-1.5e10, 0, True, False, None, {"x y": {}}], "t": "", "b": True}
    schemas = {"f": {"properties": {key: {"type": kind} for key, kind in zip("snb", TYPES, strict=True)}}}
    for style in range(4):
        whole = marked(name, Call("f", arguments), style=style)
        opening = next(word for word in GRAMMARS[name].openings if whole.startswith(word))
        for length in range(len(opening), len(whole)):
            item = Format(get_tool_parser(name), schemas=schemas, escapes=True).failed(f"x\n{whole[:length]}")
            assert (item.failure, item.raw, item.start) == (ParseFailure.UNCLOSED, whole[:length], 2)
            assert item.name in ("f", None)


@each_parser
def test_text_without_a_call_is_text(name: str) -> None:
    words = GRAMMARS[name].openings or ("x",)
    for text in ("", "hello", "\n hello \n", f"a {words[0][:-1]}"):
        assert get_tool_parser(name).parse(text) == ParsedTurn(reasoning=None, text=text)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ALONE])
def test_text_around_calls_remains(name: str) -> None:
    form = Format(get_tool_parser(name))
    call = marked(name, Call("f", {"a": "x"}))
    texts = [(call, ""), (f"before\n{call}", "before"), (f"a\n\n{call}{call}", "a"), (f"a\n{call}\n{call}\n", "a")]
    if name != "mistral":  # behind its calls there is nothing else
        texts += [(f"{call}\nafter", "after"), (f"before\n\n{call}\n{call}\nafter", "before\nafter")]
        texts += [(f"a{call}b{call}c", "a\nb\nc")]
    for text, remains in texts:
        turn = form.parse(text)
        assert (turn.text, turn.failures) == (remains, ()) and len(turn.calls) == text.count(call)


@pytest.mark.parametrize("name", [name for name in WITH_OPENINGS + SECTIONS if name != "harmony"])
def test_letters_that_are_no_tokens_are_text(name: str) -> None:
    """A model that quotes a page about its own format writes letters."""
    parser = get_tool_parser(name)
    quoted, real = marked(name, Call("rm", {})), marked(name, Call("f", {"a": f"x {parser.markers[-1]} y"}))
    if not GRAMMARS[name].writes(f"x {parser.markers[-1]} y"):
        real = marked(name, Call("f", {"a": "x"}))
    controls = tokens(Random(0), GRAMMARS[name], parser.markers, chance=1.0)
    places = occurrences(quoted + real, controls)
    inside = occurrences(quoted, controls)
    turn = parser.parse(Case(quoted + real, controls=controls, sampled=tuple(places[len(inside) :])).given)
    assert [call.name for call in turn.calls] == ["f"] and (turn.failures, turn.text) == ((), quoted)
    assert parser.parse(Case(quoted, controls=controls, sampled=()).given) == ParsedTurn(None, quoted)
    half = parser.parse(Case(real, controls=controls, sampled=tuple(occurrences(real, controls)[:1])).given)
    assert half.calls == () and len(half.failures) == 1


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
def test_megabyte_is_parsed_in_seconds(name: str) -> None:
    """Of markers and of pieces of calls, again and again, between the halves of a turn."""
    parser, grammar = get_tool_parser(name), GRAMMARS[name]
    shapes = slow_shapes(Random(name), grammar, (*parser.markers, *parser.reasoning_markers))
    for shape in islice(shapes, 250):
        quarter, whole = shape(250_000), shape(1_000_000)
        if least_seconds(lambda text=quarter: parser.parse(text)) > SECONDS / 200:  # type: ignore[misc]
            assert least_seconds(lambda text=whole: parser.parse(text)) < SECONDS, whole[:80]  # type: ignore[misc]
