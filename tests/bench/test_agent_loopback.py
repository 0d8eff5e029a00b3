"""The benches' own server and engines play the conversation they promise to play."""

from __future__ import annotations

import asyncio
import json
import socket
import time
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


async def test_what_a_client_asks_besides(server: AgentLoopback) -> None:
    async with SGLangClient(server.urls[0]) as client:
        assert await client.control.health()
        assert (await client.control.model_info()).weight_version == "7"
        assert all(result.ok for result in await client.control.abort_all())
        assert list((await client.control.open_requests()).values()) == [0]


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


RIDS: tuple[Any, ...] = (None, "short", "x" * 100, 'with "quotes"', "back\\slash")


@pytest.mark.parametrize("rid", RIDS)
@pytest.mark.parametrize("spaces", [False, True])
def test_every_request_is_answered_with_json(server: AgentLoopback, rid: Any, spaces: bool) -> None:
    separators = (", ", ": ") if spaces else (",", ":")
    body = {"input_ids": [1, 2, 3], "sampling_params": {}, **({} if rid is None else {"rid": rid})}
    told = json.loads(post(server.urls[0] + "/generate", json.dumps(body, separators=separators).encode()))
    assert told["meta_info"]["prompt_tokens"] == 3
    assert told["meta_info"]["id"] == rid if rid is not None else told["meta_info"]["id"]


@pytest.mark.parametrize("written", [{"separators": (",", ":")}, {"separators": (", ", ": ")}, {"indent": 2}, {}])
@pytest.mark.parametrize(
    "others", [{}, {"rid": "a", "stream": False, "text": None}, {"sampling_params": {"stop": "]"}}]
)
def test_the_spacing_and_the_other_fields_do_not_matter(
    server: AgentLoopback, tokenizer: Any, written: dict[str, Any], others: dict[str, Any]
) -> None:
    said = script(tokenizer, 48)
    first = tokenizer.encode("Compute 1 + 1.")
    for calls in range(6):
        ids = first + [one for call in said.calls[:calls] for one in (*call.ids, *tokenizer.encode("4711"))]
        for body in ({"input_ids": ids, **others}, {**others, "input_ids": ids}):
            told = json.loads(post(server.urls[5] + "/generate", json.dumps(body, **written).encode()))
            assert told["meta_info"]["prompt_tokens"] == len(ids)
            assert (told["output_ids"] == list(said.last.ids)) == (calls == 5)


def test_a_prompt_may_be_text(server: AgentLoopback, tokenizer: Any) -> None:
    said = script(tokenizer, 48)
    text = "".join(f"<|im_start|>assistant\n{call.text}<|im_end|>" for call in said.calls[:5])
    for prompt, last in ((text, True), (text[:-200], False), ("Compute 1 + 1.", False)):
        told = json.loads(post(server.urls[5] + "/generate", json.dumps({"text": prompt}).encode()))
        assert (told["text"] == said.last.text) == last


def test_logprobs_come_only_if_they_are_asked_for(server: AgentLoopback) -> None:
    for asked in (True, False):
        body = json.dumps({"input_ids": [1, 2], "return_logprob": asked}).encode()
        told = json.loads(post(server.urls[0] + "/generate", body))
        assert ("output_token_logprobs" in told["meta_info"]) == asked
        if asked:
            assert [entry[1] for entry in told["meta_info"]["output_token_logprobs"]] == told["output_ids"]


def test_what_is_no_prompt_is_refused(server: AgentLoopback) -> None:
    for body in (b"{}", b'{"input_ids": [[1, 2], [3]]}', b'{"input_ids":[[1,2]]}'):
        with pytest.raises(urllib.error.HTTPError, match="400"):
            post(server.urls[0] + "/generate", body)


def test_a_streamed_answer_is_the_same(server: AgentLoopback) -> None:
    body = {"input_ids": [1, 2, 3], "rid": "r", "return_logprob": True}
    whole = json.loads(post(server.urls[0] + "/generate", json.dumps(body).encode()))
    events = post(server.urls[0] + "/generate", json.dumps({**body, "stream": True}).encode()).decode().split("\n\n")
    assert json.loads(events[0].removeprefix("data: ")) == whole
    assert events[1:] == ["data: [DONE]", ""]


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


def test_it_reads_headers_in_any_case_and_refuses_chunked_bodies(server: AgentLoopback) -> None:
    where = urllib.parse.urlsplit(server.urls[0])
    body = b'{"input_ids":[1]}'
    for head, status in (
        (b"content-length: %d" % len(body), b"200"),
        (b"CONTENT-LENGTH:%d" % len(body), b"200"),
        (b"Transfer-Encoding: chunked", b"411"),
    ):
        with socket.create_connection((where.hostname, where.port or 80), timeout=10) as connection:
            connection.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n" + body)
            assert connection.recv(1000).startswith(b"HTTP/1.1 " + status)


def test_a_request_may_arrive_in_pieces(server: AgentLoopback) -> None:
    where = urllib.parse.urlsplit(server.urls[0])
    body = b'{"input_ids":[1,2,3,4]}'
    request = b"POST /generate HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with socket.create_connection((where.hostname, where.port or 80), timeout=10) as connection:
        for at in range(0, len(request), 7):
            connection.sendall(request[at : at + 7])
            time.sleep(0.002)
        assert b'"prompt_tokens":4' in connection.recv(100_000)


def test_it_counts_bytes(server: AgentLoopback) -> None:
    before, body = server.used(), b'{"input_ids":[1,2,3,4]}'
    post(server.urls[0] + "/generate", body)
    after = server.used()
    assert after["received"] - before["received"] == len(body) and after["sent"] > before["sent"]
