"""One worker for each event loop and purpose; failures are rows, not errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollout.kinds import plain
from rollout.scripts import PromptEngine, steps
from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout import Ended, Limits, Task
from strands_sglang.rollout.job import Job, Setup
from strands_sglang.trainers.loop_worker import LoopWorkers, found, played


def build(task: Task, model: Any) -> Any:
    return plain(model)


def setup() -> Setup:
    engine = PromptEngine(steps(1))
    return Setup(build=build, reward=None, tokenizer=engine.tokenizer, client=engine, limits=Limits())


def test_one_for_each_loop_and_purpose() -> None:
    workers, made = LoopWorkers(), []

    async def ask() -> None:
        made.append([workers.get(purpose, setup) for purpose in ("a", "b", "a")])

    asyncio.run(ask())
    asyncio.run(ask())
    assert all(first is third and first is not second for first, second, third in made)
    assert made[0][0] is not made[1][0], "another loop, another worker"
    assert len(workers._workers) == 2, "those of closed loops are let go"


async def test_a_row_that_makes_no_task_is_no_error() -> None:
    worker = LoopWorkers().get("a", setup)

    def bad() -> Job:
        raise KeyError("prompt")

    assert await played(worker, bad) is None
    episode = await played(worker, lambda: Job(Task("go", id="t"), 0))
    assert episode is not None and episode.ended is Ended.ANSWERED


def test_paths_are_looked_up() -> None:
    assert found("os.path.join").__name__ == "join" and found(found) is found and found(None) is None
    for path in ("nothing", "os.nothing", "no.such.module"):
        with pytest.raises(ConfigurationError, match="dotted path"):
            found(path)
