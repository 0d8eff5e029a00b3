#!/usr/bin/env python3
"""Measures turns per second with one and with two Ray workers, and how many workers one driver can feed.

    python bench/ray_pool.py [--quick] [--workers 1,2]
    python bench/ray_pool.py --stubs 1000 [--turns 16] [--tokens 256] [--result 400]

With a loopback server that answers at once, in its own process group, workers are limited only by the CPU. The numbers
of workers alternate on one Ray instance. The start of workers is excluded: everything is measured between the first and
the last fifth of the ended episodes. Turns per second depend on how much of the machine is free. Therefore the table
also shows the CPU milliseconds of an episode, which say whether more workers add work, and the cores that the workers
did not get: those of the load generator, of this process, of other programs, and those that the host of a virtual
machine took ("stolen"). "machine" is how much faster as many processes are that only count in a loop, measured in the
same rounds: if two virtual cores are threads of one real core, it is far below 2, and so is the ratio of any program.

`--stubs N` runs `rollout` with N workers that answer with the recorded result of a real episode instead of running it:
the same objects, in the same parts, as `RayWorker.run` returns them, from a few processes that hold all workers. So the
CPU time and memory of this process are those that as many real workers would cause; one connection per worker process
is not included. It also starts three real workers, one after another, and prints the shortest time.

Prints a table, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import multiprocessing
import os
import pickle
import random
import statistics
import time
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent_script import script, tokenizer_from
from loopback_process import AgentLoopback
from memory import builder
from played_agent import TOKENIZER, ScriptedEngine, build, questions, resident_bytes
from speed import Speed
from strands_sglang import SGLangClient
from strands_sglang.runs import rollout
from strands_sglang.runs.episode import TurnCounts
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.workers import ray_pool
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec

TURNS = 8
AT_ONCE = 64
_TICK = os.sysconf("SC_CLK_TCK")


def process_cpu(pid: int | str) -> tuple[int, float]:
    """Return the parent of a process and the CPU seconds that the process has used; (0, 0.0) if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0.0
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICK


def worker_cpu() -> dict[int, float]:
    """Return the CPU seconds of every Ray worker process that this process started, by process id."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            parent, cpu = process_cpu(folder.name)
            if parent and process_cpu(parent)[0] == os.getpid() and parent != os.getpid():
                found[int(folder.name)] = cpu
    return found


def machine_cpu() -> tuple[float, float]:
    """Return the CPU seconds that all cores have been busy, and those that the host of the virtual machine took."""
    user, nice, system, _, _, irq, soft, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft) / _TICK, stolen / _TICK


def _spin(seconds: float) -> float:
    """Run a loop for some seconds and return how many times per second it ran."""
    end, loops = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        sum(range(1000))
        loops += 1
    return loops / seconds


def machine_rate(processes: int, seconds: float = 2.0) -> float:
    """Return how often a loop runs per second in several processes together."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(_spin, [0.05] * processes, chunksize=1)
        return sum(pool.map(_spin, [seconds] * processes, chunksize=1))


@dataclass
class Sample:
    """Clocks at one moment of a run."""

    wall: float = field(default_factory=time.perf_counter)
    own: float = field(default_factory=time.process_time)
    workers: dict[int, float] = field(default_factory=worker_cpu)
    machine: tuple[float, float] = field(default_factory=machine_cpu)


async def one(url: str, workers: int, episodes: int, tokenizer: str) -> dict[str, float]:
    """Return the measurements of one rollout."""
    first, last = episodes // 5, episodes - episodes // 5 - 1
    ended, samples = 0, list[Sample]()

    def count(episode: Any) -> None:
        nonlocal ended
        if ended in (first, last):
            samples.append(Sample())
        ended += 1

    run = await rollout(
        build,
        questions(episodes),
        tokenizer=tokenizer,
        base_url=url,
        concurrency=AT_ONCE,
        workers=workers,
        on_episode=count,
    )
    assert run.metrics.failures == 0 and len(run) == episodes, run.metrics
    start, end = samples
    seconds, done = end.wall - start.wall, last - first
    used = sum(cpu - start.workers.get(pid, 0.0) for pid, cpu in end.workers.items())
    busy, stolen = (b - a for a, b in zip(start.machine, end.machine, strict=True))
    return {
        "turns_per_second": TURNS * done / seconds,
        "episode_cpu_ms": 1e3 * used / done,
        "worker_cores": used / seconds,
        "driver_cores": (end.own - start.own) / seconds,
        "busy_cores": busy / seconds,
        "stolen_cores": stolen / seconds,
    }


