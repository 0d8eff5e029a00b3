#!/usr/bin/env python3
"""What a turn of a rollout costs in CPU, and who spends it: the framework, our layer, HTTP.

    python bench/rollout.py [--quick] [--tokenizer FOLDER]

The same conversation is played four ways, in turns, on one core: by the framework alone on a model that says prepared
words, as it comes ("bare") and as a rollout drives it ("sdk": a few turns at a time, quiet tracer, quick copies, calm
garbage collector); by `rollout` on an engine within the process; and by `rollout` over HTTP to a loopback server,
which stays on another core. CPU time of this process counts, not the clock; what our layer and HTTP cost are the
differences. `/bare` is the cost of everything over that of the bare framework in the same round: the figure that means
the same on every machine.

Prints a table, then what the garbage collector's settings do to it, then one JSON line.
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
from typing import Any

from agent_script import Script, script, tokenizer_from
from loopback import stay_on
from loopback_process import AgentLoopback
from played_agent import TOKENIZER, ScriptedEngine, ScriptedModel, build, questions
from strands_sglang.rollout import local, rollout
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.collector import calm_collector
from strands_sglang.rollout.drive import drive
from strands_sglang.rollout.history import quick_to_copy
from strands_sglang.rollout.task import Task
from strands_sglang.rollout.telemetry import quiet_tracing

LENGTHS = (1, 8, 32, 128)
"""Engine calls of an episode."""
WAYS = ("bare", "sdk", "ours", "all")
"""How it is played; see above."""
AT_ONCE = 32
"""Episodes at once."""

Play = Callable[[], Awaitable[Any]]


async def gathered(play: Callable[[Any], Awaitable[Any]], tasks: list[Any]) -> None:
    """Play tasks, `AT_ONCE` at a time."""
    left = iter(tasks)

    async def worker() -> None:
        for task in left:
            # A task of its own for each: the context of one episode is not handed on to the next.
            await asyncio.ensure_future(play(task))

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


def ways(said: Script, tokenizer: Any, url: str, turns: int, episodes: int) -> dict[str, Play]:
    """Return each way to play episodes of so many turns."""
    tasks = questions(episodes)
    limits = Limits()

    async def bare(task: Any) -> None:
        result = await build(task, ScriptedModel(said, turns - 1)).invoke_async(task["prompt"])
        assert result.stop_reason == "end_turn"

    async def driven(task: Any) -> None:
        agent = build(task, ScriptedModel(said, turns - 1))
        quick_to_copy(agent)
        outcome = await drive(agent, Task.of(task), limits, None)  # type: ignore[arg-type]
        assert outcome.ended.complete, outcome

    async def sdk() -> None:
        with quiet_tracing(), calm_collector():
            await gathered(driven, tasks)

    async def run(**source: Any) -> None:
        run = await rollout(build, tasks, tokenizer=tokenizer, concurrency=AT_ONCE, **source)
        assert run.metrics.turns == turns * episodes and run.metrics.failures == 0, run.metrics

    return {
        "bare": lambda: gathered(bare, tasks),
        "sdk": sdk,
        "ours": lambda: run(client=ScriptedEngine(said, turns - 1)),
        "all": lambda: run(base_url=url),
    }


async def seconds(play: Play) -> float:
    """Return the CPU seconds of playing."""
    gc.collect()
    began = time.process_time()
    await play()
    return time.process_time() - began


async def measure(plays: dict[str, Play], turns: int, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds a turn of each way, a figure a round; the ways take turns."""
    costs: dict[str, list[float]] = {way: [] for way in plays}
    for number in range(rounds + 1):
        for way in list(plays) if number % 2 else list(plays)[::-1]:
            cost = await seconds(plays[way])
            if number:  # the first round warms up
                costs[way].append(1e3 * cost / turns)
    return costs


def summary(length: int, costs: dict[str, list[float]]) -> dict[str, float]:
    """Return the medians over the rounds, and the split."""
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
    """Set the garbage collector for a run, whatever `rollout` itself would set."""
    seen: Any = local
    before, ours = gc.get_threshold(), seen.calm_collector
    try:
        if setting != "as rollout sets it":
            seen.calm_collector = nullcontext
        if setting == "off":
            gc.disable()
        if setting == "default, frozen":
            gc.collect()
            gc.freeze()
        yield
    finally:
        seen.calm_collector = ours
        gc.set_threshold(*before)
        gc.enable()
        gc.unfreeze()


SETTINGS = ("default", "default, frozen", "as rollout sets it", "off")


async def measure_collector(tokenizer: Any, url: str, turns: int, episodes: int, rounds: int) -> dict[str, float]:
    """Return milliseconds a turn under each setting of the collector, all episodes live at once."""
    costs: dict[str, list[float]] = {setting: [] for setting in SETTINGS}

    async def play() -> None:
        await rollout(build, questions(episodes), tokenizer=tokenizer, concurrency=episodes, base_url=url)

    for number in range(rounds):
        for setting in SETTINGS if number % 2 else SETTINGS[::-1]:
            with collector(setting):
                costs[setting].append(1e3 * await seconds(play) / turns / episodes)
    return {setting: round(statistics.median(values), 3) for setting, values in costs.items()}


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a smoke test")
    parser.add_argument(
        "--tokenizer", default=str(TOKENIZER), help="the tool policy's, or any that writes Hermes calls"
    )
    parser.add_argument("--tokens", type=int, default=64, help="tokens sampled a turn")
    parser.add_argument("--no-collector", action="store_true", help="leave the garbage collector's settings out")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the policy's template shows the model no tools, and that is said each time
    stay_on(1)
    rounds, budget = (2, 128) if options.quick else (5, 512)
    tokenizer = tokenizer_from(options.tokenizer)
    said, rows = script(tokenizer, options.tokens), []
    calls = [length - 1 for length in LENGTHS]
    with AgentLoopback(options.tokenizer, calls, tokens=options.tokens, cpu=0) as server:
        print(f"CPU milliseconds a turn, {options.tokens} tokens sampled in each, {AT_ONCE} episodes at once")
        print(
            f"{'turns':>6}{'bare':>8}{'sdk':>8}{'+ ours':>8}{'+ http':>8}{'= all':>8}{'turns/s':>9}{'/bare':>7}",
            flush=True,
        )
        for length in LENGTHS:
            episodes = max(2, budget // length)
            plays = ways(said, tokenizer, server.urls[length - 1], length, episodes)
            row = summary(length, await measure(plays, length * episodes, rounds))
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
            print(f"garbage collector, {episodes} episodes of 8 turns live at once: CPU milliseconds a turn")
            result["collector_ms"] = await measure_collector(tokenizer, server.urls[7], 8, episodes, min(rounds, 3))
            for setting, cost in result["collector_ms"].items():
                print(f"{setting:>20}{cost:>8.2f}")
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())
