"""Mistral calls: what is special to them beside what every format of lists shares (test_json_lists.py)."""

from __future__ import annotations

import json

import pytest

from strands_sglang.tool_parsers.parsed import ParseFailure as Failure
from support.tool_parsers.checks import Conformance, rows, shown
from support.tool_parsers.json_lists import MISTRAL as FORM
from support.tool_parsers.json_lists import NAMED, ONE

OPENING, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
THINK, THOUGHT = "[THINK]", "[/THINK]"
CALL = FORM.call


@pytest.mark.parametrize("call_id", ["7", "null", '" "'])
def test_invalid_object_fails_alone(call_id: str) -> None:
    FORM.check_bad_object(f'{{"name": "f", "arguments": {{}}, "id": {call_id}}}', Failure.MISSING_NAME)


@pytest.mark.parametrize(
    ("block", "failure"),
    [
        (f"{OPENING}[{ONE}]\nDone.", Failure.TRAILING_TEXT),
        (f"{OPENING}[x]", Failure.INVALID_JSON),
        (f"{OPENING}{ONE}", Failure.MISSING_NAME),
        (f'{OPENING} {{"name": "f", "arguments": {{"a": "{OPENING}rm{ARGS}{{}}"}}}}', Failure.MISSING_NAME),
        (f"{OPENING}{ONE}{ARGS}{{}}", Failure.MISSING_NAME),
    ],
    ids=shown,
)
def test_blocks_without_a_call(block: str, failure: Failure) -> None:
    FORM.check_block(block, failure)


def test_ids() -> None:
    assert FORM.parse(FORM.listed('{"name": "f", "arguments": {}, "id": "call00001"}')).calls[0].id == "call00001"
    (call,) = FORM.parse("ok[TOOL_CALLS]f[CALL_ID]call00001[ARGS]{}").calls
    assert (call.name, call.id, call.start, call.raw) == (
        *("f", "call00001", 2, "[TOOL_CALLS]f[CALL_ID]call00001[ARGS]{}"),
    )


@pytest.mark.parametrize("between", ["", "\n", " \r\n\t"])
def test_named_calls_in_parallel(between: str) -> None:
    written = [f'[TOOL_CALLS]tool_{number}[ARGS]{{"n": {number}}}' for number in range(12)]
    turn = FORM.parse(f"Go.\n{between.join(written)}{between}")
    assert [call.name for call in turn.calls] == [f"tool_{number}" for number in range(12)]
    assert [call.raw for call in turn.calls] == written and (turn.failures, turn.text) == ((), "Go.")


@pytest.mark.parametrize("marker", [THINK, THOUGHT, OPENING, CALL_ID, ARGS, CALL, NAMED])
def test_marker_inside_arguments_of_named_call_is_data(marker: str) -> None:
    written = f"[TOOL_CALLS]f[ARGS]{json.dumps({'a': f'x {marker} y', marker: 1})}"
    turn = FORM.parse(f"[THINK]{NAMED}[/THINK]{written}{NAMED}")
    assert turn.calls[0].arguments == {"a": f"x {marker} y", marker: 1} and len(turn.calls) == 2
    assert (turn.failures, turn.text) == ((), "")


