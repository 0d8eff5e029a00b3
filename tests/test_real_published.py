"""On the real engine: programs written for the published package, in all three of its generations."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel
from strands import Agent
from strands.types.exceptions import EventLoopException, MaxTokensReachedException
from transformers import AutoTokenizer

from strands_sglang import (
    LoopLimiter,
    MaxToolIterationsReachedError,
    Rollout,
    SGLangClient,
    SGLangContextLengthError,
    SGLangModel,
    ToolIterationLimiter,
    ToolLimiter,
    get_client,
    get_client_from_slime_args,
    get_tokenizer,
    get_tool_parser,
)
from strands_sglang.tool_parsers import HermesToolParser
from support.agent_episodes import calculator
from support.engine_probes import prefill_logprobs
from support.lab_servers import LAB, LabProcess

pytestmark = pytest.mark.engine

QUESTION = "Compute 615 * 17, then - 88."
SAMPLING = {"max_new_tokens": 64, "temperature": 0.0, "top_p": 1.0}
FOLDER = str(LAB / "tool_policy" / "canonical")


def slime_args(url: str) -> Namespace:
    host, _, port = url.removeprefix("http://").partition(":")
    return Namespace(
        sglang_router_ip=host, sglang_router_port=int(port), hf_checkpoint="somebody/tool-policy",
        partial_rollout=False, rollout_num_gpus=1, rollout_num_gpus_per_engine=1, sglang_server_concurrency=64,
    )  # fmt: skip


class Status(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"


@dataclass
class Sample:
    """As much of slime's `Sample` as a generate function writes."""

    prompt: str
    status: Status = Status.PENDING
    tokens: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    rollout_log_probs: list[Any] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    tool_iters: int = 0
    tool_calls: int = 0


async def generate(sample: Sample, model: SGLangModel, limiter: Any) -> Sample:
    """Fill a sample as slime's users do by hand: from `token_manager`, or from `rollout` with a `LoopLimiter`."""
    agent = Agent(model=model, tools=[calculator], hooks=[limiter], callback_handler=None)
    try:
        await agent.invoke_async(sample.prompt)
        sample.status = Status.COMPLETED
    except (MaxTokensReachedException, EventLoopException):
        sample.status = Status.TRUNCATED
    third = isinstance(limiter, LoopLimiter)
    seen: Any = model.rollout if third else model.token_manager
    prompt_len = seen.initial_prompt_length if third else len(seen.segments[0])
    sample.tokens = seen.token_ids
    sample.loss_mask = seen.loss_mask[prompt_len:]
    sample.rollout_log_probs = seen.logprobs[prompt_len:]
    sample.response_length = len(sample.tokens) - prompt_len
    sample.response = model.tokenizer.decode(sample.tokens[prompt_len:], skip_special_tokens=False)
    sample.tool_iters, sample.tool_calls = limiter.tool_iter_count, limiter.tool_call_count
    model.reset()
    agent.cleanup()
    return sample


async def check(sample: Sample, url: str) -> None:
    """What a trainer relies on: lengths agree, and the engine gives the sampled tokens the same logprobs again."""
    assert sample.status is Status.COMPLETED
    assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs) > 0
    assert sample.response.endswith("<|im_end|>") and "The answer is 10367." in sample.response
    assert (sample.tool_iters, sample.tool_calls) == (2, 2)
    prompt = len(sample.tokens) - sample.response_length
    again = await prefill_logprobs(url, sample.tokens, prompt)
    for logprob, recorded, mask in zip(again, sample.rollout_log_probs, sample.loss_mask, strict=True):
        assert not mask or abs(logprob - recorded) < 1e-3


def test_the_first_generation_as_in_the_strands_documentation(tool_policy: LabProcess) -> None:
    """`base_url=`, `params=`, a synchronous agent called twice: two event loops."""
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    args = slime_args(tool_policy.url)
    params = {key: SAMPLING[key] for key in ("max_new_tokens", "temperature", "top_p")}
    models = [
        SGLangModel(tokenizer=tokenizer, base_url=tool_policy.url, model_id="tool-policy", params=params),
        SGLangModel(
            tokenizer=tokenizer,
            client=SGLangClient.from_slime_args(args),
            model_id=args.hf_checkpoint.split("/")[-1],
            params=params,
        ),
    ]
    for model in models:
        limiter = ToolIterationLimiter(max_iterations=5)
        agent = Agent(model=model, tools=[calculator], hooks=[limiter], callback_handler=None)
        model.reset()
        assert "The answer is 10367." in str(agent(QUESTION))
        tm = model.token_manager
        text = model.tokenizer.decode(tm.token_ids[len(tm.segments[0]) :], skip_special_tokens=False)
        assert "The answer is 10367." in text
        assert [sampled for sampled, _ in tm.segment_info] == [False, True] * 3
        first = len(tm)
        agent("Compute 7 + 8, then * 2.")
        assert first < len(tm) == len(tm.token_ids) == len(tm.loss_mask) == len(tm.logprobs)
        assert tm.segment_info[0] == (False, len(tm.segments[0])) and sum(n for _, n in tm.segment_info) == len(tm)
        assert sum(tm.loss_mask) == sum(length for sampled, length in tm.segment_info if sampled)
        assert all(logprob < 0 for logprob, mask in zip(tm.logprobs, tm.loss_mask, strict=True) if mask)
        assert model.get_config()["sampling_params"] == params
        model.reset()
        agent.cleanup()
        assert len(tm.token_ids) == 0 and tm is model.token_manager


