"""What is trained depends on what the agent received: the same request twice, disconnects, closed sessions."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from strands_sglang.gateway import server
from strands_sglang.gateway.call import Call
from strands_sglang.tokens import TurnPurpose
from support.gateway.agents import PATHS, WireAgent, WireError
from support.gateway.opened import Opened, opened
from support.scripted_engine import Reply, assert_exact, thought, tool_call

CALL = thought("Look.", tool_call("run", command="ls"))


class Gate:
    """Lets engine calls wait until they are let through."""

    def __init__(self) -> None:
        self.entered, self.open = asyncio.Event(), asyncio.Event()
        self.cancelled = False

    async def __call__(self) -> None:
        self.entered.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def test_a_request_under_way_is_joined_by_the_same_request() -> None:
    gate = Gate()
    async with opened([Reply("one", before=gate)]) as it:
        agents = [it.agent(protocol) for protocol in ("chat", "chat", "chat")]
        for agent in agents:
            agent.say("Hello.")
        asking = [asyncio.ensure_future(agent.ask()) for agent in agents]
        await gate.entered.wait()
        await asyncio.sleep(0.05)
        gate.open.set()
        replies = await asyncio.gather(*asking)
        assert replies[0] == replies[1] == replies[2]
        assert len(it.episode.tree) == 1
        assert not it.episode.tree.rejected


async def test_an_answer_that_was_lost_is_sent_again_and_trained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened([CALL, "Done."]) as it:
        broken = True
        answered = server._answered

        async def lose(*arguments: Any) -> Any:
            response, complete = await answered(*arguments)
            return response, complete and not broken

        monkeypatch.setattr(server, "_answered", lose)
        agent = it.agent("chat")
        agent.say("Hello.")
        await agent.ask()
        assert it.episode.tree.rejected == {0}
        broken = False
        calls, _ = agent.add(await agent.ask())
        assert len(it.episode.tree) == 1
        assert not it.episode.tree.rejected
        agent.result(calls[0]["id"], "a")
        await agent.ask()
        assert it.joins == ["root", "proved"]
        assert not it.episode.tree.rejected
        assert_exact(it.engine, it.episode)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("protocol", list(PATHS))
async def test_an_answer_whose_connection_is_reset_is_sent_again(protocol: str, streams: bool) -> None:
    """Most of it is still to be written when the agent's connection is reset; then it asks again.

    It is long because it has the name of the model.
    """
    name = "m" * 8_000_000
    async with opened(["Done."], options={"name": name}) as it:
        agent = it.agent(protocol, streams=streams)
        agent.say("Hello.")
        body = {**agent._body(agent.history), "model": name, "stream": streams}
        data, at = json.dumps(body).encode(), urlsplit(it.gateway.address)
        lines = [f"POST /s/{it.session.token}{PATHS[protocol]} HTTP/1.1", "Host: 127.0.0.1"]
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(raw, (at.hostname, at.port))
            head = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode()
            await loop.sock_sendall(raw, head + data)
            assert (await loop.sock_recv(raw, 1000)).startswith(b"HTTP/1.1 200")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
        while it.session.requests:
            await asyncio.sleep(0.01)
        assert it.episode.tree.rejected == {0}
        async with it.http.post(agent.base_url + PATHS[protocol], data=data) as response:
            assert len(await response.read()) > len(name)
        assert len(it.episode.tree) == len(it.engine.calls) == 1
        assert not it.episode.tree.rejected


async def test_an_answer_in_the_history_was_received_whatever_the_connection_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened([CALL, "Done."]) as it:
        answered = server._answered

        async def lose(*arguments: Any) -> Any:
            return (await answered(*arguments))[0], False

        monkeypatch.setattr(server, "_answered", lose)
        agent = it.agent("messages")
        await agent.run("Hello.")
        assert it.episode.tree.rejected == {1}


@pytest.mark.parametrize("first", [0, 1])
async def test_a_second_sample_is_trained_in_place_of_the_first(first: int) -> None:
    async with opened([CALL, thought("No.", tool_call("run", command="pwd")), "Done."]) as it:
        agents = [it.agent("chat"), it.agent("chat")]
        found = []
        for agent in agents:
            agent.say("Hello.")
            found.append(agent.add(await agent.ask())[0])
        assert it.episode.tree.rejected == {0}
        agents[first].result(found[first][0]["id"], "a")
        await agents[first].ask()
        assert it.joins == ["root", "root", "proved"]
        assert it.episode.tree.rejected == {1 - first}
        assert_exact(it.engine, it.episode)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_disconnect_aborts_the_turn(streams: bool) -> None:
    gate = Gate()
    async with opened([Reply("never", before=gate), "again"]) as it:
        agent = it.agent("responses", streams=streams)
        agent.say("Hello.")
        asking = asyncio.ensure_future(agent.ask())
        await gate.entered.wait()
        asking.cancel()
        for _ in range(100):
            if gate.cancelled:
                break
            await asyncio.sleep(0.01)
        assert gate.cancelled
        assert len(it.episode.tree) == 0
        await agent.ask()
        assert len(it.episode.tree) == 1


async def test_side_calls_are_recorded_and_not_trained() -> None:
    async with opened(["A title", CALL, "Done."]) as it:
        wrong = it.agent("chat", model="gpt")
        wrong.say("Hello.")
        with pytest.raises(WireError, match="model must be 'policy', got 'gpt'"):
            await wrong.ask()
        title = it.agent("chat", model="small", more={"tools": []})
        title.say("Write a title.")
        await title.ask()
        agent = it.agent("chat")
        await agent.run("Hello.")
        assert [turn.purpose for turn in it.episode.tree] == [
            TurnPurpose.SIDE,
            TurnPurpose.EPISODE,
            TurnPurpose.EPISODE,
        ]
        assert not it.episode.tree.rejected
        assert_exact(it.engine, it.episode)


async def test_what_cannot_be_honoured_is_recorded_once() -> None:
    async with opened([CALL, "Done."]) as it:
        agent = it.agent("chat", more={"temperature": 0.1, "n": 2, "tool_choice": "required", "max_tokens": 70})
        await agent.run("Hello.")
        details = [turn.detail.get("ignored") for turn in it.episode.tree]
        assert details == [["n=2", "temperature=0.1", "tool_choice=required"], None]
        assert [call.sampling["max_new_tokens"] for call in it.engine.calls] == [70, 70]


async def test_an_author_chooses_side_calls() -> None:
    asked = list[Call]()

    def is_side(call: Call) -> bool:
        asked.append(call)
        return not call.tools

    async with opened(["A title", CALL, "Done."], options={"is_side": is_side}) as it:
        title = it.agent("responses", more={"tools": []})
        await title.run("Write a title.")
        await it.agent("responses").run("Hello.")
        assert [turn.purpose for turn in it.episode.tree] == [
            TurnPurpose.SIDE,
            TurnPurpose.EPISODE,
            TurnPurpose.EPISODE,
        ]
        assert [(call.model, len(call.tools)) for call in asked] == [("policy", 0), ("policy", 1), ("policy", 1)]
        assert not it.episode.tree.rejected
        assert_exact(it.engine, it.episode)


HARMLESS = {"metadata": {"user_id": "u"}, "service_tier": "auto", "none": None}


@pytest.mark.parametrize(
    ("protocol", "asked", "ignored"),
    [
        ("chat", {"top_k": 5, "min_p": 0.1, "web_search_options": {}, "max_tokens": 9, "max_completion_tokens": 9},
         ["min_p=0.1", "top_k=5", "web_search_options"]),
        ("chat", {"user": "u", "store": True, "n": 1, "logprobs": False, "tool_choice": "auto", "stop": []}, None),
        ("chat", {"response_format": {"type": "json_object"}, "stream_options": "all", "\ud800": "\ud801" * 900},
         ["\\ud800=" + "\\ud801" * 98, "response_format=json_object", "stream_options=all"]),
        ("responses", {"reasoning": {"effort": "high", "summary": "auto"}, "stop": ["x"], "seed": 7,
                       "text": {"verbosity": "low"}, "include": ["reasoning.encrypted_content"]},
         ["reasoning.effort=high", "seed=7", "stop", "text.verbosity=low"]),
        ("responses", {"include": ["message.output_text.logprobs"], "background": True},
         ["background=True", "include"]),
        ("responses", {"client_metadata": {}, "prompt_cache_key": "k", "truncation": "auto"}, None),
        ("messages", {"output_config": {"effort": "low"}, "thinking": {"type": "adaptive"},
                      "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
         ["output_config.effort=low", "thinking", "tool_choice.disable_parallel_tool_use=True"]),
        ("messages", {"tool_choice": {"type": "tool", "name": "run"}, "cache_control": {"type": "ephemeral"}},
         ["tool_choice=tool"]),
    ],
)  # fmt: skip
async def test_a_field_is_honoured_or_named(protocol: str, asked: Any, ignored: list[str] | None) -> None:
    async with opened(["one"]) as it:
        await it.agent(protocol, more={**HARMLESS, **asked}).run("Hello.")
        assert it.episode.tree[0].detail.get("ignored") == ignored


async def test_what_is_named_is_bounded() -> None:
    async with opened(["one", "two"]) as it:
        for start in (0, 200):
            await it.agent("chat", more={f"field{start + one}": 1 for one in range(200)}).run("Hello.")
        assert [len(turn.detail["ignored"]) for turn in it.episode.tree] == [200, 56]


async def test_sub_agents_get_the_call_that_started_them() -> None:
    start = tool_call("run", command="Find the file.")
    async with opened([start, "Found it.", "Done."]) as it:
        agent = it.agent("messages")
        agent.say("Hello.")
        calls, _ = agent.add(await agent.ask())
        helper = it.agent("messages", headers={"x-claude-code-agent-id": "a1"})
        helper.say("Find the file.")
        await helper.ask()
        agent.result(calls[0]["id"], "Found it.")
        await agent.ask()
        assert it.episode.tree[1].caller == (0, calls[0]["id"])
        assert it.episode.tree[1].detail["agent"] == "a1"
        assert not it.episode.tree.rejected


@pytest.mark.parametrize("protocol", list(PATHS))
async def test_sub_agents_are_found_by_their_first_message(protocol: str) -> None:
    """Most agents do not say which of theirs is calling."""
    script = [tool_call("run", command="Find it."), "Found.", tool_call("run", command="Hello."), "Done."]
    async with opened(script) as it:
        agent, helper = it.agent(protocol), it.agent(protocol)
        agent.say("Hello.")
        calls, _ = agent.add(await agent.ask())
        helper.say("Find it.")
        await helper.ask()
        agent.result(calls[0]["id"], "Found.")
        again, _ = agent.add(await agent.ask())
        agent.result(again[0]["id"], "ok")  # it has its own first message in an open call, and is no sub-agent of it
        await agent.ask()
        assert [turn.parent for turn in it.episode.tree] == [None, None, 0, 2]
        assert [turn.caller for turn in it.episode.tree] == [None, (0, calls[0]["id"]), None, None]
        assert not it.episode.tree.rejected


@pytest.mark.parametrize("protocol", list(PATHS))
async def test_errors_have_the_form_of_their_protocol(protocol: str) -> None:
    async with opened(["one"]) as it:
        agent = it.agent(protocol)
        with pytest.raises(WireError) as error:
            await agent.ask()
        assert error.value.status == 400
        kind = error.value.body["error"]["type"]
        assert kind == "invalid_request_error"
        await it.session.close()
        agent.say("Hello.")
        with pytest.raises(WireError, match="ended"):
            await agent.ask()


async def test_tokens_of_a_conversation_are_counted_and_nothing_is_sampled() -> None:
    async with opened([CALL, "Done."]) as it:
        agent = it.agent("messages")
        agent.say("Hello.")
        for number in range(2):
            body = {**agent._body(agent.history), "model": "policy"}
            async with it.http.post(f"{agent.base_url}/v1/messages/count_tokens", json=body) as response:
                counted = await response.json()
            assert len(it.episode.tree) == number
            calls, _ = agent.add(await agent.ask())
            assert counted == {"input_tokens": len(it.engine.calls[number].ids)}
            for call in calls:
                agent.result(call["id"], "a")
        async with it.http.post(f"{agent.base_url}/v1/messages/count_tokens", json={"messages": 1}) as response:
            assert (response.status, (await response.json())["type"]) == (400, "error")


async def test_models_are_listed_and_signs_of_life_given() -> None:
    """Claude Code begins with a HEAD request."""
    async with opened([]) as it:
        for url, headers, status in (
            (it.gateway.base_url(it.session), {}, 200),
            (it.gateway.address, {"x-api-key": it.session.token}, 200),
            (f"{it.gateway.address}/s/{'0' * 32}", {}, 404),
            (it.gateway.address, {}, 404),
        ):
            async with it.http.head(url, headers=headers) as response:
                assert (response.status, await response.read()) == (status, b"")
            async with it.http.get(f"{url}/v1/models", headers=headers) as response:
                told = await response.json()
                assert response.status == status
                assert [one["id"] for one in told["data"]] == ["policy"] if status == 200 else told["error"]["code"]
            of_anthropic = {**headers, "anthropic-version": "2023-06-01"}
            async with it.http.get(f"{url}/v1/models", headers=of_anthropic) as response:
                told = await response.json()
                assert status == 200 or (told["type"], told["error"]["type"]) == ("error", "not_found_error")


async def refused(it: Opened, path: str, **request: Any) -> int:
    async with it.http.post(it.gateway.address + path, **request) as response:
        return response.status


async def test_nothing_but_an_agent_is_answered() -> None:
    async with opened(["one"]) as it:
        own = f"/s/{it.session.token}/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": "Hello."}], "model": "policy"}
        assert await refused(it, own, json=body, headers={"Host": "evil.example"}) == 404
        assert await refused(it, own, json=body, headers={"Origin": "http://evil.example"}) == 404
        assert await refused(it, own, json=body, headers={"Content-Encoding": "gzip"}) == 400
        assert await refused(it, own, data=b"[" * 100_000) == 400
        assert await refused(it, own, data=b"x" * (server.MAX_BODY + 1)) == 413
        assert await refused(it, own.replace(it.session.token, it.session.token.upper()), json=body) == 404
        assert await refused(it, own + "/", json=body) == 404


async def test_two_sessions_share_nothing() -> None:
    async with opened([CALL, "one", "two"]) as it, it.gateway.session(it.session.model) as other:
        agent = it.agent("responses")
        agent.say("Hello.")
        agent.add(await agent.ask())
        foreign = WireAgent(it.http, it.gateway.base_url(other), "responses")
        foreign.history = [{"type": "item_reference", "id": agent.history[-1]["id"]}]
        with pytest.raises(WireError, match="no item of this session"):
            await foreign.ask()
        assert len(other.episode.tree) == 0


async def test_a_unix_socket_serves_as_well(tmp_path: Any) -> None:
    async with opened(["one"]) as it:
        path = tmp_path / "gateway.sock"
        async with server.Gateway(socket=path) as gateway, gateway.session(it.session.model, it.episode) as session:
            assert path.stat().st_mode & 0o077 == 0
            async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
                agent = WireAgent(http, gateway.base_url(session), "chat")
                assert await agent.run("Hello.") == "one"
        assert not path.exists()
