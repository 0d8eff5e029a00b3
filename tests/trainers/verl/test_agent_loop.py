"""verl gets a valid output for finished, truncated and failed episodes, and for rows without a task."""

from __future__ import annotations

import asyncio
import importlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import Episode
from strands_sglang.trainers.rows import PlainRow, plain_rows
from support.gateway.processes import build_process, multiplies
from support.rollout.agent_kinds import build
from support.rollout.scripts import PromptEngine, steps
from support.trainers.grown_episodes import LAYERS, TOP_K, episode_of, experts_of, grown
from support.trainers.verl_mirror import AgentLoopOutput, Servers, adapter, given, verl_installed

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
ROW = {
    "raw_prompt": np.array([{"role": "user", "content": "go"}], object),
    "reward_model": {"style": "rule", "ground_truth": np.int64(3)},
    "extra_info": {"split": "train"},
    "data_source": "lab",
    "index": np.int64(5),
    "uid": "u",
    "agent_name": "steps",
}


def score(episode: Episode) -> dict[str, float]:
    return {"reward": float(episode.text == "the end"), "accuracy": 0.5}


def broken(task: Any, model: Any) -> Any:
    raise RuntimeError("no such agent")


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr("strands_sglang.engine.base._DELAY_SECONDS", 0.01)
    with verl_installed():
        yield importlib.import_module("strands_sglang.trainers.verl").StrandsAgentLoop


def servers(count: int = 2, **settings: Any) -> Servers:
    return Servers(PromptEngine(steps(count)), **settings)


async def run(loop: Any, servers: Servers, row: Any = None, rollout: Any = None, **settings: Any) -> AgentLoopOutput:
    made = loop(**given(servers, servers.engine.tokenizer, **(rollout or {})), **{"build": build, **settings})
    output = await made.run(dict(SAMPLING), **(row or ROW))
    assert isinstance(output, AgentLoopOutput)
    whole = len(output.response_ids)
    assert len(output.response_mask) == whole >= 1 and output.prompt_ids
    assert output.response_logprobs is not None and len(output.response_logprobs) == whole
    pairs = zip(output.response_logprobs, output.response_mask, strict=True)
    assert not any(output.response_mask) or all((logprob == 0.0) == (not mask) for logprob, mask in pairs)
    return output


async def test_episode_is_an_output(loop: Any) -> None:
    pool = servers()
    output = await run(loop, pool, reward=score, reward_keys=["accuracy"])
    last = pool.engine.calls[-1]
    sent, extra = output.prompt_ids + output.response_ids, output.extra_fields
    assert sent[: len(last.ids)] == last.ids  # the last prompt and its sampled tokens are the whole row
    assert pool.engine.decode(sent[len(last.ids) :]) == "the end<|im_end|>"
    assert sum(output.response_mask) == sum(
        len(pool.engine.encode(text + "<|im_end|>")) for text in _sampled_texts(pool, sent[len(last.ids) :])
    )
    assert output.reward_score == 1.0 and output.num_turns == 6
    assert (extra["min_global_steps"], extra["max_global_steps"]) == (3, 3)
    assert extra["reward_extra_info"] == {"accuracy": 0.5}
    assert extra["strands_end_reason"] == "answered" and extra["strands_failure"] == ""
    assert len(set(pool.ids)) == 1, "one server for an episode"
    assert all(params["logprobs"] is True and params["top_k"] == -1 for params in pool.params)
    assert pool.params[0]["max_new_tokens"] == 600
    spent = len(pool.engine.calls[1].ids) - len(pool.engine.calls[0].ids)
    assert pool.params[1]["max_new_tokens"] == 600 - spent, "one budget over all turns"


def _sampled_texts(servers: Servers, last: list[int]) -> list[str]:
    prompt = servers.engine.decode(servers.engine.calls[-1].ids)
    turns = prompt.split("<|im_start|>assistant\n")[1:-1]
    return [turn.split("<|im_end|>")[0] for turn in turns] + ["the end"]


