"""`SGLangClient` against a scripted server: settings, retries, deadlines, continuations."""

from __future__ import annotations

import asyncio
import base64
import logging
import pickle
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from strands_sglang import SGLangClient, TokenEngine
from strands_sglang.engine import AbortPolicy, FinishReason, VersionSpan
from strands_sglang.errors import (
    AttemptTimeoutError,
    CallCancelledError,
    ClientClosedError,
    ConfigurationError,
    ConnectionLostError,
    ContextOverflowError,
    DeadlineExceededError,
    EngineUnavailableError,
    MalformedResponseError,
    RequestRejectedError,
    StrandsSGLangError,
)
from strands_sglang.ledger.reader import Ledger
from strands_sglang.runs import RunOptions, Task, rollout
from support.families import tokenizer
from support.rollout.agent_kinds import plain
from support.scripted import (
    Received,
    ScriptedServer,
    Wire,
    always,
    answer,
    answers,
    encoded,
    in_turn,
    refuses,
    says,
    scripted,
    until,
)

QUICK: dict[str, Any] = {"retry_delay": 0.001, "max_retry_delay": 0.002}
BUDGET = {"max_new_tokens": 10}


def aborted(ids: list[int], version: str = "v1") -> Callable[[Wire], Any]:
    spans = [{"version": version, "start": 0, "end": len(ids)}]
    return answers(ids, finish_reason={"type": "abort", "message": "Aborted"}, weight_versions=spans)


async def hang(wire: Wire) -> None:
    await asyncio.sleep(60)


class TestSettings:
    def test_published_api(self) -> None:
        client = SGLangClient(
            base_url="http://localhost:30000", max_connections=1000, timeout=None, max_retries=60, retry_delay=1.0
        )
        assert client.base_url == "http://localhost:30000"
        assert isinstance(client, TokenEngine)

    @pytest.mark.parametrize("url", ["localhost:30000", "ftp://x", "", "http://", "/generate"])
    def test_invalid_urls_are_refused(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="base_url"):
            SGLangClient(url)

    @pytest.mark.parametrize(
        "setting",
        [{"max_connections": 0}, {"timeout": 0}, {"deadline": -1}, {"max_retries": -1}, {"retry_delay": -1.0}],
    )
    def test_invalid_numbers_are_refused(self, setting: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError, match=next(iter(setting))):
            SGLangClient("http://x", **setting)

    async def test_headers_key_and_path(self) -> None:
        with scripted(encoded) as server:
            url = server.url + "/team/engine/"
            async with SGLangClient(url, api_key="secret", headers={"X-Team": "a"}) as client:
                await client.generate([1], BUDGET, routing_key="episode-1")
            request = server.generates()[0]
            assert request.path == "/team/engine/generate"
            assert request.headers["authorization"] == "Bearer secret"
            assert request.headers["x-team"] == "a"
            assert request.headers["x-smg-routing-key"] == "episode-1"
            assert "secret" not in repr(client)

    async def test_routing_key_is_always_sent(self) -> None:
        with scripted(encoded) as server:
            async with SGLangClient(server.url) as client:
                made = await asyncio.gather(*(client.generate([1], BUDGET) for _ in range(3)))
            keys = {request.headers["x-smg-routing-key"] for request in server.generates()}
            assert len(keys) == 3
            assert {request.json()["rid"] for request in server.generates()} == {one.rid for one in made}

    @pytest.mark.parametrize("key", ["a\nb", "a\r\nX-Evil: 1", 5])
    async def test_invalid_routing_keys_are_refused(self, key: Any) -> None:
        async with SGLangClient("http://127.0.0.1:9") as client:
            with pytest.raises(ConfigurationError, match="one line of text"):
                await client.generate([1], BUDGET, routing_key=key)
            with pytest.raises(ConfigurationError, match="one line of text"):
                async for _ in client.stream([1], BUDGET, routing_key=key):
                    pass
        with pytest.raises(ConfigurationError, match="X-Team"):
            SGLangClient("http://x", headers={"X-Team": key})

    async def test_pickled_client_works(self) -> None:
        with scripted(encoded) as server:
            client = pickle.loads(pickle.dumps(SGLangClient(server.url, api_key="k", timeout=5.0)))
            assert len(await client.generate([1], BUDGET)) == 3
            assert server.generates()[0].headers["authorization"] == "Bearer k"
            await client.close()
            assert len(await client.generate([1], BUDGET)) == 3  # and after close
            await client.close()


