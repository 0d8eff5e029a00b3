"""Limits: an agent stops after its last allowed tool results, and no messages are made up."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from strands import Agent
from strands.hooks import AfterToolCallEvent, BeforeToolCallEvent, HookOrder
from strands.types.exceptions import EventLoopException

from strands_sglang import (
    LoopLimiter,
    LoopLimitReachedError,
    MaxMessagesReachedError,
    MaxToolCallsReachedError,
    MaxToolIterationsReachedError,
    SGLangModel,
    ToolIterationLimiter,
    ToolLimiter,
)
from strands_sglang.tool_limits import ToolLimit
from support.provider.agents import agent_on, ask, calculator, lookup, said, scripted_model
from support.scripted_engine import Reply, ScriptedEngine, assert_exact, tool_call

CALL = tool_call("calculator", expression="1 + 1")
BROKEN = "<tool_call>broken</tool_call>"


def several(count: int) -> str:
    return "\n".join([CALL] * count)


def ends_on_results(agent: Any, model: SGLangModel) -> None:
    """Check that the conversation ends on tool results, and the trajectory on sampled tokens."""
    assert agent.messages[-1]["role"] == "user" and all(
        "toolResult" in block for block in agent.messages[-1]["content"]
    )
    asked = [block["toolUse"]["toolUseId"] for block in agent.messages[-2]["content"] if "toolUse" in block]
    assert [block["toolResult"]["toolUseId"] for block in agent.messages[-1]["content"]] == asked
    (trajectory,) = model.current_episode.trajectories()
    assert trajectory.loss_mask[-1] == 1
    sampled = sum(len(turn.sampled) for turn in model.current_episode.tree)
    assert int(trajectory.loss_mask.sum()) == sampled


async def play(script: Any, limiter: ToolLimiter, **settings: Any) -> tuple[Any, Any, int]:
    """Let an agent play under a limit, check its tokens and its last message, and return it, its result, and calls."""
    model, engine = scripted_model(script, **settings)
    agent = agent_on(model, hooks=[limiter])
    result = await agent.invoke_async("go")
    assert (result.stop_reason == "cancelled") == (limiter.reason is not None)
    if limiter.reason is not None:
        assert result.state["tool_limit"] == limiter.reason.value
        ends_on_results(agent, model)
    assert_exact(engine, model.current_episode)
    return agent, result, len(engine.calls)


ITERATIONS, CALLS = ToolLimit.TOOL_ITERATIONS, ToolLimit.TOOL_CALLS


def forever(count: int = 1) -> Any:
    """Return a script that makes so many calls at once, again and again."""
    return lambda _: several(count)


@pytest.mark.parametrize(
    ("script", "limiter", "calls", "counts", "reason"),
    [
        *((forever(), ToolLimiter(max_tool_iters=limit), limit, (limit, limit), ITERATIONS) for limit in (1, 3, 10)),
        (forever(4), ToolIterationLimiter(max_iterations=2), 2, (2, 8), ITERATIONS),  # parallel calls: one iteration
        (forever(3), ToolLimiter(max_tool_calls=4), 2, (2, 4), CALLS),
        (
            lambda _: BROKEN,
            ToolLimiter(max_tool_iters=3, max_tool_calls=1),
            3,
            (3, 0),
            ITERATIONS,
        ),  # malformed: no call
        ([CALL, "2"], ToolLimiter(max_tool_iters=2, max_tool_calls=2), 2, (1, 1), None),
    ],
)
async def test_a_limit_stops_the_agent(
    script: Any, limiter: ToolLimiter, calls: int, counts: tuple[int, int], reason: ToolLimit | None
) -> None:
    agent, result, made = await play(script, limiter)
    assert (made, limiter.tool_iter_count, limiter.tool_call_count, limiter.reason) == (calls, *counts, reason)
    assert reason is not None or (result.stop_reason == "end_turn" and "tool_limit" not in result.state)
    if reason is CALLS:
        assert said(agent)[-3:] == ["success: 2"] + ["error: not executed: the limit of 4 tool calls is reached"] * 2
    if isinstance(limiter, ToolIterationLimiter):
        assert (limiter.iteration_count, limiter.max_iterations) == (2, 2)


async def test_max_parallel_tool_calls_limits_the_calls_of_a_turn() -> None:
    limiter = pickle.loads(pickle.dumps(ToolLimiter(max_parallel_tool_calls=2)))
    agent, result, _ = await play([several(3), CALL, "done"], limiter)
    assert result.stop_reason == "end_turn"
    assert (limiter.tool_iter_count, limiter.tool_call_count, limiter.cancelled_tool_call_count) == (2, 3, 1)
    refused = "error: not executed: at most 2 tool calls are run in one turn"
    shown = [line for line in said(agent) if line.startswith(("success", "error"))]
    assert shown == ["success: 2", "success: 2", refused, "success: 2"]


async def test_a_new_question_resets_the_count_and_continuing_does_not() -> None:
    model, engine = scripted_model(forever())
    limiter = ToolLimiter(max_tool_iters=3)
    agent = agent_on(model, hooks=[limiter])
    await agent.invoke_async("one", limits={"turns": 2})
    assert (limiter.tool_iter_count, limiter.reason) == (2, None)
    await agent.invoke_async(None)
    assert (limiter.tool_iter_count, limiter.reason, len(engine.calls)) == (3, ToolLimit.TOOL_ITERATIONS, 3)
    await agent.invoke_async("two")
    assert (limiter.tool_iter_count, len(engine.calls)) == (3, 6)
    limiter.reset()
    assert (limiter.tool_iter_count, limiter.tool_call_count, limiter.reason) == (0, 0, None)
    assert_exact(engine, model.current_episode)


async def test_agents_that_share_a_limiter_are_counted_separately() -> None:
    model, _ = scripted_model(forever())
    limiter = ToolLimiter(max_tool_iters=4)

    async def one(number: int) -> int:
        with model.episode():
            agent = agent_on(model, hooks=[limiter])
            await agent.invoke_async("go")
            return len(agent.messages)

    assert await asyncio.gather(*map(one, range(8))) == [9] * 8


async def test_a_turn_that_is_interrupted_counts_once() -> None:
    both = f"{tool_call('ask', question='sure?')}\n{CALL}"
    model, engine = scripted_model([both, CALL, "2"])
    limiter = ToolLimiter(max_tool_iters=2)
    agent = agent_on(model, tools=[ask, calculator], hooks=[limiter])
    result = await agent.invoke_async("go")
    assert result.stop_reason == "interrupt" and limiter.tool_iter_count == 1
    assert result.interrupts is not None
    response: Any = [{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": "yes"}}]
    result = await agent.invoke_async(response)
    assert limiter.tool_iter_count == 2 and limiter.reason is ToolLimit.TOOL_ITERATIONS
    assert result.stop_reason == "cancelled" and len(engine.calls) == 2


async def test_a_call_that_a_hook_retries_counts_once() -> None:
    tried: list[str] = []

    def again(event: AfterToolCallEvent) -> None:
        tried.append(event.tool_use["toolUseId"])
        event.retry = len(tried) == 1

    model, _ = scripted_model([tool_call("lookup", word="a"), CALL, "2"])
    limiter = ToolLimiter(max_tool_calls=2)
    agent = agent_on(model, tools=[lookup, calculator], hooks=[limiter])
    agent.add_hook(again, AfterToolCallEvent)
    await agent.invoke_async("go")
    assert len(tried) == 3 and limiter.tool_call_count == 2


async def test_streaming_counts_the_same() -> None:
    script = [Reply(f"Let me see.\n{CALL}")] * 5
    assert (await play(script, ToolLimiter(max_tool_iters=2), streaming=True))[2] == 2


@pytest.mark.parametrize("limit", [0, -1, 2.5, "3", True])
def test_a_limit_must_be_an_int(limit: Any) -> None:
    for name in ("max_tool_iters", "max_tool_calls"):
        with pytest.raises(ValueError, match=f"{name} must be an int >= 1"):
            ToolLimiter(**{name: limit})


async def test_repeated_call_ids_are_different_turns() -> None:
    """Other providers may use the same id for every call of a tool."""
    from strands.models.model import Model

    class Same(Model):
        calls = 0

        def update_config(self, **_: Any) -> None: ...

        def get_config(self) -> Any: ...

        def structured_output(self, *_: Any, **__: Any) -> Any: ...

        async def stream(self, *_: Any, **__: Any) -> Any:
            self.calls += 1
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "same", "name": "lookup"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"word": "a"}'}}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}

    model, limiter = Same(), ToolLimiter(max_tool_iters=3)
    await Agent(model=model, tools=[lookup], hooks=[limiter], callback_handler=None).invoke_async("go")
    assert (model.calls, limiter.tool_iter_count, limiter.tool_call_count) == (3, 3, 3)


@pytest.mark.parametrize("order", [HookOrder.SDK_FIRST, HookOrder.DEFAULT, HookOrder.SDK_LAST])
async def test_a_call_cancelled_by_another_hook_does_not_count(order: int) -> None:
    def deny(event: BeforeToolCallEvent) -> None:
        event.cancel_tool = "no"

    model, _ = scripted_model([CALL, CALL, "2"])
    limiter = ToolLimiter(max_tool_calls=1)
    agent = agent_on(model, hooks=[limiter])
    agent.add_hook(deny, BeforeToolCallEvent, order=order)
    result = await agent.invoke_async("go")
    assert (limiter.tool_call_count, limiter.tool_iter_count, result.stop_reason) == (0, 2, "end_turn")


async def test_another_agent_with_the_same_state_has_no_limit_reason() -> None:
    state: dict[str, Any] = {}
    model, _ = scripted_model(forever())
    result = await agent_on(model, hooks=[ToolLimiter(1)]).invoke_async("go", invocation_state=state)
    assert result.state["tool_limit"] == "tool_iterations"
    other, _ = scripted_model(["done"])
    result = await agent_on(other, hooks=[ToolLimiter(1)]).invoke_async("go", invocation_state=state)
    assert "tool_limit" not in result.state


def test_a_limiter_can_be_sent_to_another_process() -> None:
    for limiter in (ToolLimiter(2, 3), ToolIterationLimiter(2)):
        copy = pickle.loads(pickle.dumps(limiter))
        assert type(copy) is type(limiter) and copy.max_tool_iters == 2 and copy.tool_iter_count == 0
        assert copy.max_tool_calls == limiter.max_tool_calls


def ends_whole(agent: Agent) -> None:
    """Check that every call is answered, and that the last message is a user message."""
    blocks = [block for message in agent.messages for block in message["content"]]
    asked = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
    assert [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block] == asked
    assert agent.messages[-1]["role"] == "user"


async def reached(agent: Agent, kind: type[LoopLimitReachedError]) -> None:
    with pytest.raises((EventLoopException, LoopLimitReachedError)) as raised:
        await agent.invoke_async("go")
    error: BaseException | None = raised.value
    while isinstance(error, EventLoopException):
        error = error.__cause__
    assert type(error) is kind


def limited(script: Any, **limits: int) -> tuple[Agent, LoopLimiter, ScriptedEngine, SGLangModel]:
    model, engine = scripted_model(script, "qwen2.5")
    limiter = LoopLimiter(**limits)
    return agent_on(model, hooks=[limiter]), limiter, engine, model


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_max_tool_iters_raises(limit: int) -> None:
    agent, limiter, engine, model = limited(lambda _: several(2), max_tool_iters=limit)
    await reached(agent, MaxToolIterationsReachedError)
    assert (limiter.tool_iter_count, limiter.tool_call_count) == (limit, 2 * limit)
    assert limiter.message_count == len(agent.messages) == 1 + 2 * limit
    ends_whole(agent)
    assert len(model.current_episode.tree) == limit and model.token_manager.loss_mask[-1] == 1
    assert_exact(engine, model.current_episode)


async def test_all_calls_of_a_turn_are_answered_beyond_the_limit() -> None:
    agent, limiter, *_ = limited(lambda _: several(2), max_tool_calls=3)
    await reached(agent, MaxToolCallsReachedError)
    assert (limiter.tool_iter_count, limiter.tool_call_count, limiter.cancelled_tool_call_count) == (2, 4, 0)
    assert said(agent).count("success: 2") == 4
    ends_whole(agent)


async def test_calls_beyond_the_limit_of_one_turn_are_answered_and_not_run() -> None:
    agent, limiter, *_ = limited([several(3), CALL, "done"], max_parallel_tool_calls=2)
    result = await agent.invoke_async("go")
    assert result.stop_reason == "end_turn"
    assert (limiter.tool_call_count, limiter.cancelled_tool_call_count) == (4, 1)
    assert said(agent).count("success: 2") == 3
    assert [line for line in said(agent) if line.startswith("error")] == [
        "error: not executed: at most 2 tool calls are run in one turn"
    ]
    assert agent.messages[-2]["role"] == "user"


@pytest.mark.parametrize(("limit", "messages"), [(1, 1), (2, 3), (3, 3), (4, 5), (5, 5)])
async def test_the_message_limit_is_checked_at_user_messages(limit: int, messages: int) -> None:
    agent, limiter, *_ = limited([CALL, CALL, "done"], max_messages=limit)
    await reached(agent, MaxMessagesReachedError)
    assert limiter.message_count == len(agent.messages) == messages
    ends_whole(agent)


async def test_an_answer_may_reach_the_message_limit() -> None:
    agent, limiter, *_ = limited([CALL, CALL, "done"], max_messages=6, max_tool_iters=3, max_tool_calls=3)
    assert (await agent.invoke_async("go")).stop_reason == "end_turn"
    assert limiter.message_count == 6


async def test_it_counts_over_invocations_until_reset() -> None:
    agent, limiter, *_ = limited([CALL, "one", CALL, CALL, "two"], max_tool_iters=2)
    await agent.invoke_async("go")
    await reached(agent, MaxToolIterationsReachedError)
    limiter.reset()
    counts = (limiter.tool_iter_count, limiter.tool_call_count, limiter.message_count)
    assert counts == (0, 0, 0) and limiter.cancelled_tool_call_count == 0
    await agent.invoke_async("go on")
    assert limiter.tool_iter_count == 1


async def test_limits_may_be_changed_while_it_runs() -> None:
    agent, limiter, *_ = limited([CALL, "one", "two"], max_messages=4)
    await agent.invoke_async("go")
    limiter.max_messages = limiter.message_count + 2
    await agent.invoke_async("go on")
    assert limiter.message_count == 6


async def test_without_limits_it_counts() -> None:
    agent, limiter, _, model = limited([several(2), "done"])
    await agent.invoke_async("go")
    assert (limiter.tool_iter_count, limiter.tool_call_count, limiter.message_count) == (1, 2, 4)
    assert len(model.current_episode.trajectories()) == 1


def test_its_errors_share_a_base_class_and_pickle() -> None:
    for kind in (MaxToolIterationsReachedError, MaxToolCallsReachedError, MaxMessagesReachedError):
        copy = pickle.loads(pickle.dumps(kind("words")))
        assert isinstance(copy, LoopLimitReachedError) and type(copy) is kind and str(copy) == "words"
