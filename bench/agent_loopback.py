#!/usr/bin/env python3
"""A loopback server that answers like the model of a tool-calling agent, in its own process.

    python bench/agent_loopback.py TOKENIZER [--turns 8] [--tokens 64] [--latency 0]

It serves `/generate` for ids or text, streamed or not, with any other fields and any spacing of the JSON, and
`/v1/chat/completions`. It keeps nothing between requests and reads no header but Content-Length, so no client is
preferred. An episode has `--turns` turns with one tool call each, then a final answer. `--turns 0,7,31` serves several
lengths, each on its own port; the ports are printed as one JSON list. The position in the episode is derived from the
prompt, so a request that is repeated, or continued after a crash, gets the same answer. Answers are prepared at the
start.

`/cpu` returns the CPU time of the server, so that a benchmark can report the cost of its load generator.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from agent_replies import Asked, Replies, response
from agent_script import Script, script, tokenizer_from
from loopback import stay_on

_RID = re.compile(rb'(?<!\\)"rid"\s*:\s*("(?:[^"\\]|\\.)*")')
_IDS = re.compile(rb'(?<!\\)"input_ids"\s*:\s*\[')
_STREAM = re.compile(rb'(?<!\\)"stream"\s*:\s*true')
_LOGPROBS = re.compile(rb'(?<!\\)"return_logprob"\s*:\s*true')
_TOOL_MESSAGE = re.compile(rb'(?<!\\)"role"\s*:\s*"tool"')
_BYTES_PER_TOKEN = 4
"""Of a prompt that is sent as text and not tokenised here."""
_BAD_REQUEST = response(b'{"error":{"message":"the prompt must be one list of ids, or one text"}}', b"400 Bad Request")
_LENGTH = b"\r\ncontent-length:"
_NO_LENGTH = response(b'{"detail":"Content-Length is required"}', b"411 Length Required")


@dataclass
class Counters:
    """Counters of the server."""

    requests: int = 0
    """Number of requests to `/generate` and `/v1/chat/completions`."""
    received: int = 0
    """Bytes of their bodies."""
    sent: int = 0
    """Bytes of the responses to them."""
    open: int = 0
    """Open connections."""
    most_open: int = 0
    """Maximum number of open connections."""
    under_way: int = 0
    """Requests that wait for their answer."""
    most_under_way: int = 0
    """Maximum number of requests that waited at the same time."""

    def to_json(self) -> bytes:
        """Return the counters and the CPU seconds of this process as JSON."""
        return json.dumps({**vars(self), "cpu_seconds": time.process_time()}).encode()


@dataclass
class Agents:
    """The episodes of one port: prepared answers, and the position in an episode that a request has.

    Nothing is kept between requests: what a request gets depends on its prompt alone, whoever sends it.
    """

    script: Script
    replies: Replies
    turns: int
    """Number of turns with a tool call before the final answer."""
    latency: float
    """Seconds between a request and its answer."""
    version: str
    """Weight version."""
    counters: Counters

    def __post_init__(self) -> None:
        marker = self.script.marker
        self._compact = ",".join(map(str, marker)).encode()
        self._spaced = ", ".join(map(str, marker)).encode()
        self._text = json.dumps(self.script.marker_text)[1:-1].encode()

    def generate(self, body: bytes) -> bytes:
        """Return the response to a request to `/generate`."""
        counters = self.counters
        counters.requests += 1
        counters.received += len(body)
        ids = _IDS.search(body)
        if ids is None:
            if b'"text"' not in body:
                return _BAD_REQUEST
            start, end, tokens, calls = 0, len(body), len(body) // _BYTES_PER_TOKEN, body.count(self._text)
        else:
            start, end = ids.end(), body.find(b"]", ids.end())
            position = self._position(body, start, end)
            if position is None:
                return _BAD_REQUEST
            tokens, calls = position
        named = _RID.search(body)
        # Like the engine, create an id if the request has none.
        rid = named[1] if named else b'"%032x"' % counters.requests
        seed = crc32(memoryview(body)[start:end])
        asked = Asked(rid, tokens, max(0, tokens - 64), calls)
        reply = self.replies.native(calls, self.turns, seed)
        logprobs, stream = _LOGPROBS.search(body) is not None, _STREAM.search(body) is not None
        return reply.http(asked, logprobs, stream)

    def _position(self, body: bytes, start: int, end: int) -> tuple[int, int] | None:
        """Return the number of ids in a list and of the calls in it; None: it is no list of ids.

        The lists of the usual JSON writers are counted as bytes; any other is parsed.
        """
        commas = body.count(b",", start, end)
        spaced = body.count(b", ", start, end)
        if body.find(b"[", start, end) >= 0:
            return None
        # A marker is preceded and followed by other ids of the same turn, so neither end of a number can match it.
        if not spaced and body.find(b"\n", start, end) < 0:
            return commas + 1, body.count(b",%b," % self._compact, start, end)
        if spaced == commas and body.find(b"\n", start, end) < 0:
            return commas + 1, body.count(b" %b," % self._spaced, start, end)
        ids = json.loads(b"[%b]" % body[start:end])
        joined = b",%b," % ",".join(map(str, ids)).encode()
        return len(ids), joined.count(b",%b," % self._compact)

    def chat(self, body: bytes) -> bytes:
        """Return the response to a request to `/v1/chat/completions`."""
        self.counters.requests += 1
        self.counters.received += len(body)
        calls = len(_TOOL_MESSAGE.findall(body))
        tokens = len(body) // _BYTES_PER_TOKEN
        reply = self.replies.chat(calls, self.turns, crc32(body))
        return reply.http(Asked(b'""', tokens, max(0, tokens - 64), calls), _STREAM.search(body) is not None)


class Answering(asyncio.Protocol):
    """One connection: reads requests by their Content-Length, one at a time, and answers each."""

    def __init__(self, agents: Agents, loop: asyncio.AbstractEventLoop) -> None:
        self._agents, self._loop = agents, loop
        self._parts: list[bytes] = []
        self._missing = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport and count the connection."""
        self._transport = transport
        counters = self._agents.counters
        counters.open += 1
        counters.most_open = max(counters.most_open, counters.open)

    def connection_lost(self, error: Exception | None) -> None:
        """Count the closed connection."""
        self._agents.counters.open -= 1

    def data_received(self, data: bytes) -> None:
        """Collect one complete request and answer it."""
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._parts)
            self._parts = []
        head = data.find(b"\r\n\r\n") + 4
        if head < 4:
            self._parts, self._missing = [data], 1
            return
        headers = data[:head].lower()
        at = headers.find(_LENGTH)
        if at < 0 and b"\r\ntransfer-encoding:" in headers:
            self._transport.write(_NO_LENGTH)
            self._transport.close()
            return
        length = int(headers[at + len(_LENGTH) : headers.find(b"\r\n", at + 2)]) if at >= 0 else 0
        if head + length > len(data):
            self._parts, self._missing = [data], head + length - len(data)
            return
        if data.startswith(b"POST /generate"):
            self._answer(self._agents.generate(data[head:]))
        elif data.startswith(b"POST /v1/chat/completions"):
            self._answer(self._agents.chat(data[head:]))
        else:
            self._transport.write(self._other(data[: data.find(b"\r\n")]))

    def _answer(self, answer: bytes) -> None:
        agents = self._agents
        agents.counters.sent += len(answer)
        if not agents.latency:
            self._transport.write(answer)
            return
        counters = agents.counters
        counters.under_way += 1
        counters.most_under_way = max(counters.most_under_way, counters.under_way)
        self._loop.call_later(agents.latency, self._answer_delayed, answer)

    def _answer_delayed(self, answer: bytes) -> None:
        self._agents.counters.under_way -= 1
        if not self._transport.is_closing():
            self._transport.write(answer)

    def _other(self, line: bytes) -> bytes:
        method, path, _ = line.split(b" ", 2)
        path = path.partition(b"?")[0]
        if path == b"/cpu":
            return response(self._agents.counters.to_json())
        if path in (b"/model_info", b"/get_model_info", b"/server_info", b"/get_server_info"):
            info = {"model_path": "loopback", "weight_version": self._agents.version, "context_length": 10_000_000}
            return response(json.dumps(info).encode())
        if path == b"/v1/loads":
            load = {"num_running_reqs": self._agents.counters.under_way, "num_waiting_reqs": 0}
            return response(json.dumps({"loads": [load]}).encode())
        if path.startswith(b"/health") or method == b"POST":
            return response(b'{"success":true}')
        return response(b'{"detail":"Not Found"}', b"404 Not Found")  # only a router has /workers


