"""A worker in this process: an episode, its end on record, and agents that do not let go."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from strands import tool

from rollout.kinds import plain
from rollout.scripts import PromptEngine, Script, assert_same, record_of, steps
from scripted_engine import Answer, tool_call
from strands_sglang import SGLangModel
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.rollout import Ended, Failure, Limits, Task, local
from strands_sglang.rollout.drive import Outcome
from strands_sglang.rollout.job import Job, Setup
from strands_sglang.rollout.local import LocalWorker
from strands_sglang.rollout.measures import TurnCounts

TASK = Task("go", id="t")


def build(task: Task, model: SGLangModel) -> Any:
    return plain(model)


def worker_on(script: Script, directory: Path | None, **settings: Any) -> tuple[LocalWorker, PromptEngine]:
    engine = PromptEngine(script)
    given: dict[str, Any] = {"build": build, "reward": None, "limits": Limits(), **settings}
    return LocalWorker(Setup(client=engine, tokenizer=engine.tokenizer, directory=directory, run="r", **given)), engine


async def test_an_episode_from_beginning_to_end(tmp_path: Path) -> None:
    worker, _ = worker_on(steps(2), tmp_path, reward=lambda episode: {"reward": 1, "length": len(episode.text)})
    turns: list[TurnCounts] = []
    episode = await worker.run(Job(TASK, 3), on_turn=turns.append)
    # When it is reported it is on record, though the writer is still open.
    record = Ledger(tmp_path).episode("t/3")
    assert record.finished and record.end is not None
    assert [event.kind.value for event in record.events][-2:] == ["reward", "end"]
    assert record.begin is not None and record.begin.data["task"] == TASK.to_dict()
    assert record.begin.data["sample"] == 3 and record.begin.data["fingerprint"] == worker.fingerprint
    assert (episode.id, episode.reward, episode.score.parts) == ("t/3", 1.0, {"length": 7.0})
    assert len(turns) == 3 and turns[0].sampled == len(episode.tree[0].sampled)
    assert_same(tmp_path, [episode])
    await worker.close()
    with pytest.raises(LedgerError):
        await worker.run(Job(TASK, 4))


async def test_an_episode_is_given_up_with_what_is_on_record(tmp_path: Path) -> None:
    worker, _ = worker_on(steps(2), tmp_path)
    running = asyncio.ensure_future(worker.run(Job(TASK, 0)))
    while not any(record.calls for record in Ledger(tmp_path).episodes()):
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})
    failure = Failure("WorkerDied", "three times")
    record = Ledger(tmp_path).episode("t/0")
    again = Job(TASK, 0, record=None if record.finished else record)
    episode = await worker.give_up(again, Outcome(Ended.AGENT, failure=failure))
    assert episode.ended is Ended.AGENT and episode.failure == failure
    fresh = await worker.give_up(Job(TASK, 1), Outcome(Ended.AGENT, failure=failure))
    assert len(fresh.tree) == 0 and fresh.epoch == 0
    await worker.close()
    assert Ledger(tmp_path).episode("t/1").finished


@pytest.mark.parametrize("cut", [True, False])
async def test_ended_from_outside(cut: bool, tmp_path: Path) -> None:
    """Cut short, an episode has its end on record and its tokens; else it is left to be resumed."""
    reached = asyncio.Event()

    @tool
    async def waits(number: int) -> str:
        """Wait.

        Args:
            number: Any.
        """
        reached.set()
        await asyncio.sleep(600)
        return ""

    worker, _ = worker_on(
        lambda prompt, before: tool_call("waits", number=1),
        tmp_path,
        build=lambda task, model: plain(model, tools=[waits]),
    )
    event = asyncio.Event()
    running = asyncio.ensure_future(worker.run(Job(TASK, 0), cut_short=event))
    await reached.wait()
    if cut:
        event.set()
    running.cancel()
    if cut:
        episode = await running
        assert episode.ended is Ended.CUT_SHORT and len(episode.tree) == 1 and episode.reward is None
    else:
        with pytest.raises(asyncio.CancelledError):
            await running
    await worker.close()
    assert record_of(tmp_path).finished is cut
    assert len(record_of(tmp_path).calls) == 1


@pytest.mark.parametrize("cut", [True, False])
async def test_ended_from_outside_while_it_is_scored(cut: bool, tmp_path: Path) -> None:
    """All but over, it counts as what it is; unless the whole run ends."""
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def reward(episode: Any) -> float:
        reached.set()
        await go_on.wait()
        return 0.25

    worker, _ = worker_on(steps(1), tmp_path, reward=reward)
    event = asyncio.Event()
    running = asyncio.ensure_future(worker.run(Job(TASK, 0), cut_short=event))
    await reached.wait()
    if cut:
        event.set()
    running.cancel()
    await asyncio.sleep(0.01)
    go_on.set()
    if cut:
        episode = await running
        assert (episode.ended, episode.reward) == (Ended.ANSWERED, 0.25)
    else:
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(asyncio.all_tasks()) == 1
    await worker.close()
    assert record_of(tmp_path).finished is cut


async def test_an_agent_that_does_not_listen_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on in the background; nothing of what it does is part of the episode any more."""
    monkeypatch.setattr(local, "_GRACE", 0.2)
    late: list[Any] = []

    def deaf(task: Task, model: SGLangModel) -> Any:
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

    worker, engine = worker_on(steps(1), tmp_path, build=deaf, limits=Limits(seconds_per_episode=0.3))
    episode = await worker.run(Job(TASK, 0))
    assert episode.ended is Ended.TIMEOUT and episode.metrics.seconds < 1
    began, rounds = time.monotonic(), 0
    while len(late) < 5:
        rounds += 1
        await asyncio.sleep(0.01)
    # However often it asks, others go on.
    assert not any(late) and rounds > 10 and time.monotonic() - began < 5
    await worker.close()
    assert len(engine.calls) == 2 and len(episode.tree) == 2
    assert record_of(tmp_path).events[-1].kind is EventKind.END
    assert_same(tmp_path, [episode])


async def test_a_thread_that_is_left_behind_writes_nothing(tmp_path: Path) -> None:
    """A sub-agent in a thread cannot be cancelled: it is refused."""
    free, over = threading.Event(), threading.Event()

    def threaded(task: Task, model: SGLangModel) -> Any:
        @tool
        def helper(number: int) -> str:
            """Ask a helper in a thread.

            Args:
                number: Any.
            """
            agent = plain(model, system_prompt="You help.")
            agent("first")
            free.wait(20)
            agent("second")
            over.set()
            return "never"

        return plain(model, tools=[helper])

    def script(prompt: str, before: int) -> Answer:
        return steps(1)(prompt, before) if "You help." in prompt else tool_call("helper", number=1)

    worker, engine = worker_on(script, tmp_path, build=threaded, limits=Limits(seconds_per_episode=2))
    episode = await worker.run(Job(TASK, 0))
    assert episode.ended is Ended.TIMEOUT and len(episode.tree) == 3
    free.set()
    assert await asyncio.to_thread(over.wait, 20)
    await worker.close()
    assert len(engine.calls) == 3
    assert record_of(tmp_path).events[-1].kind is EventKind.END
    assert_same(tmp_path, [episode])
