"""`LocalWorker`: complete episodes, cancelled and stopped episodes, agents that ignore cancellation."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangModel
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.runs import EndReason, Failure, Limits, Task
from strands_sglang.runs.agent_runner import AgentOutcome
from strands_sglang.runs.episode import TurnCounts
from strands_sglang.runs.workers import local
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec
from support.rollout.agent_kinds import build, plain
from support.rollout.scripts import PromptEngine, Script, assert_same, record_of, steps

TASK = Task("go", id="t")


def worker_on(script: Script, directory: Path | None, **settings: Any) -> tuple[LocalWorker, PromptEngine]:
    engine = PromptEngine(script)
    given: dict[str, Any] = {"build": build, "reward": None, "limits": Limits(), **settings}
    return LocalWorker(
        RunSpec(client=engine, tokenizer=engine.tokenizer, directory=directory, run="r", **given)
    ), engine


async def test_run_records_episode_before_it_is_returned(tmp_path: Path) -> None:
    worker, _ = worker_on(steps(2), tmp_path, reward=lambda episode: {"reward": 1, "length": len(episode.text)})
    turns: list[TurnCounts] = []
    episode = await worker.run(EpisodeSpec(TASK, 3), on_turn=turns.append)
    # The end is in the ledger when the episode is returned, although the writer is still open.
    record = Ledger(tmp_path).episode("t/3")
    assert record.finished and record.end is not None
    assert [event.kind.value for event in record.events][-2:] == ["reward", "end"]
    assert record.begin is not None and record.begin.data["task"] == TASK.to_dict()
    assert record.begin.data["sample"] == 3 and record.begin.data["fingerprint"] == worker.fingerprint
    assert (episode.id, episode.reward, episode.reward_detail.parts) == ("t/3", 1.0, {"length": 7.0})
    assert len(turns) == 3 and turns[0].sampled == len(episode.tree[0].sampled)
    assert_same(tmp_path, [episode])
    await worker.close()
    with pytest.raises(LedgerError):
        await worker.run(EpisodeSpec(TASK, 4))


async def test_end_without_running_keeps_recorded_turns(tmp_path: Path) -> None:
    worker, _ = worker_on(steps(2), tmp_path)
    running = asyncio.ensure_future(worker.run(EpisodeSpec(TASK, 0)))
    while not any(record.calls for record in Ledger(tmp_path).episodes()):
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})
    failure = Failure("WorkerDied", "three times")
    record = Ledger(tmp_path).episode("t/0")
    again = EpisodeSpec(TASK, 0, record=None if record.finished else record)
    episode = await worker.end_without_running(again, AgentOutcome(EndReason.AGENT_ERROR, failure=failure))
    assert episode.end_reason is EndReason.AGENT_ERROR and episode.failure == failure
    fresh = await worker.end_without_running(EpisodeSpec(TASK, 1), AgentOutcome(EndReason.AGENT_ERROR, failure=failure))
    assert len(fresh.tree) == 0 and fresh.epoch == 0
    await worker.close()
    assert Ledger(tmp_path).episode("t/1").finished


async def test_stop_during_scoring(tmp_path: Path) -> None:
    """A stopped episode is still scored and keeps its end reason."""
    reached, proceed = asyncio.Event(), asyncio.Event()

    async def reward(episode: Any) -> float:
        reached.set()
        await proceed.wait()
        return 0.25

    worker, _ = worker_on(steps(1), tmp_path, reward=reward)
    event = asyncio.Event()
    running = asyncio.ensure_future(worker.run(EpisodeSpec(TASK, 0), stop=event))
    await reached.wait()
    event.set()
    running.cancel()
    await asyncio.sleep(0.01)
    proceed.set()
    episode = await running
    assert (episode.end_reason, episode.reward) == (EndReason.ANSWERED, 0.25)
    await worker.close()
    assert record_of(tmp_path).finished


@pytest.mark.timing
async def test_agent_that_ignores_cancellation_keeps_running_unrecorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It continues in the background; nothing it does is part of the episode any more."""
    monkeypatch.setattr(local, "_GRACE", 0.2)
    late: list[Any] = []

    def ignores_cancellation(task: Task, model: SGLangModel) -> Any:
        agent = plain(model)

        async def work() -> None:
            await agent.invoke_async("first")
            until = time.monotonic() + 1
            while time.monotonic() < until:
                try:
                    await asyncio.sleep(0.02)
                except asyncio.CancelledError:
                    pass
            for _ in range(5):
                late.append(str(await agent.invoke_async("too late")))

        return work

    worker, engine = worker_on(steps(1), tmp_path, build=ignores_cancellation, limits=Limits(episode_timeout=0.3))
    episode = await worker.run(EpisodeSpec(TASK, 0))
    assert episode.end_reason is EndReason.TIMEOUT and episode.metrics.seconds < 1
    began, rounds = time.monotonic(), 0
    while len(late) < 5:
        rounds += 1
        await asyncio.sleep(0.01)
    # Its repeated calls do not block the event loop.
    assert not any(late) and rounds > 10 and time.monotonic() - began < 5
    await worker.close()
    assert len(engine.calls) == 2 and len(episode.tree) == 2
    assert record_of(tmp_path).events[-1].kind is EventKind.END
    assert_same(tmp_path, [episode])
