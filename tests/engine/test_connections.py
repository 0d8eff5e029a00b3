"""Loops in sequence, threads at once, forks: one client serves them all, and leaves nothing open."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from strands_sglang import SGLangClient
from support.scripted import encoded, scripted

BUDGET = {"max_new_tokens": 10}


async def several(client: SGLangClient, count: int = 20) -> int:
    generations = await asyncio.gather(*(client.generate([1, 2], BUDGET) for _ in range(count)))
    return sum(len(generation) for generation in generations)


def test_two_event_loops_in_sequence() -> None:
    with scripted(lambda request: encoded(request)) as server, warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        client = SGLangClient(server.url)
        assert [asyncio.run(several(client)) for _ in range(3)] == [60, 60, 60]
        gc.collect()
        assert len(client._pools._pools) == 1  # those of closed loops are gone


def test_loop_closed_without_shutdown() -> None:
    with scripted(lambda request: encoded(request)) as server:
        client = SGLangClient(server.url)
        for _ in range(2):
            loop = asyncio.new_event_loop()
            assert loop.run_until_complete(several(client)) == 60
            loop.run_until_complete(client.close())
            loop.close()


def test_loop_that_ends_during_a_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of the close is thrown away, and awaits nothing on a loop that is gone."""
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    with scripted(lambda request: encoded(request)) as server:
        client, loop = SGLangClient(server.url), asyncio.new_event_loop()
        loop.run_until_complete(several(client))
        pool = loop.run_until_complete(client._pools.open())
        pool.before_close = lambda: asyncio.sleep(30)
        closing = loop.create_task(client.close())
        loop.run_until_complete(asyncio.sleep(0.05))
        assert not closing.done()
        loop.close()
        del closing, pool, client, loop
        gc.collect()
    assert not raised


def test_four_threads_at_once() -> None:
    with scripted(lambda request: encoded(request)) as server:
        client = SGLangClient(server.url)
        together = threading.Barrier(4)

        def work() -> list[int]:
            together.wait()
            return [asyncio.run(several(client)) for _ in range(5)]

        with ThreadPoolExecutor(4) as pool:
            results = [future.result() for future in [pool.submit(work) for _ in range(4)]]
        assert results == [[60] * 5] * 4


def _in_child(client: SGLangClient, queue: multiprocessing.Queue[int]) -> None:
    queue.put(asyncio.run(several(client)))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork_after_use() -> None:
    with scripted(lambda request: encoded(request)) as server:
        client = SGLangClient(server.url)

        async def main() -> tuple[int, int, int]:
            before = await several(client)
            context = multiprocessing.get_context("fork")
            queue: multiprocessing.Queue[int] = context.Queue()
            child = context.Process(target=_in_child, args=(client, queue))
            child.start()  # forked while this loop runs and its connections are open
            in_child = await asyncio.to_thread(queue.get, True, 20)
            await asyncio.to_thread(child.join, 20)
            assert child.exitcode == 0
            return before, in_child, await several(client)

        assert asyncio.run(main()) == (60, 60, 60)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_plain_fork_does_not_affect_parents_connections() -> None:
    with scripted(lambda request: encoded(request)) as server:
        client = SGLangClient(server.url)

        async def main() -> int:
            await several(client)
            connections = server.connections
            if (pid := os.fork()) == 0:
                code = 1
                try:
                    thread = threading.Thread(target=lambda: asyncio.run(several(client)))
                    thread.start()
                    thread.join()
                    gc.collect()
                    code = 0
                finally:
                    os._exit(code)
            _, status = await asyncio.to_thread(os.waitpid, pid, 0)
            assert status == 0
            assert server.connections > connections  # the child made its own
            return await several(client)

        assert asyncio.run(main()) == 60


def test_synchronous_agent_calls_in_sequence() -> None:
    """The SDK runs each synchronous call on a new loop in a new thread."""
    with scripted(lambda request: encoded(request)) as server:
        client = SGLangClient(server.url)

        def call() -> int:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(lambda: asyncio.run(several(client, 2))).result()

        assert [call() for _ in range(5)] == [6] * 5


