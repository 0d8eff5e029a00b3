"""A second opinion on logprobs: the engine's own prefill of the same tokens, asked past our client."""

from __future__ import annotations

import aiohttp


async def prefill_logprobs(url: str, ids: list[int], start: int) -> list[float]:
    """Ask the engine for the logprobs of `ids[start:]` in one prefill, past our client."""
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": start - 1,
    }
    async with aiohttp.ClientSession() as session, session.post(url + "/generate", json=body) as response:
        meta = (await response.json())["meta_info"]
    entries = meta["input_token_logprobs"][1:]
    assert [entry[1] for entry in entries] == ids[start:]
    return [entry[0] for entry in entries]