async def real_workers(options: argparse.Namespace) -> dict[str, Any]:
    """Measure real workers; print a table and return the rows."""
    counts = [int(count) for count in options.workers.split(",")]
    rounds, episodes = (1, 200) if options.quick else (options.rounds, options.episodes or 800)
    measured: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    with AgentLoopback(options.tokenizer, [TURNS - 1]) as server:
        for number in range(rounds):
            for count in counts if number % 2 == 0 else counts[::-1]:
                used = server.used()
                seen = await one(server.urls[TURNS - 1], count, episodes, options.tokenizer)
                now = server.used()
                # Per request, because the server is idle while workers start.
                cost = (now["cpu_seconds"] - used["cpu_seconds"]) / (now["requests"] - used["requests"])
                seen["machine_rate"] = machine_rate(count)
                seen["load_cores"] = cost * seen["turns_per_second"]
                ours = seen["worker_cores"] + seen["driver_cores"] + seen["load_cores"]
                seen["other_cores"] = max(0.0, seen["busy_cores"] - ours)
                measured[count].append(seen)
                print(f"round {number}, workers {count}: {seen['turns_per_second']:.0f} turns/s", flush=True)
    columns = {
        "turns/s": ("turns_per_second", 0),
        "CPU ms/episode": ("episode_cpu_ms", 1),
        "worker cores": ("worker_cores", 2),
        "driver cores": ("driver_cores", 2),
        "load cores": ("load_cores", 2),
        "other cores": ("other_cores", 2),
        "stolen cores": ("stolen_cores", 2),
    }
    rows: list[dict[str, Any]] = []
    print(f"{'workers':>8}{'ratio (min-max)':>22}{'machine':>9}" + "".join(f"{name:>15}" for name in columns))
    for count in counts:
        base = [seen["turns_per_second"] for seen in measured[counts[0]]]
        ratios = [seen["turns_per_second"] / one for seen, one in zip(measured[count], base, strict=True)]
        row: dict[str, Any] = {
            "workers": count,
            "ratio": round(statistics.median(ratios), 3),
            "ratio_min_max": [round(min(ratios), 3), round(max(ratios), 3)],
        }
        pairs = zip(measured[count], measured[counts[0]], strict=True)
        row["machine_ratio"] = round(statistics.median(a["machine_rate"] / b["machine_rate"] for a, b in pairs), 3)
        for key, digits in columns.values():
            row[key] = round(statistics.median(seen[key] for seen in measured[count]), max(digits, 1))
        rows.append(row)
        spread = f"{row['ratio']:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(
            f"{count:>8}{spread:>22}{row['machine_ratio']:>9.2f}"
            + "".join(f"{row[key]:>15.{digits}f}" for key, digits in columns.values())
        )
    return {"rows": rows, "cores": os.cpu_count(), "rounds": rounds}


class StubWorker:
    """Many workers in one process that return the result of one recorded episode, after 4 seconds on average."""

    def __init__(self, recorded: bytes) -> None:
        self._episode, self._tree, self._messages = pickle.loads(recorded)
        self._counts = [TurnCounts.of(turn) for turn in self._tree.turns]
        self._random = random.Random(1)

    async def run(self, spec: EpisodeSpec) -> Any:
        """Wait as long as an episode takes, and return it."""
        await asyncio.sleep(self._random.uniform(2.0, 6.0))
        episode = replace(copy(self._episode), id=spec.id, task=spec.task, sample=spec.sample)
        return (episode, self._counts), self._tree, self._messages, {}

    async def poll(self) -> tuple[dict[str, list[TurnCounts]], float]:
        """Return that nothing happened."""
        return {}, 0.0

    async def close(self) -> None:
        """Do nothing."""


class StubPool(ray_pool.RayPool):
    """A `RayPool` whose workers share a few `StubWorker` processes."""

    recorded = b""
    processes = 2

    def _start(self, **options: Any) -> Any:
        if not hasattr(self, "_shared"):
            stub = self._ray.remote(num_cpus=0, max_concurrency=100_000)(StubWorker)
            self._shared = [stub.remote(self.recorded) for _ in range(self.processes)]
        number = next(self._names)
        return ray_pool._Actor(self._shared[number % self.processes], f"ray{number}")