async def test_an_agent_may_be_a_process(loop: Any) -> None:
    pool = Servers(PromptEngine(multiplies))
    output = await run(loop, pool, build=build_process, reward=score)
    last = pool.engine.calls[-1].ids
    assert (output.prompt_ids + output.response_ids)[: len(last)] == last
    assert (output.reward_score, output.num_turns) == (1.0, 4) and len(pool.engine.calls) == 2
    sampled = [multiplies("", 0), "the end"]
    assert sum(output.response_mask) == sum(len(pool.engine.encode(text + "<|im_end|>")) for text in sampled)


async def test_samples_share_a_worker_and_use_several_servers(loop: Any) -> None:
    pool = servers()
    made = [loop(**given(pool, pool.engine.tokenizer), build=build, reward=score) for _ in range(4)]
    outputs = await asyncio.gather(*(one.run(dict(SAMPLING), **ROW) for one in made))
    assert len({output.extra_fields["strands_episode"] for output in outputs}) == 4 == len(set(pool.ids))
    assert len({id(one._worker()) for one in made}) == 1


async def test_interrupted_turn_is_continued(loop: Any) -> None:
    whole, cut = servers(), servers(cut_every=2)
    first, second = await run(loop, whole, reward=score), await run(loop, cut, reward=score)
    assert len(cut.ids) > len(whole.ids)
    assert second.response_ids != first.response_ids  # the scripted engine answers by prompt: a cut turn goes elsewhere
    assert second.extra_fields["min_global_steps"] == 3 < second.extra_fields["max_global_steps"]


@pytest.mark.parametrize("action", ["drop", "retry", "mask"])
async def test_tokens_of_old_steps(loop: Any, action: str) -> None:
    """Of an interrupted turn, the tokens before the update are older than those after it."""
    loop_module = importlib.import_module("strands_sglang.trainers.verl")
    loop_module.VerlEngine.newest_step = None
    fresh = await run(loop, servers(cut_every=2), reward=score, max_staleness=100)
    assert any(fresh.response_mask)
    loop_module.VerlEngine.newest_step = None
    pool = servers(cut_every=2)
    made = loop(
        **given(pool, pool.engine.tokenizer), build=build, reward=score,
        max_staleness={"limit": 0, "action": action, "retries": 1},
    )  # fmt: skip
    output = await made.run(dict(SAMPLING), **ROW)
    if action == "mask":
        assert 0 < sum(output.response_mask) < sum(fresh.response_mask)
    else:  # the episode that is run again spans updates as well
        assert not any(output.response_mask)
        assert output.extra_fields["strands_episode"].endswith("~1/0") == (action == "retry")


async def test_truncated_turn_that_vllm_reports_as_completed(loop: Any) -> None:
    output = await run(loop, servers(completed=True), reward=score, limits={"max_new_tokens": 4})
    assert output.extra_fields["strands_end_reason"] == "turn_truncated" and sum(output.response_mask) == 4
    output = await run(loop, servers(completed=True), reward=score)
    assert output.extra_fields["strands_end_reason"] == "answered"


async def test_verl_limits_tokens(loop: Any) -> None:
    pool = servers(50)
    output = await run(loop, pool, rollout={"prompt_length": 60, "response_length": 150}, reward=score)
    assert len(output.prompt_ids) == 60 and len(output.response_ids) <= 150
    assert output.extra_fields["strands_end_reason"] in ("context_length", "token_limit") and output.reward_score == 0.0
    first = len(pool.engine.calls[0].ids)
    assert first > 60, "what of the first prompt does not fit stands in front of the response"
    assert (output.prompt_ids + output.response_ids)[:first] == pool.engine.calls[0].ids
    assert not any(output.response_mask[: first - 60]) and any(output.response_mask)
    limited = await run(
        loop, servers(50), rollout={"multi_turn": {"max_assistant_turns": 2}, "max_model_len": 900}, reward=score
    )
    assert limited.num_turns == 4 and limited.extra_fields["strands_end_reason"] == "turn_limit"


