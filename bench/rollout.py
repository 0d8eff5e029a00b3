#!/usr/bin/env python3
"""Measures the CPU time of a turn of a rollout, split into the SDK, this package, and HTTP.

    python bench/rollout.py [--quick] [--tokenizer FOLDER]

The same conversation is run alternately in four ways, on one core: by the SDK alone on a model with scripted turns,
unchanged ("bare") and as `rollout` uses it ("sdk": inside `fast_agents`, infrequent garbage collection); by `rollout`
on an engine within the process; and by `rollout` over HTTP to a loopback server pinned to another core. Only the CPU
time of this process counts; the costs of this package and of HTTP are the differences.
`/bare` is the ratio of the total cost to that of the bare SDK in the same round, which is comparable between machines.

Prints a table, then the effect of the garbage collector's settings, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

from agent_script import Script, script, tokenizer_from
from loopback import stay_on
from loopback_process import AgentLoopback
from played_agent import TOKENIZER, ScriptedEngine, ScriptedModel, build, questions
from strands_sglang import fast_agents
from strands_sglang.runs import rollout
from strands_sglang.runs.agent_runner import run_agent
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.task import Task
from strands_sglang.runs.workers.process_tuning import infrequent_gc

LENGTHS = (1, 8, 32, 128)
"""Numbers of engine calls of an episode."""
WAYS = ("bare", "sdk", "ours", "all")
"""Names of the four ways; see above."""
AT_ONCE = 32
"""Number of concurrent episodes."""

Run = Callable[[], Awaitable[Any]]


async def gathered(episode_run: Callable[[Any], Awaitable[Any]], tasks: list[Any]) -> None:
    """Run tasks, `AT_ONCE` at a time."""
    left = iter(tasks)

    async def worker() -> None:
        for task in left:
            # An asyncio task for each, so that no context variable passes from one episode to the next.
            await asyncio.ensure_future(episode_run(task))

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


def ways(turns_script: Script, tokenizer: Any, url: str, turns: int, episodes: int) -> dict[str, Run]:
    """Return the four ways to run `episodes` episodes of `turns` turns, by name."""
    tasks = questions(episodes)
    limits = Limits()

    async def bare(task: Any) -> None:
        result = await build(task, ScriptedModel(turns_script, turns - 1)).invoke_async(task["prompt"])
        assert result.stop_reason == "end_turn"

    async def driven(task: Any) -> None:
        agent = build(task, ScriptedModel(turns_script, turns - 1))
        outcome = await run_agent(agent, Task.of(task), limits, None)  # type: ignore[arg-type]
        assert outcome.end_reason.complete, outcome

    async def sdk() -> None:
        with fast_agents(), infrequent_gc():
            await gathered(driven, tasks)

    async def run(**source: Any) -> None:
        run = await rollout(build, tasks, tokenizer=tokenizer, concurrency=AT_ONCE, **source)
        assert run.metrics.turns == turns * episodes and run.metrics.failures == 0, run.metrics

    return {
        "bare": lambda: gathered(bare, tasks),
        "sdk": sdk,
        "ours": lambda: run(client=ScriptedEngine(turns_script, turns - 1)),
        "all": lambda: run(base_url=url),
    }


async def seconds(run: Run) -> float:
    """Return the CPU seconds of one call."""
    gc.collect()
    began = time.process_time()
    await run()
    return time.process_time() - began


async def measure(runs: dict[str, Run], turns: int, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds per turn of each way, one number per round; the ways alternate."""
    costs: dict[str, list[float]] = {way: [] for way in runs}
    for number in range(rounds + 1):
        for way in list(runs) if number % 2 else list(runs)[::-1]:
            cost = await seconds(runs[way])
            if number:  # the first round is a warm-up
                costs[way].append(1e3 * cost / turns)
    return costs


