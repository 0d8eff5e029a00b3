"""A scripted engine with a real distribution: a softmax over a small vocabulary that depends on the tokens before.

It answers prefills as SGLang does (logprobs of the prompt at temperature 1, likeliest ids flat or nested), so tests
know the exact logprob of every token at every temperature.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from support.scripted import Received, ScriptedServer, Wire

VOCABULARY = 48


def logits_after(ids: Sequence[int], model: str = "small", spread: float = 2.5) -> Any:
    seed = hashlib.blake2b(orjson.dumps([model, list(ids)]), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(seed, "big")).normal(0.0, spread, VOCABULARY)


def logprobs_after(ids: Sequence[int], model: str = "small", temperature: float = 1.0) -> Any:
    """Return the logprob of every id as the next token, in 32 bits."""
    scaled = logits_after(ids, model) / temperature
    scaled -= scaled.max()
    return (scaled - np.log(np.exp(scaled).sum())).astype(np.float32).astype(np.float64)


def toy_engine(
    model: str = "small",
    version: str = "v1",
    *,
    flat: bool = True,
    refuse: int = -1,
    delay: float = 0.0,
    fail_first: int = 0,
) -> ScriptedServer:
    """Return the engine."""
    state = {"requests": 0}

    def read(body: dict[str, Any]) -> bytes:
        ids, start, top = body["input_ids"], body["logprob_start_len"], body.get("top_logprobs_num", 0)
        assert body["sampling_params"] == {"max_new_tokens": 0, "temperature": 1.0}
        entries: list[Any] = [[None, ids[start], None]]
        likeliest: list[Any] = [None]
        for at in range(start + 1, len(ids)):
            row = logprobs_after(ids[:at], model)
            entries.append([float(row[ids[at]]), ids[at], None])
            likeliest.append([[float(row[id]), int(id), None] for id in np.argsort(-row, kind="stable")[:top]])
        meta: dict[str, Any] = {"input_token_logprobs": entries}
        if top and flat and body.get("return_flat_raw_top_logprobs_b64"):
            for name, kind, place in (("idx", "<i4", 1), ("val", "<f4", 0)):
                values = np.array([entry[place] for row in likeliest[1:] for entry in row], kind)
                meta[f"input_top_logprobs_{name}_flat_b64"] = base64.b64encode(values.tobytes()).decode()
            meta["input_top_logprobs_shape"] = [len(likeliest) - 1, top]
        elif top:
            meta["input_top_logprobs"] = likeliest
        return orjson.dumps({"meta_info": meta})

    async def handle(wire: Wire) -> None:
        received: Received = await wire.read_body()
        if received.path == "/model_info":
            await wire.reply(orjson.dumps({"model_path": model, "weight_version": version}))
        elif received.path != "/generate":
            await wire.reply(b"{}", 404)
        elif "logit_bias" in received.json()["sampling_params"]:
            await wire.reply(f"logit_bias must has keys in [0, {VOCABULARY - 1}], got 1073741823".encode(), 400)
        elif refuse in received.json()["input_ids"]:
            await wire.reply(b"too long", 400)
        else:
            state["requests"] += 1
            if state["requests"] <= fail_first:
                await wire.reply(b"busy", 503)
                return
            await asyncio.sleep(delay)
            await wire.reply(read(received.json()))

    return ScriptedServer(handle)
