"""What a request weighs: bytes and CPU of a call as the context grows, and what compressed bodies would save.

Every request carries all ids of the conversation, so the bytes of an episode grow with the square of its length. The
client's own cost is compared with a bare client on the same HTTP library and with the published package's client.
"""

from __future__ import annotations

import gzip
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from loopback_process import AgentLoopback
from suite.calls import prompt
from suite.environments import Unavailable, beside_published, own, published
from suite.processes import Contestant
from suite.report import Log
from suite.stats import Spread, alternate, ratio

SHAPES = ((1_000, 64), (8_000, 512), (16_000, 64), (128_000, 64))
"""Prompt tokens and sampled tokens of a call."""


def measure(tokenizer: str, quick: bool, log: Log) -> dict[str, Any]:
    """Measure calls of each size, and the compression of their bodies."""
    shapes = SHAPES[1:2] if quick else SHAPES
    ours, theirs = own(), None
    try:
        ours, theirs = beside_published(install=not quick), published(install=not quick)
    except Unavailable as error:
        log.left_out("the published package's client", str(error))
    log.head("a call of the client: bytes and CPU")
    with ExitStack() as stack:
        servers = {
            tokens: stack.enter_context(AgentLoopback(tokenizer, [0], tokens=tokens, cpu=0))
            for tokens in {tokens for _, tokens in shapes}
        }
        home = {"ours": stack.enter_context(Contestant(ours, tokenizer))}
        home["bare"] = home["ours"]
        if theirs is not None:
            home["published"] = stack.enter_context(Contestant(theirs, tokenizer))
        rows = [_row(home, servers[sampled], size, sampled, quick, log) for size, sampled in shapes]
    found: dict[str, Any] = {"calls": rows, "compression": [compressed(size) for size, _ in shapes]}
    for one in found["compression"]:
        for name, way in one["ways"].items():
            log.row(f"{one['tokens']} tokens, {name}", way)
    if "published" in home:
        row = next(row for row in rows if row["tokens"] == 8_000)
        found["published_over_ours"] = row["published_over_ours"]
    return found


def _row(
    home: dict[str, Contestant], server: AgentLoopback, size: int, sampled: int, quick: bool, log: Log
) -> dict[str, Any]:
    count = max(4, (100_000 if quick else 600_000) // (size + 12 * sampled + 2_000))
    before = server.used()
    home["ours"].run(client="ours", url=server.urls[0], prompt_tokens=size, count=1)
    body = server.used()["received"] - before["received"]

    def run(client: str, number: int) -> Mapping[str, float]:
        return home[client].run(client=client, url=server.urls[0], prompt_tokens=size, count=count, at_once=4)

    found = alternate(list(home), 3 if quick else 9, run)
    cpu = {client: figures["cpu_ms"] for client, figures in found.items()}
    row: dict[str, Any] = {"tokens": size, "sampled": sampled, "bytes": int(body)}
    row["cpu_ms"] = {client: Spread.of(values).to_json() for client, values in cpu.items()}
    row["ours_over_bare"] = ratio(cpu["ours"], cpu["bare"]).to_json()
    ratios = {"ours/bare": ratio(cpu["ours"], cpu["bare"])}
    if "published" in cpu:
        ratios["published/ours"] = ratio(cpu["published"], cpu["ours"])
        row["published_over_ours"] = ratios["published/ours"].to_json()
    log.row(f"{size} in, {sampled} out", {"bytes": int(body), **{k: Spread.of(v) for k, v in cpu.items()}, **ratios})
    return row


def compressors() -> dict[str, Callable[[bytes], bytes]]:
    """Return the compressors that this Python has."""
    found: dict[str, Callable[[bytes], bytes]] = {
        "gzip, level 1": lambda body: gzip.compress(body, 1),
        "gzip, level 6": lambda body: gzip.compress(body, 6),
    }
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]

        compressor = zstandard.ZstdCompressor(level=1)
        found["zstd, level 1"] = lambda body: bytes(compressor.compress(body))
    except ImportError:
        pass
    return found


def compressed(tokens: int) -> dict[str, Any]:
    """Return what compressing the ids of a request costs and saves."""
    body = ",".join(map(str, prompt(tokens))).encode()
    ways = {}
    for name, compress in compressors().items():
        times = []
        for _ in range(5):
            began = time.process_time()
            short = compress(body)
            times.append(time.process_time() - began)
        seconds, saved = sorted(times)[2], len(body) - len(short)
        ways[name] = {
            "share": round(len(short) / len(body), 3),
            "cpu_ms": round(1e3 * seconds, 3),
            # Compressing takes as long as sending what it saves at this bandwidth; faster networks lose by it.
            "pays_below_mbit_s": round(8e-6 * saved / max(seconds, 1e-9)),
        }
    return {"tokens": tokens, "bytes": len(body), "ways": ways}


def accepted(url: str) -> dict[str, str]:
    """Return what an engine answers to a compressed body, by its encoding."""
    body = b'{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":1}}'
    found = {}
    for encoding, sent in (("none", body), ("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        if encoding == "none":
            del headers["Content-Encoding"]
        request = urllib.request.Request(f"{url}/generate", sent, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                found[encoding] = str(answer.status)
        except urllib.error.HTTPError as error:
            text = " ".join(error.read(300).decode(errors="replace").split())
            found[encoding] = f"{error.code}: {text[:120]}"
        except OSError as error:
            found[encoding] = f"no answer: {error}"
    return found
