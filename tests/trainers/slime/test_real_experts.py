"""A real mixture of experts: one row per token except the last, also when a turn is interrupted, and in slime."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.engine import PauseMode
from strands_sglang.errors import CountMismatchError
from strands_sglang.runs import Task
from strands_sglang.trainers.slime import slime_rollout
from support.engine_probes import some_tokens_later
from support.lab_servers import LabProcess, engine
from support.rollout_agent import agent_for
from support.trainers.slime_checks import checked_step
from support.trainers.slime_validation import validate_batch
from support.trainers.slime_world import SlimeWorld

pytestmark = [pytest.mark.slime, pytest.mark.engine]

LAYERS, TOP_K, EXPERTS = 3, 2, 8
PROMPT = list(range(1000, 1030))


async def test_one_row_for_every_token_but_the_last(tiny_moe: LabProcess) -> None:
    async with SGLangClient(tiny_moe.url) as client:
        params = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
        whole = await client.generate(PROMPT, params, routed_experts_start=0)
        tail = await client.generate(PROMPT, params, routed_experts_start=len(PROMPT) - 1)
        without = await client.generate(PROMPT, params)
    assert whole.routed_experts is not None and tail.routed_experts is not None
    rows = whole.routed_experts.decode(LAYERS, TOP_K)
    assert rows.shape == (len(PROMPT) + 12 - 1, LAYERS, TOP_K)
    assert rows.min() >= 0 and rows.max() < EXPERTS
    assert (rows[..., 0] != rows[..., 1]).all()
    assert np.array_equal(tail.routed_experts.decode(LAYERS, TOP_K), rows[len(PROMPT) - 1 :])
    assert without.routed_experts is None
    with pytest.raises(CountMismatchError):
        whole.routed_experts.decode(LAYERS + 1, TOP_K)


async def test_rows_of_an_interrupted_turn_join(tiny_moe: LabProcess) -> None:
    async with SGLangClient(tiny_moe.url, retry_delay=0.05) as client:
        params = {"max_new_tokens": 150, "temperature": 0, "ignore_eos": True}
        turn = asyncio.create_task(client.generate(PROMPT, params, routed_experts_start=0))
        await some_tokens_later(client, PROMPT)
        await client.control.pause(PauseMode.ABORT)
        await client.control.resume()
        joined = await turn
        ids = PROMPT + list(joined.token_ids)
        again = await client.generate(ids, {"max_new_tokens": 1}, routed_experts_start=0)
    assert joined.continuations >= 1 and len(joined) == 150
    assert joined.routed_experts is not None and again.routed_experts is not None
    rows = joined.routed_experts.decode(LAYERS, TOP_K)
    assert len(joined.routed_experts.parts) == joined.continuations + 1
    assert rows.shape[0] == len(ids) - 1
    # The same weights over the same tokens choose the same experts, but for ties in the last bits.
    second = again.routed_experts.decode(LAYERS, TOP_K)[: len(ids) - 1]
    assert (np.sort(rows, -1) == np.sort(second, -1)).all(-1).mean() >= 0.99


@pytest.fixture
def moe_world(tiny_moe: LabProcess, tmp_path: Path) -> Iterator[SlimeWorld]:
    """Connect slime to the server itself: PyPI's router removes `return_routed_experts` from requests."""
    with SlimeWorld(tiny_moe.url, tmp_path, str(engine.MODELS["tiny-moe"].folder), alone=True) as world:
        yield world


def two_questions(given: Task, model: SGLangModel) -> Any:
    async def work() -> str:
        agent = agent_for(model, tools=[])
        await agent.invoke_async(str(given.prompt), limits={"turns": 1})
        if given.data["questions"][0] != given.prompt:
            agent.messages[:] = agent.messages[:-1]
        return str(await agent.invoke_async("And what else?", limits={"turns": 1}))

    return work


@pytest.mark.parametrize("branches", ["main", "all"])
async def test_one_row_per_token_of_a_sample(moe_world: SlimeWorld, tiny_moe: LabProcess, branches: str) -> None:
    world = moe_world
    # The model is random: it says something else every time, and ends a turn on one token of ten.
    stop = [str(token) for token in range(0, 150000, 10)]
    flags: list[Any] = ["--use-rollout-routing-replay", "--rollout-max-response-len", 60]
    args = world.configure(
        slime_rollout(two_questions, reward=lambda episode: float(episode.metrics.turns), branches=branches),
        *flags,
        *("--rollout-stop-token-ids", *stop),
        groups=2,
        samples=2,
        num_layers=LAYERS,
        moe_router_topk=TOP_K,
    )
    batch = checked_step(world, rollouts=4)
    validate_batch(batch.groups, args)
    async with SGLangClient(tiny_moe.url) as client:
        for sample, rows in zip(batch.samples, batch.train["rollout_routed_experts"], strict=True):
            assert not sample.remove_sample
            assert tuple(rows.shape) == (len(sample.tokens) - 1, LAYERS, TOP_K)
            again = await client.generate(sample.tokens, {"max_new_tokens": 1}, routed_experts_start=0)
            assert again.routed_experts is not None
            second = again.routed_experts.decode(LAYERS, TOP_K)[: len(sample.tokens) - 1]
            # The same weights over the same tokens choose the same experts, but for ties in the last bits.
            assert (np.sort(rows.numpy(), -1) == np.sort(second, -1)).all(-1).mean() >= 0.98
    assert any(len(sample.weight_versions) > 1 for sample in batch.samples), "some have two turns"
