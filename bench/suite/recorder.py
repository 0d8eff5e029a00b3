"""Records the exact requests of a run to an engine, finds out which one continues which, and sends them again.

The recorder is a TCP proxy: it passes bytes on unchanged in both directions and keeps those of `/generate`. The replay
is a client that only posts prepared bytes: no JSON, no tokens, no records. It sends the requests of a conversation one
after the other, each after the previous one is answered, and all conversations at the same time.

Invariant: the bytes that are sent again are the bytes that were recorded, apart from the `Host` header.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
_LIMIT = 2**26
"""Longest message in bytes."""


@dataclass(frozen=True)
class Exchange:
    """One request to `/generate` and its response."""

    request: bytes
    """The whole HTTP request."""
    response: dict[str, Any]
    began: float

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the request."""
        body: dict[str, Any] = json.loads(self.request.partition(b"\r\n\r\n")[2])
        return body


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """Read one HTTP message with a Content-Length; empty bytes: the connection has ended."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    length = _LENGTH.search(head)
    return head + (await reader.readexactly(int(length[1])) if length else b"")


class Recorder:
    """A proxy in front of an engine while in a `with` block; it runs in a thread of its own."""

    def __init__(self, url: str) -> None:
        self._upstream = urlsplit(url)
        self.exchanges: list[Exchange] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Recorder:
        self._thread.start()
        self._started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0, limit=_LIMIT, backlog=4096)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        await self._stop.wait()
        server.close()
        for writer in list(self._open):  # their readers end, and with them the tasks that wait for them
            writer.close()
        while self._open:
            await asyncio.sleep(0.01)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while request := await read_message(reader):
                began, response = time.monotonic(), b""
                while not response:
                    fresh = upstream is None
                    if upstream is None:
                        where = self._upstream
                        upstream = await asyncio.open_connection(where.hostname, where.port, limit=_LIMIT)
                        self._open.add(upstream[1])
                    upstream[1].write(request)
                    response = await read_message(upstream[0])
                    if not response:  # the engine closes idle connections; on a new one, it is an error
                        self._drop(upstream[1])
                        upstream = None
                        if fresh:
                            return
                writer.write(response)
                if request.startswith(b"POST /generate ") and response.startswith(b"HTTP/1.1 200"):
                    body = json.loads(response.partition(b"\r\n\r\n")[2])
                    self.exchanges.append(Exchange(request, body, began))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._drop(writer)
            if upstream is not None:
                self._drop(upstream[1])

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        self._open.discard(writer)


def conversations(exchanges: list[Exchange]) -> list[list[Exchange]]:
    """Return the exchanges of each conversation in order: a prompt continues the one whose tokens it begins with."""
    chains: list[list[Exchange]] = []
    ends: list[list[int]] = []
    for exchange in sorted(exchanges, key=lambda exchange: exchange.began):
        prompt = exchange.body["input_ids"]
        # Of several that fit, the longest is the conversation; siblings with the same tokens are interchangeable.
        fitting = [at for at, end in enumerate(ends) if len(end) < len(prompt) and prompt[: len(end)] == end]
        whole = prompt + exchange.response["output_ids"]
        if fitting:
            at = max(fitting, key=lambda at: len(ends[at]))
            chains[at].append(exchange)
            ends[at] = whole
        else:
            chains.append([exchange])
            ends.append(whole)
    return chains


def cached_share(chains: list[list[Exchange]]) -> tuple[float, float]:
    """Return two shares of the engine's prefix cache.

    Returns:
        On turns after the first: cached prompt tokens over the possible ones, which are all tokens of the turn before
        but its last, for which the engine has computed no state. On first turns: the same over the prompt without its
        last token, of all conversations but the first with the same prompt.
    """
    cached = possible = shared = shareable = 0
    seen: set[tuple[int, ...]] = set()
    for chain in sorted(chains, key=lambda chain: chain[0].began):
        prompt = tuple(chain[0].body["input_ids"])
        if prompt in seen:
            shared += chain[0].response["meta_info"]["cached_tokens"]
            shareable += len(prompt) - 1
        seen.add(prompt)
        for before, after in pairwise(chain):
            most = len(before.body["input_ids"]) + len(before.response["output_ids"]) - 1
            cached += min(most, after.response["meta_info"]["cached_tokens"])
            possible += most
    return cached / max(1, possible), shared / max(1, shareable)


async def replay(url: str, chains: list[list[bytes]]) -> tuple[float, int]:
    """Send prepared requests again, all conversations at the same time; return the seconds and the sampled tokens."""
    where = urlsplit(url)

    async def send(requests: list[bytes]) -> list[bytes]:
        reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=_LIMIT)
        answers = []
        for request in requests:
            writer.write(request)
            answers.append(await read_message(reader))
            if not answers[-1].startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"the engine must answer 200, got {answers[-1][:200]!r}")
        writer.close()
        return answers

    began = time.perf_counter()
    answered = await asyncio.gather(*(send(requests) for requests in chains))
    seconds = time.perf_counter() - began
    bodies = [json.loads(answer.partition(b"\r\n\r\n")[2]) for answers in answered for answer in answers]
    return seconds, sum(len(body["output_ids"]) for body in bodies)
