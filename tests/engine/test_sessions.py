"""Sessions of the prefix cache: one for each episode, closed after its last request, on the servers it was used on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from strands_sglang import SGLangClient
from strands_sglang.engine import Capability, can, has_sessions
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import RunOptions, rollout
from support.rollout_agent import TOKENIZER, build, tasks
from support.scripted import ScriptedServer, Wire

REPLY = [5, 6]


class Server:
    """Answers with two tokens, and keeps the order of what it was sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.workers: list[str] = []
        """It is a router of these workers, which forwards every field, and has no `/close_session`."""

    async def handle(self, wire: Wire) -> None:
        path = wire.received.path
        body = (await wire.read_body()).json() if wire.received.method == "POST" else {}
        if path == "/workers" and self.workers:
            await wire.reply(orjson.dumps({"workers": [{"url": url, "is_healthy": True} for url in self.workers]}))
            return
        if path == "/close_session" and not self.workers:
            self.seen.append(("close", body["session_id"]))
            await wire.reply(b"")
            return
        if path != "/generate":
            await wire.reply(b"", 404)
            return
        self.seen.append(("generate", body.get("session_id")))
        meta = {"id": body["rid"], "finish_reason": {"type": "stop"}, "prompt_tokens": len(body["input_ids"])}
        meta |= {"output_token_logprobs": [[-0.5, id, None] for id in REPLY], "completion_tokens": 2}
        answer = {"output_ids": REPLY, "text": "x", "meta_info": meta}
        if "return_prompt_token_ids" in body:
            answer["prompt_token_ids"] = body["input_ids"]
        await wire.reply(orjson.dumps(answer))


async def test_session_is_sent_and_closed() -> None:
    scripted = Server()
    with ScriptedServer(scripted.handle) as server:
        async with SGLangClient(server.url, session_cache=True) as client:
            assert has_sessions(client) and can(client, Capability.CONTROL)
            for _ in range(2):
                await client.generate([1, 2], {"max_new_tokens": 2}, session="one")
            await client.close_session("one")
            await client.close_session("never-opened")
            await client.generate([1, 2], {"max_new_tokens": 2})
    assert scripted.seen == [("generate", "one"), ("generate", "one"), ("close", "one"), ("generate", None)]


async def test_session_behind_a_router_that_forwards_it_is_closed_on_every_worker() -> None:
    router, workers = Server(), (Server(), Server())
    with ScriptedServer(workers[0].handle) as one, ScriptedServer(workers[1].handle) as other:
        router.workers = [one.url, other.url]
        with ScriptedServer(router.handle) as server:
            async with SGLangClient(server.url, session_cache=True) as client:
                await client.generate([1, 2], {"max_new_tokens": 2}, session="one")
                await client.close_session("one")
    assert ("generate", "one") in router.seen
    assert [worker.seen for worker in workers] == [[("close", "one")]] * 2


async def test_server_that_is_gone_does_not_fail_the_end_of_an_episode() -> None:
    with ScriptedServer(Server().handle) as server:
        async with SGLangClient(server.url, session_cache=True) as client:
            await client.generate([1, 2], {"max_new_tokens": 2}, session="one")
            client._sessions["one"] = {next(iter(client._sessions["one"])).with_port(9)}
            await client.close_session("one")


async def test_every_episode_has_its_own_session(tmp_path: Path) -> None:
    scripted = Server()
    with ScriptedServer(scripted.handle) as server:
        async with SGLangClient(server.url, session_cache=True) as client:
            await rollout(
                build,
                tasks(2, seed=1),
                tokenizer=TOKENIZER,
                client=client,
                samples_per_task=2,
                directory=tmp_path / "run",
                options=RunOptions(preflight=False),
            )
            assert not client._sessions
    sessions = [name for kind, name in scripted.seen if kind == "close"]
    assert len(sessions) == len(set(sessions)) == 4
    for session in sessions:
        assert [kind for kind, name in scripted.seen if name == session] == ["generate", "close"]


def test_off_by_default() -> None:
    client = SGLangClient()
    assert not has_sessions(client) and b"session_id" not in GenerateRequest([1]).body(0)
    assert GenerateRequest([1], session="s").asks_for_more, "sent past a router that drops fields"
    with pytest.raises(ConfigurationError, match="extra must not contain session_id"):
        GenerateRequest([1], session="s", extra={"session_id": "t"})
