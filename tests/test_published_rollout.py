"""`Rollout`: the latest branch as one record that can be stored and serialised."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from strands_sglang import Rollout
from strands_sglang.engine import RoutedExperts
from strands_sglang.rollout import Rollout as FromRollout
from support.provider.agents import agent_on, scripted_model
from support.scripted_engine import Reply, tool_call

SUM = tool_call("calculator", expression="1+1")


async def test_it_equals_the_latest_branch() -> None:
    model, engine = scripted_model([SUM, "two"], "qwen2.5")
    assert FromRollout is Rollout and len(model.rollout) == 0 and model.rollout.initial_prompt_length == 0
    await agent_on(model).invoke_async("1+1?")
    rollout, tm = model.rollout, model.token_manager
    assert rollout.token_ids == tm.token_ids and rollout.loss_mask == tm.loss_mask
    assert rollout.segment_info == tm.segment_info
    assert rollout.initial_prompt_length == len(tm.segments[0]) == len(engine.calls[0].ids)
    sampled = [real for real, length in rollout.segment_info for _ in range(length)]
    assert [logprob is not None for logprob in rollout.logprobs] == sampled
    assert [logprob or 0.0 for logprob in rollout.logprobs] == tm.logprobs
    assert model.tokenizer is engine.tokenizer
    assert model.tokenizer.decode(rollout.token_ids[: rollout.initial_prompt_length]) == engine.prompts[0]
    assert repr(rollout) == f"Rollout(tokens={len(tm)}, trained={sum(tm.loss_mask)}, segments=4)"


async def test_it_is_updated_until_the_episode_is_reset() -> None:
    model, _ = scripted_model(["one", "two", "three"], "qwen2.5")
    agent, held = agent_on(model), model.rollout
    await agent.invoke_async("first")
    first = len(held)
    assert first > 0 and model.rollout is held
    await agent.invoke_async("second")
    assert len(held) > first and held.token_ids == model.token_manager.token_ids
    kept = held.model_dump()
    model.reset()
    assert held.model_dump() == kept and model.rollout is not held and len(model.rollout) == 0
    agent.messages.clear()
    await agent.invoke_async("third")
    assert held.model_dump() == kept and len(model.rollout) > 0


async def test_every_episode_has_its_own_rollout() -> None:
    model, _ = scripted_model(["one", "two"], "qwen2.5")
    with model.episode():
        await agent_on(model).invoke_async("first")
        inside = model.rollout
    assert len(inside) > 0 and len(model.rollout) == 0


async def test_it_can_be_serialised_inside_another_record() -> None:
    class Result(BaseModel):
        rollout: Rollout | None = None
        reward: float = 0.0

    model, _ = scripted_model([SUM, "two"], "qwen2.5")
    await agent_on(model).invoke_async("1+1?")
    result = Result(rollout=model.rollout, reward=1.0)
    back = Result.model_validate_json(result.model_dump_json())
    assert back == result and back.rollout is not None
    assert back.rollout.segment_info == model.rollout.segment_info


async def test_routed_experts_of_every_turn() -> None:
    def experts(start: int, rows: int) -> RoutedExperts:
        numbers = np.arange(start * 4, (start + rows) * 4, dtype=np.int32)
        return RoutedExperts((base64.b64encode(numbers.tobytes()).decode(),), (rows,), start)

    fed = 0

    def script(prompt: str) -> Reply:
        nonlocal fed
        text = SUM if not fed else "two"
        end = len(engine.encode(prompt)) + len(engine.encode(text + engine.end)) - 1
        fed, start = end, fed
        return Reply(text, experts=experts(start, end - start))

    model, engine = scripted_model(script, "qwen2.5", return_routed_experts=True, return_logprob=True)
    assert model.get_config()["routed_experts"] is True
    await agent_on(model).invoke_async("1+1?")
    assert [call.asked["routed_experts_start"] is not None for call in engine.calls] == [True, True]
    decoded = model.rollout.decode_routed_experts(2, 2)
    assert decoded.shape == (len(model.rollout) - 1, 2, 2) and decoded.dtype == np.int32
    assert decoded.ravel().tolist() == list(range(decoded.size))


def test_it_can_be_built_by_hand() -> None:
    rollout = Rollout()
    rollout.add_prompt([1, 2, 3])
    rollout.add_response([4, 5], [-0.1, -0.2])
    rollout.add_prompt([6])
    rollout.add_response([])
    rollout.add_routed_experts(base64.b64encode(np.arange(8, dtype=np.int32).tobytes()).decode())
    assert rollout.model_dump() == {
        "token_ids": [1, 2, 3, 4, 5, 6], "loss_mask": [0, 0, 0, 1, 1, 0],
        "logprobs": [None, None, None, -0.1, -0.2, None], "routed_experts": rollout.routed_experts, "image_data": [],
        "segment_info": [(False, 3), (True, 2), (False, 1)],
    }  # fmt: skip
    assert (len(rollout), rollout.initial_prompt_length) == (6, 3)
    assert rollout.decode_routed_experts(2, 2).shape == (2, 2, 2)
    assert Rollout().decode_routed_experts(2, 2).shape == (0, 2, 2)


@pytest.mark.parametrize("logprobs", [[-0.1], [-0.1, -0.2, -0.3], []])
def test_logprobs_must_be_as_many_as_tokens(logprobs: list[Any]) -> None:
    with pytest.raises(ValueError, match="one item per token"):
        Rollout().add_response([1, 2], logprobs)
