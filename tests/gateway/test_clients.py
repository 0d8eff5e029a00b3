"""What the clients of OpenAI and Anthropic read: streams with keep-alives, errors in them, and when to ask again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import anthropic
import anyio
import openai
import pytest

from strands_sglang.errors import EngineUnavailableError, RequestRejectedError
from strands_sglang.gateway import server
from strands_sglang.gateway.call import Fault, Refusal
from strands_sglang.gateway.server import PROTOCOLS
from strands_sglang.gateway.session import Exchange, Session
from support.gateway.agents import PATHS
from support.gateway.opened import Opened, opened
from support.scripted_engine import Reply, thought

HELLO: Any = [{"role": "user", "content": "Hello."}]
BY_NAME = {protocol.name: protocol for protocol in PROTOCOLS}


def client_of(it: Opened, protocol: str) -> Callable[..., Any]:
    """Return what asks with the client of a protocol, and returns the events of the stream, or the answer alone."""
    base_url, key = it.gateway.base_url(it.session), it.session.token
    if protocol == "messages":
        create: Any = partial(anthropic.AsyncAnthropic(base_url=base_url, api_key=key).messages.create, max_tokens=90)
    else:
        client = openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key=key)
        create = client.chat.completions.create if protocol == "chat" else client.responses.create
    body = {"model": "policy", "input" if protocol == "responses" else "messages": HELLO}

    async def ask(*, stream: bool = True, **more: Any) -> list[Any]:
        answer = await create(**body, stream=stream, **more)
        return [event async for event in answer] if stream else [answer]

    return ask


def said(protocol: str, events: list[Any]) -> str:
    """Return the text that a stream was of."""
    if protocol == "chat":
        return "".join(event.choices[0].delta.content or "" for event in events)
    if protocol == "responses":
        return str(events[-1].response.output_text)
    return "".join(getattr(event.delta, "text", "") for event in events if event.type == "content_block_delta")


@pytest.fixture
def after_beats(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Return what an engine call waits for: three times in a row, a stream had nothing else to send."""
    beats, answer = 0, Exchange.answer

    async def counted(exchange: Exchange, seconds: float | None = None) -> Any:
        nonlocal beats
        found = await answer(exchange, seconds)
        beats += found is None
        return found

    async def wait() -> None:
        begun = beats
        while beats < begun + 3:
            await asyncio.sleep(0.01)

    monkeypatch.setattr(server, "_KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(Exchange, "answer", counted)
    return wait


@pytest.mark.parametrize("protocol", list(PATHS))
async def test_a_stream_lives_until_its_answer(protocol: str, after_beats: Callable[[], Any]) -> None:
    text = thought("Hm.", "Hello yourself.")
    async with opened([Reply(text, before=after_beats)] * 3) as it:
        agent = it.agent(protocol, streams=True)
        assert await agent.run("Hello.") == "Hello yourself."
        assert said(protocol, await client_of(it, protocol)()) == "Hello yourself."
        body = {"model": "policy", "stream": True, "input" if protocol == "responses" else "messages": HELLO}
        async with it.http.post(agent.base_url + PATHS[protocol], json={**body, "max_tokens": 90}) as response:
            sent = await response.read()
        assert sent.startswith(BY_NAME[protocol].keep_alive * 2)


@pytest.mark.parametrize("protocol", list(PATHS))
async def test_an_error_in_a_stream_that_has_begun_is_told(protocol: str, after_beats: Callable[[], Any]) -> None:
    async def fail() -> None:
        await after_beats()
        raise EngineUnavailableError("the engine is gone")

    async with opened([Reply("never", before=fail)]) as it:
        if protocol == "responses":
            (event,) = await client_of(it, protocol)()
            assert (event.type, event.code, event.message) == ("error", "engine_unavailable", "the engine is gone")
        else:
            with pytest.raises((openai.APIError, anthropic.APIError), match="the engine is gone"):
                await client_of(it, protocol)()
        assert len(it.episode.tree) == 0


async def test_a_chunk_without_a_choice_is_sent_if_it_is_asked_for() -> None:
    """`chunk.choices[0]` is in many a program."""
    async with opened(["one"] * 3) as it:
        ask = client_of(it, "chat")
        for more in ({}, {"stream_options": {"include_usage": False}}):
            chunks = await ask(**more)
            assert said("chat", chunks) == "one" and all(chunk.choices for chunk in chunks)
        *chunks, last = await ask(stream_options={"include_usage": True})
        assert said("chat", chunks) == "one" and not last.choices and last.usage.completion_tokens == 2


@pytest.mark.parametrize("protocol", list(PATHS))
async def test_a_client_asks_again_if_that_may_help(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, waited, fault = 0, list[float](), Fault.INVALID

    def refuse(*_: Any) -> Any:
        nonlocal requests
        requests += 1
        raise Refusal(fault, "why")

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(Session, "ask", refuse)
    monkeypatch.setattr(anyio, "sleep", wait)
    async with opened([]) as it:
        ask = client_of(it, protocol)
        for fault in Fault:
            requests, waited = 0, []
            with pytest.raises((openai.APIStatusError, anthropic.APIStatusError), match="why"):
                await ask(stream=False)
            assert (requests, waited) == ((3, [2.0, 2.0]) if fault.passes else (1, [])), fault


async def test_a_request_that_the_engine_refuses_is_sent_once() -> None:
    async with opened([RequestRejectedError("top_k must be an integer", status=400)]) as it:
        with pytest.raises(openai.BadRequestError, match="top_k"):
            await client_of(it, "chat")(stream=False)
        assert len(it.engine.calls) == 1 and not it.session.ended.is_set()