def summary(length: int, costs: dict[str, list[float]]) -> dict[str, float]:
    """Return the medians over the rounds, and the split of the cost."""
    typical = {way: statistics.median(values) for way, values in costs.items()}
    ratios = [every / bare for every, bare in zip(costs["all"], costs["bare"], strict=True)]
    return {
        "turns": length,
        "bare_ms": typical["bare"],
        "sdk_ms": typical["sdk"],
        "ours_ms": statistics.median(b - a for a, b in zip(costs["sdk"], costs["ours"], strict=True)),
        "http_ms": statistics.median(b - a for a, b in zip(costs["ours"], costs["all"], strict=True)),
        "all_ms": typical["all"],
        "turns_per_second": 1e3 / typical["all"],
        "over_bare": statistics.median(ratios),
    }


@contextmanager
def collector(setting: str) -> Iterator[None]:
    """Set the garbage collector for a run, overriding the setting of `rollout`."""
    runner: Any = import_module("strands_sglang.runs.runner")
    threshold, original = gc.get_threshold(), runner.infrequent_gc
    try:
        if setting != "as rollout sets it":
            runner.infrequent_gc = nullcontext
        if setting == "off":
            gc.disable()
        if setting == "default, frozen":
            gc.collect()
            gc.freeze()
        yield
    finally:
        runner.infrequent_gc = original
        gc.set_threshold(*threshold)
        gc.enable()
        gc.unfreeze()


SETTINGS = ("default", "default, frozen", "as rollout sets it", "off")


async def measure_collector(tokenizer: Any, url: str, turns: int, episodes: int, rounds: int) -> dict[str, float]:
    """Return the milliseconds per turn for each setting of the collector, with all episodes running concurrently."""
    costs: dict[str, list[float]] = {setting: [] for setting in SETTINGS}

    async def episode_run() -> None:
        await rollout(build, questions(episodes), tokenizer=tokenizer, concurrency=episodes, base_url=url)

    for number in range(rounds):
        for setting in SETTINGS if number % 2 else SETTINGS[::-1]:
            with collector(setting):
                costs[setting].append(1e3 * await seconds(episode_run) / turns / episodes)
    return {setting: round(statistics.median(values), 3) for setting, values in costs.items()}


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a smoke test")
    parser.add_argument(
        "--tokenizer",
        default=str(TOKENIZER),
        help="tokenizer of a model that writes Hermes calls (default: the tool policy)",
    )
    parser.add_argument("--tokens", type=int, default=64, help="sampled tokens per turn")
    parser.add_argument("--no-collector", action="store_true", help="do not measure the garbage collector's settings")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the policy's template renders no tools, which is logged every time
    stay_on(1)
    rounds, budget = (2, 128) if options.quick else (5, 512)
    tokenizer = tokenizer_from(options.tokenizer)
    turns_script, rows = script(tokenizer, options.tokens), []
    calls = [length - 1 for length in LENGTHS]
    with AgentLoopback(options.tokenizer, calls, tokens=options.tokens, cpu=0) as server:
        print(f"CPU milliseconds per turn, {options.tokens} sampled tokens per turn, {AT_ONCE} concurrent episodes")
        print(
            f"{'turns':>6}{'bare':>8}{'sdk':>8}{'+ ours':>8}{'+ http':>8}{'= all':>8}{'turns/s':>9}{'/bare':>7}",
            flush=True,
        )
        for length in LENGTHS:
            episodes = max(2, budget // length)
            runs = ways(turns_script, tokenizer, server.urls[length - 1], length, episodes)
            row = summary(length, await measure(runs, length * episodes, rounds))
            rows.append({name: round(value, 3) for name, value in row.items()})
            print(
                f"{length:>6}"
                + "".join(f"{row[name]:>8.2f}" for name in ("bare_ms", "sdk_ms", "ours_ms", "http_ms", "all_ms"))
                + f"{row['turns_per_second']:>9.0f}{row['over_bare']:>7.2f}",
                flush=True,
            )
        result: dict[str, Any] = {"rows": rows}
        if not options.no_collector:
            episodes = 64 if options.quick else 512
            print(f"garbage collector, {episodes} concurrent episodes of 8 turns: CPU milliseconds per turn")
            result["collector_ms"] = await measure_collector(tokenizer, server.urls[7], 8, episodes, min(rounds, 3))
            for setting, cost in result["collector_ms"].items():
                print(f"{setting:>20}{cost:>8.2f}")
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())
