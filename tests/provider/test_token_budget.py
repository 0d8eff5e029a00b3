"""The budget of a turn: the smallest of what the turn, the episode and the context allow."""

from __future__ import annotations

from typing import Any

import pytest
from strands.types.exceptions import ContextWindowOverflowException, MaxTokensReachedException

from strands_sglang.errors import ContextOverflowError, TokenBudgetError
from strands_sglang.provider.config import DEFAULT_MAX_NEW_TOKENS, Settings
from strands_sglang.provider.token_budget import turn_budget
from support.provider.agents import agent_on, outline, scripted_model
from support.scripted_engine import assert_exact, tool_call

pytestmark = pytest.mark.usefixtures("exact")

FREE: dict[str, Any] = {"prompt_tokens": 100, "context_limit": None, "used": 0}
SUM = tool_call("calculator", expression="1+1")


@pytest.mark.parametrize(
    ("sampling", "episode", "place", "budget"),
    [
        ({}, None, {}, DEFAULT_MAX_NEW_TOKENS),
        ({"max_new_tokens": None}, None, {}, DEFAULT_MAX_NEW_TOKENS),
        ({"max_new_tokens": 7}, None, {}, 7),
        ({"max_new_tokens": 7}, None, {"context_limit": 104}, 4),
        ({"max_new_tokens": 3}, None, {"context_limit": 104}, 3),
        ({"max_new_tokens": 7}, 50, {"used": 45}, 5),
        ({"max_new_tokens": 7}, 50, {"used": 45, "context_limit": 102}, 2),
        ({}, None, {"context_limit": 101}, 1),
    ],
)
def test_the_smallest_limit_applies(
    sampling: dict[str, Any], episode: int | None, place: dict[str, Any], budget: int
) -> None:
    settings = Settings(sampling_params=sampling, max_episode_tokens=episode)
    assert turn_budget(settings, **{**FREE, **place}) == budget


@pytest.mark.parametrize("limit", [100, 99])
def test_a_prompt_that_fills_the_context_raises(limit: int) -> None:
    with pytest.raises(ContextWindowOverflowException, match=f"100 tokens and the context {limit}"):
        turn_budget(Settings(), **{**FREE, "context_limit": limit})


def test_an_episode_without_tokens_left_raises() -> None:
    with pytest.raises(TokenBudgetError, match="max_episode_tokens") as caught:
        turn_budget(Settings(max_episode_tokens=50), **{**FREE, "used": 50})
    assert (caught.value.used, caught.value.budget) == (50, 50)


async def test_an_episode_stops_when_its_tokens_are_used() -> None:
    model, engine = scripted_model(lambda prompt: "one two three", "qwen2.5", max_episode_tokens=10)
    agent = agent_on(model)
    await agent.invoke_async("a")
    await agent.invoke_async("b")
    with pytest.raises(MaxTokensReachedException):
        await agent.invoke_async("c")
    with pytest.raises(TokenBudgetError):
        await agent.invoke_async("d")

    assert [call.sampling["max_new_tokens"] for call in engine.calls] == [10, 6, 2]
    tree = model.current_episode.tree
    assert [len(turn.sampled) for turn in tree] == [4, 4, 2]
    assert_exact(engine, model.current_episode)
    # Another episode has a budget of its own.
    with model.episode() as other:
        await agent_on(model).invoke_async("a")
    assert len(other.tree) == 1
    model.reset()
    await agent_on(model).invoke_async("a")
    assert_exact(engine, model.current_episode, other, trees=[tree])


async def test_the_budget_of_every_turn_fits_the_context() -> None:
    model, engine = scripted_model([SUM, "done"], "qwen2.5", context_window_limit=300)
    await agent_on(model).invoke_async("go")
    for call in engine.calls:
        assert call.sampling["max_new_tokens"] == 300 - len(call.ids)


async def test_the_reported_context_length_reduces_the_budget() -> None:
    overflow = ContextOverflowError("too long", requested_tokens=5000, limit_tokens=400)
    model, engine = scripted_model([overflow, SUM, "done"], "qwen2.5")
    await agent_on(model).invoke_async("go")

    assert [call.sampling["max_new_tokens"] for call in engine.calls] == [
        DEFAULT_MAX_NEW_TOKENS,
        400 - len(engine.calls[1].ids),
        400 - len(engine.calls[2].ids),
    ]
    assert engine.calls[0].ids == engine.calls[1].ids
    assert model.context_window_limit == 400
    assert outline(model.current_episode.tree) == [(None, "root"), (0, "proved")]


async def test_an_engine_that_refuses_within_its_limit_is_not_called_forever() -> None:
    overflow = ContextOverflowError("too long", requested_tokens=5000, limit_tokens=400)
    model, engine = scripted_model(lambda prompt: overflow, "qwen2.5")
    with pytest.raises(ContextWindowOverflowException, match="too long"):
        await agent_on(model).invoke_async("go")
    assert len(engine.calls) == 2
    assert len(model.current_episode.tree) == 0


async def test_a_prompt_longer_than_the_context_is_an_overflow_at_once() -> None:
    overflow = ContextOverflowError("too long", requested_tokens=5000, limit_tokens=10)
    model, engine = scripted_model(lambda prompt: overflow, "qwen2.5")
    with pytest.raises(ContextWindowOverflowException, match="too long"):
        await agent_on(model).invoke_async("go")
    assert len(engine.calls) == 1
