"""Measures what the process that calls `rollout` spends on each episode that Ray workers finish.

`rollout` runs with any number of workers, and everything in the caller's process and in Ray is real. Only the workers
are stubs: a few processes hold all of them, wait instead of running an agent, and answer with the result of an episode
that was really run before: the same objects, in the same three parts, as `RayWorker.run` returns them. So the CPU time
and memory of this process are those that as many real workers would cause. Not included: one connection per worker
process, because stub workers share processes. CPU times are divided by the slowdown of a busy machine (`speed.py`).
"""

from __future__ import annotations

import asyncio
import gc
import pickle
import random
import tempfile
import time
from copy import copy
from dataclasses import replace
from typing import Any

from agent_script import script, tokenizer_from
from growth.speed import Speed
from memory import builder
from played_agent import ScriptedEngine, build, questions, resident_bytes
from strands_sglang.ledger.seal import seal
from strands_sglang.runs import Episode, rollout
from strands_sglang.runs.episode import TurnCounts
from strands_sglang.runs.workers import ray_pool
from strands_sglang.runs.workers.spec import EpisodeSpec

SECONDS = 4.0
"""Mean duration of an episode of a stub worker."""


class StubWorker:
    """Many workers in one process that return the result of one recorded episode."""

    def __init__(self, recorded: bytes) -> None:
        self._episode, self._tree, self._messages = pickle.loads(recorded)
        turns = self._tree.turns
        self._counts = [TurnCounts.of(turn) for turn in turns]
        self._turns: dict[str, list[TurnCounts]] = {}
        self._random = random.Random(1)

    async def run(self, spec: EpisodeSpec) -> Any:
        """Wait as long as an episode takes, and return it."""
        await asyncio.sleep(self._random.uniform(0.5, 1.5) * SECONDS)
        episode = replace(copy(self._episode), id=spec.id, task=spec.task, sample=spec.sample)
        return (episode, self._counts), self._tree, self._messages

    async def poll(self) -> tuple[dict[str, list[TurnCounts]], float]:
        """Return that nothing happened."""
        return {}, 0.0

    async def close(self) -> None:
        """Do nothing."""


class StubPool(ray_pool.RayPool):
    """A `RayPool` whose workers share a few `StubWorker` processes; counts the messages of this process."""

    recorded = b""
    processes = 2
    polls = 0

    def _start(self, **options: Any) -> Any:
        if not hasattr(self, "_shared"):
            stub = self._ray.remote(num_cpus=0, max_concurrency=100_000)(StubWorker)
            self._shared = [stub.remote(self.recorded) for _ in range(self.processes)]
        number = next(self._names)
        return ray_pool._Actor(self._shared[number % self.processes], f"ray{number}")

    async def _poll(self, actor: Any) -> None:
        type(self).polls += 1
        await super()._poll(actor)


async def recorded_episode(tokenizer: Any, turns: int, tokens: int, result: int) -> tuple[bytes, dict[str, Any]]:
    """Run one episode for its result; return it as bytes, and its size.

    Args:
        tokenizer: The tokenizer.
        turns: Turns of the episode.
        tokens: Sampled tokens per turn.
        result: Tokens of a tool result.
    """
    words = script(tokenizer, result).last.text
    engine = ScriptedEngine(script(tokenizer, tokens), turns - 1)
    run = await rollout(builder(words, []), questions(1), tokenizer=tokenizer, client=engine)
    episode: Episode = run[0]
    assert episode.metrics.turns == turns and episode.end_reason.complete, episode.metrics
    tree, messages = episode.tree, episode.messages
    episode.source, episode.conversation = type(tree)(episode.id), []
    parts = [len(pickle.dumps(part)) for part in (episode, tree, messages)]
    about = {"turns": turns, "tokens": episode.metrics.tokens, "sampled": episode.metrics.sampled_tokens}
    sizes = {"kb_summary": parts[0] / 1024, "kb_turns": parts[1] / 1024, "kb_messages": parts[2] / 1024}
    return pickle.dumps((episode, tree, messages)), {**about, **{name: round(kb, 1) for name, kb in sizes.items()}}


