"""First contact, and outages: what never answered is given up on early, what did is waited for."""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang.engine import client as module
from strands_sglang.engine import response as faults
from strands_sglang.engine import retry
from strands_sglang.engine.protocol import in_run
from strands_sglang.engine.response import TransientFault
from strands_sglang.engine.retry import ServerHistory, server_history
from strands_sglang.errors import ConfigurationError, ConnectionLostError, EngineFailingError, EngineUnreachableError
from strands_sglang.published.clients import get_client
from support.scripted import ScriptedServer, Wire, answers, encoded, in_turn, refuses, scripted

QUICK: dict[str, Any] = {"retry_delay": 0.001, "max_retry_delay": 0.002}
BUDGET = {"max_new_tokens": 4}


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which addresses answered in earlier tests: ports come back."""
    monkeypatch.setattr(retry, "_histories", {})


def nobody() -> str:
    """Return an address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


async def test_call_to_server_that_never_answered_fails_early() -> None:
    async with SGLangClient(nobody(), first_contact=0.3) as client:
        began = time.monotonic()
        with pytest.raises(EngineUnreachableError, match=r"is base_url right \(host, port, http or https\)") as caught:
            await client.generate([1], BUDGET)
        assert time.monotonic() - began < 10  # by the usual rules it would be half an hour
        assert caught.value.attempts >= 2 and "first_contact=" in str(caught.value)
        with pytest.raises(EngineUnreachableError, match="is base_url right"):
            _ = [chunk async for chunk in client.stream([1], BUDGET)]


async def test_call_to_address_that_drops_connections_fails_early() -> None:
    with socket.socket() as full:  # its queue is full: connecting hangs
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        with socket.create_connection(address), ExitStack() as queue:
            for _ in range(4):
                one = queue.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(address)
            async with SGLangClient(f"http://127.0.0.1:{address[1]}", first_contact=0.5) as client:
                began = time.monotonic()
                with pytest.raises(EngineUnreachableError):
                    await client.generate([1], BUDGET)
                assert time.monotonic() - began < 9  # one connect timeout alone is 10 s


def switched() -> tuple[ScriptedServer, list[bool]]:
    """Return a server, and a list: while it is not empty, the server resets every connection."""
    down: list[bool] = []
    server = scripted(encoded)
    server.reset_on_accept = lambda number: bool(down)
    return server, down


async def test_call_waits_for_server_that_answered_before(caplog: pytest.LogCaptureFixture) -> None:
    server, down = switched()
    options: dict[str, Any] = {"first_contact": 0.05, "retry_delay": 0.05, "max_retry_delay": 0.1, "max_retries": 10**6}
    with server, caplog.at_level(logging.WARNING):
        async with SGLangClient(server.url, **options) as client:
            await client.generate([1], BUDGET)
        down.append(True)
        async with SGLangClient(server.url, **options) as client:
            waiting = [asyncio.ensure_future(client.generate([1], BUDGET)) for _ in range(20)]
            while client.unreachable_seconds() < 0.3:  # long past what a first contact is given
                await asyncio.sleep(0.02)
            assert not any(one.done() for one in waiting) and server_history(server.url).unreachable_since is not None
            down.clear()
            assert len(await asyncio.gather(*waiting)) == 20
            assert server_history(server.url).unreachable_since is None and client.unreachable_seconds() == 0
    about = [record.getMessage() for record in caplog.records if record.name.endswith("retry")]
    assert "retrying" in about[0] and "answers again" in about[-1]
    assert len(about) <= 4, about  # twenty calls, a hundred attempts: one line down, one line up


SLIME = SimpleNamespace(sglang_router_ip="127.0.0.1", sglang_router_port=9, rollout_num_gpus=None)
GONE = TransientFault(ConnectionLostError("gone"))


