#!/usr/bin/env python3
"""Episodes spread over processes by Ray: turns a second with one worker and with two.

    python bench/ray_pool.py [--quick] [--workers 1,2]

Against a loopback server that answers at once, in a process group of its own, workers are bound by the CPU alone. The
numbers of workers take turns, on one Ray. Starting workers is left out: the rate is taken between the first and the
last fifth of the episodes that end. What the load generator and this process themselves used of a core is stated: on a
small machine it is missing from what the workers can have.

Prints a table, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import time
from pathlib import Path
from typing import Any

from loopback_process import AgentLoopback
from played_agent import TOKENIZER, build, questions
from strands_sglang.rollout import RolloutResult, rollout

TURNS = 8
AT_ONCE = 64


async def one(url: str, workers: int, episodes: int, tokenizer: str) -> tuple[float, float, RolloutResult]:
    """Return turns a second of one rollout, how much of a core this process used, and the rollout."""
    ended: list[tuple[float, float]] = []
    run = await rollout(
        build,
        questions(episodes),
        tokenizer=tokenizer,
        base_url=url,
        concurrency=AT_ONCE,
        workers=workers,
        on_episode=lambda episode: ended.append((time.perf_counter(), time.process_time())),
    )
    assert run.metrics.failures == 0 and len(run) == episodes, run.metrics
    first, last = episodes // 5, episodes - episodes // 5 - 1
    seconds = ended[last][0] - ended[first][0]
    return TURNS * (last - first) / seconds, (ended[last][1] - ended[first][1]) / seconds, run


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a smoke test")
    parser.add_argument("--workers", default="1,2", help="numbers of workers to compare")
    parser.add_argument(
        "--tokenizer", default=str(TOKENIZER), help="the tool policy's, or any that writes Hermes calls"
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the policy's template shows the model no tools, and that is said each time
    # Workers import this folder's modules.
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    counts = [int(count) for count in options.workers.split(",")]
    rounds, episodes = (1, 200) if options.quick else (5, 800)
    rates: dict[int, list[float]] = {count: [] for count in counts}
    own: dict[int, list[float]] = {count: [] for count in counts}
    load: dict[int, list[float]] = {count: [] for count in counts}
    with AgentLoopback(options.tokenizer, [TURNS - 1]) as server:
        for number in range(rounds):
            for count in counts if number % 2 == 0 else counts[::-1]:
                used = server.used()
                rate, cpu, _ = await one(server.urls[TURNS - 1], count, episodes, options.tokenizer)
                now = server.used()
                rates[count].append(rate)
                own[count].append(cpu)
                # By requests, because the server stands idle while workers start.
                requests = now["requests"] - used["requests"]
                load[count].append((now["cpu_seconds"] - used["cpu_seconds"]) / requests * rate)
                print(f"round {number}, workers {count}: {rate:.0f} turns/s", flush=True)
    rows: list[dict[str, Any]] = []
    print(f"{'workers':>8}{'turns/s':>9}{'/' + str(counts[0]):>7}{'load generator':>16}{'this process':>14}")
    for count in counts:
        ratio = statistics.median(rate / base for rate, base in zip(rates[count], rates[counts[0]], strict=True))
        row = {
            "workers": count,
            "turns_per_second": round(statistics.median(rates[count]), 1),
            "ratio": round(ratio, 3),
            "load_generator_cores": round(statistics.median(load[count]), 3),
            "driver_cores": round(statistics.median(own[count]), 3),
        }
        rows.append(row)
        print(
            "{workers:>8}{turns_per_second:>9.0f}{ratio:>7.2f}{load_generator_cores:>16.2f}{driver_cores:>14.2f}".format(
                **row
            )
        )
    print(json.dumps({"rows": rows, "cores": os.cpu_count()}))


if __name__ == "__main__":
    asyncio.run(main())