class TestRetries:
    @pytest.mark.parametrize("code", [408, 502, 504])
    async def test_request_that_timed_out_in_proxy_is_aborted(self, code: int) -> None:
        with in_turn(refuses(code), answers()) as server:
            async with SGLangClient(server.url, **QUICK) as client:
                await client.generate([1], BUDGET)
                await until(lambda: "/abort_request" in server.paths())

    @pytest.mark.parametrize("code", [400, 401, 403, 404, 405, 413, 415, 422])
    async def test_final_statuses_are_not_retried(self, code: int) -> None:
        with in_turn(refuses(code, "no such thing")) as server:
            async with SGLangClient(server.url, **QUICK) as client:
                with pytest.raises(RequestRejectedError, match="no such thing"):
                    await client.generate([1], BUDGET)
            assert len(server.generates()) == 1

    async def test_retries_end(self) -> None:
        with in_turn(refuses(503, "overloaded")) as server:
            async with SGLangClient(server.url, max_retries=4, **QUICK) as client:
                with pytest.raises(EngineUnavailableError, match=r"5 times in a row.*overloaded") as caught:
                    await client.generate([1], BUDGET)
            assert len(server.generates()) == caught.value.attempts == 5
            assert caught.value.status == 503

    async def test_retry_after_is_respected(self) -> None:
        with in_turn(refuses(429, **{"Retry-After": "0.3"}), answers()) as server:
            async with SGLangClient(server.url, **QUICK) as client:
                started = time.monotonic()
                await client.generate([1], BUDGET)
                assert time.monotonic() - started >= 0.3

    async def test_no_server(self) -> None:
        async with SGLangClient("http://127.0.0.1:9", max_retries=2, **QUICK) as client:
            with pytest.raises(EngineUnavailableError, match="is the server running") as caught:
                await client.generate([1], BUDGET)
        assert isinstance(caught.value.__cause__, ConnectionLostError)

    async def test_error_names_prompt_that_kills_workers(self) -> None:
        with in_turn(lambda wire: wire.reset()) as server:
            async with SGLangClient(server.url, max_retries=2, **QUICK) as client:
                with pytest.raises(EngineUnavailableError, match="crash its worker"):
                    await client.generate([1], BUDGET)

    async def test_each_attempt_has_its_own_rid(self) -> None:
        with in_turn(refuses(503), answers()) as server:
            async with SGLangClient(server.url, **QUICK) as client:
                await client.generate([1], BUDGET)
            first, second = (request.json() for request in server.generates())
            assert first.pop("rid") != second.pop("rid")
            assert first == second

    @pytest.mark.parametrize("body", [b"", b"<html>", b'{"text": "cut', b'{"text": "\xff"}', b"\x00" * 100])
    async def test_bodies_that_are_not_json(self, body: bytes) -> None:
        with in_turn(says(200, body)) as server:
            async with SGLangClient(server.url, max_retries=1, **QUICK) as client:
                with pytest.raises(EngineUnavailableError, match="not JSON") as caught:
                    await client.generate([1], BUDGET)
            assert isinstance(caught.value.__cause__, MalformedResponseError)
            assert len(server.generates()) == 2

    async def test_server_fault_inside_200(self) -> None:
        fault = {"type": "abort", "message": "out of memory", "status_code": 503}
        refusal = {
            "type": "abort",
            "status_code": 400,
            "message": "Request prompt exceeds the KV memory budget: input_len=9.",
        }
        with in_turn(answers(finish_reason=fault), answers()) as server:
            async with SGLangClient(server.url, **QUICK) as client:
                assert (await client.generate([1], BUDGET)).requests == 2
        with in_turn(answers(finish_reason=refusal)) as server:
            async with SGLangClient(server.url, **QUICK) as client:
                with pytest.raises(ContextOverflowError):
                    await client.generate([1], BUDGET)