@pytest.mark.parametrize(
    ("client", "running", "fault", "attempts"),
    [
        (SGLangClient("http://127.0.0.1:9"), False, GONE, None),
        (SGLangClient("http://127.0.0.1:9"), True, GONE, 61),
        (SGLangClient("http://127.0.0.1:9", max_retries=60, retry_delay=1.0), False, GONE, 61),
        (SGLangClient.from_slime_args(SLIME), False, GONE, 61),
        (get_client("http://127.0.0.1:9"), False, GONE, 61),
        (SGLangClient("http://127.0.0.1:9"), False, TransientFault(ConnectionLostError("busy"), retry_after=50.0), 1),
    ],
)
async def test_call_outside_a_run_fails_within_a_minute(
    client: SGLangClient, running: bool, fault: TransientFault, attempts: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]

    async def passes(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(retry, "_sleep", passes)
    server_history(client.base_url).record_answer()
    token = in_run.set(running)
    try:
        waiting = retry.ServerRetries(client._policy, client._generate_url)
    finally:
        in_run.reset(token)
    for _ in range(2):
        await waiting.after(fault) if attempts != 1 else None
        waiting.progressed()  # what was waited for is over
        now[0] += 3000
    began = now[0]
    with pytest.raises(EngineUnreachableError) as caught:
        while True:
            await waiting.after(fault)
    assert ("outside a run" in str(caught.value)) is (attempts != 61)
    if attempts is None:
        assert 40 < now[0] - began < 60 and caught.value.attempts > 2
    else:
        assert caught.value.attempts == attempts and (now[0] - began > 300 or attempts == 1)


async def test_chat_whose_server_dies_in_mid_stream_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    token = b"data: " + encoded(1, [1], finish_reason=None) + b"\n\n"

    async def dies(wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + token)
        server.reset_on_accept = lambda number: True
        await wire.reset()

    seen: list[int] = []
    with in_turn(dies) as server:
        async with SGLangClient(server.url) as client:
            with pytest.raises(EngineUnreachableError, match=r"outside a run.*max_retries="):
                async for chunk in client.stream([1], BUDGET):
                    seen += chunk.token_ids
    assert seen == [1]


async def test_first_contact_none_waits_for_starting_server() -> None:
    server, down = switched()
    down.append(True)
    with server:
        async with SGLangClient(server.url, first_contact=None, **QUICK, max_retries=100_000) as client:
            waiting = asyncio.ensure_future(client.generate([1], BUDGET))
            while client.unreachable_seconds() < 0.3:
                await asyncio.sleep(0.02)
            assert not waiting.done()
            down.clear()
            assert len(await waiting) == 3
    with pytest.raises(ConfigurationError, match="first_contact"):
        SGLangClient(first_contact=0)


async def test_https_request_to_http_server() -> None:
    with scripted(encoded) as server:
        async with SGLangClient(server.url.replace("http", "https"), first_contact=0.2) as client:
            with pytest.raises(EngineUnreachableError, match=f"then base_url is {server.url};"):
                await client.generate([1], BUDGET)


async def test_repeated_error_of_server_that_never_served_fails_early() -> None:
    with in_turn(refuses(500, "unexpected keyword")) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            with pytest.raises(EngineFailingError, match=r"repeats the same error.*sampling parameters"):
                await client.generate([1], BUDGET)
        assert 1 < len(server.generates()) <= 10  # and not 61


async def test_transient_error_is_retried() -> None:
    with in_turn(*[refuses(500, "warming up")] * 3, answers()) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            assert len(await client.generate([1], BUDGET)) == 3


async def test_repeated_error_of_server_that_served_is_retried() -> None:
    with in_turn(answers(), *[refuses(500, "out of memory")] * 30, answers()) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            await client.generate([1], BUDGET)
            assert len(await client.generate([1], BUDGET)) == 3
        assert len(server.generates()) == 32


def test_outage_log_lines_are_limited(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    known, fault = ServerHistory("http://there"), TransientFault(ConnectionLostError("gone"))
    with caplog.at_level(logging.WARNING):
        for _ in range(600):  # a minute
            known.record_failure(fault)
            known.log_retry(fault, 0.1)
            now[0] += 0.1
        known.record_answer()
        known.record_answer()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3 and "failures=<1>" in lines[0] and "answers again" in lines[2]
    assert "failures=<300>" in lines[1] and "down_seconds=<30>" in lines[1]


@pytest.mark.parametrize(("code", "down"), [(None, True), (502, True), (503, True), (500, False), (429, False)])
def test_outage_definition(code: int | None, down: bool) -> None:
    known = ServerHistory("http://there")
    gone: Any = TransientFault(ConnectionLostError("gone"))
    known.record_failure(gone if code is None else faults.from_status(code, b"", "http://there"))  # type: ignore[arg-type]
    assert (known.unreachable_since is not None) is down
    assert known.answered is (code is not None) and not known.served


def test_pickled_client_keeps_contact() -> None:
    client = SGLangClient("http://127.0.0.1:9")
    assert not server_history("http://127.0.0.1:9").answered
    server_history(client.base_url).record_answer()
    code = (
        "import pickle, sys; client = pickle.loads(sys.stdin.buffer.read()); "
        "from strands_sglang.engine.retry import server_history; print(server_history(client.base_url).answered)"
    )
    run = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(client), capture_output=True, timeout=120)
    assert run.stdout.decode().strip() == "True", run.stderr.decode()
