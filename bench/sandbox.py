#!/usr/bin/env python3
"""Measures the cost of a call of the Python sandbox, compared with a plain interpreter.

    python bench/sandbox.py [--rounds 40] [--code "print(6 * 7)"] [--at-once 16]

Each round runs every variant once, so that other load on the machine affects all equally. The table shows medians, and
the median over the rounds of the ratio to `python -c`. The last line is about many concurrent calls of one sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from strands_sglang.tools import Isolation, PythonSandbox


async def command(*arguments: str) -> None:
    """Run a command and wait for its end."""
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    await process.communicate()
    assert process.returncode == 0, arguments


def variants(code: str) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return the compared variants by name; the first is the baseline."""
    sandbox = PythonSandbox()
    bare = PythonSandbox(isolation=Isolation.NONE_RUNS_AS_ME)
    return {
        "python -c": lambda: command(sys.executable, "-c", code),
        "python -I -S -c": lambda: command(sys.executable, "-I", "-S", "-c", code),
        "no isolation, with limits": lambda: bare.run(code),
        "sandbox": lambda: sandbox.run(code),
    }


async def measure(code: str, rounds: int) -> None:
    """Print the duration of one call."""
    compared = variants(code)
    taken: dict[str, list[float]] = {name: [] for name in compared}
    for number in range(rounds + 3):
        for name, run in compared.items():
            began = time.perf_counter()
            await run()
            if number >= 3:  # the first rounds warm up the file cache
                taken[name].append(time.perf_counter() - began)
    baseline = taken["python -c"]
    print(f"{'':28}{'median ms':>10}{'p90 ms':>10}{'ratio':>8}")
    for name, seconds in taken.items():
        ratio = statistics.median(one / other for one, other in zip(seconds, baseline, strict=True))
        p90 = statistics.quantiles(seconds, n=10)[-1]
        print(f"{name:28}{statistics.median(seconds) * 1000:10.1f}{p90 * 1000:10.1f}{ratio:8.2f}")


async def measure_concurrent(code: str, count: int, at_once: int) -> None:
    """Print the throughput of many calls that share a sandbox, and how late the event loop is."""
    sandbox = PythonSandbox(concurrency=at_once)
    late, over = [], False

    async def heartbeat() -> None:
        while not over:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            late.append(time.perf_counter() - began - 0.005)

    beating = asyncio.ensure_future(heartbeat())
    began = time.perf_counter()
    await asyncio.gather(*(sandbox.run(code) for _ in range(count)))
    seconds = time.perf_counter() - began
    over = True
    await beating
    print(
        f"{count} concurrent calls, {at_once} run at a time: {count / seconds:.0f} per second; "
        f"event loop late by {statistics.median(late) * 1000:.1f} ms at p50, {max(late) * 1000:.0f} ms at most"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the cost of a call of the Python sandbox.")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--code", default="print(6 * 7)")
    parser.add_argument("--at-once", type=int, default=0, help="calls that run at a time; 0: one per processor")
    options = parser.parse_args()
    asyncio.run(measure(options.code, options.rounds))
    asyncio.run(measure_concurrent(options.code, 4 * options.rounds, options.at_once or PythonSandbox().concurrency))


if __name__ == "__main__":
    main()
