"""The benches' own server and engines play the conversation they promise to play."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from agent_script import script, tokenizer_from
from loopback_process import AgentLoopback
from played_agent import TOKENIZER, ScriptedEngine, ScriptedModel, build, questions
from strands_sglang import SGLangClient
from strands_sglang.runs import rollout

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
        assert episode.end_reason.complete and episode.metrics.turns == turns + 1
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


def post(url: str, body: bytes, **headers: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as answer:
        content: bytes = answer.read()
    return content


def test_a_prompt_may_be_text(server: AgentLoopback, tokenizer: Any) -> None:
    said = script(tokenizer, 48)
    text = "".join(f"<|im_start|>assistant\n{call.text}<|im_end|>" for call in said.calls[:5])
    for prompt, last in ((text, True), (text[:-200], False), ("Compute 1 + 1.", False)):
        told = json.loads(post(server.urls[5] + "/generate", json.dumps({"text": prompt}).encode()))
        assert (told["text"] == said.last.text) == last


def chat(calls: int, **more: Any) -> bytes:
    messages: list[dict[str, Any]] = [{"role": "user", "content": 'She said "role": "tool" to me.'}]
    for number in range(calls):
        messages += [
            {"role": "assistant", "content": "x"},
            {"role": "tool", "content": "1", "tool_call_id": str(number)},
        ]
    return json.dumps({"model": "any", "messages": messages, **more}).encode()


def test_chat_completions_make_the_same_turns(server: AgentLoopback, tokenizer: Any) -> None:
    said = script(tokenizer, 48)
    url = server.urls[5] + "/v1/chat/completions"
    for calls in range(6):
        told = json.loads(post(url, chat(calls)))
        choice = told["choices"][0]
        assert told["usage"]["completion_tokens"] == 48
        if calls == 5:
            assert choice["finish_reason"] == "stop" and choice["message"]["content"] == said.last.text
        else:
            call = choice["message"]["tool_calls"][0]
            assert choice["finish_reason"] == "tool_calls" and call["id"] == f"call_{calls}"
            assert json.loads(call["function"]["arguments"])["expression"] in {one.expression for one in said.calls}


def test_streamed_chat_completions_add_up_to_the_whole(server: AgentLoopback) -> None:
    url = server.urls[5] + "/v1/chat/completions"
    message = json.loads(post(url, chat(1, stream=False)))["choices"][0]["message"]
    events = post(url, chat(1, stream=True)).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas[0]["role"] == "assistant" and len(deltas[0]["content"]) > 20
    call = deltas[1]["tool_calls"][0]
    assert call["function"]["name"] == message["tool_calls"][0]["function"]["name"] and call["id"] == "call_1"
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"]["completion_tokens"] == 48


def test_it_counts_bytes(server: AgentLoopback) -> None:
    before, body = server.used(), b'{"input_ids":[1,2,3,4]}'
    post(server.urls[0] + "/generate", body)
    after = server.used()
    assert after["received"] - before["received"] == len(body) and after["sent"] > before["sent"]