@pytest.mark.parametrize("row", [ROW, {**ROW, "raw_prompt": [{"role": "assistant", "content": "?"}]}])
async def test_failed_episode_is_a_masked_row(loop: Any, row: Any) -> None:
    good = await run(loop, servers(), reward=score, reward_keys=["accuracy"])
    output = await run(loop, servers(), row, build=broken, reward=score, reward_keys=["accuracy"])
    assert output.response_mask == [0] and output.reward_score == 0.0
    assert output.extra_fields.keys() == good.extra_fields.keys(), "verl stacks them"
    assert output.extra_fields["min_global_steps"] == 3, "verl computes with it"
    assert output.extra_fields["strands_end_reason"] == ("agent_error" if row is ROW else "no_task")


async def test_tokens_are_not_trained_if_the_engine_fails(loop: Any) -> None:
    answers = steps(9)

    def script(prompt: str, before: int) -> Any:
        return OSError("the server is gone") if "step 2" in prompt else answers(prompt, before)

    output = await run(loop, Servers(PromptEngine(script)), reward=score)
    assert len(output.response_mask) > 10 and not any(output.response_mask)
    extra = output.extra_fields
    assert extra["strands_end_reason"] == "engine_error" and "OSError" in extra["strands_failure"]


async def test_without_a_reward_function_verl_scores(loop: Any) -> None:
    assert (await run(loop, servers())).reward_score is None
    assert (await run(loop, servers(), build=broken)).reward_score is None


async def test_all_branches_with_the_main_one_last(loop: Any) -> None:
    pool = servers()
    made = loop(**given(pool, pool.engine.tokenizer), build=build, reward=score, branches="all")
    outputs = await made.run(dict(SAMPLING), **ROW)
    assert isinstance(outputs, list) and outputs[-1].num_turns == 6


async def test_settings_come_from_paths_and_subclasses(loop: Any) -> None:
    class Steps(loop):  # type: ignore[misc]
        build = staticmethod(build)
        reward = "trainers.verl.test_agent_loop.score"
        sampling_params = {"stop_token_ids": [1]}

    pool = servers()
    output = await Steps(**given(pool, pool.engine.tokenizer)).run(dict(SAMPLING), **ROW)
    assert output.reward_score == 1.0 and pool.params[0]["stop_token_ids"] == [1]
    for bad in ({"build": None}, {"build": "nowhere.build"}, {"build": "trainers.verl.test_agent_loop.nobody"}):
        with pytest.raises(ConfigurationError):
            loop(**given(pool, pool.engine.tokenizer), **bad)


async def test_routed_experts(loop: Any) -> None:
    class Experts(Servers):
        async def generate(self, request_id: str, **pool: Any) -> Any:
            output = await super().generate(request_id, **pool)
            rows = len(pool["prompt_ids"]) + len(output.token_ids) - 1
            output.routed_experts = np.arange(rows, dtype=np.int32).reshape(-1, 1, 1) + np.arange(6).reshape(1, 3, 2)
            return output

    pool = Experts(PromptEngine(steps(2)))
    replay = {"enable_rollout_routing_replay": True}
    with pytest.raises(ConfigurationError, match="expert_shape"):
        await run(loop, pool, rollout=replay)
    output = await run(loop, pool, rollout=replay, expert_shape=[3, 2], reward=score)
    tokens = len(output.prompt_ids) + len(output.response_ids)
    assert output.routed_experts is not None
    assert output.routed_experts.shape == (tokens - 1, 3, 2)
    assert output.routed_experts[:, 0, 0].tolist() == list(range(tokens - 1))
    empty = await run(loop, pool, rollout=replay, expert_shape=[3, 2], build=broken, reward=score)
    assert empty.routed_experts is not None and empty.routed_experts.shape == (1, 3, 2)


