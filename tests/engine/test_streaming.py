"""Streaming: the same tokens, however the events arrive, break or end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strands_sglang import Generation, SGLangClient
from strands_sglang.engine import AbortPolicy, FinishReason, VersionSpan
from strands_sglang.errors import (
    ContextOverflowError,
    CountMismatchError,
    DeadlineExceededError,
    EngineUnavailableError,
    RequestRejectedError,
    StreamInterruptedError,
)
from support.scripted import Wire, answer, in_turn, refuses, until

QUICK: dict[str, Any] = {"retry_delay": 0.001, "max_retry_delay": 0.002}
BUDGET = {"max_new_tokens": 10}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def event(payload: Any) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def events(
    prompt: int, ids: list[int], finish: dict[str, Any] | None, *, incremental: bool = False, version: str = "v1"
) -> list[bytes]:
    """Return what the engine streams for `ids`, one token an event."""
    made = []
    for count in range(1, len(ids) + 1):
        part = answer(prompt, ids[:count], drop=("weight_versions",), finish_reason=None, weight_version=version)
        if count == len(ids) and finish is not None:
            spans = [{"version": version, "start": 0, "end": count}]
            part = answer(prompt, ids, finish_reason=finish, weight_versions=spans)
        if incremental:
            part["output_ids"] = part["output_ids"][-1:]
            part["meta_info"]["output_token_logprobs"] = part["meta_info"]["output_token_logprobs"][-1:]
        made.append(event(part))
    if finish is not None:
        if not ids:
            made.append(event(answer(prompt, [], finish_reason=finish)))
        made.append(b"data: [DONE]\n\n")
    return made


def sends(pieces: Iterable[bytes]) -> Callable[[Wire], Any]:
    async def script(wire: Wire) -> None:
        await wire.send(HEAD)
        for piece in pieces:
            await wire.send(piece)
        await wire.close()

    return script


async def stalls(wire: Wire) -> None:
    """Send one token, and nothing more."""
    await wire.send(HEAD + events(1, [1], None)[0])
    await asyncio.sleep(60)


def cut(prompt: int, ids: list[int], version: str = "v1") -> Callable[[Wire], Any]:
    return sends(events(prompt, ids, None, version=version))


STOP = {"type": "stop", "matched": 3}


async def collect(client: SGLangClient, prompt: list[int] | None = None, **kwargs: Any) -> tuple[list[int], Generation]:
    ids: list[int] = []
    last: Generation | None = None
    params = kwargs.pop("params", BUDGET)
    async for chunk in client.stream(prompt or [9], params, **kwargs):
        assert last is None and len(chunk.token_ids) == len(chunk.logprobs)
        ids += chunk.token_ids
        last = chunk.generation
    assert last is not None
    return ids, last


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_events_split_anywhere_give_the_same_tokens(data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 9999), min_size=1, max_size=6))
    wire = b"".join(events(1, ids, STOP, incremental=data.draw(st.booleans())))
    places = sorted(data.draw(st.sets(st.integers(1, len(wire) - 1), max_size=8)))
    pieces = [wire[a:b] for a, b in zip([0, *places], [*places, len(wire)], strict=True)]

    async def main() -> tuple[list[int], Generation]:
        async with SGLangClient(server.url) as client:
            return await collect(client)

    with in_turn(sends(pieces)) as server:
        streamed, generation = asyncio.run(main())
    assert streamed == list(generation.token_ids) == ids
    assert list(generation.logprobs) == [-0.5 * i for i in range(len(ids))]
    assert generation.finish_reason is FinishReason.STOP


async def test_broken_stream_continues_after_delivered_tokens() -> None:
    scripts = (cut(1, [1, 2], "a"), cut(3, [3], "b"), sends(events(4, [4, 5], STOP, version="c")))
    with in_turn(*scripts) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            streamed, generation = await collect(client)
    assert streamed == list(generation.token_ids) == [1, 2, 3, 4, 5]
    assert generation.versions == (VersionSpan("a", 0, 2), VersionSpan("b", 2, 3), VersionSpan("c", 3, 5))
    assert [request.json()["input_ids"] for request in server.generates()] == [[9], [9, 1, 2], [9, 1, 2, 3]]


async def test_aborted_stream_continues() -> None:
    abort = {"type": "abort", "message": "Aborted"}
    with in_turn(sends(events(1, [1, 2], abort)), sends(events(3, [3], STOP))) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            streamed, generation = await collect(client)
            assert streamed == list(generation.token_ids) == [1, 2, 3]
    with in_turn(sends(events(1, [1, 2], abort))) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            streamed, generation = await collect(client, on_abort=AbortPolicy.RETURN)
            assert streamed == [1, 2] and generation.finish_reason is FinishReason.ABORT


async def test_tokens_keep_the_version_they_came_with() -> None:
    before = event(answer(1, [1], drop=("weight_versions",), finish_reason=None, weight_version="a"))
    after = event(answer(1, [1, 2], drop=("weight_versions",), finish_reason=None, weight_version="b"))

    async def script(wire: Wire) -> None:
        await wire.send(HEAD + before)
        await asyncio.sleep(0.05)  # so that the two are read one by one
        await wire.send(after)
        await wire.close()

    with in_turn(script, sends(events(3, [3], STOP, version="b"))) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            _, generation = await collect(client)
    assert generation.versions == (VersionSpan("a", 0, 1), VersionSpan("b", 1, 3))


async def test_stream_raises_if_continuation_is_not_exact() -> None:
    with in_turn(cut(1, [1, 2])) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            with pytest.raises(StreamInterruptedError, match="cannot be continued exactly"):
                await collect(client, params={"max_new_tokens": 9, "stop": ["x"]})


async def test_stream_that_breaks_before_first_token_restarts() -> None:
    with in_turn(refuses(503), sends([b"data: {"]), sends([]), sends(events(1, [1], STOP))) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            streamed, generation = await collect(client, params={"max_new_tokens": 9, "stop": ["x"]})
    assert streamed == [1] and generation.requests == 4


async def test_errors_inside_a_stream() -> None:
    words = "The input (9 tokens) is longer than the model's context length (8 tokens)."
    error = {"error": {"message": words, "code": 400}}
    with in_turn(sends([event(error), b"data: [DONE]\n\n"])) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            with pytest.raises(ContextOverflowError):
                await collect(client)
        assert len(server.generates()) == 1
    fault = {"type": "abort", "message": "oom", "status_code": 503}
    with in_turn(sends([event(answer(1, [], finish_reason=fault))]), sends(events(1, [1], STOP))) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            assert (await collect(client))[0] == [1]


@pytest.mark.parametrize("params", [BUDGET, {"max_new_tokens": 9, "stop": ["x"]}])
async def test_deadline_during_stream(params: dict[str, Any]) -> None:
    with in_turn(stalls) as server:
        async with SGLangClient(server.url, max_retries=0, retry_delay=0.0) as client:
            with pytest.raises(DeadlineExceededError):
                await collect(client, params=params, deadline=0.2)
        assert len(server.generates()) == 1


async def test_deadline_applies_without_waiting() -> None:
    first, *rest = events(1, list(range(40)), STOP)

    async def script(wire: Wire) -> None:
        await wire.send(HEAD + first)
        await asyncio.sleep(0.05)  # the rest arrives while the consumer is busy
        await wire.send(b"".join(rest))
        await wire.close()

    with in_turn(script) as server:
        async with SGLangClient(server.url) as client:
            with pytest.raises(DeadlineExceededError):
                async for _ in client.stream([9], BUDGET, deadline=0.1):
                    time.sleep(0.15)


async def test_engine_that_only_aborts_streams_fails() -> None:
    abort = {"type": "abort", "message": "Aborted"}
    with in_turn(sends(events(1, [], abort))) as server:
        async with SGLangClient(server.url, max_retries=2, **QUICK) as client:
            with pytest.raises(EngineUnavailableError, match="aborted"):
                await collect(client)
        assert len(server.generates()) == 3


async def test_stream_that_withdraws_tokens_is_refused() -> None:
    async def script(wire: Wire) -> None:
        first, second, *_ = events(1, [1, 2, 3], None)
        await wire.send(HEAD + second)
        await asyncio.sleep(0.05)
        await wire.send(first)
        await wire.close()

    with in_turn(script) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            with pytest.raises(CountMismatchError, match="withdrew tokens"):
                await collect(client)


@pytest.mark.parametrize("code", ["bad_request", None])
async def test_stream_error_without_status(code: Any) -> None:
    for words, kind in (
        ("The input (9 tokens) is longer than the model's context length (8 tokens).", ContextOverflowError),
        ("no", RequestRejectedError),
    ):
        with in_turn(sends([event({"error": {"message": words, "code": code}})])) as server:
            async with SGLangClient(server.url, **QUICK) as client:
                with pytest.raises(kind) as caught:
                    await collect(client)
            assert caught.value.status is None and len(server.generates()) == 1


async def test_abort_in_queue_of_incremental_stream() -> None:
    cut_short = answer(1, [1, 2, 3], finish_reason={"type": "abort", "message": "Aborted"})
    cut_short["output_ids"] = [3]  # as the engine sends it: the last id, and all logprobs
    wire = [*events(1, [1, 2, 3], None, incremental=True), event(cut_short)]
    with in_turn(sends([b"".join(wire)]), sends(events(4, [4], STOP))) as server:
        async with SGLangClient(server.url, **QUICK) as client:
            streamed, generation = await collect(client)
    assert streamed == list(generation.token_ids) == [1, 2, 3, 4]


async def test_stream_retries_are_limited() -> None:
    with in_turn(sends([])) as server:
        async with SGLangClient(server.url, max_retries=2, **QUICK) as client:
            with pytest.raises(EngineUnavailableError):
                await collect(client)
        assert len(server.generates()) == 3


async def test_timeout_applies_to_each_attempt_of_stream() -> None:
    async def silent(wire: Wire) -> None:
        await asyncio.sleep(60)

    with in_turn(silent, stalls, sends(events(2, [2], STOP))) as server:
        async with SGLangClient(server.url, timeout=0.4, **QUICK) as client:
            streamed, generation = await collect(client)
    assert streamed == list(generation.token_ids) == [1, 2] and generation.requests == 3


async def test_leaving_stream_early_aborts() -> None:
    with in_turn(stalls) as server:
        async with SGLangClient(server.url) as client:
            chunks = client.stream([9], BUDGET)
            assert list((await chunks.__anext__()).token_ids) == [1]
            await chunks.aclose()
            await until(lambda: "/abort_request" in server.paths())


async def test_deadline_does_not_interrupt_callers_code() -> None:
    with in_turn(stalls) as server:
        async with SGLangClient(server.url) as client:
            chunks = client.stream([9], BUDGET, deadline=0.2)
            await chunks.__anext__()
            await asyncio.sleep(0.3)  # past the deadline, in code that is not ours
            started = time.monotonic()
            with pytest.raises(DeadlineExceededError):
                await chunks.__anext__()
            assert time.monotonic() - started < 5