def raise_file_limit() -> int:
    """Raise the limit of open files of this process to the hard limit; return it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


async def _serve(options: argparse.Namespace) -> None:
    answers = script(tokenizer_from(options.tokenizer), options.tokens)
    replies = Replies(answers.calls, answers.last, options.weight_version)
    loop, counters = asyncio.get_running_loop(), Counters()
    ports: list[int] = []
    for turns in map(int, options.turns.split(",")):
        agents = Agents(answers, replies, turns, options.latency, options.weight_version, counters)
        server = await loop.create_server(
            lambda agents=agents: Answering(agents, loop),
            "127.0.0.1",
            options.port if not ports else 0,
            backlog=16_384,
        )
        ports.append(server.sockets[0].getsockname()[1])
    gc.collect()
    gc.freeze()
    gc.disable()  # requests create no reference cycles
    print(json.dumps(ports), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the benchmark closes stdin


def main() -> None:
    """Serve until stdin closes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tokenizer", metavar="TOKENIZER", help="tokenizer folder, or a name on the hub")
    parser.add_argument(
        "--turns",
        default="8",
        help="turns with a tool call before the final answer; a comma-separated list opens one port each",
    )
    parser.add_argument("--tokens", type=int, default=64, help="sampled tokens per turn")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds between a request and its answer")
    parser.add_argument("--weight-version", default="7")
    parser.add_argument("--port", type=int, default=0, help="first port; 0: any free port")
    parser.add_argument("--cpu", type=int, default=None, help="pin the process to this CPU")
    options = parser.parse_args()
    if options.cpu is not None:
        stay_on(options.cpu)
    raise_file_limit()
    asyncio.run(_serve(options))


if __name__ == "__main__":
    main()