async def test_logprobs_are_omitted_if_not_configured(loop: Any) -> None:
    pool = servers(1)
    made = loop(**given(pool, pool.engine.tokenizer), build=build, reward=score)
    output = await made.run({**SAMPLING, "logprobs": False}, **ROW)
    assert output.response_logprobs is None and any(output.response_mask)
    assert all(params["logprobs"] is True for params in pool.params), "we need them to count tokens"


async def test_cancellation_is_raised(loop: Any) -> None:
    pool = servers(1)
    pool.engine.delay = 30.0
    made = loop(**given(pool, pool.engine.tokenizer), build=build, reward=score)
    work = asyncio.ensure_future(made.run(dict(SAMPLING), **ROW))
    while not pool.ids:
        await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


OUTPUT_ROW = PlainRow([1, 2, 3, 4], [5, 6, 7], [1, 0, 1], [-0.1, 0.0, -0.2], ["3", None, "4..5"], 1.0, 2)


def fields(row: PlainRow, prompt: int = 10, response: int = 10, **more: Any) -> dict[str, Any]:
    lengths = {"prompt_length": prompt, "response_length": response}
    return dict(adapter.output_fields(row, None, **lengths, logprobs=True, steps=9, **more))


def test_row_that_fits_is_unchanged() -> None:
    made = fields(OUTPUT_ROW)
    assert (made["prompt_ids"], made["response_ids"], made["response_mask"]) == ([1, 2, 3, 4], [5, 6, 7], [1, 0, 1])
    assert made["extra_fields"]["min_global_steps"] == 3 and made["extra_fields"]["max_global_steps"] == 5
    assert made["reward_score"] == 1.0 and made["num_turns"] == 4


def test_long_prompt_continues_in_the_response() -> None:
    made = fields(OUTPUT_ROW, prompt=2)
    assert made["prompt_ids"] == [1, 2] and made["response_ids"] == [3, 4, 5, 6, 7]
    assert made["response_mask"] == [0, 0, 1, 0, 1] and made["response_logprobs"] == [0.0, 0.0, -0.1, 0.0, -0.2]


def test_lengths_are_limited_and_rows_are_prefixes() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        tree = grown(rng)
        episode = episode_of(tree, routed_experts=experts_of(tree))
        for row in plain_rows(episode, pad_id=0, scored=True):
            prompt, response = rng.randint(1, 8), rng.randint(1, 8)
            made = fields(row, prompt, response, expert_shape=(LAYERS, TOP_K))
            ids = made["prompt_ids"] + made["response_ids"]
            assert ids == row.token_ids[: len(ids)]
            assert 1 <= len(made["prompt_ids"]) <= prompt
            count = len(made["response_ids"])
            assert 1 <= count <= response and count == len(made["response_mask"]) == len(made["response_logprobs"])
            zeros = len(row.prompt_ids) - len(made["prompt_ids"])
            assert made["response_mask"] == ([0] * zeros + row.loss_mask)[:count]
            assert made["routed_experts"].shape[1:] == (LAYERS, TOP_K)
            assert len(made["routed_experts"]) == (1 if row.experts is None else min(len(ids), len(row.token_ids) - 1))


def test_row_without_tokens_has_all_fields() -> None:
    empty = fields(plain_rows(None, pad_id=0, scored=True)[0])
    assert (
        empty.keys() == fields(OUTPUT_ROW).keys()
        and empty["extra_fields"].keys() == fields(OUTPUT_ROW)["extra_fields"].keys()
    )
    assert empty["extra_fields"]["min_global_steps"] == 9
    without_steps = PlainRow([1], [2], [1], [-0.1], [None], 1.0, 1)
    assert fields(without_steps)["extra_fields"]["min_global_steps"] is None, "a server that reports no step"