async def measure_driver(options: argparse.Namespace) -> dict[str, Any]:
    """Return the driver's cost of a finished episode, with stub workers; 4 episodes per worker run at the same time."""
    tokenizer, episodes = tokenizer_from(options.tokenizer), 400 if options.quick else options.episodes or 6000
    engine = ScriptedEngine(script(tokenizer, options.tokens), options.turns - 1)
    agent = builder(script(tokenizer, options.result).last.text, [])
    episode = (await rollout(agent, questions(1), tokenizer=tokenizer, client=engine))[0]
    assert episode.metrics.turns == options.turns and episode.end_reason.complete, episode.metrics
    tree, messages, tokens = episode.tree, episode.messages, episode.metrics.tokens
    episode.source, episode.conversation = type(tree)(episode.id), []
    StubPool.recorded, StubPool.processes = pickle.dumps((episode, tree, messages)), options.processes
    marks: list[tuple[float, int]] = []

    def count(episode: Any) -> None:
        held = 0
        if len(marks) in (first, last):
            gc.collect()
            held = resident_bytes()
        elif first < len(marks) < last and len(marks) % 20 == 0:
            speed.sample()
        marks.append((time.process_time() - speed.used, held))

    speed, first, last = Speed(), episodes // 5, episodes - episodes // 5 - 1
    original: Any = ray_pool.RayPool
    ray_pool.RayPool = StubPool  # type: ignore[misc]
    try:
        run = await rollout(
            build,
            questions(episodes),
            tokenizer=options.tokenizer,
            client=ScriptedEngine(script(tokenizer, 64), 0),
            concurrency=4 * options.stubs,
            workers=options.stubs,
            on_episode=count,
        )
    finally:
        ray_pool.RayPool = original  # type: ignore[misc]
    assert len(run) == episodes and not run.metrics.failures
    (cpu, held), (cpu_end, held_end), done = marks[first], marks[last], last - first
    return {
        "workers": options.stubs,
        "at_once": 4 * options.stubs,
        "turns": options.turns,
        "tokens": tokens,
        "driver_ms_per_episode": round(1e3 * (cpu_end - cpu) / speed.slowdown / done, 3),
        "kb_held_per_finished_episode": round((held_end - held) / done / 1024, 1),
        "worker_start_seconds": round(min(worker_start() for _ in range(3)), 2),
        "slowdown": round(speed.slowdown, 2),
    }


def worker_start() -> float:
    """Return the seconds until a new Ray worker runs episodes."""
    import ray

    run_spec = RunSpec(build, None, str(TOKENIZER), SGLangClient("http://127.0.0.1:9"), Limits())
    began = time.perf_counter()
    worker: Any = ray.remote(num_cpus=0)(ray_pool.RayWorker).remote(run_spec, "ray0")
    ray.get(worker.ready.remote())
    took = time.perf_counter() - began
    ray.kill(worker)
    return took


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a smoke test")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", default="1,2", help="numbers of workers to compare, comma-separated")
    parser.add_argument("--stubs", type=int, default=0, help="measure the driver with this many stub workers instead")
    parser.add_argument("--processes", type=int, default=2, help="processes that the stub workers share")
    parser.add_argument("--episodes", type=int, default=0, help="episodes of a run (0: 800; with stub workers 6000)")
    parser.add_argument("--turns", type=int, default=16, help="turns of an episode of a stub worker")
    parser.add_argument("--tokens", type=int, default=256, help="sampled tokens per turn of a stub worker")
    parser.add_argument("--result", type=int, default=400, help="tokens of a tool result of a stub worker")
    parser.add_argument(
        "--tokenizer",
        default=str(TOKENIZER),
        help="tokenizer of a model that writes Hermes calls (default: the tool policy)",
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the policy's template renders no tools, which is logged every time
    # Workers import this folder's modules.
    here = str(Path(__file__).resolve().parent)
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default is 15: workers would wait for all other programs
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    if options.stubs:
        result = await measure_driver(options)
        for name, value in result.items():
            print(f"{name:>28}  {value}")
    else:
        result = await real_workers(options)
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())
