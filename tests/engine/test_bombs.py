"""Answers that are small on the wire and large in memory, or slow to read, are refused."""

from __future__ import annotations

import asyncio
import gzip
import time

import orjson
import pytest

from strands_sglang import SGLangClient
from strands_sglang.engine import response, streaming
from strands_sglang.errors import MalformedResponseError, RequestRejectedError, StrandsSGLangError
from support.scripted import Wire, encoded, in_turn, says

BUDGET = {"max_new_tokens": 4}


async def ask(client: SGLangClient, streaming: bool) -> None:
    if streaming:
        _ = [chunk async for chunk in client.stream([1], BUDGET)]
    else:
        await client.generate([1], BUDGET)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("status", [200, 400])
async def test_compressed_body_is_not_decompressed(status: int, streaming: bool) -> None:
    bomb = gzip.compress(encoded(1) + b" " * 2**24)
    with in_turn(says(status, bomb, **{"Content-Encoding": "gzip"})) as server:
        async with SGLangClient(server.url, max_retries=0) as client:
            with pytest.raises(MalformedResponseError, match="compressed"):
                await ask(client, streaming)
    assert server.generates()[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("streaming", [False, True])
async def test_only_beginning_of_error_body_is_read(streaming: bool) -> None:
    with in_turn(says(400, b"no " * 2**22)) as server:
        async with SGLangClient(server.url, max_retries=0) as client:
            with pytest.raises(RequestRejectedError) as caught:
                await ask(client, streaming)
    assert len(caught.value.server_message) <= 2000


@pytest.mark.parametrize("value", [b"[],", b'{"":0},', b"0,"])
def test_too_many_values_are_refused_before_they_are_decoded(value: bytes) -> None:
    body = b'{"output_ids":[' + value * 2**22 + b"0]}"
    began = time.process_time()
    with pytest.raises(MalformedResponseError, match="at most 4194304 values"):
        response.loads(body)
    assert time.process_time() - began < 3


def test_text_is_no_value() -> None:
    assert response.loads(b'{"text":"%s"}' % (b"[,{:" * 2**21))["text"].startswith("[,{:")


@pytest.mark.parametrize("name", ["completion_tokens", "prompt_tokens"])
@pytest.mark.parametrize("value", [b"true", b"-1", b"1.0", b'"1"'])
def test_a_count_must_be_a_number(name: str, value: bytes) -> None:
    answer = orjson.loads(encoded(1))
    answer["meta_info"][name] = orjson.loads(value)
    with pytest.raises(MalformedResponseError, match=f"{name} must be a number of tokens, got"):
        response.parse(response.loads(orjson.dumps(answer)), 1)


def test_deeply_nested_body_is_refused_with_message() -> None:
    deep = b"[" * 1000 + b"]" * 1000
    bodies = [
        deep,
        b'{"meta_info":' + deep + b"}",
        encoded(1).replace(b'"text":"text"', b'"text":' + deep),
        encoded(1).replace(b'{"type":"stop","matched":13}', deep),
        encoded(1).replace(b'"matched":13', b'"matched":' + deep),
        encoded(1).replace(b'"type":"stop"', b'"type":' + deep),
        encoded(1).replace(b'"weight_versions":[', b'"weight_versions":[' + deep + b","),
        encoded(1).replace(b'"version":"v1"', b'"version":' + deep),
        encoded(1).replace(b'"type":"stop"', b'"type":"abort","status_code":400,"message":' + deep),
    ]
    for body in bodies:
        try:
            response.parse(response.loads(body), 1)
        except (MalformedResponseError, orjson.JSONDecodeError, response.RefusedInside):
            pass


async def streamed(pieces: list[bytes]) -> list[list[bytes]]:
    class Content:
        async def iter_any(self):  # type: ignore[no-untyped-def]
            for piece in pieces:
                yield piece

    return [arrived async for arrived in streaming.payloads(Content())]  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\n\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_events_are_split_at_any_chunk_boundary(end: str, size: int) -> None:
    wire = (
        "".join(f"data: {{{number}}}{end}" for number in range(20)).encode() + f": words{end}data: [DONE]{end}".encode()
    )
    found = await streamed([wire[at : at + size] for at in range(0, len(wire), size)])
    assert [event for arrived in found for event in arrived] == [f"{{{number}}}".encode() for number in range(20)]


@pytest.mark.soak
async def test_unterminated_event_takes_linear_time() -> None:
    piece, times = b"x" * 2**16, []
    for count in (100, 400):
        began = time.process_time()
        assert await streamed([b"data: ", *[piece] * count]) == []
        times.append(time.process_time() - began)
    assert times[1] < 10 * times[0] + 0.05


async def test_unterminated_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "MAX_EVENT_BYTES", 2**20)

    async def endless(wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ")
        while True:
            await wire.send(b"x" * 2**16)

    with in_turn(endless) as server:
        async with SGLangClient(server.url, max_retries=0) as client:
            with pytest.raises(StrandsSGLangError, match="at most 1048576 bytes"):
                await asyncio.wait_for(ask(client, streaming=True), 20)
