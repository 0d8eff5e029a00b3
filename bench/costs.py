#!/usr/bin/env python3
"""Measures the coefficients of `bench/growth` on this machine, and compares its simulation with real runs.

    python bench/costs.py [--quick] [--tokenizer FOLDER]     # writes bench/growth/coefficients.json
    python bench/costs.py --check [--quick]                  # measured and simulated turns per second

CPU, network and ledger: `rollout` runs episodes of several shapes over HTTP on a loopback server in another process,
with a ledger. The shapes alternate, and the median over the rounds counts. CPU times are divided by how much slower the
machine was at that time than when it is idle (`speed.py`). The coefficients are the least squares over the shapes, none
below zero. Bytes are counted by a proxy between client and server, in a round of its own. Memory is measured by
`bench/memory.py`, the driver and the start of a worker by `bench/ray_pool.py`. Tools cost nothing here.

The comparison gives the simulation the latency of the loopback server, the time of the tools, and the part of a core
that the process really got: with few episodes, both are limited by waiting; with many, by the core.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from agent_script import TOOL, script, tokenizer_from
from growth.model import Coefficients, Engines, Workload, load, save
from loopback_process import AgentLoopback
from memory import builder, measured
from played_agent import TOKENIZER, ScriptedEngine, questions
from speed import Speed
from strands_sglang import SGLangClient
from strands_sglang.ledger.seal import seal
from strands_sglang.runs import rollout

SHAPES = ((2, 64, 64), (8, 64, 64), (32, 64, 64), (96, 64, 64), (8, 512, 64), (8, 64, 1500), (32, 256, 1000))
"""Turns of an episode, sampled tokens per turn, tokens of a tool result."""
TURNS, TOKENS, LATENCY, TOOL_SECONDS = 8, 64, 0.5, 0.3
"""An episode of the comparison."""


@asynccontextmanager
async def counted(url: str) -> AsyncIterator[tuple[str, dict[str, int]]]:
    """Run a proxy in front of a server; yields its address and the bytes that pass it, "up" and "down"."""
    traffic = {"up": 0, "down": 0}
    host, _, port = url.removeprefix("http://").rpartition(":")

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, name: str) -> None:
        with suppress(OSError):  # a connection that the client closes
            while data := await source.read(1 << 18):
                traffic[name] += len(data)
                target.write(data)
                await target.drain()
        target.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        with suppress(asyncio.CancelledError):
            await asyncio.gather(copy(reader, there_writer, "up"), copy(there_reader, writer, "down"))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", traffic
    finally:
        server.close()


async def run_shape(url: str, tokenizer: Any, words: str, episodes: int, directory: str) -> dict[str, float]:
    """Run episodes of a shape with a ledger; return CPU milliseconds, tokens and ledger bytes per episode."""
    gc.collect()
    speed, began = Speed(), time.process_time()
    watching = asyncio.ensure_future(speed.watch())
    run = await rollout(
        builder(words, []), questions(episodes), tokenizer=tokenizer, base_url=url, concurrency=16, directory=directory
    )
    watching.cancel()
    cpu = 1e3 * (time.process_time() - began - speed.used) / speed.slowdown
    assert not run.metrics.failures, run.metrics
    sums = {name: sum(getattr(one.metrics, name) for one in run) for name in ("tokens", "sampled_tokens")}
    prompts = sum(one.metrics.prompt_tokens for one in run)
    ledger = sum(file.stat().st_size for file in Path(directory).rglob("*") if file.is_file())
    return {
        name: value / episodes for name, value in {**sums, "cpu": cpu, "prompts": prompts, "ledger": ledger}.items()
    }


async def measure_shapes(tokenizer_path: str, rounds: int, budget: int) -> list[dict[str, Any]]:
    """Return means per episode of all shapes, after `rounds` rounds of `budget` turns each and one to warm up."""
    tokenizer, rows = tokenizer_from(tokenizer_path), [dict[str, Any](turns=turns, cpus=[]) for turns, _, _ in SHAPES]
    words = {result: script(tokenizer, result).last.text for _, _, result in SHAPES}
    calls = {tokens: sorted({shape[0] - 1 for shape in SHAPES if shape[1] == tokens}) for _, tokens, _ in SHAPES}
    servers = {tokens: AgentLoopback(tokenizer_path, calls[tokens], tokens=tokens) for tokens in calls}
    try:
        for number in range(rounds + 1):
            for row, (turns, tokens, result) in zip(rows, SHAPES, strict=True):
                url, episodes = servers[tokens].urls[turns - 1], max(4, budget // turns)
                with tempfile.TemporaryDirectory(prefix="costs-") as folder:
                    if number:
                        row.update(await run_shape(url, tokenizer, words[result], episodes, folder))
                        row["cpus"].append(row["cpu"])
                        continue
                    async with counted(url) as (through, traffic):
                        await run_shape(through, tokenizer, words[result], episodes, folder)
                    row.update({name: count / episodes for name, count in traffic.items()})
            print(f"round {number} of {rounds}", flush=True)
    finally:
        for server in servers.values():
            server.__exit__()
    return rows


def fit(columns: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[list[float], float]:
    """Return coefficients of the columns, none below zero, by least squares of the relative error; and that error."""
    wanted, names = np.asarray(values, float), list(range(len(columns)))
    while True:
        matrix = np.asarray([columns[name] for name in names], float).T / wanted[:, None]
        scale = np.abs(matrix).max(axis=0)
        solved = np.linalg.lstsq(matrix / scale, np.ones(len(wanted)), rcond=None)[0] / scale
        if (solved >= 0).all():
            break
        del names[int(np.argmin(solved * scale))]
    found = dict(zip(names, map(float, solved), strict=True))
    return [found.get(name, 0.0) for name in range(len(columns))], float(np.abs(matrix @ solved - 1).max())


async def measure_seal(tokenizer: Any) -> float:
    """Return the CPU seconds that sealing a run takes per million tokens."""
    engine, build = ScriptedEngine(script(tokenizer, 256), 15), builder(script(tokenizer, 400).last.text, [])
    with tempfile.TemporaryDirectory(prefix="seal-") as folder:
        run = await rollout(build, questions(64), tokenizer=tokenizer, client=engine, directory=folder)
        speed, began = Speed(), time.process_time()
        for _ in range(20):
            speed.sample()
        seal(folder)
        for _ in range(20):
            speed.sample()
        took = time.process_time() - began - speed.used
        return 1e6 * took / speed.slowdown / sum(episode.metrics.tokens for episode in run)


def _ray_pool(*arguments: str) -> dict[str, Any]:
    """Return the last line of `ray_pool.py`, which is JSON."""
    command = [sys.executable, "ray_pool.py", *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


async def measure_all(path: str, *, quick: bool) -> None:
    """Measure everything and write the coefficients."""
    rows = await measure_shapes(path, 1 if quick else 3, 64 if quick else 192)
    ones, turns, prompts, sampled = (
        [1.0] * len(rows),
        *([r[n] for r in rows] for n in ("turns", "prompts", "sampled_tokens")),
    )
    context = [row["tokens"] - row["sampled_tokens"] for row in rows]
    earlier = [count * (count - 1) / 2 for count in turns]
    fits = {
        "cpu": fit([ones, turns, earlier, prompts, sampled, context], [statistics.median(row["cpus"]) for row in rows]),
        "wire_up": fit([turns, prompts], [row["up"] for row in rows]),
        "wire_down": fit([turns, sampled], [row["down"] for row in rows]),
        "ledger": fit([ones, turns, sampled, context], [row["ledger"] for row in rows]),
    }
    size = {"episodes": 4, "turns": 12} if quick else {"episodes": 8, "turns": 24}
    memory = await measured(tokenizer_from(path), **size, sampled=600, result=1400)
    driver = await asyncio.to_thread(_ray_pool, "--stubs", *(["100", "--quick"] if quick else ["1000"]))
    cpu = fits["cpu"][0]
    values = [cpu[0], cpu[1], *(1e3 * value for value in cpu[2:])]
    values += [memory[name] for name in ("kilobytes_per_episode", "kilobytes_per_turn", "bytes_per_token")]
    values += [*fits["wire_up"][0], *fits["wire_down"][0], *fits["ledger"][0]]
    values += [driver["driver_ms_per_episode"], driver["kb_held_per_finished_episode"]]
    values += [await measure_seal(tokenizer_from(path)), driver["worker_start_seconds"]]
    about = {
        "tokenizer": Path(path).name,
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores of a virtual machine, shared with other programs",
        **{name: version(name) for name in ("strands-sglang", "strands-agents", "ray", "aiohttp")},
        "largest_relative_error": {name: round(error, 3) for name, (_, error) in fits.items()},
        "shapes": rows,
        "memory": memory,
        "driver": driver,
    }
    sources = {
        "cpu": "process time of `rollout` with a ledger, over HTTP to a loopback server, divided by the slowdown of "
        "the busy machine; least squares over `shapes`",
        "wire": "bytes through a proxy in front of the loopback server; least squares over `shapes`",
        "ledger": "size of the run directory; least squares over `shapes`",
        "memory": "bench/memory.py: tracemalloc in every engine call of one run",
        "driver": "bench/ray_pool.py --stubs: process time of `rollout` per episode that stub workers finish",
        "worker": "seconds from the start of a Ray actor with a `RayWorker` until it is ready",
    }
    save(Coefficients(*values), sources, about)


@tool(name=TOOL)
async def calculator(expression: str) -> str:
    """Work out one operation.

    Args:
        expression: Such as `615 * 17`.
    """
    await asyncio.sleep(TOOL_SECONDS)
    return str(len(expression) * 1009)


def build(task: Any, model: Any) -> Agent:
    """Return the agent of an episode of the comparison."""
    return Agent(model=model, tools=[calculator], callback_handler=None, conversation_manager=NullConversationManager())


async def real(tokenizer: Any, url: str, episodes: int, seconds: float) -> dict[str, float]:
    """Run episodes for some seconds, always the same number at once; return the rate, the CPU used, and their size."""
    ended: list[tuple[float, float]] = []
    generations = 1 + int(seconds / (TURNS * (LATENCY + TOOL_SECONDS)))
    client, speed = SGLangClient(url, max_connections=episodes), Speed()
    watching = asyncio.ensure_future(speed.watch(0.5))
    run = await rollout(
        build,
        questions((1 + generations) * episodes),
        tokenizer=tokenizer,
        client=client,
        concurrency=episodes,
        on_episode=lambda episode: ended.append((time.perf_counter(), time.process_time())),
    )
    watching.cancel()
    await client.close()
    # All episodes start at once, so whole generations of them are compared: from the end of the first to the last.
    wall, cpu = (last - first for first, last in zip(ended[episodes - 1], ended[-1], strict=True))
    prompts, tokens = run[0].metrics.prompt_tokens / TURNS, run[0].metrics.tokens / TURNS
    rate, core = generations * episodes * TURNS / wall, cpu / wall / speed.slowdown
    return {"rate": rate, "core": core, "prompt": prompts - (TURNS - 1) / 2 * tokens, "added": tokens - TOKENS}


async def check(tokenizer_path: str, *, quick: bool) -> list[dict[str, float]]:
    """Return, for several numbers of episodes, the measured and the simulated turns per second."""
    from growth.simulation import Simulation  # needs SimPy

    tokenizer, known, rows = tokenizer_from(tokenizer_path), load(), []
    with AgentLoopback(tokenizer_path, [TURNS - 1], tokens=TOKENS, latency=LATENCY) as server:
        await real(tokenizer, server.urls[TURNS - 1], 4, 1.0)
        for episodes in (4, 12) if quick else (4, 12, 24, 64):
            seen = await real(tokenizer, server.urls[TURNS - 1], episodes, 1.0 if quick else 8.0)
            full = seen["rate"] < 0.7 * episodes / (LATENCY + TOOL_SECONDS)  # the core is the limit, not waiting
            core = min(1.0, seen["core"]) if full else 1.0
            slower = {name: value / core for name, value in vars(known).items() if name.startswith("cpu_")}
            work = Workload(episodes, TURNS, TOKENS, max(8, int(seen["added"])), max(1, int(seen["prompt"])), 1e-6)
            batch = 4 * episodes
            engines = Engines(1, batch * TOKENS / LATENCY, batch, 1e3 * LATENCY / TOKENS, 1e12, 10**12)
            costs = replace(known, **slower)
            simulation = Simulation(work, engines, costs, workers=1, tool_seconds=TOOL_SECONDS, seed=2)
            simulation.run(10 * LATENCY)
            rate = simulation.run(10 * LATENCY + 60)["turns_per_second"]
            row = {"episodes": episodes, "measured": round(seen["rate"], 1), "simulated": round(rate, 1)}
            row |= {"error": round(rate / seen["rate"] - 1, 3), "core": round(core, 2), "limited_by_core": int(full)}
            rows.append(row)
            print(row, flush=True)
    return rows


def main() -> None:
    """Do what the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the simulation with real runs")
    parser.add_argument("--quick", action="store_true", help="smaller and shorter; the comparison is not stored")
    fixtures = Path(os.environ.get("STRANDS_SGLANG_FIXTURES", "~/.cache/strands-sglang/fixtures")).expanduser()
    qwen = fixtures / "qwen3"
    parser.add_argument("--tokenizer", default=str(qwen if qwen.is_dir() else TOKENIZER), help="default: Qwen3's")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if not options.check:
        asyncio.run(measure_all(options.tokenizer, quick=options.quick))
        return
    from growth.__main__ import store

    rows = asyncio.run(check(options.tokenizer, quick=options.quick))
    if not options.quick:
        store({"check": rows})


if __name__ == "__main__":
    main()
