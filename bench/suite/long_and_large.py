"""Long and large: long responses, long episodes, long tool results, many live episodes, and the ledger."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopback_process import AgentLoopback
from suite.environments import ROOT, own
from suite.processes import Contestant, JobFailed
from suite.report import Log
from suite.stats import Spread, alternate, ratio

RESPONSE = 8192
"""Sampled tokens of a long response."""


def measure(tokenizer: str, quick: bool, log: Log) -> dict[str, Any]:
    """Measure everything that is long or large."""
    log.head("long and large")
    found = {**response(tokenizer, quick, log), **episode(tokenizer, quick, log)}
    return {**found, **crowd(tokenizer, quick, log), **ledger(tokenizer, quick, log)}


def _job(tokenizer: str, *arguments: str) -> dict[str, float]:
    """Run one measurement in a separate process."""
    environment = own()
    command = [environment.python, "-m", "suite.long_jobs", *arguments, "--tokenizer", tokenizer]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment.variables(), cwd=ROOT / "bench"
    )
    if done.returncode:
        raise JobFailed(f"{' '.join(arguments)}: {done.stderr[-800:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def response(tokenizer: str, quick: bool, log: Log) -> dict[str, Any]:
    """Return the CPU of a response with many sampled tokens and their logprobs: the call, and the turn of an agent."""
    clients, ways = ("ours", "bare"), ("plain",)
    with AgentLoopback(tokenizer, [0], tokens=RESPONSE, cpu=0) as server, Contestant(own(), tokenizer) as contestant:

        def run(name: str, number: int) -> Mapping[str, float]:
            if name in clients:
                return contestant.run(client=name, url=server.urls[0], prompt_tokens=1000, count=5 if quick else 20)
            return contestant.run(way=name, url=server.urls[0], turns=1, episodes=4 if quick else 16, tokens=RESPONSE)

        found = alternate([*clients, *ways], 3 if quick else 9, run)
    cpu = {name: figures["cpu_ms"] for name, figures in found.items()}
    ratios = ratio(cpu["ours"], cpu["bare"])
    log.row(f"response of {RESPONSE} tokens", {k: Spread.of(v) for k, v in cpu.items()} | {"ours/bare": ratios})
    return {
        "response_8k_ms": Spread.of(cpu["ours"]).to_json(),
        "response_8k_bare_ms": Spread.of(cpu["bare"]).to_json(),
        "response_8k_over_bare": ratios.to_json(),
        "turn_8k_ms": Spread.of(cpu["plain"]).to_json(),
    }


def episode(tokenizer: str, quick: bool, log: Log) -> dict[str, Any]:
    """Return how the cost of a turn grows over a long episode: this package, and the bare SDK."""
    # The bare SDK grows so fast that it gets fewer turns.
    turns = {"rollout": 100, "bare": 50} if quick else {"rollout": 1000, "bare": 200}

    def run(way: str, number: int) -> Mapping[str, float]:
        return _job(tokenizer, "long", "--way", way, "--turns", str(turns[way]))

    found = alternate(list(turns), 1 if quick else 3, run, warm_up=False)
    result: dict[str, Any] = {"long_turns": turns["rollout"], "bare_turns": turns["bare"]}
    for way, figures in found.items():
        log.row(f"{turns[way]} turns, {way}", {name: Spread.of(values) for name, values in figures.items()})
        prefix = "" if way == "rollout" else "bare_"
        result |= {f"{prefix}{name}": Spread.of(values).to_json() for name, values in figures.items()}
    return result


def crowd(tokenizer: str, quick: bool, log: Log) -> dict[str, Any]:
    """Return the lag of the event loop under long tool results, and the memory of a live episode."""
    many, rounds, live = ("32", 1, "") if quick else ("256", 3, "4000")
    with AgentLoopback(tokenizer, [2], latency=1.0) as server:
        lags = [_job(tokenizer, "lag", "--url", server.urls[2], "--episodes", many) for _ in range(rounds)]
        names = ("lag_p50_ms", "lag_p99_ms", "lag_own_p99_ms", "lag_max_ms")
        found = {name: Spread.of([one[name] for one in lags]) for name in names}
        log.row(f"tool results of 8k tokens, {many} episodes", found)
        result: dict[str, Any] = {"lag_episodes": int(many), **{k: value.to_json() for k, value in found.items()}}
        if not live:
            log.left_out("memory of a live episode", "not part of --quick")
            return result
        memory = _job(tokenizer, "memory", "--url", server.urls[2], "--episodes", live)
    log.row(f"{live} live episodes", {name: round(value, 1) for name, value in memory.items()})
    result["live_episodes"] = int(live)
    result["kilobytes_each"] = Spread.of([memory["kilobytes_each"]]).to_json()
    return {**result, "kilobytes_of_tokens": round(memory["kilobytes_of_tokens"], 2)}


def ledger(tokenizer: str, quick: bool, log: Log) -> dict[str, Any]:
    """Return the share of the ledger in the CPU of a turn."""
    turns, episodes = 8, 8 if quick else 48
    with (
        AgentLoopback(tokenizer, [turns - 1], cpu=0) as server,
        Contestant(own(), tokenizer) as contestant,
        tempfile.TemporaryDirectory(prefix="bench-ledger-") as folder,
    ):
        runs = iter(range(10**6))

        def run(name: str, number: int) -> Mapping[str, float]:
            directory = str(Path(folder) / str(next(runs))) if name == "with" else ""
            job = {"url": server.urls[turns - 1], "turns": turns, "episodes": episodes, "directory": directory}
            return contestant.run(way="rollout", **job)

        found = alternate(["with", "without"], 3 if quick else 11, run)
    on, off = found["with"]["cpu_ms"], found["without"]["cpu_ms"]
    share = Spread.of([(a - b) / a for a, b in zip(on, off, strict=True)])
    log.row("ledger", {"with": Spread.of(on), "without": Spread.of(off), "share": share})
    milliseconds = {"ledger_ms": Spread.of(on).to_json(), "no_ledger_ms": Spread.of(off).to_json()}
    return {"ledger_share": share.to_json(), **milliseconds}
