#!/usr/bin/env python3
"""Measures the cost of writing the ledger during a rollout, and the disk space per token.

    python bench/ledger.py [--quick] [--directory FOLDER]

The same rollout is run alternately with and without a ledger, over HTTP to a loopback server that answers at once and
is pinned to another core. CPU time is that of the whole process, including the ledger's thread. Ratios are computed
within each round, because other load on the machine affects both equally; the median over the rounds is shown.

Prints a table, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_script import tokenizer_from
from loopback import stay_on
from loopback_process import AgentLoopback
from played_agent import TOKENIZER, build, questions
from strands_sglang.runs import rollout

SHAPES = ((8, 64), (32, 64), (8, 512))
"""Turns of an episode, and sampled tokens per turn."""
AT_ONCE = 64
"""Number of concurrent episodes."""


@dataclass
class Rounds:
    """One shape: the cost of a turn with and without a ledger, one number per round."""

    turns: int
    tokens: int
    cpu: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    wall: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    written: int = 0
    """Total bytes of the ledgers."""
    recorded: int = 0
    """Number of tokens in the ledgers, including context, each counted once."""
    sampled: int = 0
    """Number of sampled tokens among these; each has a logprob."""

    def summary(self) -> dict[str, float]:
        """Return the medians over the rounds."""
        cpu, wall = self.cpu, self.wall
        return {
            "turns": self.turns,
            "tokens": self.tokens,
            "off_ms": statistics.median(cpu[False]),
            "on_ms": statistics.median(cpu[True]),
            "cpu_ratio": statistics.median(on / off for off, on in zip(cpu[False], cpu[True], strict=True)),
            "wall_ratio": statistics.median(on / off for off, on in zip(wall[False], wall[True], strict=True)),
            "bytes_a_token": self.written / max(1, self.recorded),
            "bytes_a_sampled_token": self.written / max(1, self.sampled),
        }


async def measure(
    rounds: int, episodes: int, turns: int, tokens: int, options: argparse.Namespace, tokenizer: Any, folder: Path
) -> Rounds:
    """Run alternately with and without a ledger."""
    seen, tasks = Rounds(turns, tokens), questions(episodes)
    with AgentLoopback(options.tokenizer, [turns - 1], tokens=tokens, cpu=0) as server:
        for number in range(rounds + 1):
            for on in (True, False) if number % 2 else (False, True):
                directory = folder / f"{turns}-{tokens}-{number}" if on else None
                gc.collect()
                began, cpu = time.perf_counter(), time.process_time()
                run = await rollout(
                    build,
                    tasks,
                    tokenizer=tokenizer,
                    base_url=server.urls[turns - 1],
                    concurrency=AT_ONCE,
                    directory=directory,
                )
                wall, cpu = time.perf_counter() - began, time.process_time() - cpu
                assert run.metrics.turns == turns * episodes and not run.metrics.failures, run.metrics
                if not number:  # the first round warms up
                    continue
                seen.cpu[on].append(1e3 * cpu / run.metrics.turns)
                seen.wall[on].append(1e3 * wall / run.metrics.turns)
                if directory is not None:
                    seen.written += sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
                    seen.recorded += sum(episode.metrics.tokens for episode in run)
                    seen.sampled += sum(episode.metrics.sampled_tokens for episode in run)
    return seen


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a smoke test")
    parser.add_argument(
        "--directory", default=None, help="folder on the disk to measure (default: the temporary folder)"
    )
    parser.add_argument(
        "--tokenizer",
        default=str(TOKENIZER),
        help="tokenizer of a model that writes Hermes calls (default: the tool policy)",
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the policy's template renders no tools, which is logged every time
    stay_on(1)
    tokenizer, rows = tokenizer_from(options.tokenizer), []
    rounds, budget = (3, 256) if options.quick else (9, 768)
    names = ("off ms", "on ms", "cpu", "wall", "B/token", "B/sampled")
    print(f"{'turns':>6}{'tokens':>8}" + "".join(f"{name:>10}" for name in names), flush=True)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="ledger-") as folder:
        for turns, tokens in SHAPES[:1] if options.quick else SHAPES:
            seen = await measure(rounds, budget // turns, turns, tokens, options, tokenizer, Path(folder))
            row = seen.summary()
            rows.append({name: round(value, 3) for name, value in row.items()})
            print(f"{turns:>6}{tokens:>8}" + "".join(f"{value:>10.3f}" for value in list(row.values())[2:]), flush=True)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    asyncio.run(main())
