"""A name that nobody can see names no tool, in any family."""

from __future__ import annotations

import json

import pytest

from strands_sglang.chat.failed_call import reject_unprintable_names
from strands_sglang.tool_parsers import HermesToolParser
from strands_sglang.tool_parsers import ParseFailure as Failure
from strands_sglang.tool_parsers.harmony import HarmonyToolParser

UNSEEN = [
    *("\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "a\u202eb", "a\u200bb", "a\r\nb", "a\x00", "\x7f", "\u2066a", "\u2028")
]


@pytest.mark.parametrize("name", UNSEEN)
@pytest.mark.parametrize(("arguments", "failure"), [({}, Failure.MISSING_NAME), (5, Failure.BAD_ARGUMENTS)])
def test_call_with_unprintable_name_fails(name: str, arguments: object, failure: Failure) -> None:
    call = json.dumps({"name": f"step{name}", "arguments": arguments})
    turn = reject_unprintable_names(HermesToolParser().parse(f"so\n<tool_call>\n{call}\n</tool_call>"))
    assert not turn.calls and turn.text == "so"
    (failed,) = turn.failures
    assert failed.failure is failure and failed.name is None
    assert failed.detail.isprintable()


@pytest.mark.parametrize("name", UNSEEN)
def test_harmony_call_has_no_unprintable_name(name: str) -> None:
    text = f"<|channel|>commentary to=functions.step{name} <|constrain|>json<|message|>{{}}<|call|>"
    turn = reject_unprintable_names(HarmonyToolParser().parse(text))
    assert all(call.name.isprintable() for call in turn.calls)
    assert all(failed.name is None or failed.name.isprintable() for failed in turn.failures)


@pytest.mark.parametrize("name", ["step", "größe", "工具", "my tool", "a.b/c-d"])
def test_printable_names_are_kept(name: str) -> None:
    call = json.dumps({"name": name, "arguments": {}}, ensure_ascii=False)
    turn = reject_unprintable_names(HermesToolParser().parse(f"<tool_call>\n{call}\n</tool_call>"))
    assert [call.name for call in turn.calls] == [name]
