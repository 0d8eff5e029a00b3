"""Limits: an agent stops behind its last allowed tool results, and nothing is made up."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from strands import Agent
from strands.hooks import AfterToolCallEvent, BeforeToolCallEvent, HookOrder

from provider.agents import agent_on, ask, calculator, lookup, said, scripted_model
from scripted_engine import Reply, assert_exact, tool_call
from strands_sglang import SGLangModel, ToolIterationLimiter, ToolLimit, ToolLimiter

CALL = tool_call("calculator", expression="1 + 1")
BROKEN = "<tool_call>broken</tool_call>"


def calls_forever(prompt: str) -> str:
    return CALL


def ends_on_results(agent: Any, model: SGLangModel) -> None:
    """The conversation ends on tool results, and the trajectory on what was sampled."""
    assert agent.messages[-1]["role"] == "user" and all(
        "toolResult" in block for block in agent.messages[-1]["content"]
    )
    asked = [block["toolUse"]["toolUseId"] for block in agent.messages[-2]["content"] if "toolUse" in block]
    assert [block["toolResult"]["toolUseId"] for block in agent.messages[-1]["content"]] == asked
    (trajectory,) = model.current_episode.trajectories()
    assert trajectory.loss_mask[-1] == 1
    sampled = sum(len(turn.sampled) for turn in model.current_episode.tree)
    assert int(trajectory.loss_mask.sum()) == sampled


@pytest.mark.parametrize("limit", [1, 3, 10])
async def test_as_many_turns_with_tools_as_allowed(limit: int) -> None:
    model, engine = scripted_model(calls_forever)
    limiter = ToolLimiter(max_tool_iters=limit)
    agent = agent_on(model, hooks=[limiter])
    result = await agent.invoke_async("go")
    assert (limiter.tool_iter_count, limiter.tool_call_count, len(engine.calls)) == (limit, limit, limit)
    assert limiter.reason is ToolLimit.TOOL_ITERATIONS and result.state["tool_limit"] == "tool_iterations"
    assert result.stop_reason == "cancelled"
    ends_on_results(agent, model)
    assert_exact(engine, model.current_episode)


async def test_parallel_calls_are_one_iteration() -> None:
    model, _ = scripted_model(lambda _: "\n".join([CALL] * 4))
    limiter = ToolIterationLimiter(max_iterations=2)
    agent = agent_on(model, hooks=[limiter])
    await agent.invoke_async("go")
    assert (limiter.iteration_count, limiter.tool_iter_count, limiter.tool_call_count) == (2, 2, 8)
    assert limiter.max_iterations == 2
    ends_on_results(agent, model)


async def test_an_agent_that_needs_less_is_left_alone() -> None:
    model, _ = scripted_model([CALL, "2"])
    limiter = ToolLimiter(max_tool_iters=2, max_tool_calls=2)
    result = await agent_on(model, hooks=[limiter]).invoke_async("go")
    assert result.stop_reason == "end_turn" and limiter.reason is None and limiter.tool_iter_count == 1
    assert "tool_limit" not in result.state


async def test_no_more_calls_of_one_turn_are_run_than_allowed() -> None:
    model, engine = scripted_model(["\n".join([CALL] * 3), CALL, "done"])
    limiter = pickle.loads(pickle.dumps(ToolLimiter(max_parallel_tool_calls=2)))
    agent = agent_on(model, hooks=[limiter])
    result = await agent.invoke_async("go")
    assert result.stop_reason == "end_turn" and limiter.reason is None
    assert (limiter.tool_iter_count, limiter.tool_call_count, limiter.cancelled_tool_call_count) == (2, 3, 1)
    refused = "error: not executed: at most 2 tool calls are run in one turn"
    assert [line for line in said(agent) if line.startswith(("success", "error"))] == [
        *["success: 2"] * 2,
        refused,
        "success: 2",
    ]
    assert_exact(engine, model.current_episode)


async def test_no_more_calls_are_run_than_allowed() -> None:
    model, engine = scripted_model(lambda _: "\n".join([CALL] * 3))
    limiter = ToolLimiter(max_tool_calls=4)
    agent = agent_on(model, hooks=[limiter])
    result = await agent.invoke_async("go")
    assert (limiter.tool_iter_count, limiter.tool_call_count) == (2, 4)
    assert limiter.reason is ToolLimit.TOOL_CALLS and result.state["tool_limit"] == "tool_calls"
    assert said(agent)[-3:] == ["success: 2"] + ["error: not executed: the limit of 4 tool calls is reached"] * 2
    ends_on_results(agent, model)
    assert_exact(engine, model.current_episode)


async def test_a_malformed_call_uses_up_a_turn_but_is_no_call() -> None:
    model, _ = scripted_model(lambda _: BROKEN)
    limiter = ToolLimiter(max_tool_iters=3, max_tool_calls=1)
    agent = agent_on(model, hooks=[limiter])
    await agent.invoke_async("go")
    assert (limiter.tool_iter_count, limiter.tool_call_count) == (3, 0)
    assert limiter.reason is ToolLimit.TOOL_ITERATIONS
    ends_on_results(agent, model)


async def test_a_new_question_counts_anew_and_going_on_does_not() -> None:
    model, engine = scripted_model(calls_forever)
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


async def test_agents_that_share_a_limiter_are_counted_apart() -> None:
    model, _ = scripted_model(calls_forever)
    limiter = ToolLimiter(max_tool_iters=4)

    async def play(number: int) -> int:
        with model.episode():
            agent = agent_on(model, hooks=[limiter])
            await agent.invoke_async("go")
            return len(agent.messages)

    assert await asyncio.gather(*map(play, range(8))) == [9] * 8


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


async def test_a_call_that_a_hook_tries_again_counts_once() -> None:
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


async def test_with_a_stream_it_is_the_same() -> None:
    model, engine = scripted_model([Reply(f"Let me see.\n{CALL}")] * 5, streaming=True)
    limiter = ToolLimiter(max_tool_iters=2)
    agent = agent_on(model, hooks=[limiter])
    await agent.invoke_async("go")
    assert len(engine.calls) == 2
    ends_on_results(agent, model)


@pytest.mark.parametrize("limit", [0, -1, 2.5, "3", True])
def test_a_limit_is_a_whole_number(limit: Any) -> None:
    for name in ("max_tool_iters", "max_tool_calls"):
        with pytest.raises(ValueError, match=f"{name} must be a whole number above 0"):
            ToolLimiter(**{name: limit})


async def test_ids_that_come_again_are_other_turns() -> None:
    """Other providers may give every call of a tool the same id."""
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
async def test_a_call_that_another_hook_cancelled_is_none(order: int) -> None:
    def deny(event: BeforeToolCallEvent) -> None:
        event.cancel_tool = "no"

    model, _ = scripted_model([CALL, CALL, "2"])
    limiter = ToolLimiter(max_tool_calls=1)
    agent = agent_on(model, hooks=[limiter])
    agent.add_hook(deny, BeforeToolCallEvent, order=order)
    result = await agent.invoke_async("go")
    assert (limiter.tool_call_count, limiter.tool_iter_count, result.stop_reason) == (0, 2, "end_turn")


async def test_another_agent_with_the_same_state_is_not_said_to_be_limited() -> None:
    state: dict[str, Any] = {}
    model, _ = scripted_model(calls_forever)
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