class TestEndingEarly:
    async def test_deadline_covers_all_waits(self) -> None:
        waits: list[tuple[str, ScriptedServer, dict[str, Any]]] = [
            ("engine", in_turn(hang), {}),
            ("backoff", in_turn(refuses(503)), {"retry_delay": 50.0}),
            ("retry-after", in_turn(refuses(503, **{"Retry-After": "50"})), {"max_retries": 60}),
        ]
        for name, server, settings in waits:
            with server:
                async with SGLangClient(server.url, **settings) as client:
                    started = time.monotonic()
                    with pytest.raises(DeadlineExceededError, match=r"0\.2 s") as caught:
                        await client.generate([1], BUDGET, deadline=0.2)
                    assert time.monotonic() - started < 5, name
                    assert caught.value.seconds == 0.2

    async def test_deadline_covers_waiting_for_connection(self) -> None:
        with in_turn(hang) as server:
            async with SGLangClient(server.url, max_connections=1) as client:
                first = asyncio.create_task(client.generate([1], BUDGET))
                await asyncio.sleep(0.05)
                with pytest.raises(DeadlineExceededError):
                    await client.generate([1], BUDGET, deadline=0.1)
                assert len(server.generates()) == 1
                first.cancel()

    async def test_deadline_of_call_overrides_client(self) -> None:
        with in_turn(hang) as server:
            async with SGLangClient(server.url, deadline=0.1) as client:
                with pytest.raises(DeadlineExceededError, match=r"0\.1 s"):
                    await client.generate([1], BUDGET)
                with pytest.raises(DeadlineExceededError, match=r"0\.05 s"):
                    await client.generate([1], BUDGET, deadline=0.05)

    async def test_timeout_is_per_attempt(self) -> None:
        with in_turn(hang, answers()) as server:
            async with SGLangClient(server.url, timeout=0.2, **QUICK) as client:
                assert (await client.generate([1], BUDGET)).requests == 2
        with in_turn(hang) as server:
            async with SGLangClient(server.url, timeout=0.05, max_retries=1, **QUICK) as client:
                with pytest.raises(EngineUnavailableError, match=r"0\.05 s") as caught:
                    await client.generate([1], BUDGET)
        assert isinstance(caught.value.__cause__, AttemptTimeoutError)

    @pytest.mark.parametrize("repeat", range(5))
    @pytest.mark.timing
    def test_timeout_and_deadline_at_the_same_moment(self, repeat: int) -> None:
        async def main() -> None:
            async with SGLangClient(server.url, timeout=0.1, **QUICK) as client:
                with pytest.raises(DeadlineExceededError):
                    await client.generate([1], BUDGET, deadline=0.1)

        with in_turn(hang) as server:
            started = time.monotonic()
            asyncio.run(main())
            assert time.monotonic() - started < 2.5  # closing waits up to a second for the aborts to be heard

    async def test_cancel_signal_from_other_thread(self) -> None:
        with in_turn(hang) as server:
            async with SGLangClient(server.url) as client:
                signal = threading.Event()
                threading.Timer(0.1, signal.set).start()
                started = time.monotonic()
                with pytest.raises(CallCancelledError):
                    await client.generate([1], BUDGET, cancel_signal=signal)
                assert time.monotonic() - started < 5
                rid = server.generates()[0].json()["rid"]
                await until(lambda: "/abort_request" in server.paths())
                assert server.received[-1].json() == {"rid": rid}

    async def test_signal_set_before_call_sends_nothing(self) -> None:
        with scripted(encoded) as server:
            async with SGLangClient(server.url) as client:
                signal = threading.Event()
                signal.set()
                with pytest.raises(CallCancelledError, match="before it was sent"):
                    await client.generate([1], BUDGET, cancel_signal=signal)
            assert not server.received

    async def test_cancelled_task_stays_cancelled_and_aborts(self) -> None:
        with in_turn(hang) as server:
            async with SGLangClient(server.url) as client:
                call = client.generate([1], BUDGET, deadline=30.0, cancel_signal=threading.Event())
                task = asyncio.create_task(call)
                await until(lambda: bool(server.generates()))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await until(lambda: "/abort_request" in server.paths())

    async def test_callers_timeout_takes_precedence(self) -> None:
        with in_turn(hang) as server:
            async with SGLangClient(server.url) as client:
                with pytest.raises(asyncio.TimeoutError) as caught:
                    await asyncio.wait_for(client.generate([1], BUDGET, deadline=30.0), 0.1)
                assert not isinstance(caught.value, DeadlineExceededError)
                # and the task is as good as new
                with pytest.raises(DeadlineExceededError):
                    await client.generate([1], BUDGET, deadline=0.05)
                await asyncio.sleep(0)

    def test_aborts_are_sent_even_when_the_loop_ends_at_once(self) -> None:
        with in_turn(hang) as server:
            client = SGLangClient(server.url)

            async def main() -> None:
                await client.generate([1], BUDGET, deadline=0.1)

            with pytest.raises(DeadlineExceededError):
                asyncio.run(main())
            assert "/abort_request" in server.paths()

    async def test_lost_connection_is_aborted(self) -> None:
        with in_turn(lambda wire: wire.reset(), answers()) as server:
            async with SGLangClient(server.url, **QUICK) as client:
                await client.generate([1], BUDGET)
                first = server.generates()[0].json()["rid"]
                await until(lambda: "/abort_request" in server.paths())
                aborts = [r.json()["rid"] for r in server.received if r.path == "/abort_request"]
                assert aborts == [first]


