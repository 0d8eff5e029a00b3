"""On the real engine: turns that live through a weight update, in each way the engine can pause."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from strands_sglang import SGLangClient
from strands_sglang.engine import AbortPolicy, FinishReason, PauseMode
from support.engine_probes import prefill_logprobs, some_tokens_later
from support.lab_servers import LAB, LabProcess, Routed, route

pytestmark = [
    pytest.mark.engine,
    pytest.mark.own_servers,
    pytest.mark.timing,
]  # turns must still be running when something happens to them

CHECKPOINT = str(LAB / "tool_policy" / "canonical")
PROMPT = list(range(20, 60))
TOKENS = 400
LONG = {"max_new_tokens": TOKENS, "temperature": 1.0, "ignore_eos": True}


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_turn_continues_over_update(tool_policy: LabProcess, mode: PauseMode) -> None:
    async with SGLangClient(tool_policy.url, retry_delay=0.05) as client:
        before = (await client.control.model_info()).weight_version
        turns = [asyncio.create_task(client.generate(PROMPT, LONG)) for _ in range(4)]
        await some_tokens_later(client, PROMPT)
        results = await client.control.swap_weights(CHECKPOINT, version=f"after-{mode.value}", mode=mode)
        assert all(result.ok for result in results), results
        generations = await asyncio.gather(*turns)
        for generation in generations:
            assert len(generation) == TOKENS and generation.finish_reason is FinishReason.LENGTH
            assert [span.version for span in generation.versions] == [before, f"after-{mode.value}"]
            assert generation.continuations == (1 if mode is PauseMode.ABORT else 0)
            assert generation.discarded_tokens == 0
        # The weights are the same under a new name: one prefill of the joined turn confirms every logprob, so the
        # second part really continued the first.
        ids = PROMPT + list(generations[0].token_ids)
        second = await prefill_logprobs(tool_policy.url, ids, len(PROMPT))
        assert max(abs(a - b) for a, b in zip(generations[0].logprobs, second, strict=True)) <= 1e-3


async def test_partial_turn_is_returned_on_request(tool_policy: LabProcess) -> None:
    async with SGLangClient(tool_policy.url) as client:
        turn = asyncio.create_task(client.generate(PROMPT, LONG, on_abort=AbortPolicy.RETURN))
        await some_tokens_later(client, PROMPT)
        await client.control.swap_weights(CHECKPOINT, version="handed-back", mode=PauseMode.ABORT)
        generation = await turn
    assert generation.finish_reason is FinishReason.ABORT
    assert 0 < len(generation) < TOKENS and len(generation.versions) == 1


async def test_abort_all_from_outside(tool_policy: LabProcess) -> None:
    async with SGLangClient(tool_policy.url) as client:
        turns = [asyncio.create_task(client.generate(PROMPT, LONG, on_abort=AbortPolicy.RETURN)) for _ in range(8)]
        await some_tokens_later(client, PROMPT)
        assert all(result.ok for result in await client.control.abort_all())
        assert {turn.finish_reason for turn in await asyncio.gather(*turns)} == {FinishReason.ABORT}


async def test_stream_continues_over_update(tool_policy: LabProcess) -> None:
    async with SGLangClient(tool_policy.url, retry_delay=0.05) as client:
        ids: list[int] = []
        update: asyncio.Task[object] | None = None
        async for chunk in client.stream(PROMPT, LONG):
            ids += chunk.token_ids
            if update is None and len(ids) >= 20:
                swap = client.control.swap_weights(CHECKPOINT, version="streamed", mode=PauseMode.ABORT)
                update = asyncio.create_task(swap)
            last = chunk.generation
        assert update is not None
        await update
    assert last is not None and list(last.token_ids) == ids and len(ids) == TOKENS
    assert last.continuations == 1 and last.versions[-1].version == "streamed"


async def test_constrained_turn_restarts_and_is_valid(tool_policy: LabProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"digits": {"type": "array", "items": {"type": "integer"}, "minItems": 40, "maxItems": 60}},
        "required": ["digits"],
        "additionalProperties": False,
    }
    params = {"max_new_tokens": 900, "temperature": 1.0, "json_schema": json.dumps(schema)}
    async with SGLangClient(tool_policy.url, retry_delay=0.05) as client:
        turn = asyncio.create_task(client.generate(PROMPT, params, extra={"return_text_in_logprobs": True}))
        await some_tokens_later(client, PROMPT)
        await client.control.swap_weights(CHECKPOINT, version="constrained", mode=PauseMode.ABORT)
        generation = await turn
    assert generation.discarded_tokens > 0 and generation.continuations == 0
    assert [span.version for span in generation.versions] == ["constrained"]


async def test_generation_continues_after_failed_update(tool_policy: LabProcess, tmp_path: Path) -> None:
    async with SGLangClient(tool_policy.url) as client:
        (result,) = await client.control.swap_weights(str(tmp_path / "nowhere"), version="never")
        assert not result.ok and result.message
        generation = await client.generate(PROMPT, {"max_new_tokens": 3, "ignore_eos": True})
        assert len(generation) == 3 and generation.weight_version != "never"


async def test_routing_key_keeps_episode_on_one_worker(routed: Routed, engine_logs: Path) -> None:
    router = route(list(routed.workers), engine_logs, policy="manual").start().wait()
    try:
        for worker in routed.workers:  # name the weights after the worker, so that each answer tells who gave it
            async with SGLangClient(worker.url) as client:
                await client.control.swap_weights(CHECKPOINT, version=str(worker.port))
        async with SGLangClient(router.url) as client:

            async def episode(number: int) -> set[str | None]:
                versions = set()
                for turn in range(5):
                    prompt = [20 + number, *range(30, 40 + turn)]
                    generation = await client.generate(prompt, {"max_new_tokens": 2}, routing_key=f"episode-{number}")
                    versions.add(generation.weight_version)
                return versions

            seen = await asyncio.gather(*(episode(number) for number in range(12)))
        assert all(len(versions) == 1 for versions in seen)
        assert set().union(*seen) == {str(worker.port) for worker in routed.workers}
    finally:
        router.kill()
