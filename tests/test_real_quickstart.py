"""On the real engine: the published ways to use the package, as their users write them."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from strands import Agent, tool
from strands.types.exceptions import EventLoopException, MaxTokensReachedException
from transformers import AutoTokenizer

from strands_sglang import SGLangClient, SGLangModel, TokenManager
from strands_sglang.tool_parsers import HermesToolParser
from support.engine_probes import prefill_logprobs
from support.lab_servers import LAB, LabProcess, task

pytestmark = pytest.mark.engine

QUESTION = "Compute 615 * 17, then - 88."


@tool
def calculator(expression: str) -> str:
    """Work out an expression.

    Args:
        expression: Such as 1 + 1.
    """
    return task.calculate(expression)


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(str(LAB / "tool_policy" / "canonical"))


def check(tm: TokenManager) -> None:
    """What every user of the published face relies on."""
    assert len(tm.token_ids) == len(tm.loss_mask) == len(tm.logprobs) == len(tm) > 0
    assert tm.segment_info[0] == (False, len(tm.segments[0]))
    assert sum(length for _, length in tm.segment_info) == len(tm)
    assert sum(tm.loss_mask) == sum(length for sampled, length in tm.segment_info if sampled)
    assert all(logprob < 0 for logprob, mask in zip(tm.logprobs, tm.loss_mask, strict=True) if mask)


async def test_quick_start(tool_policy: LabProcess) -> None:
    client = SGLangClient(base_url=tool_policy.url, max_connections=1000, timeout=None, max_retries=60, retry_delay=1.0)
    model = SGLangModel(
        tokenizer=tokenizer(),
        client=client,
        model_id="tool-policy",
        tool_parser=HermesToolParser(),
        sampling_params={"max_new_tokens": 64, "temperature": 0.0},
    )
    agent = Agent(model=model, tools=[calculator], callback_handler=None)
    result = await agent.invoke_async(QUESTION)
    assert "The answer is" in str(result)
    tm = model.token_manager
    check(tm)
    assert [sampled for sampled, _ in tm.segment_info] == [False, True, False, True, False, True]
    again = await prefill_logprobs(tool_policy.url, tm.token_ids, len(tm.segments[0]))
    for logprob, recorded, mask in zip(
        again, tm.logprobs[len(tm.segments[0]) :], tm.loss_mask[len(tm.segments[0]) :], strict=True
    ):
        assert not mask or abs(logprob - recorded) < 1e-3
    model.reset()
    assert len(tm) == 0 and tm is model.token_manager
    await client.close()


def test_strands_docs_style(tool_policy: LabProcess) -> None:
    """`base_url=`, `params=`, a synchronous agent called twice: two event loops."""
    model = SGLangModel(
        tokenizer=tokenizer(),
        base_url=tool_policy.url,
        model_id="tool-policy",
        params={"max_new_tokens": 64, "temperature": 0.0},
    )
    agent = Agent(model=model, tools=[calculator], callback_handler=None)
    assert "The answer is" in str(agent(QUESTION))
    first = len(model.token_manager)
    check(model.token_manager)
    agent("Compute 7 + 8, then * 2.")
    assert len(model.token_manager) > first
    check(model.token_manager)
    assert agent.model.get_config()["sampling_params"] == {"max_new_tokens": 64, "temperature": 0.0}


class Status(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"


@dataclass
class Sample:
    """As much of slime's `Sample` as a hand-written generate touches."""

    prompt: str
    label: str
    tokens: list[int] = field(default_factory=list)
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    response: str = ""
    response_length: int = 0
    status: Status = Status.PENDING
    reward: float | None = None


_CLIENTS: dict[str, SGLangClient] = {}
_TOKENIZER = None


def shared_client(args: Namespace) -> SGLangClient:
    key = f"{args.sglang_router_ip}:{args.sglang_router_port}"
    if key not in _CLIENTS:
        _CLIENTS[key] = SGLangClient.from_slime_args(args, timeout=300.0)
    return _CLIENTS[key]


async def generate(args: Namespace, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """A generate function as slime's users write it by hand."""
    global _TOKENIZER
    _TOKENIZER = _TOKENIZER or tokenizer()
    model = SGLangModel(
        tokenizer=_TOKENIZER,
        client=shared_client(args),
        sampling_params={key: sampling_params[key] for key in ("max_new_tokens", "temperature", "top_p")},
    )
    agent = Agent(model=model, tools=[calculator], callback_handler=None)
    answer = ""
    try:
        answer = str(await agent.invoke_async(sample.prompt))
        sample.status = Status.COMPLETED
    except (MaxTokensReachedException, EventLoopException):
        sample.status = Status.TRUNCATED
    tm = model.token_manager
    prompt_length = len(tm.segments[0])
    sample.tokens = tm.token_ids
    sample.loss_mask = tm.loss_mask[prompt_length:]
    sample.rollout_log_probs = tm.logprobs[prompt_length:]
    sample.response_length = len(sample.tokens) - prompt_length
    sample.response = _TOKENIZER.decode(sample.tokens[prompt_length:], skip_special_tokens=False)
    sample.reward = 1.0 if sample.label in answer else 0.0
    model.reset()
    agent.cleanup()
    return sample


async def test_slime_style_generate(tool_policy: LabProcess) -> None:
    host, _, port = tool_policy.url.removeprefix("http://").partition(":")
    args = Namespace(
        sglang_router_ip=host,
        sglang_router_port=int(port),
        sglang_server_concurrency=512,
        rollout_num_gpus=1,
        rollout_num_gpus_per_engine=1,
    )
    sampling = {
        "max_new_tokens": 64,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "stop": None,
        "stop_token_ids": None,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }
    samples = [Sample(QUESTION, "10367") for _ in range(32)]
    done = await asyncio.gather(*(generate(args, sample, sampling) for sample in samples))
    for sample in done:
        assert sample.loss_mask is not None and sample.rollout_log_probs is not None
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length > 0
        assert sample.response_length < len(sample.tokens)
        assert all(isinstance(logprob, float) for logprob in sample.rollout_log_probs)
        assert sample.status in (Status.COMPLETED, Status.TRUNCATED)
    assert sum(sample.reward or 0.0 for sample in done) > 0
    # A group of samples of one question shares its prompt, and each is its own.
    assert len({tuple(sample.tokens) for sample in done}) > 1
    for client in _CLIENTS.values():
        await client.close()
