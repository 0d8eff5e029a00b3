#!/usr/bin/env python3
"""What a call of the Python sandbox costs, against an interpreter without one.

    python bench/sandbox.py [--rounds 40] [--code "print(6 * 7)"] [--at-once 16]

Each round starts every contender once, in turn, so that whatever else the machine does falls on all alike. The table
has medians, and the median over rounds of the ratio to `python -c` as everybody would start it. The last line is many
calls at once through one sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from strands_sglang.tools import Isolation, PythonSandbox


async def command(*words: str) -> None:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    await process.communicate()
    assert process.returncode == 0, words


def contenders(code: str) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return what is compared, by name; the first is the yardstick."""
    sandbox = PythonSandbox()
    bare = PythonSandbox(isolation=Isolation.NONE_RUNS_AS_ME)
    return {
        "python -c": lambda: command(sys.executable, "-c", code),
        "python -I -S -c": lambda: command(sys.executable, "-I", "-S", "-c", code),
        "no isolation, with limits": lambda: bare.run(code),
        "sandbox": lambda: sandbox.run(code),
    }


async def measure(code: str, rounds: int) -> None:
    """Print what one call takes."""
    asked = contenders(code)
    taken: dict[str, list[float]] = {name: [] for name in asked}
    for number in range(rounds + 3):
        for name, run in asked.items():
            began = time.perf_counter()
            await run()
            if number >= 3:  # the first ones warm up the file cache
                taken[name].append(time.perf_counter() - began)
    yardstick = taken["python -c"]
    print(f"{'':28}{'median ms':>10}{'p90 ms':>10}{'ratio':>8}")
    for name, seconds in taken.items():
        ratio = statistics.median(one / other for one, other in zip(seconds, yardstick, strict=True))
        p90 = statistics.quantiles(seconds, n=10)[-1]
        print(f"{name:28}{statistics.median(seconds) * 1000:10.1f}{p90 * 1000:10.1f}{ratio:8.2f}")


async def crowd(code: str, count: int, at_once: int) -> None:
    """Print what many calls take that share a sandbox."""
    sandbox = PythonSandbox(concurrency=at_once)
    late, over = [], False

    async def beat() -> None:
        while not over:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            late.append(time.perf_counter() - began - 0.005)

    heart = asyncio.ensure_future(beat())
    began = time.perf_counter()
    await asyncio.gather(*(sandbox.run(code) for _ in range(count)))
    seconds = time.perf_counter() - began
    over = True
    await heart
    print(
        f"{count} calls asked for at once, {at_once} at a time: {count / seconds:.0f} a second; "
        f"event loop late by {statistics.median(late) * 1000:.1f} ms at p50, {max(late) * 1000:.0f} ms at most"
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description="What a call of the Python sandbox costs.")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--code", default="print(6 * 7)")
    parser.add_argument("--at-once", type=int, default=0, help="calls at once; 0: as many as processors")
    options = parser.parse_args()
    asyncio.run(measure(options.code, options.rounds))
    asyncio.run(crowd(options.code, 4 * options.rounds, options.at_once or PythonSandbox().concurrency))


if __name__ == "__main__":
    main()
