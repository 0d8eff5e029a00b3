"""An episode is rendered with the time of its record, on whatever day it is resumed, replayed or checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from strands import tool

from strands_sglang.proof import verify
from strands_sglang.runs import EndReason, Limits, ReplayVerdict, Task, replay
from strands_sglang.runs.offline.template_check import check_templates
from support.clock import Clock, set_clock
from support.families import tokenizer
from support.provider.agents import agent_on
from support.rollout.scripts import crashed, run
from support.scripted_engine import Reply, ScriptedEngine

DATED = {
    "gpt-oss": (
        '<|channel|>commentary to=functions.step <|constrain|>json<|message|>{"number": N}<|call|>',
        "<|channel|>final<|message|>Done.<|return|>",
    ),
    "llama-3.2": ('{"name": "step", "parameters": {"number": N}}<|eot_id|>', "Done.<|eot_id|>"),
    "mistral-small-3.2": ('[TOOL_CALLS]step[CALL_ID]call0000N[ARGS]{"number": N}</s>', "Done.</s>"),
    "smollm3": (
        '<tool_call>\n{"name": "step", "arguments": {"number": N}}\n</tool_call><|im_end|>',
        "Done.<|im_end|>",
    ),
}
"""Families whose templates write the date: a call and an answer."""
CALLS = 5


@tool
def step(number: int) -> str:
    """Take a step.

    Args:
        number: Its number.
    """
    if number == 1:
        Clock.current = Clock.current.replace(day=Clock.current.day + 1)
    return f"step R{number}"


def build(task: Task, model: Any) -> Any:
    return agent_on(model, tools=[step])


def engine(family: str) -> ScriptedEngine:
    call, answer = DATED[family]

    def script(prompt: str) -> Reply:
        done = sum(f"step R{number}" in prompt for number in range(CALLS))
        return Reply(call.replace("N", str(done)) if done < CALLS else answer, ended=False)

    return ScriptedEngine(tokenizer(family), script)


@pytest.mark.parametrize("family", DATED)
async def test_days_change_nothing(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch)
    first, again = engine(family), engine(family)
    parser: dict[str, Any] = {"tool_parser": "hermes"} if family == "smollm3" else {}  # its template writes no calls
    more: dict[str, Any] = {"limits": Limits(max_turns=2 * CALLS), **parser}
    await run(build, [Task("go", id="t")], first, tmp_path / "whole", **more)
    assert Clock.current.day == 18 and len(first.calls) == CALLS + 1
    assert all("17" in prompt and "18" not in prompt for prompt in first.prompts)

    half = crashed(tmp_path / "whole", tmp_path / "half", 8)  # three of six calls and their results are recorded
    set_clock(monkeypatch, day=18)
    (resumed,) = await run(build, [Task("go", id="t")], again, half, **more)
    assert resumed.end_reason is EndReason.ANSWERED
    assert first.prompts[-len(again.calls) :] == again.prompts and len(again.calls) == 2
    assert verify(half).tokens.rolled_back == 0

    set_clock(monkeypatch, day=19)
    report = check_templates(half, tokenizer=tokenizer(family), **parser)
    if family != "smollm3":  # no step behind a call can be compared
        assert report.text().startswith("EXACT  1 conversation"), report.text()
    assert [one.verdict for one in await replay(build, half, tokenizer=tokenizer(family), **parser)] == [
        ReplayVerdict.IDENTICAL
    ]
