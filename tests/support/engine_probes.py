"""Looking at a real engine from outside: a second opinion on logprobs, and whether tokens are flowing."""

from __future__ import annotations

import aiohttp

from strands_sglang import SGLangClient


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


async def some_tokens_later(client: SGLangClient, prompt: list[int]) -> None:
    """Wait until requests sent before have some tokens: one sent behind them, and decoded with them, has."""
    seen = 0
    stream = client.stream(prompt, {"max_new_tokens": 200, "temperature": 1.0, "ignore_eos": True})
    async for chunk in stream:
        seen += len(chunk.token_ids)
        if seen >= 5:
            break
    await stream.aclose()
