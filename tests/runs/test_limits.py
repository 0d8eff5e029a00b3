"""`Limits`: positive numbers, or None; they also hold when many agents of an episode run at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from strands_sglang import SGLangModel
from strands_sglang.errors import ConfigurationError, EngineError
from strands_sglang.ledger.event import EventKind
from strands_sglang.provider.token_budget import Reservation
from strands_sglang.runs import ReplayVerdict, Task, replay
from strands_sglang.runs.end_reason import EndReason, LimitReachedError
from strands_sglang.runs.limits import Limits, MultiAgentLimits
from support.rollout.scripts import RAN, PromptEngine, assert_proved, assert_same, crashed, record_of, run, summaries
from support.scripted_engine import Answer, Reply, tool_call

NAMES = [limit.name for limit in fields(Limits)]
TIMES = [name for name in NAMES if name.endswith("timeout")]


def test_default_is_no_limit() -> None:
    assert all(getattr(Limits(), name) is None for name in NAMES)
    assert Limits(**dict.fromkeys(NAMES, 3)).max_turns == 3
    assert Limits(tool_timeout=0.5, episode_timeout=1.5).tool_timeout == 0.5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [0, -1, True, "5", -0.5])
def test_invalid_limit_is_rejected_by_name(name: str, bad: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"Limits.{name} must be (an int >= 1|a number > 0) or None"):
        Limits(**{name: bad})


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(TIMES)))
def test_counted_limits_must_be_ints(name: str) -> None:
    with pytest.raises(ConfigurationError):
        Limits(**{name: 1.5})  # type: ignore[arg-type]


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
    text = "word " * 30 if "counted" in prompt or "not executed" in prompt else tool_call("count")
    return Reply(text, before=_pause)


def many_agents(task: Task, model: SGLangModel) -> Any:

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
        (Limits(max_turns=5), EndReason.TURN_LIMIT),
        (Limits(max_tool_calls=5), EndReason.TOOL_LIMIT),
        (Limits(max_episode_tokens=100), EndReason.TOKEN_LIMIT),
    ],
    ids=["turns", "tool calls", "tokens"],
)
async def test_no_limit_is_exceeded_and_everything_is_recorded(
    limits: Limits, ended: EndReason, tmp_path: Path
) -> None:
    engine = PromptEngine(script)
    RAN.taken()
    rolled = await run(many_agents, [TASK], engine, tmp_path, limits=limits)
    [episode] = rolled
    assert episode.end_reason is ended
    assert (
        limits.max_turns is None or len(episode.tree) == sum(call.answered for call in engine.calls) == limits.max_turns
    )
    assert limits.max_tool_calls is None or RAN.taken()["count"] == limits.max_tool_calls == episode.metrics.tool_calls
    sampled = sum(len(turn.sampled) for turn in episode.tree)
    assert limits.max_episode_tokens is None or sampled <= limits.max_episode_tokens
    assert_proved(tmp_path)
    assert_same(tmp_path, rolled)


async def test_tool_calls_beyond_limit_are_refused_in_run_and_replay(tmp_path: Path) -> None:
    limits = Limits(max_tool_calls=5)
    await run(many_agents, [TASK], PromptEngine(script), tmp_path / "run", limits=limits)
    tools = [event for event in record_of(tmp_path / "run").events if event.kind is EventKind.TOOL]
    outcomes = [event.data["outcome"] for event in tools]
    assert outcomes.count("result") == 5 and outcomes.count("refused") == len(tools) - 5 == AGENTS - 5
    RAN.taken()
    [one] = await replay(many_agents, tmp_path / "run", tokenizer=PromptEngine(script).tokenizer, limits=limits)
    assert one.verdict is ReplayVerdict.IDENTICAL, one
    assert not RAN.taken()


@pytest.mark.parametrize("limits", [Limits(max_turns=12), Limits(max_tool_calls=5)], ids=["turns", "tool calls"])
async def test_limits_hold_after_crash(limits: Limits, tmp_path: Path) -> None:
    """Recorded turns and tool calls count, also while they are being replayed."""
    await run(many_agents, [TASK], PromptEngine(script), tmp_path / "whole", limits=limits)
    events = record_of(tmp_path / "whole").events
    for kept in (3, len(events) // 2, len(events) - 1):
        folder = crashed(tmp_path / "whole", tmp_path / f"{kept}", kept)
        before = sum(e.kind is EventKind.TOOL and e.data["outcome"] == "result" for e in events[:kept])
        RAN.taken()
        engine = PromptEngine(script).follows(events[:kept])
        rolled = await run(many_agents, [TASK], engine, folder, limits=limits)
        [episode] = rolled
        assert limits.max_turns is None or len(episode.tree) <= limits.max_turns
        assert limits.max_tool_calls is None or before + RAN.taken()["count"] <= limits.max_tool_calls
        assert_proved(folder)
        assert summaries(rolled).keys() == {"t/0"}


async def test_failed_turn_does_not_count() -> None:
    def failing(prompt: str, before: int) -> Answer:
        return EngineError("down") if "question 0" in prompt else Reply("well", before=_pause)

    engine = PromptEngine(failing)

    def build(task: Task, model: SGLangModel) -> Any:
        work = many_agents(task, model)

        async def swallowing() -> None:
            try:
                await work()
            except Exception:
                return

        return swallowing

    [episode] = await run(build, [TASK], engine, limits=Limits(max_turns=5))
    assert len(episode.tree) == 5


async def test_waiting_turn_raises_when_limit_is_reached() -> None:
    limits, made = MultiAgentLimits(max_turns=1), [0]

    async def second() -> None:
        with Reservation() as hold:
            await limits.begin_turn(hold, lambda: (made[0], 0))

    with Reservation() as first:
        await limits.begin_turn(first, lambda: (made[0], 0))
        waiting = asyncio.ensure_future(second())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        made[0] = 1
    with pytest.raises(LimitReachedError) as raised:
        await waiting
    assert raised.value.end_reason is EndReason.TURN_LIMIT


def test_refusal_message() -> None:
    assert MultiAgentLimits().refusal(10**6) is None and MultiAgentLimits(max_tool_calls=2).refusal(1) is None
    assert MultiAgentLimits(max_tool_calls=2).refusal(2) == "not executed: the limit of 2 tool calls is reached"
