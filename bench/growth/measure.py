"""Measures the coefficients of the model of growth on this machine, and writes them to `coefficients.json`.

CPU, network and ledger: `rollout` runs episodes of several shapes (turns, sampled tokens, tokens of a tool result) over
HTTP on a loopback server in another process, with a ledger. The shapes alternate, and the median over the rounds
counts. CPU times are divided by how much slower the machine was at that time than when it is idle (`speed.py`). The
coefficients are the least squares over the shapes, none below zero. Bytes are counted by a proxy between client and
server, in a round of its own. Memory is measured by `bench/memory.py`, the driver by `bench/ray_pool.py
--stubs`. The CPU time of tools is not included: those of the benchmark cost nothing.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from agent_script import script, tokenizer_from
from growth.coefficients import Coefficients, save
from growth.driver import measure_seal
from growth.speed import Speed
from loopback_process import AgentLoopback
from memory import builder, measured
from played_agent import TOKENIZER, questions
from strands_sglang.runs import rollout

SHAPES = ((2, 64, 64), (8, 64, 64), (32, 64, 64), (96, 64, 64), (8, 512, 64), (8, 64, 1500), (32, 256, 1000))
"""Turns of an episode, sampled tokens per turn, tokens of a tool result."""
AT_ONCE = 16


@dataclass
class Shape:
    """Measurements of one shape; all numbers are means per episode."""

    turns: int
    sampled_per_turn: int
    result: int
    cpu_ms: list[float] = field(default_factory=list)
    """CPU milliseconds, one per round, as if the machine did nothing else."""
    slowdowns: list[float] = field(default_factory=list)
    """How much slower the machine was, one per round; see `speed.py`."""
    up: float = 0.0
    down: float = 0.0
    ledger: float = 0.0
    tokens: float = 0.0
    sampled: float = 0.0
    prompt_tokens: float = 0.0

    @property
    def context(self) -> float:
        """New context tokens."""
        return self.tokens - self.sampled


@dataclass
class Traffic:
    """Bytes that passed a proxy."""

    up: int = 0
    down: int = 0


@asynccontextmanager
async def counted(url: str) -> AsyncIterator[tuple[str, Traffic]]:
    """Run a proxy in front of a server; yields its address and the bytes that pass it."""
    traffic = Traffic()
    host, _, port = url.removeprefix("http://").rpartition(":")

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, name: str) -> None:
        with suppress(OSError):  # a connection that the client closes
            while data := await source.read(1 << 18):
                setattr(traffic, name, getattr(traffic, name) + len(data))
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


async def run_shape(shape: Shape, url: str, tokenizer: Any, words: str, episodes: int, directory: Path) -> float:
    """Run episodes of a shape with a ledger; return the CPU milliseconds per episode and set the counts."""
    gc.collect()
    speed, began = Speed(), time.process_time()
    watching = asyncio.ensure_future(speed.watch())
    run = await rollout(
        builder(words, []),
        questions(episodes),
        tokenizer=tokenizer,
        base_url=url,
        concurrency=AT_ONCE,
        directory=directory,
    )
    watching.cancel()
    cpu = 1e3 * (time.process_time() - began - speed.used) / episodes / speed.slowdown
    shape.slowdowns.append(speed.slowdown)
    assert run.metrics.turns == shape.turns * episodes and not run.metrics.failures, run.metrics
    shape.tokens = sum(episode.metrics.tokens for episode in run) / episodes
    shape.sampled = sum(episode.metrics.sampled_tokens for episode in run) / episodes
    shape.prompt_tokens = sum(episode.metrics.prompt_tokens for episode in run) / episodes
    shape.ledger = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file()) / episodes
    return cpu


async def measure_shapes(tokenizer_path: str, rounds: int, budget: int) -> list[Shape]:
    """Measure all shapes.

    Args:
        tokenizer_path: Folder of the tokenizer.
        rounds: Rounds, besides the one for warming up and counting bytes.
        budget: Turns per shape and round.
    """
    tokenizer = tokenizer_from(tokenizer_path)
    shapes = [Shape(*shape) for shape in SHAPES]
    words = {shape.result: script(tokenizer, shape.result).last.text for shape in shapes}
    by_tokens: dict[int, list[int]] = {}
    for shape in shapes:
        by_tokens.setdefault(shape.sampled_per_turn, []).append(shape.turns - 1)
    servers = {
        tokens: AgentLoopback(tokenizer_path, sorted(set(calls)), tokens=tokens) for tokens, calls in by_tokens.items()
    }
    try:
        with tempfile.TemporaryDirectory(prefix="growth-") as folder:
            for number in range(rounds + 1):
                for index, shape in enumerate(shapes):
                    url = servers[shape.sampled_per_turn].urls[shape.turns - 1]
                    episodes, directory = max(4, budget // shape.turns), Path(folder) / f"{number}-{index}"
                    given = (tokenizer, words[shape.result], episodes, directory)
                    if number:
                        shape.cpu_ms.append(await run_shape(shape, url, *given))
                        continue
                    async with counted(url) as (through, traffic):
                        await run_shape(shape, through, *given)
                    shape.up, shape.down = traffic.up / episodes, traffic.down / episodes
                print(f"round {number} of {rounds}", flush=True)
    finally:
        for server in servers.values():
            server.__exit__()
    return shapes


def fit(columns: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[list[float], float]:
    """Return coefficients that are not below zero, by least squares of the relative error, and the largest error.

    Args:
        columns: For each coefficient, what it is multiplied with.
        values: The measured values.
    """
    wanted, names = np.asarray(values, float), list(range(len(columns)))
    while True:
        matrix = np.asarray([columns[name] for name in names], float).T / wanted[:, None]
        scale = np.abs(matrix).max(axis=0)
        solved = np.linalg.lstsq(matrix / scale, np.ones(len(wanted)), rcond=None)[0] / scale
        if (solved >= 0).all():
            break
        del names[int(np.argmin(solved * scale))]
    found = [0.0] * len(columns)
    for name, value in zip(names, solved, strict=True):
        found[name] = float(value)
    return found, float(np.abs(matrix @ solved - 1).max())


def _command(*arguments: str) -> dict[str, Any]:
    """Run a benchmark and return its last line, which is JSON."""
    here = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, *arguments], cwd=here, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def default_tokenizer() -> str:
    """Return the tokenizer of Qwen3 if its fixture is on this machine; otherwise that of the tool policy."""
    fixture = Path(os.environ.get("STRANDS_SGLANG_FIXTURES", "~/.cache/strands-sglang/fixtures")).expanduser() / "qwen3"
    return str(fixture if fixture.is_dir() else TOKENIZER)


async def _others(path: str, quick: bool) -> tuple[dict[str, Any], dict[str, Any], float, dict[str, Any]]:
    """Return the measurements of memory, driver, seal, and start of a worker."""
    size = {"episodes": 4, "turns": 12} if quick else {"episodes": 8, "turns": 24}
    memory = await measured(tokenizer_from(path), **size, sampled=600, result=1400)
    stubs = ["ray_pool.py", "--stubs", "100" if quick else "1000", *(["--quick"] if quick else [])]
    driver = await asyncio.to_thread(_command, *stubs)
    start = await asyncio.to_thread(_command, "-m", "growth.worker_start")
    return memory, driver, await measure_seal(path), start


async def measure_all(tokenizer_path: str | None = None, *, quick: bool = False) -> Coefficients:
    """Measure everything, write `coefficients.json`, and return the coefficients."""
    path = tokenizer_path or default_tokenizer()
    shapes = await measure_shapes(path, 1 if quick else 3, 64 if quick else 192)
    ones = [1.0] * len(shapes)
    turns = [float(shape.turns) for shape in shapes]
    earlier = [shape.turns * (shape.turns - 1) / 2 for shape in shapes]
    prompts, sampled = [shape.prompt_tokens for shape in shapes], [shape.sampled for shape in shapes]
    context = [shape.context for shape in shapes]
    cpu = [statistics.median(shape.cpu_ms) for shape in shapes]
    cpu_fit, cpu_off = fit([ones, turns, earlier, prompts, sampled, context], cpu)
    up_fit, up_off = fit([turns, prompts], [shape.up for shape in shapes])
    down_fit, down_off = fit([turns, sampled], [shape.down for shape in shapes])
    ledger_fit, ledger_off = fit([ones, turns, sampled, context], [shape.ledger for shape in shapes])
    memory, driver, sealing, start = await _others(path, quick)
    values = [cpu_fit[0], cpu_fit[1], *(1e3 * value for value in cpu_fit[2:])]
    values += [memory[name] for name in ("kilobytes_per_episode", "kilobytes_per_turn", "bytes_per_token")]
    values += [*up_fit, *down_fit, *ledger_fit]
    values += [driver["driver_ms_per_episode"], driver["kb_held_per_finished_episode"]]
    values += [sealing, start["seconds"]]
    found = Coefficients(**{one.name: value for one, value in zip(fields(Coefficients), values, strict=True)})
    rows = [
        {
            "turns": shape.turns,
            "sampled": shape.sampled_per_turn,
            "result": shape.result,
            "cpu_ms_per_turn": round(statistics.median(shape.cpu_ms) / shape.turns, 3),
            "cpu_ms_per_turn_rounds": [round(value / shape.turns, 3) for value in shape.cpu_ms],
            "slowdown_rounds": [round(value, 2) for value in shape.slowdowns],
        }
        for shape in shapes
    ]
    about = {
        "tokenizer": Path(path).name,
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores of a virtual machine, shared with other programs",
        **{name: version(name) for name in ("strands-sglang", "strands-agents", "ray", "aiohttp")},
        "largest_relative_error": {
            name: round(value, 3)
            for name, value in (
                ("cpu", cpu_off),
                ("wire_up", up_off),
                ("wire_down", down_off),
                ("ledger", ledger_off),
                ("memory", memory["largest_deviation"]),
            )
        },
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
    save(found, sources, about)
    return found