@pytest.mark.parametrize(
    ("raw", "failure"),
    [
        *rows(Failure.MISSING_NAME, OPENING, f"{OPENING} \n", f"{OPENING}f{{}}", f"{OPENING}{ARGS}{{}}"),
        *rows(Failure.MISSING_NAME, f"{OPENING} {ARGS}{{}}", f"{OPENING}{CALL_ID}x{ARGS}{{}}"),
        *rows(Failure.MISSING_NAME, f"{OPENING}f{CALL_ID}{ARGS}{{}}", f"{OPENING}f{CALL_ID} {ARGS}{{}}"),
        *rows(Failure.MISSING_NAME, f"{OPENING}f{CALL_ID}[x]{ARGS}{{}}", f"{OPENING}f[ARG]{{}}{ARGS}{{}}"),
        (f'{OPENING}{ARGS}{{"a": "{NAMED[:-1]}"}}'.replace('"expression": "12*7+3"', ""), Failure.MISSING_NAME),
        *rows(Failure.BAD_ARGUMENTS, f"{OPENING}f", f"{OPENING}f(1)", f"{OPENING}f{CALL_ID}x"),
        *rows(Failure.BAD_ARGUMENTS, f"{OPENING}f{CALL_ID}x{CALL_ID}y{ARGS}{{}}", f"{OPENING}f{ARGS}[]"),
        *rows(Failure.BAD_ARGUMENTS, f'{OPENING}f{ARGS}"{{}}"', f"{OPENING}f{ARGS}null"),
        *rows(Failure.INVALID_JSON, f"{OPENING}f{ARGS}", f"{OPENING}f{ARGS}{ARGS}{{}}", f'{OPENING}f{ARGS}{{"a": 1,}}'),
        *rows(Failure.INVALID_JSON, f"{OPENING}f{ARGS}{{'a': 1}}", f'{OPENING}f{ARGS}{{"a": NaN}}'),
        *rows(Failure.INVALID_JSON, f'{OPENING}f{ARGS}{{"a": "x\ny"}}', f'{OPENING}f{ARGS}{{"a": 1'),
        (f'{OPENING}f{ARGS}{{"a": 1, "a": 2}}', Failure.DUPLICATE_KEY),
        *rows(Failure.TRAILING_TEXT, f"{OPENING}f{ARGS}{{}} x", f"{OPENING}f{ARGS}{{}}{{}}"),
        *rows(Failure.TRAILING_TEXT, f"{OPENING}f{ARGS}{{}}, g{ARGS}{{}}", f"{OPENING}f{ARGS}{{}}{CALL_ID}x"),
        (f'{OPENING}f{ARGS}{{}} {{"a": "{OPENING}"}}', Failure.TRAILING_TEXT),
    ],
    ids=shown,
)
def test_malformed_named_call_does_not_affect_other_calls(raw: str, failure: Failure) -> None:
    turn = FORM.parse(f"a\n{NAMED}{raw}{NAMED}{raw}{CALL}")
    assert [(item.failure, item.raw) for item in turn.failures] == [(failure, raw), (failure, raw)]
    first = len(f"a\n{NAMED}")
    assert [item.start for item in turn.failures] == [first, first + len(f"{raw}{NAMED}")]
    assert [call.name for call in turn.calls] == ["calculator"] * 3 and turn.text == "a"


def test_unclosed_string_includes_markers_after_it() -> None:
    """Cut or forgotten: whose text that is cannot be told, so nothing behind is executed."""
    raw = '[TOOL_CALLS]f[ARGS]{"a": "x}[TOOL_CALLS]rm[ARGS]{}'
    assert FORM.found(raw) == ([], [(Failure.INVALID_JSON, raw)], "")
    assert FORM.found(f"{OPENING}[{ONE}{NAMED}") == (["calculator"], [(Failure.INVALID_JSON, f"{OPENING}[{ONE}")], "")
    unclosed = f"{OPENING}[{ONE}, "
    assert FORM.found(unclosed + NAMED) == (["calculator"], [(Failure.INVALID_JSON, unclosed)], "")
    in_a_list = '[TOOL_CALLS][{"name": "f, "arguments": {"a": 1}}][TOOL_CALLS]g[ARGS]{}'
    assert FORM.found(in_a_list)[0] == ["g"]


class TestMistral(Conformance):
    forms = [FORM]
    remaining = [
        (f"{NAMED}\n{NAMED}", ""),
        (f"a\n{NAMED}{CALL}", "a"),
        ("Usage: f [ARGS] [CALL_ID]", "Usage: f [ARGS] [CALL_ID]"),
        ("f[ARGS]{}", "f[ARGS]{}"),
    ]
    details = [
        ('[TOOL_CALLS]f[ARGS]{"a": nope}', "The JSON is not valid: expecting value, at character 25 of the call", "f"),
        ("[TOOL_CALLS]f[ARGS]7", "arguments of a tool call must be a JSON object, not a number", "f"),
        ("[TOOL_CALLS]f[ARGS]{} x", "there must be nothing else, at character 22", "f"),
        ("[TOOL_CALLS]f", "The turn ended before the [ARGS] of a tool call", None),
        ("[TOOL_CALLS][ARGS]{}", "The name of a tool call must come before [ARGS]", None),
        ("[TOOL_CALLS]f[CALL_ID][ARGS]{}", "The id of a tool call must come before [ARGS]", None),
        (f"[TOOL_CALLS]{ONE}", "a list of tool calls, or by a name and [ARGS]", None),
    ]