@dataclass
class Fleet:
    """A router in front of two workers, scripted: it drops what it does not know, unless told otherwise."""

    workers: list[TestServer] = field(default_factory=list)
    router: TestServer | None = None
    drops: bool = True
    healthy: dict[str, bool] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    probes: int = 0

    @property
    def url(self) -> str:
        assert self.router is not None
        return str(self.router.make_url("")).rstrip("/")

    async def start(self) -> Fleet:
        for number in range(2):
            app = web.Application()
            app.router.add_post("/generate", self._worker(f"worker {number}"))
            app.router.add_post("/abort_request", self._nothing)
            server = TestServer(app, host="127.0.0.1")
            await server.start_server()
            self.workers.append(server)
            self.healthy[str(server.make_url("")).rstrip("/")] = True
        app = web.Application()
        app.router.add_post("/generate", self._route)
        app.router.add_get("/workers", self._list)
        self.router = TestServer(app, host="127.0.0.1")
        await self.router.start_server()
        return self

    async def close(self) -> None:
        for server in (*self.workers, self.router):
            if server is not None:
                await server.close()

    async def _nothing(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response({"workers": [{"url": url, "is_healthy": up} for url, up in self.healthy.items()]})

    async def _route(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.probes += body["input_ids"] == [1]
        self.asked["router"] += 1
        return web.json_response(_answer(body, complete=not self.drops))

    def _worker(self, name: str) -> Any:
        async def generate(request: web.Request) -> web.Response:
            self.asked[name] += 1
            return web.json_response(_answer(await request.json(), complete=True))

        return generate


def _answer(body: dict[str, Any], *, complete: bool) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "finish_reason": {"type": "stop"},
        "prompt_tokens": len(body["input_ids"]),
        "completion_tokens": 1,
        "output_token_logprobs": [[-0.5, 7, None]],
        "weight_version": "1",
    }
    answer: dict[str, Any] = {"text": "", "output_ids": [7], "meta_info": meta}
    if complete and body.get("return_sampling_mask"):
        meta |= {"output_token_sampling_mask": [[7, 8]], "output_token_sampling_logprobs": [-0.1]}
    if complete and body.get("return_prompt_token_ids"):
        answer["prompt_token_ids"] = body["input_ids"]
    return answer


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made = await Fleet().start()
    yield made
    await made.close()


async def test_calls_with_the_same_key_go_to_the_same_worker(fleet: Fleet) -> None:
    async with SGLangClient(fleet.url) as client:
        first = await asyncio.gather(
            *(client.generate([2, 3], {"max_new_tokens": 4}, routing_key=f"e{n}", kept_sets=True) for n in range(20))
        )
        assert all(turn.kept is not None for turn in first)
        assert fleet.probes == 1, "calls that begin together share one probe"
        before = Counter(fleet.asked)
        assert 0 < before["worker 0"] < 20 and before["worker 0"] + before["worker 1"] == 20
        for number in range(20):
            await client.generate([2, 3], {"max_new_tokens": 4}, routing_key=f"e{number}", kept_sets=True)
        assert fleet.asked["worker 0"] == 2 * before["worker 0"] and fleet.probes == 1


async def test_other_calls_go_through_the_router(fleet: Fleet) -> None:
    async with SGLangClient(fleet.url) as client:
        await client.generate([2, 3], {"max_new_tokens": 4}, routing_key="e")
    assert fleet.asked == Counter({"router": 1}) and not fleet.probes


async def test_a_router_that_forwards_everything_keeps_all_calls(fleet: Fleet) -> None:
    fleet.drops = False
    async with SGLangClient(fleet.url) as client:
        turn = await client.generate([2, 3], {"max_new_tokens": 4}, routing_key="e", kept_sets=True)
    assert turn.kept is not None
    assert fleet.asked == Counter({"router": 2})


async def test_an_episode_moves_when_its_worker_is_gone(fleet: Fleet) -> None:
    async with SGLangClient(fleet.url, retry_delay=0.01) as client:
        await client.generate([2, 3], {"max_new_tokens": 4}, routing_key="e", kept_sets=True)
        (used,) = (name for name in fleet.asked if name.startswith("worker"))
        server = fleet.workers[int(used[-1])]
        gone = str(server.make_url("")).rstrip("/")
        await server.close()
        fleet.healthy[gone] = False
        turn = await client.generate([2, 3], {"max_new_tokens": 4}, routing_key="e", kept_sets=True)
    assert turn.kept is not None
    assert fleet.asked[used] == 1 and sum(fleet.asked[name] for name in ("worker 0", "worker 1")) == 2


async def test_a_server_without_a_router_is_not_probed() -> None:
    fleet = await Fleet().start()
    try:
        async with SGLangClient(str(fleet.workers[0].make_url("")).rstrip("/")) as client:
            await client.generate([2, 3], {"max_new_tokens": 4}, kept_sets=True)
        assert fleet.asked == Counter({"worker 0": 1})
    finally:
        await fleet.close()
