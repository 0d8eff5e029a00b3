"""On the real engine: a call that ends early ends there too, within a second, directly and through the router."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from lab_servers import LabProcess, Routed
from strands_sglang import SGLangClient
from strands_sglang.errors import CallCancelledError, DeadlineExceededError

pytestmark = pytest.mark.engine

# Runs for many seconds if nobody stops it.
LONG = {"max_new_tokens": 950, "temperature": 1.0, "ignore_eos": True}
PROMPT = list(range(20, 60))


async def running(client: SGLangClient) -> int:
    return sum((await client.control.running_requests()).values())


async def seen_running(client: SGLangClient, count: int) -> None:
    for _ in range(200):
        if await running(client) == count:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"the engine never ran {count} requests")


async def seconds_until_idle(client: SGLangClient, since: float) -> float:
    while await running(client):
        assert time.monotonic() - since < 20, "it goes on decoding"
        await asyncio.sleep(0.02)
    return time.monotonic() - since


async def by_task(client: SGLangClient, count: int) -> float:
    tasks = [asyncio.create_task(client.generate(PROMPT, LONG)) for _ in range(count)]
    await seen_running(client, count)
    since = time.monotonic()
    for task in tasks:
        task.cancel()
    assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))
    return since


async def by_signal(client: SGLangClient, count: int) -> float:
    signal = threading.Event()
    tasks = [asyncio.create_task(client.generate(PROMPT, LONG, cancel_signal=signal)) for _ in range(count)]
    await seen_running(client, count)
    since = time.monotonic()
    signal.set()
    assert all(isinstance(r, CallCancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))
    return since


async def by_deadline(client: SGLangClient, count: int) -> float:
    tasks = [asyncio.create_task(client.generate(PROMPT, LONG, deadline=1.5)) for _ in range(count)]
    await seen_running(client, count)
    assert all(isinstance(r, DeadlineExceededError) for r in await asyncio.gather(*tasks, return_exceptions=True))
    return time.monotonic()


async def by_leaving_a_stream(client: SGLangClient, count: int) -> float:
    streams = [client.stream(PROMPT, LONG) for _ in range(count)]
    await asyncio.gather(*(stream.__anext__() for stream in streams))
    await seen_running(client, count)
    since = time.monotonic()
    await asyncio.gather(*(stream.aclose() for stream in streams))
    return since


WAYS = [by_task, by_signal, by_deadline, by_leaving_a_stream]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, 16])
async def test_directly(tool_policy: LabProcess, way: Any, count: int) -> None:
    async with SGLangClient(tool_policy.url) as client:
        took = await seconds_until_idle(client, await way(client, count))
    print(f"{way.__name__}: {count} stopped after {took:.2f} s")
    assert took <= 1.0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, 16])
async def test_through_the_router(routed: Routed, way: Any, count: int) -> None:
    async with SGLangClient(routed.url) as client:
        assert len(await client.control.workers()) == 2
        took = await seconds_until_idle(client, await way(client, count))
    print(f"{way.__name__}: {count} stopped after {took:.2f} s")
    assert took <= 1.0


def test_when_the_loop_itself_ends(tool_policy: LabProcess) -> None:
    client = SGLangClient(tool_policy.url)

    async def main() -> None:
        await client.generate(PROMPT, LONG, deadline=1.0)

    with pytest.raises(DeadlineExceededError):
        asyncio.run(main())
    took = asyncio.run(seconds_until_idle(client, time.monotonic()))
    assert took <= 1.0
