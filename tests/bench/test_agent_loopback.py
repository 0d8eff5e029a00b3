"""The benches' own server and engines play the conversation they promise to play."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from agent_script import script, tokenizer_from
from loopback_process import AgentLoopback
from played_agent import TOKENIZER, ScriptedEngine, ScriptedModel, build, questions
from strands_sglang import SGLangClient
from strands_sglang.rollout import rollout

TURNS = (0, 1, 5)
"""Turns with a call."""


@pytest.fixture(scope="module")
def server() -> Iterator[AgentLoopback]:
    with AgentLoopback(TOKENIZER, list(TURNS), tokens=48) as server:
        yield server


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenizer_from(TOKENIZER)


@pytest.mark.parametrize("turns", TURNS)
async def test_every_episode_makes_its_turns(server: AgentLoopback, tokenizer: Any, turns: int) -> None:
    async with SGLangClient(server.urls[turns]) as client:
        run = await rollout(build, questions(7), samples_per_task=2, tokenizer=tokenizer, client=client, concurrency=5)
    assert len(run) == 14
    for episode in run:
        assert episode.ended.complete and episode.metrics.turns == turns + 1
        assert episode.metrics.tool_calls == turns and episode.metrics.tool_errors == 0
        assert {len(turn.sampled) for turn in episode.tree} == {48}
        assert episode.metrics.versions == ["7"]


async def test_within_the_process_it_is_the_same_conversation(tokenizer: Any) -> None:
    said = script(tokenizer, 48)
    run = await rollout(build, questions(3), tokenizer=tokenizer, client=ScriptedEngine(said, 5))
    agent = build(None, ScriptedModel(said, 5))
    await agent.invoke_async("Compute 1 + 1.")
    for episode in run:
        assert episode.metrics.turns == 6 and len(episode.messages) == len(agent.messages) == 12
        names = [[list(block) for block in message["content"]] for message in episode.messages]
        assert names == [[list(block) for block in message["content"]] for message in agent.messages]


async def test_a_request_that_is_sent_again_gets_the_same_answer(server: AgentLoopback, tokenizer: Any) -> None:
    said = script(tokenizer, 48)
    first = tokenizer.encode("Compute 1 + 1.")
    async with SGLangClient(server.urls[1]) as client:

        async def ask(ids: list[int], key: str) -> list[int]:
            return (await client.generate(ids, {"max_new_tokens": 64}, routing_key=key)).token_ids.tolist()

        call = await ask(first, "a")
        assert call == await ask(first, "a")
        behind = [*first, *call, *tokenizer.encode("4711")]
        answer = await ask(behind, "a")
        assert answer == list(said.last.ids)
        assert answer == await ask(behind, "a") == await ask(behind, "never seen before")
        # Another conversation with the same key, and longer: nothing of the one before counts.
        assert await ask(tokenizer.encode("word " * 200), "a") != answer


async def test_what_a_client_asks_besides(server: AgentLoopback) -> None:
    async with SGLangClient(server.urls[0]) as client:
        assert await client.control.health()
        assert (await client.control.model_info()).weight_version == "7"
        assert all(result.ok for result in await client.control.abort_all())
        assert list((await client.control.running_requests()).values()) == [0]


async def test_it_waits_without_working_and_tells_what_it_used() -> None:
    with AgentLoopback(TOKENIZER, [0], latency=0.5) as server:
        before = server.used()
        async with SGLangClient(server.urls[0], max_connections=300) as client:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await asyncio.gather(*(client.generate([1, 2, 3], {"max_new_tokens": 64}) for _ in range(300)))
            assert 0.5 <= loop.time() - began < 10
        after = server.used()
        assert after["requests"] - before["requests"] == 300 == after["most_under_way"]
        assert 0 < after["cpu_seconds"] - before["cpu_seconds"] < 2
        with urllib.request.urlopen(server.urls[0] + "/v1/loads", timeout=10) as answer:
            assert json.load(answer)["loads"][0]["num_running_reqs"] == 0


@pytest.mark.parametrize("more", [{}, {"rid": "short"}, {"rid": "x" * 100}, {"rid": 'with "quotes"'}, {"rid": None}])
@pytest.mark.parametrize("spaces", [False, True])
def test_every_request_is_answered_with_json(server: AgentLoopback, more: dict[str, Any], spaces: bool) -> None:
    separators = (", ", ": ") if spaces else (",", ":")
    body = {"input_ids": [1, 2, 3], "sampling_params": {}, **more}
    request = urllib.request.Request(server.urls[0] + "/generate", json.dumps(body, separators=separators).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        told = json.load(answer)["meta_info"]["id"]
    assert told == more.get("rid") if str(more.get("rid") or "'").isalnum() else told