async def test_the_second_generation_as_a_slime_generate(tool_policy: LabProcess) -> None:
    client = SGLangClient.from_slime_args(slime_args(tool_policy.url), timeout=300.0)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)

    def model(**sampling: Any) -> SGLangModel:
        given: dict[str, Any] = {"tool_parser": HermesToolParser(), "sampling_params": {**SAMPLING, **sampling}}
        return SGLangModel(tokenizer=tokenizer, client=client, **given)

    await check(await generate(Sample(QUESTION), model(), ToolLimiter(5, max_tool_calls=None)), tool_policy.url)
    # A group of samples of one question shares its prompt and its client, and each is its own.
    more = {"temperature": 1.0, "top_k": -1, "stop": None, "skip_special_tokens": False, "no_stop_trim": True}
    group = await asyncio.gather(*(generate(Sample(QUESTION), model(**more), ToolLimiter(5)) for _ in range(32)))
    for sample in group:
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length > 0
        assert sample.response_length < len(sample.tokens) and sample.status is not Status.PENDING
    assert any("The answer is 10367." in sample.response for sample in group)
    assert len({tuple(sample.tokens) for sample in group}) > 1
    await client.close()


async def test_the_third_generation_as_a_slime_generate(tool_policy: LabProcess) -> None:
    args = slime_args(tool_policy.url)
    client = get_client_from_slime_args(args, timeout=300.0)
    assert client is get_client_from_slime_args(args, timeout=300.0)
    model = SGLangModel(
        tokenizer=get_tokenizer(FOLDER),
        client=client,
        tool_parser=get_tool_parser("hermes"),
        sampling_params=SAMPLING,
        return_logprob=True,
        enable_thinking=True,
    )
    sample = await generate(Sample(QUESTION), model, LoopLimiter(max_tool_iters=5))
    assert [value is None for value in sample.rollout_log_probs] == [not mask for mask in sample.loss_mask]
    await check(sample, tool_policy.url)
    await client.close()


async def test_environments_as_others_build_them(tool_policy: LabProcess) -> None:
    """A fresh model for every episode on one kept client, limits as errors, rollouts inside records of their own."""

    class Result(BaseModel):
        rollout: Rollout | None = None
        reached: bool = False

    client, tokenizer = get_client(tool_policy.url, max_connections=100), get_tokenizer(FOLDER)

    async def run(limit: int) -> Result:
        model = SGLangModel(
            client=client, tokenizer=tokenizer, tool_parser=HermesToolParser(), sampling_params=SAMPLING
        )
        limiter = LoopLimiter(max_tool_iters=limit, max_messages=20)
        agent = Agent(model=model, tools=[calculator], hooks=[limiter], callback_handler=None)
        error: BaseException | None = None
        try:
            await agent.invoke_async(QUESTION)
        except Exception as raised:
            error = raised
        while error is not None and error.__cause__ is not None:
            error = error.__cause__
        return Result(rollout=model.rollout, reached=isinstance(error, MaxToolIterationsReachedError))

    for limit, segments in ((1, 2), (2, 4), (5, 6)):
        result = Result.model_validate_json((await run(limit)).model_dump_json())
        assert result.reached == (limit < 3) and result.rollout is not None
        assert len(result.rollout.segment_info) == segments and result.rollout.loss_mask[-1] == 1
    await client.close()


async def test_the_client_by_itself(tool_policy: LabProcess) -> None:
    async with SGLangClient(base_url=tool_policy.url, timeout=900.0, connect_timeout=5.0, max_retries=2) as client:
        assert await client.health() and await client.is_multimodal() is False
        info = await client.model_info()
        assert info is not None and info["model_path"] and info["weight_version"]
        assert await client.max_model_len() == 1024
        tokenizer = get_tokenizer(FOLDER)
        prompt = [{"role": "user", "content": QUESTION}]
        ids = list(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False))
        raw = await client.generate(input_ids=ids, sampling_params=SAMPLING, return_logprob=True)
        meta = raw["meta_info"]
        assert meta["finish_reason"]["type"] == "stop" and meta["prompt_tokens"] == len(ids)
        assert [entry[1] for entry in meta["output_token_logprobs"]] == raw["output_ids"]
        assert "calculator" in raw["text"]
        with pytest.raises(SGLangContextLengthError) as raised:
            await client.generate(input_ids=ids * 100)
        assert raised.value.status == 400 and "context length" in raised.value.body
