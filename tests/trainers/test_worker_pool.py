"""One worker per event loop and key; a row without a task is not an error."""

from __future__ import annotations

import asyncio

import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import EndReason, Limits, Task
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec
from strands_sglang.trainers.worker_pool import PerLoop, import_by_path, run_episode
from support.rollout.agent_kinds import build
from support.rollout.scripts import PromptEngine, steps


def run_spec() -> RunSpec:
    engine = PromptEngine(steps(1))
    return RunSpec(build=build, reward=None, tokenizer=engine.tokenizer, client=engine, limits=Limits())


def worker() -> LocalWorker:
    return LocalWorker(run_spec())


def test_one_object_per_loop_and_key() -> None:
    workers: PerLoop[LocalWorker] = PerLoop()
    made: list[list[LocalWorker]] = []

    async def get_workers() -> None:
        made.append([workers.get(worker, key) for key in ("a", "b", "a")])

    asyncio.run(get_workers())
    asyncio.run(get_workers())
    assert all(first is third and first is not second for first, second, third in made)
    assert made[0][0] is not made[1][0], "another loop, another worker"
    assert len(workers) == 2, "those of closed loops are dropped"


async def test_discarded_object_is_made_again() -> None:
    kept: PerLoop[object] = PerLoop()
    first = kept.get(object)
    assert kept.get(object) is first
    kept.discard()
    assert kept.get(object) is not first


async def test_row_without_a_task_returns_none() -> None:
    one = worker()

    def bad() -> EpisodeSpec:
        raise KeyError("prompt")

    assert await run_episode(one, bad) is None
    episode = await run_episode(one, lambda: EpisodeSpec(Task("go", id="t"), 0))
    assert episode is not None and episode.end_reason is EndReason.ANSWERED


def test_import_by_path() -> None:
    assert import_by_path("os.path.join").__name__ == "join"
    assert import_by_path(run_spec) is run_spec and import_by_path(None) is None
    for path in ("nothing", "os.nothing", "no.such.module"):
        with pytest.raises(ConfigurationError, match="dotted path"):
            import_by_path(path)
