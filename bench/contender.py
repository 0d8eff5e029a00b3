"""Runs the clients of one environment: reads jobs from stdin, writes their CPU seconds to stdout.

python contender.py ours,bare PORTS CPU
python contender.py published PORTS CPU
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from loopback import SHAPES, stay_on

SAMPLING = {"max_new_tokens": 1024, "temperature": 1.0}
Generate = Callable[[list[int]], Awaitable[Any]]


def bare(url: str, connections: int) -> Generate:
    """Return a minimal client: aiohttp and the same JSON library, without checks and records."""
    import aiohttp
    import orjson

    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections))

    async def generate(ids: list[int]) -> Any:
        body = orjson.dumps({"input_ids": ids, "sampling_params": SAMPLING, "return_logprob": True})
        headers = {"Content-Type": "application/json"}
        async with session.post(url + "/generate", data=body, headers=headers) as response:
            return orjson.loads(await response.read())

    return generate


def ours(url: str, connections: int) -> Generate:
    """Return our client."""
    from strands_sglang import SGLangClient

    client = SGLangClient(url, max_connections=connections)
    return lambda ids: client.generate(ids, SAMPLING)


def published(url: str, connections: int) -> Generate:
    """Return the client of the published package."""
    from strands_sglang import SGLangClient

    client: Any = SGLangClient(url, max_connections=connections)
    return lambda ids: client.generate(ids, sampling_params=SAMPLING, return_logprob=True)


async def _run(generate: Generate, ids: list[int], concurrency: int, count: int) -> float:
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await generate(ids)

    started = time.process_time()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return time.process_time() - started


MAKERS = {"ours": ours, "bare": bare, "published": published}


async def _main(kinds: list[str], ports: list[int]) -> None:
    clients = {kind: [MAKERS[kind](f"http://127.0.0.1:{port}", 1024) for port in ports] for kind in kinds}
    prompts = [shape.prompt() for shape in SHAPES]
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        job = json.loads(line)
        shape = job["shape"]
        seconds = await _run(clients[job["kind"]][shape], prompts[shape], job["concurrency"], job["count"])
        print(json.dumps(seconds), flush=True)
    os._exit(0)  # skip the warnings about connections that were not closed


if __name__ == "__main__":
    stay_on(int(sys.argv[3]))
    asyncio.run(_main(sys.argv[1].split(","), json.loads(sys.argv[2])))
