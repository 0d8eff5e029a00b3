"""Agents over HTTP to the loopback server: what a turn costs, in which layer, and what it costs others.

Two tables. *Layers*: the SDK alone, the SDK as `rollout` drives it, this package on an engine within the process, and
this package over HTTP, in `rollout` and in a plain agent loop. *Others*: this package, the published package and the
SDK's OpenAI model, all on the same Python, at several lengths and contexts.

Only the CPU time of the contestant's process counts; the server is pinned to another core.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from loopback_process import AgentLoopback
from suite.environments import Unavailable, beside_published, own, published, versions
from suite.processes import Contestant, JobFailed
from suite.report import Log
from suite.stats import Spread, alternate, ratio

LENGTHS = (1, 8, 32, 128)
"""Turns of an episode in the table of layers."""
CONTEXTS = (0, 1_000, 8_000, 16_000)
"""Tokens in front of the first question in the table of others; 0: nothing."""
LAYERS = ("bare", "sdk", "inside", "plain_inside", "rollout", "plain")
OURS = ("plain", "fast", "rollout")
"""Ways of this package in the table of others."""
OTHERS = (*OURS, "published", "openai")
_MOST_TOKENS = 300_000
"""Prompt tokens that are tokenised in one run, so that long contexts do not take most of the time."""


def measure(tokenizer: str, quick: bool, log: Log) -> dict[str, Any]:
    """Measure both tables."""
    lengths = LENGTHS[:2] if quick else LENGTHS
    with AgentLoopback(tokenizer, [length - 1 for length in LENGTHS], cpu=0) as server:
        found: dict[str, Any] = {"layers": layers(server, tokenizer, lengths, quick, log)}
        found["others"] = others(server, tokenizer, quick, log)
        used = server.used()
    found["server_cpu_ms_a_request"] = round(1e3 * used["cpu_seconds"] / used["requests"], 3)
    return found


def layers(
    server: AgentLoopback, tokenizer: str, lengths: tuple[int, ...], quick: bool, log: Log
) -> dict[str, dict[str, Any]]:
    """Return the table of layers, by number of turns."""
    rounds, budget = (2, 64) if quick else (5, 256)
    table: dict[str, dict[str, Any]] = {}
    log.head("CPU of a turn by layer, 64 sampled tokens a turn, 32 episodes at once")
    with Contestant(own(), tokenizer) as contestant:
        ways = list(LAYERS)
        try:
            contestant.run(way="sdk", turns=2, episodes=2)
        except JobFailed as error:
            ways.remove("sdk")
            log.left_out("the SDK as rollout drives it", str(error))
        for turns in lengths:
            job = {"url": server.urls[turns - 1], "turns": turns, "episodes": max(2, budget // turns)}

            def run(way: str, number: int, job: dict[str, Any] = job) -> Mapping[str, float]:
                return contestant.run(way=way, **job)

            found = alternate(ways, rounds, run)
            cpu = {way: found[way]["cpu_ms"] for way in ways}
            row = layer_ratios(cpu)
            few = {**job, "episodes": max(1, 16 // turns)}  # counting is slow
            counted = {way: contestant.run(way=way, count_calls=True, **few) for way in ("bare", "rollout", "plain")}
            row["calls"] = {way: round(figures["calls"]) for way, figures in counted.items()}
            table[str(turns)] = row
            spreads = {way: Spread.of(values) for way, values in cpu.items()}
            over = {f"{way}/bare": ratio(cpu[way], cpu["bare"]) for way in ("rollout", "plain")}
            log.row(f"{turns} turns", spreads | over)
    return table


def layer_ratios(cpu: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return a row of the table of layers from the CPU milliseconds of each way."""
    bare = cpu["bare"]
    row: dict[str, Any] = {
        "cpu_ms": {way: Spread.of(values).to_json() for way, values in cpu.items()},
        "all_over_bare": ratio(cpu["rollout"], bare).to_json(),
        "all_without_http_over_bare": ratio(cpu["inside"], bare).to_json(),
        "plain_over_bare": ratio(cpu["plain"], bare).to_json(),
        "plain_layer_over_bare": _layer(cpu["plain_inside"], bare, bare),
    }
    if "sdk" in cpu:
        row["layer_over_bare"] = _layer(cpu["inside"], cpu["sdk"], bare)
    return row


def _layer(whole: list[float], part: list[float], bare: list[float]) -> dict[str, float]:
    """Return what a layer adds to a part, over the cost of the bare SDK."""
    return Spread.of([(a - b) / c for a, b, c in zip(whole, part, bare, strict=True)]).to_json()


def others(server: AgentLoopback, tokenizer: str, quick: bool, log: Log) -> dict[str, Any]:
    """Return the table of others; empty if the environments are missing."""
    names = ["strands-agents", "strands-sglang", "transformers", "tokenizers", "aiohttp", "httpx", "openai", "orjson"]
    try:
        ours, theirs = beside_published(install=not quick), published(install=not quick)
    except Unavailable as error:
        log.left_out("the published package and OpenAIModel", str(error))
        return {}
    rounds = 2 if quick else 5
    cells = [(turns, context) for context in CONTEXTS for turns in LENGTHS[:3]]
    if quick:
        cells = [(8, 0), (8, 8_000)]
    rows = []
    log.head("CPU of a turn against others, on the same Python and the same versions of everything else")
    with ExitStack() as stack:
        mine, other = (stack.enter_context(Contestant(one, tokenizer)) for one in (ours, theirs))
        home = {way: other if way == "published" else mine for way in OTHERS}
        for turns, context in cells:
            budget = 48 if quick else 128
            episodes = max(3, min(budget // turns, _MOST_TOKENS // (context or 1)))
            job = {"url": server.urls[turns - 1], "turns": turns, "episodes": episodes, "context": context}

            def run(way: str, number: int, job: dict[str, Any] = job) -> Mapping[str, float]:
                return home[way].run(way=way, **job)

            found = alternate(OTHERS, rounds, run)
            rows.append(_other_row(turns, context, found))
            cpu = {way: Spread.of(found[way]["cpu_ms"]) for way in OTHERS}
            theirs_cpu = found["published"]["cpu_ms"]
            ratios = {f"published/{way}": ratio(theirs_cpu, found[way]["cpu_ms"]) for way in OURS}
            log.row(f"{turns} turns, {context} tokens", cpu | ratios)
    return {"rows": rows, "ours": versions(ours, names), "published": versions(theirs, names)}


def _other_row(turns: int, context: int, found: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Any]:
    row: dict[str, Any] = {"turns": turns, "context": context}
    for figure in ("cpu_ms", "wall_ms"):
        row[figure] = {way: Spread.of(figures[figure]).to_json() for way, figures in found.items()}
        row[f"{figure[:-3]}_over"] = {
            f"{other}_over_{way}": ratio(found[other][figure], found[way][figure]).to_json()
            for other in ("published", "openai")
            for way in OURS
        }
    return row
