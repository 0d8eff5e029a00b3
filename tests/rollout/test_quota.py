"""Bounds of an episode of several agents, which all work at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from rollout.scripts import RAN, PromptEngine, assert_proved, assert_same, crashed, record_of, run, summaries
from scripted_engine import Answer, Reply, tool_call
from strands_sglang import SGLangModel
from strands_sglang.errors import EngineError
from strands_sglang.ledger.event import EventKind
from strands_sglang.provider.reserve import Hold
from strands_sglang.rollout import Limits, ReplayVerdict, Task, replay
from strands_sglang.rollout.ended import Ended, LimitReachedError
from strands_sglang.rollout.quota import Quota

TASK = Task("go", id="t")
AGENTS = 16


@tool
async def count() -> str:
    """Count."""
    RAN("count")
    await asyncio.sleep(0.001)
    return "counted"


async def _pause() -> None:
    await asyncio.sleep(0.002)


def script(prompt: str, before: int) -> Answer:
    said = "word " * 30 if "counted" in prompt or "not executed" in prompt else tool_call("count")
    return Reply(said, before=_pause)


def crowd(task: Task, model: SGLangModel) -> Any:
    """Return a function that lets sixteen agents work at once."""

    async def one(number: int) -> None:
        agent = Agent(model=model, tools=[count], callback_handler=None, conversation_manager=NullConversationManager())
        await agent.invoke_async(f"question {number}")

    async def work() -> None:
        ended = await asyncio.gather(*(one(number) for number in range(AGENTS)), return_exceptions=True)
        raised = [error for error in ended if error is not None]
        if raised:
            raise raised[0]

    return work


@pytest.mark.parametrize(
    ("limits", "ended"),
    [
        (Limits(turns=5), Ended.TURN_LIMIT),
        (Limits(tool_calls=5), Ended.TOOL_LIMIT),
        (Limits(tokens_per_episode=100), Ended.TOKEN_LIMIT),
    ],
    ids=["turns", "tool calls", "tokens"],
)
async def test_no_bound_is_exceeded_and_all_of_it_is_on_record(limits: Limits, ended: Ended, tmp_path: Path) -> None:
    engine = PromptEngine(script)
    RAN.taken()
    rolled = await run(crowd, [TASK], engine, tmp_path, limits=limits)
    [episode] = rolled
    assert episode.ended is ended
    assert limits.turns is None or len(episode.tree) == sum(call.answered for call in engine.calls) == limits.turns
    assert limits.tool_calls is None or RAN.taken()["count"] == limits.tool_calls == episode.metrics.tool_calls
    sampled = sum(len(turn.sampled) for turn in episode.tree)
    assert limits.tokens_per_episode is None or sampled <= limits.tokens_per_episode
    assert_proved(tmp_path)
    assert_same(tmp_path, rolled)


async def test_tools_beyond_the_bound_are_answered_on_record_and_in_a_replay(tmp_path: Path) -> None:
    limits = Limits(tool_calls=5)
    await run(crowd, [TASK], PromptEngine(script), tmp_path / "run", limits=limits)
    tools = [event for event in record_of(tmp_path / "run").events if event.kind is EventKind.TOOL]
    outcomes = [event.data["outcome"] for event in tools]
    assert outcomes.count("result") == 5 and outcomes.count("refused") == len(tools) - 5 == AGENTS - 5
    RAN.taken()
    [one] = await replay(crowd, tmp_path / "run", tokenizer=PromptEngine(script).tokenizer, limits=limits)
    assert one.verdict is ReplayVerdict.IDENTICAL, one
    assert not RAN.taken()


@pytest.mark.parametrize("limits", [Limits(turns=12), Limits(tool_calls=5)], ids=["turns", "tool calls"])
async def test_bounds_hold_over_a_crash(limits: Limits, tmp_path: Path) -> None:
    """What is on record counts, also while it is being handed out again."""
    await run(crowd, [TASK], PromptEngine(script), tmp_path / "whole", limits=limits)
    events = record_of(tmp_path / "whole").events
    for kept in (3, len(events) // 2, len(events) - 1):
        folder = crashed(tmp_path / "whole", tmp_path / f"{kept}", kept)
        before = sum(e.kind is EventKind.TOOL and e.data["outcome"] == "result" for e in events[:kept])
        RAN.taken()
        engine = PromptEngine(script).follows(events[:kept])
        rolled = await run(crowd, [TASK], engine, folder, limits=limits)
        [episode] = rolled
        assert limits.turns is None or len(episode.tree) <= limits.turns
        assert limits.tool_calls is None or before + RAN.taken()["count"] <= limits.tool_calls
        assert_proved(folder)
        assert summaries(rolled).keys() == {"t/0"}


async def test_a_turn_that_failed_is_left_to_another() -> None:
    def failing(prompt: str, before: int) -> Answer:
        return EngineError("down") if "question 0" in prompt else Reply("well", before=_pause)

    engine = PromptEngine(failing)

    def build(task: Task, model: SGLangModel) -> Any:
        work = crowd(task, model)

        async def swallowing() -> None:
            try:
                await work()
            except Exception:
                return

        return swallowing

    [episode] = await run(build, [TASK], engine, limits=Limits(turns=5))
    assert len(episode.tree) == 5


async def test_who_waits_for_a_turn_is_told_when_there_is_none() -> None:
    quota, made = Quota(turns=1), [0]

    async def second() -> None:
        with Hold() as hold:
            await quota.begin_turn(hold, lambda: (made[0], 0))

    with Hold() as first:
        await quota.begin_turn(first, lambda: (made[0], 0))
        waiting = asyncio.ensure_future(second())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        made[0] = 1
    with pytest.raises(LimitReachedError) as raised:
        await waiting
    assert raised.value.ended is Ended.TURN_LIMIT


def test_a_tool_is_refused_in_words() -> None:
    assert Quota().refusal(10**6) is None and Quota(tool_calls=2).refusal(1) is None
    assert Quota(tool_calls=2).refusal(2) == "not executed: the limit of 2 tool calls is reached"