class TestClosing:
    async def test_close_ends_running_calls_with_typed_error(self) -> None:
        with in_turn(hang) as server:
            client = SGLangClient(server.url)
            calls = [asyncio.create_task(client.generate([1], BUDGET)) for _ in range(3)]
            await until(lambda: len(server.generates()) == 3)
            await client.close()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(result, ClientClosedError) for result in results), results
            rids = {request.json()["rid"] for request in server.generates()}
            assert {r.json()["rid"] for r in server.received if r.path == "/abort_request"} == rids

    async def test_close_ends_call_that_waits_for_retry(self) -> None:
        with in_turn(refuses(503)) as server:
            client = SGLangClient(server.url, retry_delay=0.2)
            call = asyncio.create_task(client.generate([1], BUDGET))
            await until(lambda: bool(server.generates()))
            await client.close()
            with pytest.raises(ClientClosedError):
                await call

    async def test_cancelled_close_still_closes(self) -> None:
        async def slow_abort(wire: Wire) -> None:
            await wire.read_body()
            await asyncio.sleep(30)

        with ScriptedServer(slow_abort) as server:
            client = SGLangClient(server.url)
            call = asyncio.create_task(client.generate([1], BUDGET))
            await until(lambda: bool(server.generates()))
            pool = await client._pools.open()
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0.1)
            closing.cancel()
            await asyncio.gather(closing, call, return_exceptions=True)
            assert pool.session.closed


