"""`LoopLimiter`: an agent's loop ends with an error, behind a message that is whole."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from strands import Agent
from strands.types.exceptions import EventLoopException

from provider.agents import agent_on, said, scripted_model
from scripted_engine import assert_exact, tool_call
from strands_sglang import (
    LoopLimiter,
    LoopLimitReachedError,
    MaxMessagesReachedError,
    MaxToolCallsReachedError,
    MaxToolIterationsReachedError,
    SGLangModel,
)

CALL = tool_call("calculator", expression="1 + 1")


def several(count: int) -> str:
    return "\n".join([CALL] * count)


def ends_whole(agent: Agent) -> None:
    """Every call is answered, and the last message is a user's."""
    blocks = [block for message in agent.messages for block in message["content"]]
    asked = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
    assert [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block] == asked
    assert agent.messages[-1]["role"] == "user"


async def reached(agent: Agent, kind: type[LoopLimitReachedError]) -> None:
    """Ask, and expect the error, bare or as the framework wraps it."""
    with pytest.raises((EventLoopException, LoopLimitReachedError)) as raised:
        await agent.invoke_async("go")
    error: BaseException | None = raised.value
    while isinstance(error, EventLoopException):
        error = error.__cause__
    assert type(error) is kind


def limited(script: Any, **limits: int) -> tuple[Agent, LoopLimiter, SGLangModel]:
    model, _ = scripted_model(script, "qwen2.5")
    limiter = LoopLimiter(**limits)
    return agent_on(model, hooks=[limiter]), limiter, model


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_turns_with_tools(limit: int) -> None:
    agent, limiter, model = limited(lambda _: several(2), max_tool_iters=limit)
    await reached(agent, MaxToolIterationsReachedError)
    assert (limiter.tool_iter_count, limiter.tool_call_count) == (limit, 2 * limit)
    assert limiter.message_count == len(agent.messages) == 1 + 2 * limit
    ends_whole(agent)
    assert len(model.current_episode.tree) == limit and model.token_manager.loss_mask[-1] == 1


async def test_tool_calls_are_answered_whole_beyond_the_limit() -> None:
    agent, limiter, _ = limited(lambda _: several(2), max_tool_calls=3)
    await reached(agent, MaxToolCallsReachedError)
    assert (limiter.tool_iter_count, limiter.tool_call_count, limiter.cancelled_tool_call_count) == (2, 4, 0)
    assert said(agent).count("success: 2") == 4
    ends_whole(agent)


async def test_calls_beyond_the_limit_of_one_turn_are_answered_and_not_run() -> None:
    agent, limiter, _ = limited([several(3), CALL, "done"], max_parallel_tool_calls=2)
    result = await agent.invoke_async("go")
    assert result.stop_reason == "end_turn"
    assert (limiter.tool_call_count, limiter.cancelled_tool_call_count) == (4, 1)
    assert said(agent).count("success: 2") == 3
    assert [line for line in said(agent) if line.startswith("error")] == [
        "error: not executed: at most 2 tool calls are run in one turn"
    ]
    ends_whole_but_for_the_answer = agent.messages[:-1]
    assert ends_whole_but_for_the_answer[-1]["role"] == "user"


@pytest.mark.parametrize(("limit", "messages"), [(1, 1), (2, 3), (3, 3), (4, 5), (5, 5)])
async def test_messages_are_counted_where_the_user_speaks(limit: int, messages: int) -> None:
    agent, limiter, _ = limited([CALL, CALL, "done"], max_messages=limit)
    await reached(agent, MaxMessagesReachedError)
    assert limiter.message_count == len(agent.messages) == messages
    ends_whole(agent)


async def test_an_answer_may_be_the_last_message() -> None:
    agent, limiter, _ = limited([CALL, CALL, "done"], max_messages=6, max_tool_iters=3, max_tool_calls=3)
    assert (await agent.invoke_async("go")).stop_reason == "end_turn"
    assert limiter.message_count == 6


async def test_it_counts_over_invocations_until_reset() -> None:
    agent, limiter, _ = limited([CALL, "one", CALL, CALL, "two"], max_tool_iters=2)
    await agent.invoke_async("go")
    await reached(agent, MaxToolIterationsReachedError)
    limiter.reset()
    counts = (limiter.tool_iter_count, limiter.tool_call_count, limiter.message_count)
    assert counts == (0, 0, 0) and limiter.cancelled_tool_call_count == 0
    await agent.invoke_async("go on")
    assert limiter.tool_iter_count == 1


async def test_limits_may_be_moved_while_it_runs() -> None:
    agent, limiter, _ = limited([CALL, "one", "two"], max_messages=4)
    await agent.invoke_async("go")
    limiter.max_messages = limiter.message_count + 2
    await agent.invoke_async("go on")
    assert limiter.message_count == 6


async def test_without_limits_it_counts() -> None:
    agent, limiter, model = limited([several(2), "done"])
    await agent.invoke_async("go")
    assert (limiter.tool_iter_count, limiter.tool_call_count, limiter.message_count) == (1, 2, 4)
    assert len(model.current_episode.trajectories()) == 1


async def test_the_tokens_of_a_limited_agent_are_exact() -> None:
    model, engine = scripted_model(lambda _: CALL, "qwen2.5")
    await reached(agent_on(model, hooks=[LoopLimiter(max_tool_iters=3)]), MaxToolIterationsReachedError)
    assert_exact(engine, model.current_episode)


def test_its_errors_have_one_base_and_pickle() -> None:
    for kind in (MaxToolIterationsReachedError, MaxToolCallsReachedError, MaxMessagesReachedError):
        copy = pickle.loads(pickle.dumps(kind("words")))
        assert isinstance(copy, LoopLimitReachedError) and type(copy) is kind and str(copy) == "words"
