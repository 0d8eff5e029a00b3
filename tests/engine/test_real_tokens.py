"""On the real engine: the same tokens however they are asked for, and logprobs that a second look confirms."""

from __future__ import annotations

import asyncio
import random
from array import array
from typing import Any

import pytest

from strands_sglang import Generation, SGLangClient
from strands_sglang.engine import FinishReason
from strands_sglang.errors import ContextOverflowError, RequestRejectedError
from support.engine_probes import prefill_logprobs
from support.lab_servers import LabProcess, engine

pytestmark = pytest.mark.engine

GREEDY = {"temperature": 0, "ignore_eos": True}


async def streamed(client: SGLangClient, prompt: list[int], params: dict[str, Any]) -> Generation:
    ids, logprobs = array("i"), array("d")
    generation: Generation | None = None
    async for chunk in client.stream(prompt, params):
        ids += chunk.token_ids
        logprobs += chunk.logprobs
        generation = chunk.generation
    assert generation is not None
    assert generation.token_ids == ids and generation.logprobs == logprobs
    return generation


@pytest.mark.parametrize(("model", "vocabulary"), [("tool_policy", 400), ("smollm2", 40_000)])
async def test_streaming_plain_and_rescored_tokens_agree(
    model: str, vocabulary: int, request: pytest.FixtureRequest
) -> None:
    count = 300 if model == "tool_policy" else 50  # a large one takes a fifth of a second for each
    server: LabProcess = request.getfixturevalue(model)
    rng = random.Random(0)
    prompt = [rng.randrange(10, vocabulary) for _ in range(40)]
    params = {**GREEDY, "max_new_tokens": count}
    async with SGLangClient(server.url) as client:
        # From the same, empty cache: what is cached changes the shape of the sums, and so the last bits.
        await client.control.flush_cache()
        whole = await client.generate(prompt, params)
        await client.control.flush_cache()
        piecewise = await streamed(client, prompt, params)
        second = await prefill_logprobs(server.url, prompt + list(whole.token_ids), len(prompt))
    assert len(whole) == count and whole.finish_reason is FinishReason.LENGTH
    assert whole.token_ids == piecewise.token_ids
    assert whole.logprobs == piecewise.logprobs
    assert whole.versions == piecewise.versions
    worst = max(abs(a - b) for a, b in zip(whole.logprobs, second, strict=True))
    print(f"{model}: {count} tokens, largest difference to a prefill of the same ids {worst:.1e}")
    assert worst <= 1e-4


async def test_the_prompt_is_shared_from_the_cache(tool_policy: LabProcess) -> None:
    prompt = list(range(20, 80))
    async with SGLangClient(tool_policy.url) as client:
        await client.control.flush_cache()
        first = await client.generate(prompt, {**GREEDY, "max_new_tokens": 4})
        siblings = await asyncio.gather(*(client.generate(prompt, {"max_new_tokens": 4}) for _ in range(7)))
    assert first.cached_tokens == 0 and first.prompt_tokens == 60
    assert all(sibling.cached_tokens == 59 for sibling in siblings)


async def test_a_stop_token_is_part_of_the_output(tool_policy: LabProcess) -> None:
    prompt = list(range(20, 60))
    async with SGLangClient(tool_policy.url) as client:
        # Not with ignore_eos: that switches every stop token off, ours too.
        free = await client.generate(prompt, {"temperature": 0, "max_new_tokens": 20})
        stop = free.token_ids[len(free) // 2]
        first = list(free.token_ids).index(stop)
        stopped = await client.generate(prompt, {"temperature": 0, "max_new_tokens": 20, "stop_token_ids": [stop]})
    assert stopped.finish_reason is FinishReason.STOP and stopped.finish_detail == stop
    assert list(stopped.token_ids) == list(free.token_ids[: first + 1])


async def test_engines_message_for_context_overflow(tool_policy: LabProcess) -> None:
    async with SGLangClient(tool_policy.url) as client:
        with pytest.raises(ContextOverflowError) as prompt_too_long:
            await client.generate([5] * 1100, {"max_new_tokens": 1})
        with pytest.raises(ContextOverflowError) as budget_too_long:
            await client.generate([5] * 10, {"max_new_tokens": 3000})
        with pytest.raises(ContextOverflowError) as in_a_stream:
            async for _ in client.stream([5] * 1100, {"max_new_tokens": 1}):
                pass
    assert (prompt_too_long.value.requested_tokens, prompt_too_long.value.limit_tokens) == (1100, 1024)
    assert (budget_too_long.value.requested_tokens, budget_too_long.value.limit_tokens) == (3010, 1024)
    assert in_a_stream.value.limit_tokens == 1024


@pytest.mark.parametrize("params", [{"temperature": -1.0}, {"top_p": 5.0}, {"max_new_tokens": -3}])
async def test_engines_message_for_invalid_request(tool_policy: LabProcess, params: dict[str, Any]) -> None:
    async with SGLangClient(tool_policy.url) as client:
        with pytest.raises(RequestRejectedError, match=next(iter(params))) as caught:
            await client.generate([5, 6], params)
    assert not isinstance(caught.value, ContextOverflowError)


async def test_control_calls(tool_policy: LabProcess) -> None:
    async with SGLangClient(tool_policy.url) as client:
        assert await client.control.health()
        info = await client.control.model_info()
        assert info.model_path.endswith("canonical") and info.weight_version
        assert (await client.control.server_info())["version"] == engine.engine_version()
        assert list((await client.control.open_requests()).values()) == [0]


async def test_a_large_vocabulary_and_many_at_once(tiny_qwen3: LabProcess) -> None:
    rng = random.Random(1)
    prompts = [[rng.randrange(150_000) for _ in range(rng.randrange(1, 200))] for _ in range(64)]
    async with SGLangClient(tiny_qwen3.url) as client:
        params = {"max_new_tokens": 8, "temperature": 1.0, "ignore_eos": True}
        generations = await asyncio.gather(*(client.generate(prompt, params) for prompt in prompts))
    assert [g.prompt_tokens for g in generations] == [len(prompt) for prompt in prompts]
    assert all(len(g) == 8 and all(lp <= 0 for lp in g.logprobs) for g in generations)