class TestInterruptedTurns:
    async def test_interrupted_turn_is_continued(self) -> None:
        with in_turn(aborted([1, 2, 3], "a"), aborted([], "b"), aborted([4], "b"), answers([5, 6])) as server:
            async with SGLangClient(server.url, **QUICK) as client:
                generation = await client.generate([9, 9], {"max_new_tokens": 10, "temperature": 1.0})
        assert list(generation.token_ids) == [1, 2, 3, 4, 5, 6]
        assert generation.finish_reason is FinishReason.STOP
        assert generation.versions == (VersionSpan("a", 0, 3), VersionSpan("b", 3, 4), VersionSpan("v1", 4, 6))
        assert (generation.requests, generation.continuations, generation.prompt_tokens) == (4, 2, 2)
        sent = [request.json() for request in server.generates()]
        assert [body["input_ids"] for body in sent] == [[9, 9], [9, 9, 1, 2, 3], [9, 9, 1, 2, 3], [9, 9, 1, 2, 3, 4]]
        assert [body["sampling_params"]["max_new_tokens"] for body in sent] == [10, 7, 7, 6]

    async def test_length_finish_reports_whole_budget(self) -> None:
        with in_turn(aborted([1, 2, 3]), answers([4, 5], finish_reason={"type": "length", "length": 2})) as server:
            async with SGLangClient(server.url, **QUICK) as client:
                generation = await client.generate([9], {"max_new_tokens": 5})
        assert (generation.finish_reason, generation.finish_detail) == (FinishReason.LENGTH, 5)

    async def test_interrupted_turn_is_returned_on_request(self) -> None:
        with in_turn(aborted([1, 2], "a")) as server:
            async with SGLangClient(server.url) as client:
                generation = await client.generate([9], {**BUDGET, "stop": "x"}, on_abort=AbortPolicy.RETURN)
        assert (generation.finish_reason, generation.finish_detail) == (FinishReason.ABORT, "Aborted")
        assert list(generation.token_ids) == [1, 2] and generation.discarded_tokens == 0

    @pytest.mark.parametrize(
        "params", [{"max_new_tokens": 9, "json_schema": "{}"}, {"max_new_tokens": 9, "stop": "x"}, {}]
    )
    async def test_turn_restarts_if_continuation_is_not_exact(self, params: dict[str, Any]) -> None:
        with in_turn(aborted([1, 2]), answers([3, 4])) as server:
            async with SGLangClient(server.url, **QUICK) as client:
                generation = await client.generate([9], params)
        assert list(generation.token_ids) == [3, 4]
        assert (generation.discarded_tokens, generation.continuations) == (2, 0)
        assert [request.json()["input_ids"] for request in server.generates()] == [[9], [9]]

    async def test_engine_that_only_aborts_fails(self) -> None:
        with in_turn(aborted([])) as server:
            async with SGLangClient(server.url, max_retries=3, **QUICK) as client:
                with pytest.raises(EngineUnavailableError, match="aborted the request"):
                    await client.generate([9], BUDGET)
            assert len(server.generates()) == 4

    async def test_progress_resets_failures_and_survives_lost_worker(self) -> None:
        busy, lost = refuses(503), lambda wire: wire.reset()
        with in_turn(busy, aborted([1]), lost, busy, aborted([2]), busy, answers([3])) as server:
            async with SGLangClient(server.url, max_retries=2, **QUICK) as client:
                generation = await client.generate([9], BUDGET)
        assert list(generation.token_ids) == [1, 2, 3]


async def test_bodies_without_length_and_in_chunks() -> None:
    async def chunked(wire: Wire) -> None:
        body = encoded(wire.received)
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(body), 100):
            piece = body[at : at + 100]
            await wire.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await wire.send(b"0\r\n\r\n")

    with in_turn(chunked) as server:
        async with SGLangClient(server.url) as client:
            assert len(await client.generate([1], BUDGET)) == 3


async def test_bodies_above_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.engine.call.MAX_BODY_BYTES", 1000)
    with in_turn(says(200, b" " * 5000)) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            with pytest.raises(MalformedResponseError, match="more than 1000 bytes"):
                await client.generate([1], BUDGET)


async def test_waiting_for_connection_is_not_a_connect_timeout() -> None:
    async def slow(request: Received) -> bytes:
        await asyncio.sleep(0.15)
        return orjson.dumps(answer(request))

    with scripted(slow) as server:
        async with SGLangClient(
            server.url, max_connections=2, connect_timeout=0.1, timeout=1.0, max_retries=0
        ) as client:
            generations = await asyncio.gather(*(client.generate([1], BUDGET) for _ in range(12)))
    assert len(generations) == len(server.generates()) == 12
    assert server.connections <= 2


Ask = Callable[[SGLangClient], Awaitable[object]]
KEY, PASSWORD = "sk-a-key", "pass-word-9"


async def ask(client: SGLangClient) -> object:
    return await client.generate([1, 2, 3], {"max_new_tokens": 4})


