#!/usr/bin/env python3
"""A loopback server that answers `/generate` as an agent that uses a tool would, in a process of its own.

    python bench/agent_loopback.py TOKENIZER [--turns 8] [--tokens 64] [--latency 0]

An episode makes `--turns` turns with a call each, then gives its answer. `--turns 0,7,31` serves several lengths, each
on a port of its own; the ports are printed as one JSON list. How far an episode is, is read from its prompt, so a
request that is sent again, or goes on after a crash, gets the right answer. Answers are made beforehand; of a prompt
that goes on from the last one with the same routing key only the new ids are counted.

`/cpu` tells what the server itself used, so that a bench can state the cost of its load generator.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import re
import resource
import sys
import time
from array import array
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from agent_script import Answer, Script, script, tokenizer_from
from loopback import stay_on

_RID = re.compile(rb'"rid"\s*:\s*"([^"\\]*)"')
_IDS = b'"input_ids":['
_KEY = b"X-SMG-Routing-Key: "
_LENGTH = b"Content-Length: "
_REPLIED_TOKENS = 2**19
"""Tokens in all answers that are made beforehand."""
_TAIL = 48
"""Bytes that have to be the same for a prompt to count as going on from the last one."""


@dataclass
class Counters:
    """What the server did."""

    requests: int = 0
    """Requests to `/generate`."""
    open: int = 0
    """Connections now."""
    most_open: int = 0
    """Most connections at once."""
    under_way: int = 0
    """Requests that wait for their answer now."""
    most_under_way: int = 0
    """Most requests that waited at once."""

    def to_json(self) -> bytes:
        """Return it with the CPU seconds of this process, as JSON."""
        return json.dumps({**vars(self), "cpu_seconds": time.process_time()}).encode()


Reply = tuple[bytes, bytes, bytes, bytes]
"""A body, cut where request id, prompt tokens and cached tokens go in."""


def reply(answer: Answer, version: str, rng: random.Random) -> Reply:
    """Return the body SGLang 0.5.21 sends for a turn, with random logprobs of its precision."""
    ids = answer.ids
    logprobs = array("f", (-(rng.random() ** 4) * 3.0 for _ in ids))
    meta = {
        "id": "%",
        "finish_reason": {"type": "stop", "matched": ids[-1]},
        "prompt_tokens": "%",
        "weight_version": version,
        "num_retractions": 0,
        "input_token_logprobs": [],
        "output_token_logprobs": [[value, token, None] for value, token in zip(logprobs, ids, strict=True)],
        "output_token_logprobs_length": len(ids),
        "completion_tokens": len(ids),
        "cached_tokens": "%",
        "weight_versions": [{"version": version, "start": 0, "end": len(ids)}],
        "dp_rank": None,
        "e2e_latency": 0.061,
    }
    body = json.dumps({"text": answer.text, "output_ids": ids, "meta_info": meta}, separators=(",", ":"))
    first, second, third, fourth = body.encode().split(b'"%"')
    return first + b'"', b'"' + second, third, fourth


@dataclass
class Agents:
    """The agents of one port: answers, and how far each episode is."""

    script: Script
    turns: int
    """Turns with a call before the last answer."""
    latency: float
    """Seconds between a request and its answer."""
    version: str
    """Weight version."""
    counters: Counters
    seen: dict[bytes, tuple[int, int, int, bytes]] = field(default_factory=dict)
    """By routing key: where the last prompt ended in its body, its tokens, its calls, its last bytes."""

    def __post_init__(self) -> None:
        self._marker = b",%b," % ",".join(map(str, self.script.marker)).encode()
        rng, calls = random.Random(0), self.script.calls
        # Logprobs that come again would make a ledger look smaller than it is.
        more = max(1, _REPLIED_TOKENS // (len(calls) * len(calls[0].ids)))
        self._calls = [reply(answer, self.version, rng) for _ in range(more) for answer in calls]
        self._last = [reply(self.script.last, self.version, rng) for _ in range(256)]

    def answer(self, key: bytes, body: bytes) -> bytes:
        """Return the whole HTTP response to a request."""
        self.counters.requests += 1
        start = body.find(_IDS) + len(_IDS)
        end = body.find(b"]", start)
        known, tokens, calls, tail = self.seen.get(key, (0, 0, 0, b""))
        if known <= start or known > end or body[known - _TAIL : known] != tail:
            known, tokens, calls = start, 1, 0
        tokens += body.count(b",", known, end)
        # A marker is followed by more ids in the same turn, so none lies across the end of a prompt.
        calls += body.count(self._marker, known, end)
        if calls >= self.turns:
            self.seen.pop(key, None)
            first, second, third, fourth = self._last[crc32(key) % len(self._last)]
        else:
            self.seen[key] = (end, tokens, calls, body[end - _TAIL : end])
            first, second, third, fourth = self._calls[(977 * calls + crc32(key)) % len(self._calls)]
        named = _RID.search(body)
        rid = named[1] if named else b"%032x" % self.counters.requests  # the engine itself names what has no name
        parts = (first, rid, second, b"%d" % tokens, third, b"%d" % max(0, tokens - 64), fourth)
        return response(b"".join(parts), b"200 OK")


def response(body: bytes, status: bytes) -> bytes:
    """Return an HTTP response."""
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


class Answering(asyncio.Protocol):
    """One connection: reads requests by their length, one at a time, and answers each."""

    def __init__(self, agents: Agents, loop: asyncio.AbstractEventLoop) -> None:
        self._agents, self._loop = agents, loop
        self._parts: list[bytes] = []
        self._missing = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to answer."""
        self._transport = transport
        counters = self._agents.counters
        counters.open += 1
        counters.most_open = max(counters.most_open, counters.open)

    def connection_lost(self, error: Exception | None) -> None:
        """Count it."""
        self._agents.counters.open -= 1

    def data_received(self, data: bytes) -> None:
        """Gather one whole request and answer it."""
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
        at = data.find(_LENGTH, 0, head)
        length = int(data[at + len(_LENGTH) : data.find(b"\r\n", at)]) if at >= 0 else 0
        if head + length > len(data):
            self._parts, self._missing = [data], head + length - len(data)
            return
        if data.startswith(b"POST /generate "):
            at = data.find(_KEY, 0, head)
            key = data[at + len(_KEY) : data.find(b"\r\n", at)] if at >= 0 else b""
            self._answer(self._agents.answer(key, data[head:]))
        else:
            self._transport.write(self._other(data[: data.find(b"\r\n")]))

    def _answer(self, answer: bytes) -> None:
        agents = self._agents
        if not agents.latency:
            self._transport.write(answer)
            return
        counters = agents.counters
        counters.under_way += 1
        counters.most_under_way = max(counters.most_under_way, counters.under_way)
        self._loop.call_later(agents.latency, self._late, answer)

    def _late(self, answer: bytes) -> None:
        self._agents.counters.under_way -= 1
        if not self._transport.is_closing():
            self._transport.write(answer)

    def _other(self, line: bytes) -> bytes:
        method, path, _ = line.split(b" ", 2)
        path = path.partition(b"?")[0]
        if path == b"/cpu":
            return response(self._agents.counters.to_json(), b"200 OK")
        if path in (b"/model_info", b"/get_model_info", b"/server_info", b"/get_server_info"):
            info = {"model_path": "loopback", "weight_version": self._agents.version, "context_length": 10_000_000}
            return response(json.dumps(info).encode(), b"200 OK")
        if path == b"/v1/loads":
            load = {"num_running_reqs": self._agents.counters.under_way, "num_waiting_reqs": 0}
            return response(json.dumps({"loads": [load]}).encode(), b"200 OK")
        if path.startswith(b"/health") or method == b"POST":
            return response(b'{"success":true}', b"200 OK")
        return response(b'{"detail":"Not Found"}', b"404 Not Found")  # a server alone has no /workers


