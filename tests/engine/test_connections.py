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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from strands_sglang import SGLangClient, SGLangModel
from support.families import tokenizer
from support.provider.agents import agent_on
from support.scripted import Received, Reply, ScriptedServer, Wire, answer, encoded, in_turn, scripted

BUDGET = {"max_new_tokens": 10}


async def several(client: SGLangClient, count: int = 20) -> int:
    generations = await asyncio.gather(*(client.generate([1, 2], BUDGET) for _ in range(count)))
    return sum(len(generation) for generation in generations)


def test_two_event_loops_in_sequence() -> None:
    with scripted(encoded) as server, warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        client = SGLangClient(server.url)
        assert [asyncio.run(several(client)) for _ in range(3)] == [60, 60, 60]
        gc.collect()
        assert len(client._pools._pools) == 1  # those of closed loops are gone


def test_loop_closed_without_shutdown() -> None:
    with scripted(encoded) as server:
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
    with scripted(encoded) as server:
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
    with scripted(encoded) as server:
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
    with scripted(encoded) as server:
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
    with scripted(encoded) as server:
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
    tok = tokenizer("qwen2.5")
    ids = tok.encode("hello<|im_end|>")
    with scripted(lambda request: encoded(request, ids)) as server:
        agent = agent_on(SGLangModel(tokenizer=tok, client=SGLangClient(server.url, max_retries=0)), tools=[])
        assert [str(agent("hello")).strip() for _ in range(3)] == ["hello"] * 3


class Fleet:
    """A router in front of two workers: it drops what it does not know, unless told otherwise."""

    def __init__(self) -> None:
        self.drops, self.probes, self.asked = True, 0, Counter[str]()
        self.workers = [in_turn(self._worker(f"worker {number}")) for number in range(2)]
        self.router = ScriptedServer(self._route)
        self.gone: set[str] = set()

    @property
    def url(self) -> str:
        return self.router.url

    async def _route(self, wire: Wire) -> None:
        body = (await wire.read_body()).body
        if wire.received.path == "/workers":
            up = [f"worker {number}" not in self.gone for number in range(2)]
            listed = [{"url": one.url, "is_healthy": is_up} for one, is_up in zip(self.workers, up, strict=True)]
            await wire.reply(orjson.dumps({"workers": listed}))
        elif wire.received.path == "/generate":
            self.probes += orjson.loads(body)["input_ids"] == [1]
            self.asked["router"] += 1
            await wire.reply(_answer(wire.received, complete=not self.drops))
        else:
            await wire.reply(b"", 404)

    def _worker(self, name: str) -> Reply:
        async def generate(wire: Wire) -> None:
            if name in self.gone:
                await wire.reset()
                return
            self.asked[name] += 1
            await wire.reply(_answer(wire.received, complete=True))

        return generate


def _answer(received: Received, *, complete: bool) -> bytes:
    body, more = received.json(), dict[str, Any]()
    if complete and body.get("return_sampling_mask"):
        more = {"output_token_sampling_mask": [[7, 8]], "output_token_sampling_logprobs": [-0.1]}
    told = answer(len(body["input_ids"]), [7], [-0.5], **more)
    if complete and body.get("return_prompt_token_ids"):
        told["prompt_token_ids"] = body["input_ids"]
    return orjson.dumps(told)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet()
    with made.workers[0], made.workers[1], made.router:
        yield made


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
        fleet.gone.add(used)
        turn = await client.generate([2, 3], {"max_new_tokens": 4}, routing_key="e", kept_sets=True)
    assert turn.kept is not None
    assert fleet.asked[used] == 1 and sum(fleet.asked[name] for name in ("worker 0", "worker 1")) == 2


async def test_a_server_without_a_router_is_not_probed(fleet: Fleet) -> None:
    async with SGLangClient(fleet.workers[0].url) as client:
        await client.generate([2, 3], {"max_new_tokens": 4}, kept_sets=True)
    assert fleet.asked == Counter({"worker 0": 1})
