"""Runs jobs of one environment: reads them from stdin, writes what they cost to stdout, as JSON lines.

    cd bench && python -m suite.contestant TOKENIZER CPU

A job has the fields of `ways.Job`, and optionally `count_calls`: then the number of Python calls of a turn is counted
instead of its time. A job with the field `client` has the fields of `calls.Calls`: single calls of a client. CPU is the
CPU that the process is pinned to; -1: none.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import time
from typing import Any

from loopback import stay_on
from suite.calls import Calls, Clients
from suite.ways import Job, Ways


class CallCounter:
    """Counts the calls of Python functions, including each resumption of a generator or coroutine."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        """Count a call."""
        if event == "call":
            self.calls += 1


async def run(ways: Ways, job: Job, count_calls: bool) -> dict[str, float]:
    """Run a job and return its cost per turn, and what it made."""
    ways.prepare(job)
    gc.collect()
    counter = CallCounter()
    wall, cpu = time.perf_counter(), time.process_time()
    if count_calls:
        sys.setprofile(counter)
    try:
        done = await ways.run(job)
    finally:
        sys.setprofile(None)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    figures = {
        "turns": float(done.turns),
        "wall_s": wall,
        "cpu_ms": 1e3 * cpu / done.turns,
        "wall_ms": 1e3 * wall / done.turns,
        "sampled": float(done.tokens),
        "cached": float(done.cached_tokens),
    }
    return {"calls": counter.calls / done.turns} if count_calls else figures


async def run_calls(clients: Clients, calls: Calls) -> dict[str, float]:
    """Make calls and return the cost of one."""
    clients.prepare(calls)
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    await clients.run(calls)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu_ms": 1e3 * cpu / calls.count, "wall_ms": 1e3 * wall / calls.count}


async def main(tokenizer: str) -> None:
    """Run jobs until stdin closes."""
    ways, clients = Ways(tokenizer), Clients()
    loop = asyncio.get_running_loop()
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing but results is written to stdout
    out.write("ready\n")
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        given = json.loads(line)
        count_calls = given.pop("count_calls", False)
        try:
            figures: Any
            if "client" in given:
                figures = await run_calls(clients, Calls(**given))
            else:
                given["asked"] = tuple(tuple(asked) for asked in given.get("asked", ()))
                figures = await run(ways, Job(**given), count_calls)
        except Exception as error:
            figures = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(figures) + "\n")
    os._exit(0)  # skip the warnings about connections that were not closed


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # the policy's template renders no tools, which is logged every time
    if int(sys.argv[2]) >= 0:
        stay_on(int(sys.argv[2]))
    asyncio.run(main(sys.argv[1]))