def raise_file_limit() -> int:
    """Let this process hold as many connections as the system allows; return how many files that is."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


async def _serve(options: argparse.Namespace) -> None:
    said = script(tokenizer_from(options.tokenizer), options.tokens)
    loop, counters = asyncio.get_running_loop(), Counters()
    ports: list[int] = []
    for turns in map(int, options.turns.split(",")):
        agents = Agents(said, turns, options.latency, options.weight_version, counters)
        server = await loop.create_server(
            lambda agents=agents: Answering(agents, loop),
            "127.0.0.1",
            options.port if not ports else 0,
            backlog=16_384,
        )
        ports.append(server.sockets[0].getsockname()[1])
    gc.collect()
    gc.freeze()
    gc.disable()  # a request leaves no cycles behind
    print(json.dumps(ports), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the driver goes away


def main() -> None:
    """Serve until stdin closes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tokenizer", metavar="TOKENIZER", help="tokenizer folder, or a name on the hub")
    parser.add_argument("--turns", default="8", help="turns with a call before the last answer; a list: a port each")
    parser.add_argument("--tokens", type=int, default=64, help="tokens sampled a turn")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds from a request to its answer")
    parser.add_argument("--weight-version", default="7")
    parser.add_argument("--port", type=int, default=0, help="of the first; 0: any free one")
    parser.add_argument("--cpu", type=int, default=None, help="stay on this CPU")
    options = parser.parse_args()
    if options.cpu is not None:
        stay_on(options.cpu)
    raise_file_limit()
    asyncio.run(_serve(options))


if __name__ == "__main__":
    main()
