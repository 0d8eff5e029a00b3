"""Sessions that are opened, scored and closed over HTTP are episodes of a run like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from strands_sglang.errors import ConfigurationError
from strands_sglang.gateway import Gateway
from strands_sglang.gateway.client import open_session
from strands_sglang.ledger import Ledger
from strands_sglang.proof import Verdict, verify
from strands_sglang.runs import Limits
from strands_sglang.runs.session_api import session_api
from strands_sglang.runs.session_service import SessionService
from support.families import tokenizer
from support.gateway.agents import WireAgent, WireError
from support.scripted_engine import ScriptedEngine, thought, tool_call

TOKEN = "an-admin-token-of-a-test"
ADMIN = {"Authorization": f"Bearer {TOKEN}"}


def script(prompt: str) -> str:
    if prompt.count("<tool_response>") == 0:
        return thought("Look.", tool_call("run", command="ls"))
    return "It is fixed."


@dataclass
class Served:
    service: SessionService
    engine: ScriptedEngine
    http: aiohttp.ClientSession

    async def call(self, method: str, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
        url = f"{self.service.gateway.address}/sessions{path}"
        async with self.http.request(method, url, json=body or None, headers=ADMIN) as response:
            data: dict[str, Any] = await response.json()
            assert response.status == status, data
        return data

    def agent(self, opened: dict[str, Any], protocol: str = "chat") -> WireAgent:
        return WireAgent(self.http, opened["base_url"], protocol)


@asynccontextmanager
async def served(directory: Path | None = None, **settings: Any) -> AsyncIterator[Served]:
    engine = ScriptedEngine(tokenizer("qwen3"), script)
    service = SessionService(
        tokenizer=tokenizer("qwen3"),
        client=engine,
        directory=directory,
        admin=lambda service: session_api(service, TOKEN),
        **settings,
    )
    async with service, aiohttp.ClientSession() as http:
        yield Served(service, engine, http)


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
async def test_a_session_is_an_episode(protocol: str, tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        opened = await it.call("POST", "", 201, task={"prompt": "Fix it.", "id": "bug", "repository": "demo"})
        assert (opened["id"], opened["state"], opened["turns"]) == ("bug/0", "open", 0)
        text = await it.agent(opened, protocol).run("Fix it.")
        closed = await it.call("POST", "/bug/0/close", reward={"reward": 0.5, "speed": 2}, text=text)
        assert closed == await it.call("GET", "/bug/0")
        assert (closed["end_reason"], closed["reward"], closed["trained_turns"]) == ("answered", 0.5, 2)
        second = await it.call("POST", "", 201, task={"prompt": "Fix it.", "id": "bug", "repository": "demo"})
        assert second["id"] == "bug/1"
        await it.agent(second, protocol).run("Fix it.")
        await it.call("POST", "/bug/1/close", error="the container died")
    assert verify(tmp_path).verdict is Verdict.PROVED
    record = Ledger(tmp_path).episode("bug/0")
    assert record.begin is not None and record.end is not None and record.reward is not None
    assert record.begin.data["task"]["data"] == {"repository": "demo"}
    assert record.end.data["text"] == "It is fixed."
    assert record.reward.data["parts"] == {"speed": 2.0}
    failed = Ledger(tmp_path).episode("bug/1").end
    assert failed is not None and failed.data["failure"]["message"] == "the container died"


async def test_an_agent_of_an_ended_session_gets_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        opened = await it.call("POST", "", 201, task="Fix it.")
        agent = it.agent(opened)
        await agent.run("Fix it.")
        await it.call("POST", f"/{opened['id']}/close", reward=1)
        with pytest.raises(WireError) as error:
            await agent.run("More.")
        assert error.value.status == 404
        assert (await it.call("GET", f"/{opened['id']}"))["turns"] == 2


async def test_only_the_admin_token_opens_lists_and_closes() -> None:
    async with served() as it:
        opened = await it.call("POST", "", 201, task="Fix it.")
        url = f"{it.service.gateway.address}/sessions"
        wrong = {"Authorization": f"Bearer {opened['token']}"}
        for given in ({}, {"Authorization": TOKEN}, wrong, {"x-api-key": TOKEN}):
            for method, path in (("POST", ""), ("GET", ""), ("POST", f"/{opened['id']}/close"), ("GET", "/nothing")):
                async with it.http.request(method, url + path, headers=given) as response:
                    assert response.status == 401
        evil = {**ADMIN, "Host": "evil.example"}
        async with it.http.get(url, headers=evil) as response:
            assert response.status == 404
        async with it.http.get(url, headers={**ADMIN, "Origin": "http://evil.example"}) as response:
            assert response.status == 404
        (listed,) = (await it.call("GET", ""))["sessions"]
        assert listed["id"] == opened["id"] and "token" not in listed and "base_url" not in listed
        async with it.http.get(f"{it.service.gateway.address}/v1/models", headers=ADMIN) as response:
            assert response.status == 404


async def test_wrong_requests_are_told_what_is_wrong(tmp_path: Path) -> None:
    async with served(tmp_path, max_sessions=1) as it:
        await it.call("POST", "", 400, task="")
        await it.call("POST", "", 400, task={"no": "prompt"})
        await it.call("POST", "", 400, task="x", sample=-1)
        await it.call("POST", "", 400, tusk="x")
        await it.call("POST", "", 400, task="x", on_changed_echo="never")
        assert not it.service.open_sessions
        await it.call("POST", "", 201, task={"prompt": "x", "id": "a"}, sample=3)
        await it.call("POST", "", 409, task={"prompt": "y", "id": "b"})
        await it.call("POST", "/a/3/score", 409, reward=1)
        await it.call("POST", "/a/3/close", 400, reward="much")
        await it.call("POST", "/a/4/close", 404, reward=1)
        await it.call("GET", "/a/4", 404)
        await it.call("POST", "/a/3/close", reward=0)
        assert (await it.call("POST", "/a/3/close", reward=1))["reward"] == 0  # closed already
        await it.call("POST", "", 409, task={"prompt": "x", "id": "a"}, sample=3)


async def test_a_session_is_scored_after_its_end(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        opened = await it.call("POST", "", 201, task={"prompt": "x", "id": "a"})
        await it.agent(opened).run("x")
        assert (await it.call("POST", "/a/0/close", text="done"))["reward"] is None
        assert (await it.call("POST", "/a/0/score", reward=0.25))["reward"] == 0.25
        assert (await it.call("POST", "/a/0/score", reward=0.75))["reward"] == 0.75
    reward = Ledger(tmp_path).episode("a/0").reward
    assert reward is not None and reward.data["value"] == 0.75
    assert verify(tmp_path).proved


async def test_a_limit_is_told_and_is_the_end_reason(tmp_path: Path) -> None:
    async with served(tmp_path, limits=Limits(max_turns=1)) as it:
        opened = await it.call("POST", "", 201, task={"prompt": "x", "id": "a"})
        with pytest.raises(WireError, match="limit of 1 turn"):
            await it.agent(opened).run("x")
        assert (await it.call("GET", "/a/0"))["state"] == "limit"
        closed = await it.call("POST", "/a/0/close", reward=0)
        assert (closed["end_reason"], closed["reward"], closed["turns"]) == ("turn_limit", 0, 1)


async def test_a_session_that_is_not_closed_times_out(tmp_path: Path) -> None:
    async with served(tmp_path, limits=Limits(episode_timeout=0.3)) as it:
        opened = await it.call("POST", "", 201, task={"prompt": "x", "id": "a"})
        agent = it.agent(opened)
        agent.say("x")
        await agent.ask()
        while it.service.open_sessions:
            await it.service.open_sessions["a/0"].work
        closed = await it.call("POST", "/a/0/close", reward=0.5)
        assert (closed["end_reason"], closed["reward"]) == ("timeout", 0.5)


@pytest.mark.parametrize("done", [1, 2])
async def test_a_session_that_was_open_at_a_crash_is_resumed(done: int, tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        before = await it.call("POST", "", 201, task={"prompt": "x", "id": "a"})
        agent = it.agent(before)
        agent.say("x")
        calls, _ = agent.add(await agent.ask())
        if done == 2:
            agent.result(calls[0]["id"], "ok")
            agent.add(await agent.ask())
    assert verify(tmp_path).verdict is Verdict.UNFINISHED
    async with served(tmp_path) as it:
        opened = await it.call("POST", "", 201, task={"prompt": "x", "id": "a"})
        assert opened["id"] == "a/0" and opened["token"] != before["token"]
        with pytest.raises(WireError) as error:
            old = {**before, "base_url": f"{it.service.gateway.address}/s/{before['token']}"}
            await it.agent(old).run("x")
        assert error.value.status == 404
        assert await it.agent(opened).run("x") == "It is fixed."
        assert len(it.engine.calls) == 2 - done
        assert (await it.call("POST", "/a/0/close", reward=1))["turns"] == 2
    certificate = verify(tmp_path)
    assert certificate.proved and certificate.tokens.rolled_back == 0


async def test_what_was_ended_before_a_restart_is_ended_and_scored_once(tmp_path: Path) -> None:
    """An answer is lost if the service is restarted: whoever closes asks again."""
    closings: dict[str, dict[str, Any]] = {"a": {"reward": 0.5, "text": "done"}, "b": {"error": "evicted"}, "c": {}}
    async with served(tmp_path) as it:
        before = {}
        for name in (*closings, "open"):
            opened = await it.call("POST", "", 201, task={"prompt": "x", "id": name})
            await it.agent(opened).run("x")
            if name in closings:
                before[name] = await it.call("POST", f"/{name}/0/close", **closings[name])
    async with served(tmp_path) as it:
        for name, closing in closings.items():
            assert await it.call("GET", f"/{name}/0") == before[name]
            assert await it.call("POST", f"/{name}/0/close", **closing) == before[name]
        assert (await it.call("POST", "/a/0/close", reward=1))["reward"] == 0.5  # closed already
        for _ in range(2):
            assert (await it.call("POST", "/c/0/close", reward=0.25))["reward"] == 0.25
            assert (await it.call("POST", "/a/0/score", reward=0.75))["reward"] == 0.75
        await it.call("POST", "/b/0/score", 409, reward=1)
        for name in ("open", "d"):
            await it.call("GET", f"/{name}/0", 404)
        assert not it.engine.calls
        reopened = await it.call("POST", "", 201, task={"prompt": "x", "id": "open"})
        await it.agent(reopened).run("x")
        await it.call("POST", "/open/0/close", reward=0)
    ledger = Ledger(tmp_path)
    values = {id: one.data["value"] for id in ledger.ids() if (one := ledger.episode(id).reward) is not None}
    assert values == {"a/0": 0.75, "c/0": 0.25, "open/0": 0.0}
    assert verify(tmp_path).proved


async def test_several_gateways_share_an_address() -> None:
    """A balancer passes on what begins with the path of a gateway, with the path or without."""
    async with served(gateway={"url": "https://gateways.example/a/"}) as it:
        where = f"http://127.0.0.1:{it.service.gateway.port}"
        for prefix in ("", "/a"):
            url, host = f"{where}{prefix}/sessions", {"Host": "gateways.example"}
            async with it.http.post(url, json={"task": f"x{prefix}"}, headers={**ADMIN, **host}) as response:
                opened = await response.json()
            assert opened["base_url"] == f"https://gateways.example/a/s/{opened['token']}"
            for path in dict.fromkeys(("", "/a")):
                agent = WireAgent(it.http, f"{where}{path}/s/{opened['token']}", "chat", headers=host)
                assert await agent.run("x") == "It is fixed."
        async with it.http.get(f"{where}/b/sessions", headers=ADMIN) as response:
            assert response.status == 404


@asynccontextmanager
async def balancer(http: aiohttp.ClientSession) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """A balancer that passes requests on by the first part of their path, which it keeps; yields its address."""
    targets: dict[str, str] = {}

    async def pass_on(request: web.Request) -> web.StreamResponse:
        target = targets.get(request.match_info["name"])
        if target is None:
            raise web.HTTPBadGateway
        headers = {name: value for name, value in request.headers.items() if name != "Transfer-Encoding"}
        data = await request.read()
        async with http.request(request.method, target + request.path_qs, data=data, headers=headers) as answer:
            passed = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await passed.prepare(request)
            async for piece in answer.content.iter_any():
                await passed.write(piece)
            await passed.write_eof()
            return passed

    app = web.Application()
    app.router.add_route("*", "/{name}/{rest:.*}", pass_on)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", targets
    finally:
        await runner.cleanup()


async def test_gateways_behind_a_balancer_have_their_own_sessions(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as http, balancer(http) as (address, targets), AsyncExitStack() as stack:
        services = {}
        for name in ("a", "b"):
            url = f"{address}/{name}"
            it = services[name] = await stack.enter_async_context(served(tmp_path / name, gateway={"url": url}))
            targets[name] = f"http://127.0.0.1:{it.service.gateway.port}"

        async def play(name: str, number: int) -> str:
            async with open_session(f"{address}/{name}", TOKEN, {"prompt": "x", "id": str(number)}) as session:
                other = session.base_url.replace(f"/{name}/", "/b/" if name == "a" else "/a/")
                with pytest.raises(WireError, match="there is no such session"):
                    await WireAgent(http, other, "chat").run("x")
                protocol = ["chat", "responses", "messages"][number % 3]
                session.text = await WireAgent(http, session.base_url, protocol, streams=bool(number % 2)).run("x")
                session.reward = 1.0
            return session.text

        texts = await asyncio.gather(*(play(name, number) for name in services for number in range(6)))
        assert set(texts) == {"It is fixed."}
        assert [len(it.engine.calls) for it in services.values()] == [12, 12]
        async with http.get(f"{address}/c/sessions", headers=ADMIN) as response:
            assert response.status == 502
    for name in ("a", "b"):
        certificate = verify(tmp_path / name)
        assert certificate.proved and len(Ledger(tmp_path / name).ids()) == 6


def test_an_address_has_a_host() -> None:
    with pytest.raises(ConfigurationError, match="url must be an address"):
        Gateway(url="a")


async def test_the_client_opens_and_closes(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        address = it.service.gateway.address
        async with open_session(address, TOKEN, {"prompt": "x", "id": "a b"}) as session:
            session.text = await WireAgent(it.http, session.base_url, "messages", model=session.model).run("x")
            session.reward = 1.0
        assert (session.id, session.ended["end_reason"], session.ended["reward"]) == ("a b/0", "answered", 1.0)
        with pytest.raises(RuntimeError):
            async with open_session(address, TOKEN, "y") as session:
                raise RuntimeError("the job was evicted")
        assert session.ended["failure"] == "RuntimeError: the job was evicted"
        with pytest.raises(ConfigurationError, match="the admin token must be given"):
            async with open_session(address, "wrong", "z"):
                pass
