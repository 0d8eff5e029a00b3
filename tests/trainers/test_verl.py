"""Our agent loop in verl's hands: what comes out for good, cut, failed and impossible episodes."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from strands import Agent
from strands.agent.conversation_manager import NullConversationManager

from rollout.kinds import step
from rollout.scripts import PromptEngine, steps
from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout import Episode
from trainers.verl_mirror import AgentLoopOutput, Servers, given, verl_installed

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


def walker(task: Any, model: Any) -> Agent:
    return Agent(model=model, tools=[step], callback_handler=None, conversation_manager=NullConversationManager())


def score(episode: Episode) -> dict[str, float]:
    return {"reward": float(episode.text == "the end"), "accuracy": 0.5}


def broken(task: Any, model: Any) -> Any:
    raise RuntimeError("no such agent")


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr("strands_sglang.trainers.engine_handle._PAUSE", 0.01)
    monkeypatch.setattr("strands_sglang.trainers.verl_engine.VerlEngine.newest_step", None)
    with verl_installed():
        yield importlib.import_module("strands_sglang.trainers.verl").StrandsAgentLoop


def servers(count: int = 2, **settings: Any) -> Servers:
    return Servers(PromptEngine(steps(count)), **settings)


async def run(loop: Any, servers: Servers, row: Any = None, rollout: Any = None, **settings: Any) -> AgentLoopOutput:
    made = loop(**given(servers, servers.engine.tokenizer, **(rollout or {})), **{"build": walker, **settings})
    output = await made.run(dict(SAMPLING), **(row or ROW))
    assert isinstance(output, AgentLoopOutput)
    whole = len(output.response_ids)
    assert len(output.response_mask) == whole >= 1 and output.prompt_ids
    assert output.response_logprobs is not None and len(output.response_logprobs) == whole
    pairs = zip(output.response_logprobs, output.response_mask, strict=True)
    assert not any(output.response_mask) or all((logprob == 0.0) == (not mask) for logprob, mask in pairs)
    return output


async def test_without_verl_the_fix_is_named() -> None:
    with pytest.raises(ImportError, match="pip install verl"):
        importlib.import_module("strands_sglang.trainers.verl")


async def test_an_episode(loop: Any) -> None:
    asked = servers()
    output = await run(loop, asked, reward=score, reward_keys=["accuracy"])
    last = asked.engine.calls[-1]
    sent, told = output.prompt_ids + output.response_ids, output.extra_fields
    assert sent[: len(last.ids)] == last.ids  # the last prompt and what was sampled behind it are the whole row
    assert asked.engine.decode(sent[len(last.ids) :]) == "the end<|im_end|>"
    assert sum(output.response_mask) == sum(
        len(asked.engine.encode(text + "<|im_end|>")) for text in _said(asked, sent[len(last.ids) :])
    )
    assert output.reward_score == 1.0 and output.num_turns == 6
    assert (told["min_global_steps"], told["max_global_steps"]) == (3, 3)
    assert told["reward_extra_info"] == {"accuracy": 0.5}
    assert told["strands_ended"] == "answered" and told["strands_failure"] == ""
    assert len(set(asked.ids)) == 1, "one server for an episode"
    assert all(params["logprobs"] is True and params["top_k"] == -1 for params in asked.params)
    assert asked.params[0]["max_new_tokens"] == 600
    spent = len(asked.engine.calls[1].ids) - len(asked.engine.calls[0].ids)
    assert asked.params[1]["max_new_tokens"] == 600 - spent, "one budget over all turns"


def _said(servers: Servers, last: list[int]) -> list[str]:
    prompt = servers.engine.decode(servers.engine.calls[-1].ids)
    turns = prompt.split("<|im_start|>assistant\n")[1:-1]
    return [turn.split("<|im_end|>")[0] for turn in turns] + ["the end"]


async def test_siblings_have_servers_of_their_own_and_one_worker(loop: Any) -> None:
    asked = servers()
    made = [loop(**given(asked, asked.engine.tokenizer), build=walker, reward=score) for _ in range(4)]
    outputs = await asyncio.gather(*(one.run(dict(SAMPLING), **ROW) for one in made))
    assert len({output.extra_fields["strands_episode"] for output in outputs}) == 4 == len(set(asked.ids))
    assert len({id(one._worker()) for one in made}) == 1


async def test_a_turn_that_is_cut_goes_on(loop: Any) -> None:
    whole, cut = servers(), servers(cut_every=2)
    first, second = await run(loop, whole, reward=score), await run(loop, cut, reward=score)
    assert len(cut.ids) > len(whole.ids)
    assert second.response_ids != first.response_ids  # the scripted engine answers by prompt: a cut turn goes elsewhere
    assert second.extra_fields["min_global_steps"] == 3 < second.extra_fields["max_global_steps"]


async def test_vllm_calls_a_cut_turn_completed(loop: Any) -> None:
    output = await run(loop, servers(completed=True), reward=score, limits={"tokens_per_turn": 4})
    assert output.extra_fields["strands_ended"] == "turn_cut" and sum(output.response_mask) == 4
    output = await run(loop, servers(completed=True), reward=score)
    assert output.extra_fields["strands_ended"] == "answered"


async def test_budgets_are_those_of_verl(loop: Any) -> None:
    asked = servers(50)
    output = await run(loop, asked, rollout={"prompt_length": 60, "response_length": 150}, reward=score)
    assert len(output.prompt_ids) == 60 and len(output.response_ids) <= 150
    assert output.extra_fields["strands_ended"] in ("context", "token_limit") and output.reward_score == 0.0
    first = len(asked.engine.calls[0].ids)
    assert first > 60, "what of the first prompt does not fit stands in front of the response"
    assert (output.prompt_ids + output.response_ids)[:first] == asked.engine.calls[0].ids
    assert not any(output.response_mask[: first - 60]) and any(output.response_mask)
    limited = await run(
        loop, servers(50), rollout={"multi_turn": {"max_assistant_turns": 2}, "max_model_len": 900}, reward=score
    )
    assert limited.num_turns == 4 and limited.extra_fields["strands_ended"] == "turn_limit"


@pytest.mark.parametrize("row", [ROW, {**ROW, "raw_prompt": [{"role": "assistant", "content": "?"}]}])
async def test_what_cannot_be_run_is_a_masked_row(loop: Any, row: Any) -> None:
    good = await run(loop, servers(), reward=score, reward_keys=["accuracy"])
    output = await run(loop, servers(), row, build=broken, reward=score, reward_keys=["accuracy"])
    assert output.response_mask == [0] and output.reward_score == 0.0
    assert output.extra_fields.keys() == good.extra_fields.keys(), "verl stacks them"
    assert output.extra_fields["min_global_steps"] == 3, "verl computes with it"
    assert output.extra_fields["strands_ended"] == ("agent" if row is ROW else "no_task")


async def test_an_engine_that_fails_leaves_its_tokens_untrained(loop: Any) -> None:
    answers = steps(9)

    def script(prompt: str, before: int) -> Any:
        return OSError("the server is gone") if "step 2" in prompt else answers(prompt, before)

    output = await run(loop, Servers(PromptEngine(script)), reward=score)
    assert len(output.response_mask) > 10 and not any(output.response_mask)
    assert output.extra_fields["strands_ended"] == "engine" and "OSError" in output.extra_fields["strands_failure"]


async def test_without_a_reward_verl_scores(loop: Any) -> None:
    assert (await run(loop, servers())).reward_score is None
    assert (await run(loop, servers(), build=broken)).reward_score is None


async def test_every_branch_is_a_list_with_the_main_one_last(loop: Any) -> None:
    asked = servers()
    made = loop(**given(asked, asked.engine.tokenizer), build=walker, reward=score, branches="all")
    outputs = await made.run(dict(SAMPLING), **ROW)
    assert isinstance(outputs, list) and outputs[-1].num_turns == 6


async def test_settings_come_from_paths_and_subclasses(loop: Any) -> None:
    class Steps(loop):  # type: ignore[misc]
        build = staticmethod(walker)
        reward = "trainers.test_verl.score"
        sampling_params = {"stop_token_ids": [1]}  # noqa: RUF012

    asked = servers()
    output = await Steps(**given(asked, asked.engine.tokenizer)).run(dict(SAMPLING), **ROW)
    assert output.reward_score == 1.0 and asked.params[0]["stop_token_ids"] == [1]
    for bad in ({"build": None}, {"build": "nowhere.build"}, {"build": "trainers.test_verl.nobody"}):
        with pytest.raises(ConfigurationError):
            loop(**given(asked, asked.engine.tokenizer), **bad)


async def test_routed_experts_reach_verl_whole(loop: Any) -> None:
    class Experts(Servers):
        async def generate(self, request_id: str, **asked: Any) -> Any:
            output = await super().generate(request_id, **asked)
            rows = len(asked["prompt_ids"]) + len(output.token_ids) - 1
            output.routed_experts = np.arange(rows, dtype=np.int32).reshape(-1, 1, 1) + np.arange(6).reshape(1, 3, 2)
            return output

    asked = Experts(PromptEngine(steps(2)))
    replay = {"enable_rollout_routing_replay": True}
    with pytest.raises(ConfigurationError, match="expert_shape"):
        await run(loop, asked, rollout=replay)
    output = await run(loop, asked, rollout=replay, expert_shape=[3, 2], reward=score)
    tokens = len(output.prompt_ids) + len(output.response_ids)
    assert output.routed_experts is not None
    assert output.routed_experts.shape == (tokens - 1, 3, 2)
    assert output.routed_experts[:, 0, 0].tolist() == list(range(tokens - 1))
    empty = await run(loop, asked, rollout=replay, expert_shape=[3, 2], build=broken, reward=score)
    assert empty.routed_experts is not None and empty.routed_experts.shape == (1, 3, 2)


async def test_logprobs_are_left_out_where_verl_wants_none(loop: Any) -> None:
    asked = servers(1)
    made = loop(**given(asked, asked.engine.tokenizer), build=walker, reward=score)
    output = await made.run({**SAMPLING, "logprobs": False}, **ROW)
    assert output.response_logprobs is None and any(output.response_mask)
    assert all(params["logprobs"] is True for params in asked.params), "we need them to count tokens"


async def test_cancelling_passes_through(loop: Any) -> None:
    asked = servers(1)
    asked.engine.delay = 30.0
    made = loop(**given(asked, asked.engine.tokenizer), build=walker, reward=score)
    work = asyncio.ensure_future(made.run(dict(SAMPLING), **ROW))
    while not asked.ids:
        await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
