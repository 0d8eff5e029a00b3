"""On the real engine: a call that ends early ends there too, within a second, directly and through the router."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang.errors import CallCancelledError, DeadlineExceededError
from support.lab_servers import LabProcess, Routed

pytestmark = [
    pytest.mark.engine,
    pytest.mark.own_servers,
    pytest.mark.timing,
]  # turns must still be running when something happens to them

# Runs for many seconds if nobody stops it.
LONG = {"max_new_tokens": 950, "temperature": 1.0, "ignore_eos": True}
PROMPT = list(range(20, 60))


async def running(client: SGLangClient) -> int:
    return sum((await client.control.open_requests()).values())


class NotSeen(Exception):
    """The requests ended before they were seen running: the machine is too busy."""


async def seen_running(client: SGLangClient, count: int) -> None:
    for _ in range(200):
        if await running(client) == count:
            return
        await asyncio.sleep(0.05)
    raise NotSeen(f"the engine never ran {count} requests")


async def seconds_until_idle(client: SGLangClient, since: float) -> float:
    while await running(client):
        assert time.monotonic() - since < 20, "it goes on decoding"
        await asyncio.sleep(0.02)
    return time.monotonic() - since


async def fastest(client: SGLangClient, way: Any, count: int) -> float:
    """Return the least seconds of up to four tries: a busy machine may halt the engine for seconds of its own."""
    took = float("inf")
    for _ in range(4):
        try:
            took = min(took, await seconds_until_idle(client, await way(client, count)))
        except NotSeen:
            continue
        print(f"{way.__name__}: {count} stopped after {took:.2f} s")
        if took <= 1.0:
            break
    return took


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
    ended = asyncio.gather(*(client.generate(PROMPT, LONG, deadline=1.5) for _ in range(count)), return_exceptions=True)
    try:
        await seen_running(client, count)
    finally:
        assert all(isinstance(one, DeadlineExceededError) for one in await ended)
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
async def test_cancel_without_router(tool_policy: LabProcess, way: Any, count: int) -> None:
    async with SGLangClient(tool_policy.url) as client:
        assert await fastest(client, way, count) <= 1.0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, 16])
async def test_cancel_through_router(routed: Routed, way: Any, count: int) -> None:
    async with SGLangClient(routed.url) as client:
        assert len(await client.control.workers()) == 2
        assert await fastest(client, way, count) <= 1.0


def test_cancel_when_loop_ends(tool_policy: LabProcess) -> None:
    client = SGLangClient(tool_policy.url)

    async def main() -> None:
        await client.generate(PROMPT, LONG, deadline=1.0)

    took = []
    for _ in range(4):
        with pytest.raises(DeadlineExceededError):
            asyncio.run(main())
        took.append(asyncio.run(seconds_until_idle(client, time.monotonic())))
        if took[-1] <= 1.0:
            return
    raise AssertionError(took)
