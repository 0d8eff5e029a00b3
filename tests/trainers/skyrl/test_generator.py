"""SkyRL gets rows for every prompt, in order, however the episodes end."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from strands import Agent
from strands.agent.conversation_manager import NullConversationManager

from strands_sglang.errors import ConfigurationError, MalformedResponseError
from strands_sglang.runs import Episode, Limits
from strands_sglang.trainers.rows import PlainRow
from support.gateway.processes import build_process, multiplies
from support.rollout.agent_kinds import build_helper, helper_script, step
from support.rollout.scripts import PromptEngine, steps
from support.trainers.skyrl_mirror import (
    Client,
    GeneratorConfig,
    InferenceEngineConfig,
    SamplingParams,
    TrajectoryID,
    adapter,
    skyrl_installed,
)

SAMPLING = {"max_tokens": 300, "temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "logprobs": 1, "stop": None}
COLUMNS = ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons", "env_metrics")


def build(task: Any, model: Any) -> Agent:
    if task.prompt == "break":
        raise RuntimeError("no such agent")
    return Agent(model=model, tools=[step], callback_handler=None, conversation_manager=NullConversationManager())


def score(episode: Episode) -> dict[str, float]:
    assert episode.task.answer == 3
    return {"reward": float(episode.text == "the end"), "accuracy": 0.5}


@pytest.fixture(autouse=True)
def skyrl() -> Iterator[None]:
    with skyrl_installed():
        yield


def generator(client: Client, cfg: GeneratorConfig | None = None, **settings: Any) -> Any:
    made = importlib.import_module("strands_sglang.trainers.skyrl").StrandsGenerator
    given = {"build": build, "reward": score, "inference_engine_client": client, "tokenizer": client.engine.tokenizer}
    return made(**{**given, "generator_cfg": cfg or GeneratorConfig(max_turns=9, max_input_length=800), **settings})


def batch(*questions: str, **more: Any) -> dict[str, Any]:
    count = len(questions)
    return {
        "prompts": [[{"role": "user", "content": question}] for question in questions],
        "env_classes": ["none"] * count,
        "env_extras": [{"reward_spec": {"method": "rule", "ground_truth": 3}} for _ in questions],
        "sampling_params": dict(SAMPLING),
        "trajectory_ids": [TrajectoryID(question, number) for number, question in enumerate(questions)],
        **more,
    }


def check(output: dict[str, Any], rows: int) -> None:
    assert all(len(output[name]) == rows for name in COLUMNS)
    for name in ("rollout_logprobs", "trajectory_ids", "is_last_step", "rollout_expert_indices"):
        assert output[name] is None or len(output[name]) == rows
    assert len(output["trajectory_generation_times"]) == rows
    for ids, response, mask in zip(*(output[name] for name in COLUMNS[:2]), output["loss_masks"], strict=True):
        assert ids and response and len(response) == len(mask)
    assert all(isinstance(reward, float) for reward in output["rewards"])


async def test_batch_with_a_failed_prompt() -> None:
    client = Client(PromptEngine(steps(2)))
    output = await generator(client, policy_model_name="policy").generate(batch("go", "break", "on"))
    check(output, 3)
    assert output["rewards"] == [1.0, 0.0, 1.0] and output["stop_reasons"] == ["stop", "abort", "stop"]
    assert output["loss_masks"][1] == [0] and all(any(output["loss_masks"][place]) for place in (0, 2))
    for place in (0, 2):
        whole = output["prompt_token_ids"][place] + output["response_ids"][place]
        mine = [
            request
            for request in client.requests
            if request["session_ids"][0].startswith(("go_0_", "x", "on_2_")[place])
        ]
        last = mine[-1]["prompt_token_ids"][0]
        assert whole[: len(last)] == last and client.engine.decode(whole[len(last) :]) == "the end<|im_end|>"
        trained = zip(output["loss_masks"][place], output["rollout_logprobs"][place], strict=True)
        assert all((logprob != 0.0) == bool(mask) for mask, logprob in trained)
        assert {request["cache_salt"] for request in mine} == {"policy@4"} and len(
            {str(one["session_ids"]) for one in mine}
        ) == 1
    assert set(client.models) == {"policy"} and len(set(client.finished)) == 3
    assert client.requests[0]["sampling_params"] == {**SAMPLING, "logprobs": 1}
    metrics = output["rollout_metrics"]
    assert metrics["generate/failed_episodes"] == 1 and metrics["reward/avg_accuracy"] == 0.5
    assert (
        output["env_metrics"][1] == {"end_reason": "agent_error", "agent": "", "main": 1.0}
        and output["env_metrics"][0]["accuracy"] == 0.5
    )
    assert output["is_last_step"] is None and output["trajectory_ids"] is None


async def test_an_agent_may_be_a_process() -> None:
    client = Client(PromptEngine(multiplies))
    output = await generator(client, build=build_process).generate(batch("go", "on"))
    check(output, 2)
    assert output["rewards"] == [1.0, 1.0] and output["stop_reasons"] == ["stop", "stop"]
    sampled = sum(len(client.engine.encode(text + "<|im_end|>")) for text in (multiplies("", 0), "the end"))
    assert [sum(mask) for mask in output["loss_masks"]] == [sampled, sampled]
    sent = [request["prompt_token_ids"][0] for request in client.requests]
    for prompt, response in zip(output["prompt_token_ids"], output["response_ids"], strict=True):
        assert sum((prompt + response)[: len(one)] == one for one in sent) >= 2


async def test_configuration_limits_tokens_and_turns() -> None:
    client = Client(PromptEngine(steps(50)))
    cfg = GeneratorConfig(max_turns=3, sampling_params=SamplingParams(max_generate_length=64))
    output = await generator(client, cfg).generate(batch("go", sampling_params=None, trajectory_ids=None))
    assert len(client.requests) == 3 and output["stop_reasons"] == ["length"]
    assert (
        client.requests[0]["sampling_params"]["max_tokens"] == 64 and "min_p" in client.requests[0]["sampling_params"]
    )
    long = Client(PromptEngine(steps(50)))
    cfg = GeneratorConfig(max_turns=90, max_input_length=300)
    output = await generator(long, cfg).generate(batch("go"))
    assert all(len(request["prompt_token_ids"][0]) <= 600 for request in long.requests)
    assert 300 < len(output["prompt_token_ids"][0] + output["response_ids"][0]) <= 600
    assert output["stop_reasons"] == ["length"] and any(output["loss_masks"][0])


async def test_truncated_episodes_follow_the_configuration() -> None:
    cut = {"max_turns": 1, "zero_reward_on_non_stop": True, "apply_overlong_filtering": True}
    output = await generator(Client(PromptEngine(steps(2))), GeneratorConfig(**cut)).generate(batch("go"))  # type: ignore[arg-type]
    assert output["rewards"] == [0.0] and not any(output["loss_masks"][0]) and len(output["loss_masks"][0]) > 3


async def test_weight_update_during_a_turn_gives_a_version_range() -> None:
    client = Client(PromptEngine(steps(1)), syncs=True)
    seen: list[Episode] = []

    def keep(episode: Episode) -> float:
        seen.append(episode)
        return 1.0

    await generator(client, reward=keep).generate(batch("go"))
    assert seen[0].metrics.versions == ["4..5", "5..6"]
    assert {request["cache_salt"] for request in client.requests} == {"4"}, "one salt for all of a batch"


async def test_step_wise_branches_are_rows() -> None:
    client = Client(PromptEngine(helper_script))
    cfg = GeneratorConfig(max_turns=9, step_wise_trajectories=True)
    output = await generator(client, cfg, build=build_helper).generate(batch("go"))
    rows = len(output["response_ids"])
    check(output, rows)
    assert rows == 3, "the helper's two conversations, and the agent's own"
    assert output["is_last_step"] == [False] * (rows - 1) + [True]
    assert output["rewards"] == [0.0] * (rows - 1) + [1.0]
    assert all(id.to_string() == "go_0" for id in output["trajectory_ids"])


async def test_routed_experts() -> None:
    client = Client(PromptEngine(steps(1)), experts=(3, 2))
    cfg = GeneratorConfig(max_turns=9, inference_engine=InferenceEngineConfig(enable_return_routed_experts=True))
    output = await generator(client, cfg).generate(batch("go", "break"))
    chosen, nothing = output["rollout_expert_indices"]
    tokens = len(output["prompt_token_ids"][0]) + len(output["response_ids"][0])
    assert [row[0][0] for row in chosen] == list(range(tokens - 1)) and nothing is None


def test_invalid_settings_are_refused() -> None:
    client = Client(PromptEngine(steps(1)))
    generator(client, build="trainers.skyrl.test_generator.build", limits=Limits(max_turns=2))
    for bad in ({"build": None}, {"reward": "nowhere.score"}):
        with pytest.raises(ConfigurationError):
            generator(client, **bad)


async def test_cancellation_is_raised_and_sessions_are_finished() -> None:
    client = Client(PromptEngine(steps(1)))
    client.engine.delay = 30.0
    work = asyncio.ensure_future(generator(client).generate(batch("go", "on")))
    while len(client.requests) < 2:
        await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert len(set(client.finished)) == 2


async def test_kept_sets_are_one_array_per_row() -> None:
    """As versions of SkyRL after 0.3 pack them: int32, as wide as top_k in every row, -1 after the ids."""
    client = Client(PromptEngine(steps(2)))
    engine = InferenceEngineConfig(enable_return_sample_support_set=True)
    made = generator(client, GeneratorConfig(engine, max_turns=9, max_input_length=800))
    sampling = {**SAMPLING, "top_p": 0.9, "top_k": 5}
    output = await made.generate(batch("go", "break", "on", sampling_params=sampling))
    check(output, 3)
    assert all(request["return_sample_support"] for request in client.requests)
    for response, mask, support, logprobs in zip(
        *(output[name] for name in ("response_ids", "loss_masks", "rollout_sample_support", "rollout_logprobs")),
        strict=True,
    ):
        assert support.dtype == np.int32 and support.shape == (len(response), 5) and len(logprobs) == len(response)
        assert not ((support[:, :-1] == -1) & (support[:, 1:] >= 0)).any()
        for token, trained, row in zip(response, mask, support, strict=True):
            assert token in row if trained else (row == -1).all()
    assert any(output["loss_masks"][0]) and not any(output["loss_masks"][1])


async def test_kept_sets_are_not_requested_without_a_bound() -> None:
    client = Client(PromptEngine(steps(1)))
    for engine in (InferenceEngineConfig(enable_return_sample_support_set=True), InferenceEngineConfig()):
        made = generator(client, GeneratorConfig(engine, max_turns=9, max_input_length=800))
        output = await made.generate(batch("go"))
        assert "rollout_sample_support" not in output
    assert not any("return_sample_support" in request for request in client.requests)


def test_answers_without_kept_sets_are_refused() -> None:
    parse = adapter.kept_sets_of
    assert parse([np.array([[7, 8, -1], [9, -1, -1]])], [-0.5, 0.0]).token_ids.tolist() == [7, 8, 9]
    assert len(parse(None, [])) == 0
    for wrong in (None, [np.zeros((1, 3))], [np.zeros(2)]):
        with pytest.raises(MalformedResponseError, match="enable_return_sample_support_set"):
            parse(wrong, [-0.5, 0.0])


async def test_rows_that_are_trained_need_their_kept_sets() -> None:
    row = PlainRow([1], [2, 3], [1, 0], [-0.1, 0.0], [None, None], 1.0, 1)
    options = adapter.OutputOptions(support_width=4)
    with pytest.raises(ConfigurationError, match="a row that is trained has none"):
        adapter.generator_output([(None, [row])], options, trajectory_ids=None)
    masked = dataclasses.replace(row, loss_mask=[0, 0])
    output = adapter.generator_output([(None, [masked])], options, trajectory_ids=None)
    assert output["rollout_sample_support"][0].tolist() == [[-1] * 4] * 2
