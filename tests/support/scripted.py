"""A scripted HTTP server, for faults the real engine does not produce on demand.

A handler sees the head of each request before its body is read and decides every byte of the answer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from support.loop_thread import LoopThread


@dataclass
class Received:
    """One request as the server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    whole: bool = False

    def json(self) -> Any:
        return orjson.loads(self.body)


class Wire:
    """The connection of one request, from the server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: Received) -> None:
        self._reader = reader
        self._writer = writer
        self.received = received
        self.ended = False

    async def read_body(self) -> Received:
        length = int(self.received.headers.get("content-length", "0"))
        self.received.body = await self._reader.readexactly(length)
        self.received.whole = True
        return self.received

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def reply(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        await self.send(head(len(body), status, headers) + body)

    async def reset(self) -> None:
        """Cut the connection hard: the other side sees a reset, not an end."""
        self.ended = True
        if self._writer.transport.get_write_buffer_size():
            await self._writer.drain()
        reset(self._writer)

    async def close(self) -> None:
        """Cut the connection politely: the other side sees an end."""
        self.ended = True
        self._writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def head(length: int, status: int = 200, headers: dict[str, str] | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", "Content-Type: application/json", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


Handler = Callable[[Wire], Awaitable[None]]


@dataclass
class ScriptedServer(LoopThread):
    """Serves `handler` on a loopback port while in a `with` block."""

    handler: Handler
    reset_on_accept: Callable[[int], bool] = lambda number: False
    received: list[Received] = field(default_factory=list)
    connections: int = 0

    def paths(self) -> list[str]:
        return [request.path for request in self.received if request.whole]

    def generates(self) -> list[Received]:
        return [request for request in self.received if request.path.endswith("/generate")]

    async def _serve(self, started: threading.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, limit=2**26, backlog=4096)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await self._stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.reset_on_accept(self.connections):
            reset(writer)
            return
        try:
            while True:
                raw = await reader.readuntil(b"\r\n\r\n")
                first, *lines = raw.decode("latin-1").split("\r\n")
                method, path, _ = first.split(" ", 2)
                headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
                wire = Wire(reader, writer, Received(method, path, headers))
                self.received.append(wire.received)
                await self.handler(wire)
                if wire.ended:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


def answer(
    sent: Received | int,
    ids: list[int] | None = None,
    logprobs: list[float] | None = None,
    *,
    drop: tuple[str, ...] = (),
    **meta: Any,
) -> dict[str, Any]:
    """Return an answer like SGLang's. Keyword arguments replace entries of meta_info, `drop` takes some away."""
    ids = [11, 12, 13] if ids is None else ids
    logprobs = [-0.5 * i for i in range(len(ids))] if logprobs is None else logprobs
    prompt = sent if isinstance(sent, int) else len(sent.json()["input_ids"])
    info: dict[str, Any] = {
        "id": "x" if isinstance(sent, int) else sent.json()["rid"],
        "finish_reason": {"type": "stop", "matched": ids[-1] if ids else None},
        "prompt_tokens": prompt,
        "weight_version": "v1",
        "input_token_logprobs": [],
        "output_token_logprobs": [[lp, i, None] for lp, i in zip(logprobs, ids, strict=True)],
        "output_token_logprobs_length": len(ids),
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "weight_versions": [{"version": "v1", "start": 0, "end": len(ids)}],
        "e2e_latency": 0.01,
    }
    info.update(meta)
    for key in drop:
        info.pop(key, None)
    return {"text": "text", "output_ids": ids, "meta_info": info}


def encoded(*args: Any, **kwargs: Any) -> bytes:
    return orjson.dumps(answer(*args, **kwargs))


async def serve_rest(wire: Wire) -> bool:
    """Answer what is not `/generate` as a single server would; return whether it was answered."""
    if wire.received.path.endswith("/generate"):
        return False
    await wire.read_body()
    if wire.received.path.endswith("/abort_request"):
        await wire.reply(b"")
    else:
        await wire.reply(b'{"detail":"Not Found"}', 404)
    return True


def scripted(reply: Callable[[Received], Awaitable[bytes] | bytes]) -> ScriptedServer:
    """Return a server that answers each `/generate` with what `reply` gives."""

    async def handle(wire: Wire) -> None:
        if await serve_rest(wire):
            return
        body = reply(await wire.read_body())
        await wire.reply(body if isinstance(body, bytes) else await body)

    return ScriptedServer(handle)


Reply = Callable[[Wire], Awaitable[None]]


def in_turn(*replies: Reply) -> ScriptedServer:
    """Return a server whose n-th `/generate` is answered by the n-th reply, the last one again and again."""
    number = 0

    async def handle(wire: Wire) -> None:
        nonlocal number
        if await serve_rest(wire):
            return
        reply = replies[min(number, len(replies) - 1)]
        number += 1
        await wire.read_body()
        await reply(wire)

    return ScriptedServer(handle)


def says(status: int, body: bytes, **headers: str) -> Reply:
    """Return a reply with this body."""
    return lambda wire: wire.reply(body, status, headers)


def refuses(status: int, words: str = "words", **headers: str) -> Reply:
    """Return a reply with SGLang's error message."""
    return says(status, orjson.dumps({"error": {"message": words}}), **headers)


def answers(*args: Any, **meta: Any) -> Reply:
    """Return a reply with an answer like SGLang's (see `answer`)."""
    return lambda wire: wire.reply(encoded(wire.received, *args, **meta))


def always(status: int, body: bytes = b"", **headers: str) -> ScriptedServer:
    """Return a server that says the same to every request, whatever its path."""

    async def handle(wire: Wire) -> None:
        await wire.read_body()
        await wire.reply(body, status, headers)

    return ScriptedServer(handle)


async def until(condition: Callable[[], bool], seconds: float = 3.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)
