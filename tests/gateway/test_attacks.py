"""A hostile or broken client: nothing crosses sessions, errors have the form of the protocol, memory is bounded."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import secrets
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from strands_sglang import errors
from strands_sglang.gateway import server
from strands_sglang.gateway.call import Fault, Refusal
from strands_sglang.gateway.server import PROTOCOLS
from strands_sglang.gateway.session import Session
from support.examples import size
from support.gateway.agents import PATHS, WireAgent, WireError
from support.gateway.opened import Opened, opened
from support.scripted_engine import Reply, tool_call

HELLO = {"messages": [{"role": "user", "content": "Hello."}], "model": "policy"}
AWKWARD: list[Any] = [None, True, 0, -1, 1e400, "", "x", "\ud800", "\0", [], [None], [[]], {}, {"type": None}]
AWKWARD += [{"text": 1}, [{}]]


async def raw(it: Opened, data: bytes, *, eof: bool = False) -> bytes:
    """Send bytes to the server; return what it answers until it closes the connection, or is silent for a moment."""
    at = urlsplit(it.gateway.address)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    writer.write(data)
    if eof:
        writer.write_eof()
    found = b""
    try:
        while piece := await asyncio.wait_for(reader.read(65536), 0.5):
            found += piece
    except (asyncio.TimeoutError, ConnectionError):
        pass
    writer.close()
    return found


def head(it: Opened, *lines: str, path: str | None = None) -> bytes:
    path = path or f"/s/{it.session.token}{PATHS['chat']}"
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


def bodies(protocol: str) -> list[dict[str, Any]]:
    """Return a request of each kind that an agent sends."""
    agent = WireAgent(None, "", protocol)  # type: ignore[arg-type]
    agent.say("Hello.")
    if protocol == "chat":
        call = {"id": "a", "type": "function", "function": {"name": "run", "arguments": '{"command": "ls"}'}}
        agent.history += [{"role": "assistant", "content": "Look.", "reasoning_content": "Hm.", "tool_calls": [call]}]
    elif protocol == "responses":
        agent.history += [
            {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look."}]},
            {"type": "function_call", "call_id": "a", "name": "run", "arguments": '{"command": "ls"}'},
            {"type": "item_reference", "id": "rs_0"},
        ]
    else:
        content = [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "tool_use", "id": "a", "name": "run", "input": {"command": "ls"}},
        ]
        agent.history += [{"role": "assistant", "content": content}]
    agent.result("a", "x")
    more = {"stop": ["a"], "temperature": 0.1, "tool_choice": {"type": "any"}, "max_tokens": 5, "text": {"format": {}}}
    return [{**agent._body(agent.history), **more, "model": "policy", "response_format": {"type": "json_schema"}}]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in JSON data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(one for key, item in items for one in places(item, (*path, key)))]


def changed(body: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy with another value at a path."""
    if not path:
        return new
    copy = json.loads(json.dumps(body))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return copy


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_reading_raises_refusals_and_nothing_else(protocol: Any) -> None:
    rng = random.Random(protocol.name)
    for body in bodies(protocol.name):
        protocol.read(body, {}, {"rs_0": {"type": "reasoning", "summary": []}})
        for path in places(body)[1:]:
            for new in AWKWARD:
                found = changed(body, path, new)
                for _ in range(rng.randrange(size(2, 20))):
                    found = changed(found, rng.choice(places(found)[1:]), rng.choice(AWKWARD))
                try:
                    protocol.read(found, {}, {"rs_0": {"type": "reasoning", "summary": []}})
                except Refusal as refusal:
                    assert refusal.fault is Fault.INVALID


@pytest.mark.parametrize("protocol", list(PATHS))
async def test_no_body_makes_the_gateway_fail(protocol: str) -> None:
    """Bodies that are read are rendered and sampled, whatever is in them."""
    rng = random.Random(protocol)
    async with opened(lambda prompt: "ok") as it:
        (body,) = bodies(protocol)
        if protocol == "responses":
            body["input"] = [item for item in body["input"] if item.get("type") != "item_reference"]
        for _ in range(size(60, 1000)):
            found = changed(body, rng.choice(places(body)[1:]), rng.choice(AWKWARD))
            data = json.dumps(found).replace("Infinity", "1e400")
            async with it.http.post(it.gateway.base_url(it.session) + PATHS[protocol], data=data) as response:
                told = await response.text()
                assert response.status in (200, 400), (response.status, told, found)
                assert response.status == 200 or json.loads(told)["error"]["type"] == "invalid_request_error"
                assert response.status == 200 or response.headers["x-should-retry"] == "false"


