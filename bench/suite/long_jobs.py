"""One measurement in a separate process, because it depends on what the process did before.

    cd bench && python -m suite.long_jobs long --way rollout --turns 1000
    cd bench && python -m suite.long_jobs lag --url URL --episodes 256 --result 8000
    cd bench && python -m suite.long_jobs memory --url URL --episodes 4000

`long`: the cost of a turn at the beginning and at the end of one episode. `lag`: how late the event loop is while many
episodes receive long tool results. `memory`: resident memory of a live episode. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import resource
import time
from typing import Any

from strands import tool

from agent_script import TOOL, script, tokenizer_from
from played_agent import ScriptedEngine, ScriptedModel, build, questions, resident_bytes
from scripted_agent import text_of
from strands_sglang import SGLangClient
from strands_sglang.runs import rollout

_SLEEP = 0.01


async def long(options: argparse.Namespace, tokenizer: Any) -> dict[str, float]:
    """Run one long episode; return the CPU milliseconds of a turn in its first and in its last tenth."""
    marks: list[float] = []
    said, turns = script(tokenizer, 64), options.turns

    class TimedEngine(ScriptedEngine):
        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            marks.append(time.process_time())
            return await super().generate(*args, **kwargs)

    class TimedModel(ScriptedModel):
        async def stream(self, *args: Any, **kwargs: Any) -> Any:
            marks.append(time.process_time())
            async for event in super().stream(*args, **kwargs):
                yield event

    if options.way == "bare":
        await build(None, ScriptedModel(said, 7)).invoke_async("Warm up.")
        await build(None, TimedModel(said, turns - 1)).invoke_async("One long task.")
    else:
        await rollout(build, ["warm up"], tokenizer=tokenizer, client=ScriptedEngine(said, 7))
        await rollout(build, ["One long task."], tokenizer=tokenizer, client=TimedEngine(said, turns - 1))
    if len(marks) != turns:
        raise SystemExit(f"the episode must have {turns} turns, got {len(marks)}")
    part = max(1, turns // 10)
    first, last = (marks[part] - marks[0]) / part, (marks[-1] - marks[-1 - part]) / part
    return {"first_ms": 1e3 * first, "last_ms": 1e3 * last, "last_over_first": last / first}


class Watch:
    """Measures the event loop and the memory of the process while something else runs on the same loop."""

    def __init__(self) -> None:
        self.late: list[float] = []
        """Seconds by which each sleep was too long."""
        self.own: list[float] = []
        """The part of them in which the thread of the event loop used the CPU. The rest is the machine's: the thread
        waited for a CPU."""
        self.most = 0
        """Maximum of resident bytes."""

    async def measure(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began, used = loop.time(), time.thread_time()
            await asyncio.sleep(_SLEEP)
            late = loop.time() - began - _SLEEP
            self.late.append(late)
            self.own.append(min(late, time.thread_time() - used))
            if len(self.late) % 10 == 0:
                self.most = max(self.most, resident_bytes())


def percentile(late: list[float], part: float) -> float:
    """Return a percentile of seconds in milliseconds; a gap counts once for each sleep that fits in it."""
    ordered = sorted(gap - _SLEEP * step for gap in late for step in range(int(max(0.0, gap) / _SLEEP) + 1))
    return 1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]


async def watched(options: argparse.Namespace, tokenizer: Any, make: Any) -> tuple[Watch, Any, int]:
    """Run all episodes at once; return what the watch saw, the run, and the resident bytes before it."""
    client, watch = SGLangClient(options.url, max_connections=options.episodes), Watch()
    await rollout(make, ["warm up"], tokenizer=tokenizer, client=client)
    gc.collect()
    before = resident_bytes()
    measuring = asyncio.ensure_future(watch.measure())
    given = {"tokenizer": tokenizer, "client": client, "concurrency": options.episodes}
    run = await rollout(make, questions(options.episodes), **given)
    measuring.cancel()
    await client.close()
    if run.metrics.failures:
        raise SystemExit(f"{run.metrics.failures} episodes failed")
    return watch, run, before


async def lag(options: argparse.Namespace, tokenizer: Any) -> dict[str, float]:
    """Return how late the event loop is while tools return long texts."""
    texts = [text_of(tokenizer, options.result, seed) for seed in range(8)]

    @tool(name=TOOL)
    async def calculator(expression: str) -> str:
        """Work out one operation.

        Args:
            expression: Such as `615 * 17`.
        """
        return f"{expression} {texts[len(expression) % len(texts)]}"

    watch, run, _ = await watched(options, tokenizer, lambda task, model: build(task, model, [calculator]))
    parts = (("p50", 0.5), ("p99", 0.99), ("max", 1))
    late = {f"lag_{name}_ms": percentile(watch.late, part) for name, part in parts}
    return {**late, "lag_own_p99_ms": percentile(watch.own, 0.99), "turns": run.metrics.turns}


async def memory(options: argparse.Namespace, tokenizer: Any) -> dict[str, float]:
    """Return the kilobytes of a live episode besides its ids and logprobs."""
    watch, run, before = await watched(options, tokenizer, build)
    tokens = sum(4 * episode.metrics.tokens + 8 * episode.metrics.sampled_tokens for episode in run) / len(run)
    return {
        "kilobytes_each": ((watch.most - before) / options.episodes - tokens) / 1024,
        "kilobytes_of_tokens": tokens / 1024,
        "lag_p99_ms": percentile(watch.late, 0.99),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("job", choices=("long", "lag", "memory"))
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--way", choices=("rollout", "bare"), default="rollout")
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--url", default="")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--result", type=int, default=8000, help="tokens of a tool result")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the policy's template renders no tools, which is logged every time
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    job = {"long": long, "lag": lag, "memory": memory}[options.job]
    print(json.dumps(asyncio.run(job(options, tokenizer_from(options.tokenizer)))))


if __name__ == "__main__":
    main()