async def measure_seal(tokenizer_path: str, *, episodes: int = 64, turns: int = 16) -> float:
    """Return the CPU seconds that sealing a run takes per million tokens.

    Args:
        tokenizer_path: Folder of the tokenizer.
        episodes: Number of episodes of the run.
        turns: Turns of each of them.
    """
    tokenizer = tokenizer_from(tokenizer_path)
    engine = ScriptedEngine(script(tokenizer, 256), turns - 1)
    build_with_results = builder(script(tokenizer, 400).last.text, [])
    with tempfile.TemporaryDirectory(prefix="seal-") as folder:
        run = await rollout(
            build_with_results, questions(episodes), tokenizer=tokenizer, client=engine, directory=folder
        )
        speed, began = Speed(), time.process_time()
        for _ in range(20):
            speed.sample()
        seal(folder)
        for _ in range(20):
            speed.sample()
        took = time.process_time() - began - speed.used
        return 1e6 * took / speed.slowdown / sum(episode.metrics.tokens for episode in run)


async def measure_driver(
    tokenizer_path: str, *, workers: int, processes: int, episodes: int, turns: int, tokens: int, result: int
) -> dict[str, Any]:
    """Return the driver's cost of a finished episode, with stub workers.

    Args:
        tokenizer_path: Folder of the tokenizer.
        workers: Number of workers.
        processes: Number of processes that the workers share.
        episodes: Number of episodes; 4 per worker run at the same time.
        turns: Turns of an episode.
        tokens: Sampled tokens per turn.
        result: Tokens of a tool result.
    """
    tokenizer = tokenizer_from(tokenizer_path)
    StubPool.recorded, about = await recorded_episode(tokenizer, turns, tokens, result)
    StubPool.processes, StubPool.polls = processes, 0
    marks: list[tuple[float, float, int, int]] = []

    def count(episode: Any) -> None:
        marks.append((time.perf_counter(), time.process_time() - speed.used, 0, StubPool.polls))
        if len(marks) in (first + 1, last + 1):
            gc.collect()
            now = time.process_time() - speed.used
            marks[-1] = (time.perf_counter(), now, resident_bytes(), StubPool.polls)
        elif first < len(marks) < last and len(marks) % 20 == 0:
            speed.sample()

    speed, first, last = Speed(), episodes // 5, episodes - episodes // 5 - 1
    original: Any = ray_pool.RayPool
    ray_pool.RayPool = StubPool  # type: ignore[misc]
    try:
        run = await rollout(
            build,
            questions(episodes),
            tokenizer=tokenizer_path,
            client=ScriptedEngine(script(tokenizer, 64), 0),
            concurrency=4 * workers,
            workers=workers,
            on_episode=count,
        )
    finally:
        ray_pool.RayPool = original  # type: ignore[misc]
    assert len(run) == episodes and not run.metrics.failures
    (wall, cpu, held, polls), (wall_end, cpu_end, held_end, polls_end) = marks[first], marks[last]
    seconds, done = wall_end - wall, last - first
    used = (cpu_end - cpu) / speed.slowdown
    return {
        "workers": workers,
        "at_once": 4 * workers,
        **about,
        "messages_per_episode": 2,  # a call and its answer
        "poll_messages_per_second": round(2 * (polls_end - polls) / seconds, 1),
        "driver_ms_per_episode": round(1e3 * used / done, 3),
        "episodes_per_driver_core_second": round(done / used, 1),
        "kb_held_per_finished_episode": round((held_end - held) / done / 1024, 1),
        "slowdown": round(speed.slowdown, 2),
        "episodes_per_second": round(done / seconds, 1),
        "driver_mb": round(held_end / 2**20),
    }