async def test_tokens_are_not_guessed_and_not_shared() -> None:
    async with opened(["one"]) as it:
        async with it.gateway.session(it.session.model) as other:
            old = other.token
        own = it.session.token
        assert len({secrets.token_hex(16), own, old}) == 3 and len(own) == 32
        for token in (old, "0" * 32, own[:-1], own + "0", own.upper() + " ", "", "..", "%00", f"{own}%2f..", "*"):
            url = f"{it.gateway.address}/s/{token}/v1/chat/completions"
            async with it.http.post(url, json=HELLO) as response:
                assert response.status == 404, token
            headers = {"Authorization": f"Bearer {token.replace('%00', '0')}x"}
            async with it.http.post(f"{it.gateway.address}/v1/responses", json=HELLO, headers=headers) as response:
                assert response.status == 404
        assert len(it.episode.tree) == 0


async def test_the_address_decides_and_not_a_header() -> None:
    async with opened(["one"]) as it, it.gateway.session(it.session.model) as other:
        agent = it.agent("chat", headers={"Authorization": f"Bearer {other.token}", "x-api-key": other.token})
        assert await agent.run("Hello.") == "one"
        assert (len(it.episode.tree), len(other.episode.tree)) == (1, 0)


async def test_paths_lead_nowhere_else() -> None:
    async with opened(["one"]) as it:
        token, chat = it.session.token, PATHS["chat"]
        tricks = (
            f"/s/{'0' * 32}/../{token}{chat}",
            f"/s/{'0' * 32}/%2e%2e/{token}{chat}",
            f"//s/{token}{chat}",
            f"/s/{token}{chat}/",
            f"/s/{token}/v1/../../../etc/passwd",
            f"/s/{token}/v1/chat%2fcompletions%00",
            "/",
            "*",
            f"http://evil.example/s/{token}{chat}",
        )
        body = json.dumps(HELLO).encode()
        for path in tricks:
            answer = await raw(it, head(it, f"Content-Length: {len(body)}", "Connection: close", path=path) + body)
            assert answer[9:12] in (b"404", b"400"), (path, answer)
        assert len(it.episode.tree) == 0


async def test_headers_do_not_smuggle_a_request() -> None:
    async with opened(["one"]) as it:
        inner = head(it, "Content-Length: 2") + b"{}"
        for lines in (
            ("Content-Length: 0", f"Content-Length: {len(inner)}"),
            ("Content-Length: 5", "Transfer-Encoding: chunked"),
            ("Transfer-Encoding: chunked, identity",),
            ("Content-Length: -1",),
            ("X: " + "y" * 100_000,),
            ("Content-Length : 5",),
        ):
            answer = await raw(it, head(it, *lines) + inner)
            assert answer == b"" or (answer.startswith(b"HTTP/1.") and answer[9:10] == b"4"), (lines, answer)
        assert len(it.episode.tree) == 0


async def test_large_cut_and_slow_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_READ_SECONDS", 0.2)
    async with opened(["one"]) as it:
        answer = await raw(it, head(it, f"Content-Length: {1 << 30}") + b"[" * 1000)
        assert answer.startswith(b"HTTP/1.1 4") and b"invalid_request_error" in answer
        assert await raw(it, head(it, "Content-Length: 100") + b"{", eof=True) == b""
        slow = await raw(it, head(it, "Content-Length: 100") + b"{")
        assert b" 400 " in slow and b"did not arrive within" in slow
        sent = 0

        async def endless() -> Any:
            nonlocal sent
            while sent < 1 << 30:
                sent += 1 << 16
                yield bytes(1 << 16)

        url = it.gateway.base_url(it.session) + PATHS["messages"]
        try:
            async with it.http.post(url, data=endless()) as response:
                assert response.status == 413
        except ConnectionError:
            pass  # the server no longer reads
        assert sent <= server.MAX_BODY + (8 << 20)
        assert it.session.requests == 0 and len(it.episode.tree) == 0


async def test_bombs_of_json_are_refused() -> None:
    async with opened(["one"]) as it:
        url = it.gateway.base_url(it.session) + PATHS["chat"]
        for data in (b"[" * 1_000_000, b"[" + b"0," * 1_000_000 + b"0]", b'{"a":' * 300 + b"1" + b"}" * 300, b"\xff"):
            async with it.http.post(url, data=data) as response:
                assert response.status == 400


def half_open(it: Opened) -> tuple[bytes, ...]:
    """Return beginnings of requests."""
    return b"", b"POST /s/", head(it)[:-2], head(it, "Content-Length: 9") + b"{"


