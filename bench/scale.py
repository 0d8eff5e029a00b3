#!/usr/bin/env python3
"""Thousands of episodes alive at once in one process: memory, lateness of the event loop, turns a second.

    python bench/scale.py [--episodes 10000] [--latency 2] [--turns 3] [--long 1000]

All episodes of a rollout are let in at once, against a loopback server that answers after `--latency` seconds. An
episode is alive from when its agent is built until it has ended. Memory is what the process holds at its peak beyond
what it held before, divided by the episodes; what of it are token ids and logprobs is shown apart.

A task that sleeps for 10 milliseconds, again and again, measures how late the event loop is. Where the loop stood still
for longer, everything that would have come up in the meantime was late, too: such a gap counts once for each 10
milliseconds it took, not once.

Then one episode of `--long` turns: the cost of a turn at its beginning and at its end.

Prints what was measured, then one JSON line.
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
from strands_sglang.rollout import RolloutResult, rollout

_NAP = 0.01


@dataclass
class Watch:
    """Looks at a run from beside it, in the same event loop."""

    late: list[float] = field(default_factory=list)
    """Seconds that each nap took too long."""
    before: int = 0
    """Bytes held at the beginning."""
    most: int = 0
    """Most bytes held."""
    alive: int = 0
    """Episodes alive now."""
    most_alive: int = 0
    """Most episodes alive at once."""
    collected: list[float] = field(default_factory=list)
    """Seconds of each garbage collection."""
    _began: float = 0.0

    async def look(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(_NAP)
            self.late.append(loop.time() - began - _NAP)
            if len(self.late) % 10 == 0:
                self.most = max(self.most, resident_bytes())

    def build(self, task: Any, model: Any) -> Any:
        """Build an agent and count it."""
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        return build(task, model)

    def ended(self, episode: Any) -> None:
        """Count an episode out."""
        self.alive -= 1

    def collecting(self, phase: str, about: dict[str, int]) -> None:
        """Time the garbage collector."""
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.collected.append(time.perf_counter() - self._began)

    def percentile(self, part: float) -> float:
        """Return how late the loop was in milliseconds, at a percentile."""
        ordered = sorted(late - _NAP * step for late in self.late for step in range(int(max(0.0, late) / _NAP) + 1))
        return 1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def token_bytes(run: RolloutResult) -> float:
    """Return the bytes of token ids and logprobs of an episode, on average."""
    return sum(4 * episode.metrics.tokens + 8 * episode.metrics.sampled_tokens for episode in run) / len(run)


async def all_at_once(options: argparse.Namespace, tokenizer: Any) -> dict[str, Any]:
    """Run all episodes at once and return what was measured."""
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
        looking = asyncio.ensure_future(watch.look())
        run = await rollout(watch.build, tasks, concurrency=count, on_episode=watch.ended, **given)
        elapsed, cpu = time.monotonic() - began, time.process_time() - cpu
        looking.cancel()
        gc.callbacks.remove(watch.collecting)
        used = server.used()
        await client.close()
    held = (watch.most - watch.before) / count
    return {
        "episodes": count,
        "turns": options.turns,
        "completed": sum(episode.ended.complete for episode in run),
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
    """Run one episode of many turns and return what a turn of it cost, early and late."""
    marks: list[float] = []

    class Marked(ScriptedEngine):
        async def generate(self, *given: Any, **asked: Any) -> Any:
            marks.append(time.process_time())
            return await super().generate(*given, **asked)

    engine = Marked(script(tokenizer, options.tokens), options.long - 1)
    await rollout(build, ["warm up"], tokenizer=tokenizer, client=ScriptedEngine(script(tokenizer, 64), 7))
    before, part = resident_bytes(), max(1, options.long // 10)
    run = await rollout(build, ["One long task."], tokenizer=tokenizer, client=engine)
    return {
        "turns": run[0].metrics.turns,
        "tokens": run[0].metrics.tokens,
        "ended": run[0].ended.value,
        "first_tenth_ms": round(1e3 * (marks[part] - marks[0]) / part, 2),
        "last_tenth_ms": round(1e3 * (marks[-1] - marks[-1 - part]) / part, 2),
        "kilobytes_a_turn": round((resident_bytes() - before) / 1024 / options.long, 1),
    }


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--latency", type=float, default=2.0, help="seconds that the engine takes for a turn")
    parser.add_argument("--turns", type=int, default=3, help="turns of an episode, its last answer included")
    parser.add_argument("--tokens", type=int, default=64, help="tokens sampled a turn")
    parser.add_argument("--long", type=int, default=1000, help="turns of the long episode; 0: none")
    parser.add_argument(
        "--tokenizer", default=str(TOKENIZER), help="the tool policy's, or any that writes Hermes calls"
    )
    parser.add_argument("--directory", default=None, help="write a ledger there")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the policy's template shows the model no tools, and that is said each time
    files = raise_file_limit()
    if options.episodes > files - 100:
        raise SystemExit(f"this system lets a process open {files} files: too few for {options.episodes} connections")
    tokenizer = tokenizer_from(options.tokenizer)
    result: dict[str, Any] = {}
    if options.episodes:
        result["at_once"] = once = await all_at_once(options, tokenizer)
        print(f"{once['completed']} of {once['episodes']} episodes of {once['turns']} turns completed")
        print(f"{once['most_alive']} alive at once, {once['most_requests']:.0f} requests with the engine at once")
        print(f"{once['kilobytes_each']} KB each, and {once['kilobytes_tokens_each']} KB of ids and logprobs")
        late = once["late_ms"]
        print(f"event loop late: {late['p50']} ms at p50, {late['p99']} ms at p99, {late['max']} ms at most")
        print(f"garbage collector: {once['collector_seconds']} s in all, {once['collector_longest_ms']} ms at most")
        print(f"{once['turns_per_second']} turns/s, {once['turns_per_cpu_second']} per CPU second", flush=True)
        print(f"the load generator used {once['server_cpu_seconds']} CPU seconds of {once['seconds']} s", flush=True)
    if options.long:
        result["long"] = long = await one_long(options, tokenizer)
        print(f"one episode of {long['turns']} turns, {long['tokens']} tokens: {long['ended']}")
        print(f"a turn costs {long['first_tenth_ms']} ms in its first tenth, {long['last_tenth_ms']} ms in its last")
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())