async def ask_streaming(client: SGLangClient) -> object:
    return [chunk async for chunk in client.stream([1, 2, 3], {"max_new_tokens": 4})]


async def ask_about_the_model(client: SGLangClient) -> object:
    return await client.control.model_info()


async def ask_for_logprobs(client: SGLangClient) -> object:
    return await client.score([1, 2, 3], 1)


@pytest.mark.parametrize("way", [ask, ask_streaming, ask_about_the_model, ask_for_logprobs])
@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(status: int, way: Ask) -> None:
    with (
        scripted(encoded) as other,
        always(status, Location=f"{other.url}/x?token=secret") as server,
    ):
        headers = {"X-Team": "t"}
        async with SGLangClient(server.url, max_retries=0, api_key=KEY, headers=headers) as client:
            with pytest.raises(RequestRejectedError, match="redirect") as caught:
                await way(client)
    assert not other.received
    assert caught.value.status == status
    assert other.url in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("target", ["", "/generate", "//", "http://[", "http://user:pass-word-9@host/"])
async def test_redirect_is_one_request(target: str) -> None:
    with always(307, Location=target) as server:
        async with SGLangClient(server.url, max_retries=3) as client:
            with pytest.raises(RequestRejectedError, match="redirect") as caught:
                await ask(client)
    assert len(server.generates()) == 1
    assert PASSWORD not in str(caught.value)


def with_password(url: str) -> str:
    return url.replace("http://", f"http://user:{PASSWORD}@")


async def test_password_in_url_is_sent_and_not_shown() -> None:
    with scripted(encoded) as server:
        async with SGLangClient(with_password(server.url)) as client:
            await ask(client)
            assert client.base_url == server.url and PASSWORD not in repr(client)
        async with pickle.loads(pickle.dumps(client)) as again:
            await ask(again)
    told = [base64.b64decode(one.headers["authorization"].removeprefix("Basic ")) for one in server.generates()]
    assert told == [f"user:{PASSWORD}".encode()] * 2


@pytest.mark.parametrize("way", [ask, ask_streaming, ask_about_the_model])
async def test_no_error_and_no_log_line_has_the_password(way: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with always(403, b'{"detail": "no"}') as server:
        addresses = [with_password(server.url), f"http://user:{PASSWORD}@127.0.0.1:9"]
        for address in addresses:
            async with SGLangClient(address, max_retries=1, retry_delay=0.001, max_retry_delay=0.002) as client:
                with pytest.raises(StrandsSGLangError) as caught:
                    await way(client)
                assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize("address", ["ftp://user:{}@host", "user:{}@host", "http://user:{}@host:port", "http://u:{}@"])
def test_invalid_url_is_shown_without_password(address: str) -> None:
    with pytest.raises(ConfigurationError, match="base_url") as caught:
        SGLangClient(address.format(PASSWORD))
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_password_with_api_key_is_refused() -> None:
    for settings in ({"api_key": KEY}, {"headers": {"authorization": KEY}}):
        with pytest.raises(ConfigurationError, match="pass only one of them"):
            SGLangClient(f"http://user:{PASSWORD}@host", **settings)


async def test_a_ledger_has_no_password(tmp_path: Path) -> None:
    with always(403, b'{"detail": "no"}') as server:
        given: dict[str, Any] = {"tokenizer": tokenizer("qwen2.5"), "base_url": with_password(server.url)}
        with pytest.raises(ConfigurationError, match="does not accept the api_key") as caught:
            await rollout(lambda task, model: plain(model), [Task("x", id="t")], directory=tmp_path, **given)
        assert PASSWORD not in "".join(traceback.format_exception(caught.value))
        (episode,) = await rollout(
            lambda task, model: plain(model),
            [Task("x", id="t")],
            directory=tmp_path,
            options=RunOptions(preflight=False),
            **given,
        )
    assert episode.failure is not None and PASSWORD not in str(episode.failure)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert PASSWORD not in str([record.events for record in Ledger(tmp_path).episodes()])