async def test_a_thousand_half_open_connections_hinder_nobody() -> None:
    async with opened(["one", "two"]) as it, it.gateway.session(it.session.model) as other:
        at = urlsplit(it.gateway.address)
        held = [await asyncio.open_connection(at.hostname, at.port) for _ in range(size(250, 1000))]
        parts = half_open(it)
        for number, (_, writer) in enumerate(held):
            writer.write(parts[number % 4 if number < 4 * server.MAX_REQUESTS else 1])
        while it.session.requests < min(server.MAX_REQUESTS, len(held) // 4):
            await asyncio.sleep(0.01)
        assert await WireAgent(it.http, it.gateway.base_url(other), "chat").run("Hello.") == "one"
        for _, writer in held:
            writer.close()
        while it.session.requests:
            await asyncio.sleep(0.01)
        assert await it.agent("chat").run("Hello.") == "two"


@pytest.mark.parametrize("kind", range(3))
async def test_half_open_connections_are_closed(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_IDLE_SECONDS", 0.2)
    async with opened([]) as it:
        at = urlsplit(it.gateway.address)
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        writer.write(half_open(it)[kind])
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()


async def test_the_bodies_of_a_session_are_bounded_together() -> None:
    async with opened(["one"]) as it:
        at, length = urlsplit(it.gateway.address), server.MAX_BODY - 1
        held = [await asyncio.open_connection(at.hostname, at.port) for _ in range(4)]
        for _, writer in held:
            writer.write(head(it, f"Content-Length: {length}") + bytes(length - 1))
        while it.session.bytes < 4 * (length - 1):
            await asyncio.sleep(0.01)
        agent = it.agent("chat")
        agent.say("Hello.")
        with pytest.raises(WireError, match="64 MiB of requests under way") as error:
            await agent.ask()
        assert error.value.status == 429 and error.value.headers["x-should-retry"] == "true"
        for _, writer in held:
            writer.close()
        while it.session.requests:
            await asyncio.sleep(0.01)
        assert it.session.bytes == 0
        await agent.ask()


def resident() -> int:
    """Return the memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_the_bodies_of_all_sessions_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of bodies that never end, over many sessions."""
    monkeypatch.setattr(server, "MAX_ALL_BYTES", 2 * server.MAX_BODY)
    async with opened(["one"]) as it, AsyncExitStack() as stack:
        at, piece = urlsplit(it.gateway.address), bytes(1 << 16)
        sessions = [await stack.enter_async_context(it.gateway.session(it.session.model)) for _ in range(16)]
        before = resident()

        async def flood(session: Session) -> tuple[bytes, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(at.hostname, at.port)
            length = f"Content-Length: {server.MAX_BODY}"
            writer.write(head(it, length, path=f"/s/{session.token}{PATHS['chat']}"))
            with suppress(ConnectionError):
                for _ in range(server.MAX_BODY // len(piece) - 1):  # not the last one
                    writer.write(piece)
                    await writer.drain()
            if session.bytes:
                return b"", writer
            return await reader.read(1000), writer

        answers = await asyncio.gather(*map(flood, sessions))
        assert resident() - before < 4 * server.MAX_ALL_BYTES < 16 * server.MAX_BODY
        assert 0 < it.gateway.bytes <= server.MAX_ALL_BYTES
        told = [answer for answer, _ in answers if answer]
        assert len(told) >= 14 and all(b" 429 " in one and b"the gateway has 32 MiB" in one for one in told)
        for _, writer in answers:
            writer.close()
        while it.gateway.bytes:
            await asyncio.sleep(0.01)
        assert await it.agent("chat").run("Hello.") == "one"


async def test_a_flood_is_told_to_wait() -> None:
    open_again = asyncio.Event()

    async def wait() -> None:
        await open_again.wait()

    async with opened([Reply("one", before=wait) for _ in range(100)]) as it:
        agents = [it.agent(list(PATHS)[number % 3]) for number in range(server.MAX_REQUESTS + 20)]
        for number, agent in enumerate(agents):
            agent.say(f"Hello {number}.")
        asking = [asyncio.ensure_future(agent.ask()) for agent in agents]
        while sum(one.done() for one in asking) < 20:
            await asyncio.sleep(0.02)
        done, _ = await asyncio.wait(asking, timeout=0.5)
        assert len(done) == 20
        for one in done:
            error = one.exception()
            assert isinstance(error, WireError) and error.status == 429
            assert error.headers["x-should-retry"] == "true" and error.headers["Retry-After"]
        other = it.gateway.session(it.session.model)
        async with other as session:  # it has requests of its own
            assert session.requests == 0
        open_again.set()
        await asyncio.gather(*asking, return_exceptions=True)
        assert len(it.episode.tree) == server.MAX_REQUESTS


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
@pytest.mark.parametrize("fault", list(Fault))
def test_clients_retry_what_may_be_retried(protocol: Any, fault: Fault) -> None:
    response = server._refused(protocol, Refusal(fault, "why"))
    passes = fault in (Fault.BUSY, Fault.UNAVAILABLE)
    assert response.headers["x-should-retry"] == str(passes).lower()
    assert passes == (response.status in (408, 409, 429, 503, 529))
    assert ("Retry-After" in response.headers) == passes


STATUS: dict[type[Exception], int] = {
    errors.ContextOverflowError: 400,
    errors.RequestRejectedError: 400,
    errors.UnsupportedContentError: 400,
    errors.TemplateRefusedError: 400,
    errors.BridgeRefusedError: 400,
    errors.ConfigurationError: 400,
    errors.SessionStateError: 400,
    errors.UnknownSessionError: 400,
    errors.TokenBudgetError: 400,
    errors.FailedCallError: 400,
    errors.CallCancelledError: 400,
    errors.ClientClosedError: 400,
    errors.MalformedResponseError: 400,
    errors.CountMismatchError: 400,
    errors.KeptSetsMissingError: 400,
    errors.TreeError: 400,
    errors.RecordError: 400,
    errors.ToolUnavailableError: 400,
    errors.SandboxUnavailableError: 400,
    errors.OtherModelError: 400,
    errors.AgentProcessError: 400,
    errors.LedgerError: 400,
    errors.RunStoppedError: 400,
    errors.DivergedError: 400,
    errors.TurnAbortedError: 503,
    errors.EngineError: 503,
    errors.EngineUnavailableError: 503,
    errors.EngineBusyError: 503,
    errors.EngineFailingError: 503,
    errors.EngineUnreachableError: 503,
    errors.EngineGarbledError: 503,
    errors.DeadlineExceededError: 503,
    errors.ConnectionLostError: 503,
    errors.AttemptTimeoutError: 503,
    errors.StreamInterruptedError: 503,
    RuntimeError: 500,
}


def test_every_error_has_a_status() -> None:
    """Names of the published package are never raised themselves."""
    raised = {one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)}
    own = {one for one in raised if not one.__name__.startswith("SGLang") and one is not errors.StrandsSGLangError}
    assert own == STATUS.keys() - {RuntimeError}


async def test_errors_of_the_engine_say_whether_asking_again_helps() -> None:
    kind: type[Exception] = RuntimeError
    async with opened(lambda prompt: kind("why")) as it:
        for kind, status in STATUS.items():
            it.session.ended.clear()
            agent = it.agent("chat")
            agent.say("Hello.")
            with pytest.raises(WireError, match="RuntimeError" if status == 500 else "why") as error:
                await agent.ask()
            headers = error.value.headers
            told = (error.value.status, headers["x-should-retry"], headers.get("Retry-After"))
            assert told == (status, str(status == 503).lower(), "2" if status == 503 else None), kind


async def test_requests_that_fail_leave_nothing_behind() -> None:
    def fails(call: Any) -> bool:
        raise RuntimeError("the rule is wrong")

    async with opened([], options={"is_side": fails}) as it:
        agent = it.agent("chat")
        agent.say("Hello.")
        for _ in range(3):
            with pytest.raises(WireError) as error:
                await agent.ask()
            assert error.value.status == 500
        assert not it.session._exchanges and not it.session._working


async def test_a_session_keeps_a_conversation_once_and_not_with_every_turn() -> None:
    script = [tool_call("run", command=str(number)) for number in range(12)] + ["Done."]
    async with opened(script) as it:
        await it.agent("messages").run("x" * 100_000)
        gc.collect()
        blocks = [one for one in gc.get_objects() if type(one) is dict and one.get("text") == "x" * 100_000]
        assert len(it.session._turns) == 13
        assert len({id(block["text"]) for block in blocks}) <= 3


async def test_arguments_with_half_a_character_are_sent_and_come_back() -> None:
    script = ['<tool_call>\n{"name": "run", "arguments": {"command": "\\ud83d"}}\n</tool_call>', "Done."]
    for protocol in PATHS:
        async with opened(script) as it:
            assert await it.agent(protocol).run("Hello.") == "Done."
            assert it.joins[1] in ("proved", "kept"), protocol
            assert it.episode.tree[1].detail["echoes"] == ["exact"]


async def test_the_same_request_after_an_abort_is_not_answered_by_the_aborted_one() -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        finally:
            await release.wait()

    async with opened([Reply("never", before=slow_to_end), "again"]) as it:
        agent = it.agent("chat")
        agent.say("Hello.")
        asking = asyncio.ensure_future(agent.ask())
        await entered.wait()
        asking.cancel()
        while it.session._exchanges:
            await asyncio.sleep(0.01)
        reply = await agent.ask()
        release.set()
        assert reply["choices"][0]["message"]["content"] == "again"
