"""Failures seen in the field, in clients for token-exact rollouts: one test each, named after what went wrong there."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest
from strands import Agent
from strands.models.model import Model

from strands_sglang import SGLangClient
from strands_sglang.errors import (
    ContextOverflowError,
    DeadlineExceededError,
    EngineUnavailableError,
    RequestRejectedError,
)
from support.scripted import Received, ScriptedServer, Wire, encoded, scripted, serve_rest

BUDGET = {"max_new_tokens": 10}


def refusing(status: int, words: str) -> ScriptedServer:
    async def handle(wire: Wire) -> None:
        if not await serve_rest(wire):
            await wire.read_body()
            await wire.reply(orjson.dumps({"error": {"message": words}}), status)

    return ScriptedServer(handle)


async def hang(request: Received) -> bytes:
    await asyncio.sleep(30)
    return b""


def test_second_event_loop_finds_its_loop_closed() -> None:
    with scripted(lambda request: encoded(request)) as server:
        client = SGLangClient(server.url, max_retries=0)
        for _ in range(3):
            assert len(asyncio.run(client.generate([1], BUDGET))) == 3


def test_threads_sharing_a_client_fail() -> None:
    with scripted(lambda request: encoded(request)) as server:
        client = SGLangClient(server.url, max_retries=0)
        together = threading.Barrier(4)

        def work(_: int) -> int:
            together.wait()
            return len(asyncio.run(client.generate([1], BUDGET)))

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, range(4))) == [3, 3, 3, 3]


async def test_waiting_for_a_slot_counts_as_connect_timeout() -> None:
    async def slow(request: Received) -> bytes:
        await asyncio.sleep(0.2)
        return encoded(request)

    with scripted(slow) as server:
        async with SGLangClient(server.url, max_connections=1, connect_timeout=0.1, max_retries=0) as client:
            assert len(await asyncio.gather(*(client.generate([1], BUDGET) for _ in range(5)))) == 5


async def test_a_plain_400_is_retried_sixty_times() -> None:
    with refusing(400, "bad sampling_params") as server:
        async with SGLangClient(server.url) as client:
            with pytest.raises(RequestRejectedError, match="bad sampling_params"):
                await client.generate([1], BUDGET)
        assert len(server.generates()) == 1


async def test_any_400_with_exceed_is_taken_for_overflow() -> None:
    with refusing(400, "top_k exceeds vocab size") as server:
        async with SGLangClient(server.url) as client:
            with pytest.raises(RequestRejectedError) as caught:
                await client.generate([1], BUDGET)
        assert not isinstance(caught.value, ContextOverflowError)


class Bridgeless(Model):
    """The least of a Strands provider: fixed ids in, whatever the client raises out."""

    def __init__(self, client: SGLangClient) -> None:
        self._client = client

    def update_config(self, **model_config: Any) -> None:
        pass

    def get_config(self) -> Any:
        return {"model_id": "test"}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        generation = await self._client.generate([1], BUDGET, cancel_signal=kwargs.get("cancel_signal"))
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": f"{len(generation)} tokens"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def test_429_retries_are_multiplied_by_the_sdks_own_six() -> None:
    with refusing(429, "slow down") as server:
        client = SGLangClient(server.url, max_retries=3, retry_delay=0.001)
        agent = Agent(model=Bridgeless(client), callback_handler=None)
        started = time.monotonic()
        with pytest.raises(EngineUnavailableError):
            agent("hello")
        assert len(server.generates()) == 4
        assert time.monotonic() - started < 9


def test_second_synchronous_agent_call_fails() -> None:
    with scripted(lambda request: encoded(request)) as server:
        agent = Agent(model=Bridgeless(SGLangClient(server.url, max_retries=0)), callback_handler=None)
        assert [str(agent("hello")).strip() for _ in range(3)] == ["3 tokens"] * 3


def test_a_cancelled_agent_leaves_its_request_decoding() -> None:
    with scripted(hang) as server:
        agent = Agent(model=Bridgeless(SGLangClient(server.url)), callback_handler=None)
        threading.Timer(0.3, agent.cancel).start()
        started = time.monotonic()
        with pytest.raises(Exception, match="cancel signal"):
            agent("hello")
        assert time.monotonic() - started < 9
        rid = server.generates()[0].json()["rid"]
        assert [request.json() for request in server.received if request.path == "/abort_request"] == [{"rid": rid}]


async def test_no_rid_and_no_routing_key() -> None:
    with scripted(lambda request: encoded(request)) as server:
        async with SGLangClient(server.url) as client:
            generation = await client.generate([1], BUDGET)
        request = server.generates()[0]
        assert request.json()["rid"] == generation.rid
        assert request.headers["x-smg-routing-key"]


async def test_the_weight_version_is_dropped() -> None:
    with scripted(lambda request: encoded(request)) as server:
        async with SGLangClient(server.url) as client:
            assert (await client.generate([1], BUDGET)).weight_version == "v1"


async def test_a_base_url_with_a_path_is_refused() -> None:
    with scripted(lambda request: encoded(request)) as server:
        async with SGLangClient(server.url + "/proxy/engine") as client:
            await client.generate([1], BUDGET)
        assert server.generates()[0].path == "/proxy/engine/generate"


async def test_a_timeout_error_says_nothing() -> None:
    with scripted(hang) as server:
        async with SGLangClient(server.url, timeout=0.05, max_retries=0) as client:
            with pytest.raises(EngineUnavailableError, match=r"no complete answer within 0\.05 s"):
                await client.generate([1], BUDGET)
            with pytest.raises(DeadlineExceededError, match=r"within 0\.04 s"):
                await client.generate([1], BUDGET, deadline=0.04)


async def test_prompt_logprobs_stop_the_engine_from_sharing_its_cache() -> None:
    with scripted(lambda request: encoded(request)) as server:
        async with SGLangClient(server.url) as client:
            await client.generate([1], BUDGET)
        assert "logprob_start_len" not in server.generates()[0].json()
