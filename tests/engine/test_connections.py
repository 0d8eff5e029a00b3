"""Loops in sequence, threads at once, forks: one client serves them all, and leaves nothing open."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

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
