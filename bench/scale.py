#!/usr/bin/env python3
"""Measures thousands of concurrent episodes in one process: memory, event loop lateness, turns per second.

    python bench/scale.py [--episodes 10000] [--latency 2] [--turns 3] [--long 1000]

All episodes of a rollout run at the same time, with a loopback server that answers after `--latency` seconds. An
episode is alive from the call of `build` until its end. Memory is the peak of the process minus its memory before the
run, divided by the number of episodes; the part that is token ids and logprobs is shown separately.

A task that repeatedly sleeps for 10 milliseconds measures how late the event loop is. If the loop is blocked longer,
everything that was due meanwhile is late, too: such a gap counts once for every 10 milliseconds of its length.

Then one episode of `--long` turns is run: the cost of a turn at its beginning and at its end.

Prints the measurements, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from agent_loopback import raise_file_limit
from agent_script import script, tokenizer_from
from loopback_process import AgentLoopback
from played_agent import TOKENIZER, ScriptedEngine, build, questions, resident_bytes
from strands_sglang import SGLangClient
from strands_sglang.runs import RunResult, rollout

_SLEEP = 0.01


@dataclass
class Watch:
    """Measures a run from the same event loop."""

    late: list[float] = field(default_factory=list)
    """Seconds by which each sleep was too long."""
    before: int = 0
    """Resident bytes before the run."""
    most: int = 0
    """Maximum of resident bytes."""
    alive: int = 0
    """Number of episodes alive."""
    most_alive: int = 0
    """Maximum number of episodes alive at the same time."""
    collected: list[float] = field(default_factory=list)
    """Duration of each garbage collection in seconds."""
    _began: float = 0.0

    async def measure(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(_SLEEP)
            self.late.append(loop.time() - began - _SLEEP)
            if len(self.late) % 10 == 0:
                self.most = max(self.most, resident_bytes())

    def build(self, task: Any, model: Any) -> Any:
        """Build an agent and count it."""
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        return build(task, model)

    def ended(self, episode: Any) -> None:
        """Count an episode that ended."""
        self.alive -= 1

    def collecting(self, phase: str, about: dict[str, int]) -> None:
        """Time the garbage collector."""
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.collected.append(time.perf_counter() - self._began)

    def percentile(self, part: float) -> float:
        """Return a percentile of the lateness of the event loop in milliseconds."""
        ordered = sorted(late - _SLEEP * step for late in self.late for step in range(int(max(0.0, late) / _SLEEP) + 1))
        return 1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def token_bytes(run: RunResult) -> float:
    """Return the mean number of bytes of token ids and logprobs of an episode."""
    return sum(4 * episode.metrics.tokens + 8 * episode.metrics.sampled_tokens for episode in run) / len(run)


async def all_at_once(options: argparse.Namespace, tokenizer: Any) -> dict[str, Any]:
    """Run all episodes concurrently and return the measurements."""
    watch, count, calls = Watch(), options.episodes, options.turns - 1
    with AgentLoopback(
        options.tokenizer, [options.turns - 1], tokens=options.tokens, latency=options.latency
    ) as server:
        client = SGLangClient(server.urls[calls], max_connections=count)
        given: dict[str, Any] = {"tokenizer": tokenizer, "client": client, "directory": options.directory}
        await rollout(build, ["warm up"], tokenizer=tokenizer, client=client)
        tasks = questions(count)
        gc.collect()
        gc.callbacks.append(watch.collecting)
        watch.before, loaded = resident_bytes(), server.used()["cpu_seconds"]
        began, cpu = time.monotonic(), time.process_time()
        measuring = asyncio.ensure_future(watch.measure())
        run = await rollout(watch.build, tasks, concurrency=count, on_episode=watch.ended, **given)
        elapsed, cpu = time.monotonic() - began, time.process_time() - cpu
        measuring.cancel()
        gc.callbacks.remove(watch.collecting)
        used = server.used()
        await client.close()
    held = (watch.most - watch.before) / count
    return {
        "episodes": count,
        "turns": options.turns,
        "completed": sum(episode.end_reason.complete for episode in run),
        "most_alive": watch.most_alive,
        "most_requests": used["most_under_way"],
        "kilobytes_each": round((held - token_bytes(run)) / 1024, 1),
        "kilobytes_tokens_each": round(token_bytes(run) / 1024, 1),
        "late_ms": {name: round(watch.percentile(part), 1) for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1))},
        "collector_seconds": round(sum(watch.collected), 2),
        "collector_longest_ms": round(1e3 * max(watch.collected, default=0.0), 1),
        "turns_per_second": round(run.metrics.turns / elapsed, 1),
        "turns_per_cpu_second": round(run.metrics.turns / cpu, 1),
        "server_cpu_seconds": round(used["cpu_seconds"] - loaded, 2),
        "seconds": round(elapsed, 1),
    }


async def one_long(options: argparse.Namespace, tokenizer: Any) -> dict[str, Any]:
    """Run one episode of many turns and return the cost of a turn early and late in it."""
    marks: list[float] = []

    class TimedEngine(ScriptedEngine):
        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            marks.append(time.process_time())
            return await super().generate(*args, **kwargs)

    engine = TimedEngine(script(tokenizer, options.tokens), options.long - 1)
    await rollout(build, ["warm up"], tokenizer=tokenizer, client=ScriptedEngine(script(tokenizer, 64), 7))
    before, part = resident_bytes(), max(1, options.long // 10)
    run = await rollout(build, ["One long task."], tokenizer=tokenizer, client=engine)
    return {
        "turns": run[0].metrics.turns,
        "tokens": run[0].metrics.tokens,
        "ended": run[0].end_reason.value,
        "first_tenth_ms": round(1e3 * (marks[part] - marks[0]) / part, 2),
        "last_tenth_ms": round(1e3 * (marks[-1] - marks[-1 - part]) / part, 2),
        "kilobytes_a_turn": round((resident_bytes() - before) / 1024 / options.long, 1),
    }


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--latency", type=float, default=2.0, help="seconds that the engine needs for a turn")
    parser.add_argument("--turns", type=int, default=3, help="turns of an episode, including its final answer")
    parser.add_argument("--tokens", type=int, default=64, help="sampled tokens per turn")
    parser.add_argument("--long", type=int, default=1000, help="turns of the long episode; 0: none")
    parser.add_argument(
        "--tokenizer",
        default=str(TOKENIZER),
        help="tokenizer of a model that writes Hermes calls (default: the tool policy)",
    )
    parser.add_argument("--directory", default=None, help="directory to write a ledger to (default: no ledger)")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the policy's template renders no tools, which is logged every time
    files = raise_file_limit()
    if options.episodes > files - 100:
        raise SystemExit(
            f"the limit of open files must be at least {options.episodes + 100}, got {files}: raise `ulimit -Hn`"
        )
    tokenizer = tokenizer_from(options.tokenizer)
    result: dict[str, Any] = {}
    if options.episodes:
        result["at_once"] = once = await all_at_once(options, tokenizer)
        print(f"{once['completed']} of {once['episodes']} episodes of {once['turns']} turns completed")
        print(f"at most {once['most_alive']} concurrent episodes, {once['most_requests']:.0f} concurrent requests")
        print(f"{once['kilobytes_each']} KB per episode, and {once['kilobytes_tokens_each']} KB of ids and logprobs")
        late = once["late_ms"]
        print(f"event loop lateness: {late['p50']} ms at p50, {late['p99']} ms at p99, {late['max']} ms at most")
        print(f"garbage collector: {once['collector_seconds']} s in total, {once['collector_longest_ms']} ms at most")
        print(f"{once['turns_per_second']} turns/s, {once['turns_per_cpu_second']} per CPU second", flush=True)
        print(f"the load generator used {once['server_cpu_seconds']} CPU seconds in {once['seconds']} s", flush=True)
    if options.long:
        result["long"] = long = await one_long(options, tokenizer)
        print(f"one episode of {long['turns']} turns, {long['tokens']} tokens: {long['ended']}")
        print(f"a turn costs {long['first_tenth_ms']} ms in its first tenth, {long['last_tenth_ms']} ms in its last")
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())
