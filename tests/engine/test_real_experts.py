"""On the real engine: routed experts, one row for each token that was fed, also when a turn is interrupted."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from strands_sglang import SGLangClient
from strands_sglang.engine import PauseMode
from strands_sglang.errors import CountMismatchError
from support.engine_probes import some_tokens_later
from support.lab_servers import LabProcess

pytestmark = [pytest.mark.engine, pytest.mark.own_servers]

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
