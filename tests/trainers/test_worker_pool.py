"""One worker per event loop and key; a row without a task is not an error."""

from __future__ import annotations

import asyncio

import pytest

from strands_sglang import SGLangClient
from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import EndReason, Episode, Limits, MaxStaleness, Task
from strands_sglang.runs.episode import StalenessDecision
from strands_sglang.runs.staleness import StalenessGate
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec
from strands_sglang.trainers.worker_pool import PerLoop, import_by_path, run_episode, run_fresh
from support.rollout.agent_kinds import build
from support.rollout.finished import finished
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


async def test_id_of_an_episode_that_is_run_again_is_never_used_twice() -> None:
    """Also if the second try was paused and came back, or the task has such an id itself."""
    engine, ran = PromptEngine(steps(1)), []
    rule = MaxStaleness(1, "retry", current=lambda: "9", retries=2)

    async def old(spec: EpisodeSpec) -> Episode:
        ran.append(spec.id)
        return finished(spec.task, version="3")

    for id in ("t", "t~1", "u~a", "u~b"):
        episode = await run_fresh(StalenessGate(rule, engine), EpisodeSpec(Task("go", id=id), 0), old)
        assert episode.staleness is not None and episode.staleness.decision is StalenessDecision.DROPPED
    assert len(ran) == 12 and len(set(ran) - {"t~1/0"}) == 10  # the second one is the episode that was paused


async def test_episode_is_as_old_as_its_own_tokens_show_although_no_worker_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strands_sglang.runs.staleness._PATIENCE", -1.0)

    async def two_versions(spec: EpisodeSpec) -> Episode:
        made = finished(spec.task)
        made.metrics.versions = ["1", "4"]
        return made

    async with SGLangClient("http://127.0.0.1:9") as client:
        made = await run_fresh(StalenessGate(MaxStaleness(2), client), EpisodeSpec(Task("go", id="t"), 0), two_versions)
    assert made.staleness is not None and (made.staleness.current, made.staleness.age) == ("4", 3)
    assert made.staleness.decision is StalenessDecision.DROPPED


def test_import_by_path() -> None:
    assert import_by_path("os.path.join").__name__ == "join"
    assert import_by_path(run_spec) is run_spec and import_by_path(None) is None
    for path in ("nothing", "os.nothing", "no.such.module"):
        with pytest.raises(ConfigurationError, match="dotted path"):
            import_by_path(path)
