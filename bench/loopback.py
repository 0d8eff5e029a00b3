"""A loopback server that answers `/generate` at once with prepared answers, in its own process.

It implements just enough of HTTP/1.1 to keep connections alive, so that its own cost hardly affects the
measurement.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Numbers of prompt tokens and output tokens of a request."""

    prompt_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        """The shape as shown in the table: `8k/512`."""
        return f"{_short(self.prompt_tokens)}/{_short(self.output_tokens)}"

    def prompt(self) -> list[int]:
        """Return ids distributed as with a real tokenizer: mostly five digits, some fewer."""
        rng = random.Random(self.prompt_tokens)
        return [int(rng.random() ** 2 * 150_000) for _ in range(self.prompt_tokens)]


def _short(count: int) -> str:
    return f"{count // 1000}k" if count >= 1000 else str(count)


SHAPES = (Shape(200, 64), Shape(8_000, 512), Shape(100_000, 1_000))


def answer(shape: Shape) -> bytes:
    """Return the body that SGLang 0.5.21 sends for a shape, with plausible numbers."""
    rng = random.Random(shape.output_tokens)
    ids = [int(rng.random() ** 2 * 150_000) for _ in range(shape.output_tokens)]
    meta = {
        "id": "0" * 32,
        "finish_reason": {"type": "stop", "matched": 151645},
        "prompt_tokens": shape.prompt_tokens,
        "weight_version": "7",
        "num_retractions": 0,
        "input_token_logprobs": [],
        "output_token_logprobs": [[-(rng.random() ** 4) * 3.0, token, None] for token in ids],
        "output_token_logprobs_length": len(ids),
        "reasoning_tokens": 0,
        "completion_tokens": len(ids),
        "cached_tokens": shape.prompt_tokens - 1,
        "weight_versions": [{"version": "7", "start": 0, "end": len(ids)}],
        "cached_tokens_details": {"device": shape.prompt_tokens - 1, "host": 0},
        "dp_rank": None,
        "e2e_latency": 0.061,
        "response_sent_to_client_ts": 1794707725.065961,
    }
    body = {"text": "word " * len(ids), "output_ids": ids, "meta_info": meta}
    return json.dumps(body, separators=(",", ":")).encode()


class Answering(asyncio.Protocol):
    """Reads requests by their Content-Length and answers each with the same bytes."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._buffer = bytearray()
        self._missing = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Count body bytes; answer when a request is complete."""
        if self._missing:  # in the middle of a body, which is not stored
            self._missing -= len(data)
            if self._missing > 0:
                return
            self._missing = 0
            self._answer()
            return
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end]).lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
        missing = length - (len(self._buffer) - end - 4)
        self._buffer.clear()
        if missing > 0:
            self._missing = missing
        else:
            self._answer()

    def _answer(self) -> None:
        if self._transport is not None:
            self._transport.write(self._reply)


def stay_on(cpu: int) -> None:
    """Pin this process to one CPU if the system supports it: migrations cost more than the measured difference."""
    if hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {mine[cpu % len(mine)]})


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    ports = []
    for shape in SHAPES:
        body = answer(shape)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        server = await loop.create_server(lambda reply=head + body: Answering(reply), "127.0.0.1", 0, backlog=4096)  # type: ignore[misc]
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the benchmark closes stdin


if __name__ == "__main__":
    stay_on(0)
    asyncio.run(_serve())
