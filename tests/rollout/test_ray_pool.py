"""Episodes on real Ray workers: the same as in one process, and nothing is lost when a worker dies."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from families import tokenizer
from lab_servers import free_port
from ray_here import ray_here
from rollout.scripts import FAMILY, PromptEngine, asked, assert_proved, assert_same, last_step, run, steps, summaries
from scripted_engine import Answer, tool_call
from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout import Ended, Episode, Limits, RunMetrics, Task, rollout
from strands_sglang.tokens import TokenTree


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    with ray_here():
        yield


@tool
async def step(number: int) -> str:
    """Take a step.

    Args:
        number: Which.
    """
    return f"step {number}"


@tool
async def note(number: int) -> str:
    """Take a step, after writing down which process did.

    Args:
        number: Which.
    """
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{os.getpid()} {number}\n")
    await asyncio.sleep(0.05)
    return f"step {number}"


@tool
async def deadly(number: int) -> str:
    """End the process.

    Args:
        number: Nobody looks.
    """
    await asyncio.sleep(0.3)  # what was before is on disk by then
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def agent(model: SGLangModel, *tools: Any) -> Agent:
    return Agent(model=model, tools=list(tools), callback_handler=None, conversation_manager=NullConversationManager())


def build(task: Task, model: SGLangModel) -> Agent:
    return agent(model, step)


def reward(episode: Any) -> float:
    return float(len(episode.task.prompt))


def said(episode: Episode) -> list[Any]:
    """Return the messages of an episode without what differs from run to run."""
    assert len(episode.messages) > 2
    return [(message["role"], message["content"]) for message in episode.messages]


QUESTIONS = [f"question {number}" for number in range(6)]


def broken_reward(episode: Any) -> float:
    raise ValueError("a mistake")


async def test_rewards_that_failed_are_had_from_workers_too(tmp_path: Path) -> None:
    first = await run(build, QUESTIONS, PromptEngine(steps(1)), tmp_path, reward=broken_reward, workers=2)
    assert {episode.reward for episode in first} == {None}
    again = await run(build, QUESTIONS, PromptEngine(steps(1)), tmp_path, reward=reward, workers=2)
    assert [episode.reward for episode in again] == [float(len(question)) for question in QUESTIONS]
    assert all(episode.restored for episode in again) and again.metrics.turns == 0
    assert summaries(again) == summaries(first)
    assert_proved(tmp_path)


async def test_as_in_one_process(tmp_path: Path) -> None:
    engine = PromptEngine(steps(3))
    options: dict[str, Any] = {"reward": reward}
    here = await run(build, QUESTIONS, PromptEngine(steps(3)), **options)
    there = await run(build, QUESTIONS, engine, tmp_path, workers=2, **options)
    assert not any(isinstance(episode.source, TokenTree) for episode in there)
    assert summaries(there) == summaries(here)
    assert [said(episode) for episode in there] == [said(episode) for episode in here]
    assert [episode.reward for episode in there] == [episode.reward for episode in here]
    assert [episode.id for episode in there] == [episode.id for episode in here]
    assert not engine.calls  # nothing was asked for from this process
    assert there.metrics.turns == here.metrics.turns == 6 * 4
    assert_proved(tmp_path)
    assert_same(tmp_path, there)
    assert len({path.name.partition("-")[0] for path in (tmp_path / "ledger").iterdir()}) == 2
    again = await run(build, QUESTIONS, engine, tmp_path, **options)
    assert summaries(again) == summaries(here) and again.metrics.restored == 6


async def test_outages_that_workers_have_are_shown_here() -> None:
    seen = asyncio.Event()

    def look(metrics: RunMetrics) -> None:
        if metrics.unreachable_seconds > 0.5:
            seen.set()

    async with SGLangClient(f"http://127.0.0.1:{free_port()}", first_contact=300) as nobody:
        work = asyncio.ensure_future(
            rollout(
                build,
                QUESTIONS,
                client=nobody,
                tokenizer=tokenizer(FAMILY),
                workers=2,
                preflight=False,
                on_metrics=look,
                metrics_seconds=0.2,
            )
        )
        waiting = asyncio.ensure_future(seen.wait())
        await asyncio.wait({work, waiting}, timeout=120, return_when=asyncio.FIRST_COMPLETED)
        assert seen.is_set() and not work.done()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work


async def test_a_worker_that_dies_loses_nothing(tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    def noting(task: Task, model: SGLangModel) -> Agent:
        os.environ["NOTES"] = str(notes)
        return agent(model, note)

    def script(prompt: str, before: int) -> Answer:
        done = last_step(prompt)
        return tool_call("note", number=done + 1) if done < 8 else "the end"

    async def kill() -> int:
        while not notes.exists() or len(notes.read_text().splitlines()) < 30:
            await asyncio.sleep(0.01)
        pid = int(notes.read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        return pid

    killer = asyncio.ensure_future(kill())
    result = await run(noting, QUESTIONS, PromptEngine(script), tmp_path / "run", workers=2, samples_per_task=2)
    pid = await killer
    assert [episode.ended for episode in result] == [Ended.ANSWERED] * 12
    assert result.metrics.total == 12
    assert {len(episode.tree) for episode in result} == {9}
    assert any(episode.epoch for episode in result)
    assert_proved(tmp_path / "run")
    assert_same(tmp_path / "run", result)
    lines = [line.split() for line in notes.read_text().splitlines()]
    # What was on record was not done again: at most the tool calls that were under way.
    assert 96 <= len(lines) <= 96 + 12
    assert {int(line[0]) for line in lines} - {pid}


async def test_without_a_ledger_they_begin_anew_and_what_goes_wrong_is_data(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    @tool
    async def once(number: int) -> str:
        """End the process, the first time.

        Args:
            number: Which.
        """
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"step {number}"

    def script(prompt: str, before: int) -> Answer:
        done = last_step(prompt)
        return tool_call("once", number=done + 1) if done < 2 else "the end"

    def broken(task: Task, model: SGLangModel) -> Agent:
        if task.prompt == "question 2":
            raise ImportError("no such thing here")
        return agent(model, once)

    result = await run(broken, QUESTIONS[:3], PromptEngine(script), workers=1, limits=Limits(turns=5))
    assert [episode.ended for episode in result] == [Ended.ANSWERED, Ended.ANSWERED, Ended.AGENT]
    assert [len(episode.tree) for episode in result] == [3, 3, 0]
    assert result[2].failure is not None and "no such thing" in result[2].failure.message


async def test_only_the_episode_that_takes_workers_with_it_is_given_up(tmp_path: Path) -> None:
    """Those that ran beside it, each time, are not to blame."""

    def script(prompt: str, before: int) -> Answer:
        if "question 1" in asked(prompt):
            return tool_call("deadly", number=1)
        done = last_step(prompt)
        return tool_call("slow_step", number=done + 1) if done < 8 else "the end"

    @tool
    async def slow_step(number: int) -> str:
        """Take a step, slowly.

        Args:
            number: Which.
        """
        await asyncio.sleep(0.1)
        return f"step {number}"

    result = await run(
        lambda task, model: agent(model, slow_step, deadly), QUESTIONS[:3], PromptEngine(script), tmp_path, workers=1
    )
    assert [episode.ended.value for episode in result] == ["answered", "agent", "answered"]
    assert result[1].failure is not None and result[1].failure.kind == "WorkerDied"
    assert [len(episode.tree) for episode in result] == [9, 1, 9]  # what it had is still there
    assert max(episode.epoch for episode in result) == 3
    assert_proved(tmp_path)
    assert_same(tmp_path, result)


async def test_the_rest_is_cut_short(tmp_path: Path) -> None:
    """Those that wait for a tool, and those that were only just handed to a worker."""

    @tool
    async def endless(number: int) -> str:
        """Wait.

        Args:
            number: Nobody looks.
        """
        await asyncio.sleep(600)
        return ""

    def script(prompt: str, before: int) -> Answer:
        return "the end" if "question 0" in asked(prompt) else tool_call("endless", number=1)

    result = await run(
        lambda task, model: agent(model, endless),
        QUESTIONS[:3],
        PromptEngine(script),
        tmp_path,
        workers=2,
        samples_per_task=20,
        enough_groups=1,
        enough_samples=1,
        warm_seconds=None,
    )
    assert [episode.ended for episode in result] == [Ended.ANSWERED]
    cut = [episode for episode in result.left_over if episode.ended is Ended.CUT_SHORT]
    assert len(cut) + sum(episode.ended is Ended.ANSWERED for episode in result.left_over) == 59
    assert len(cut) >= 40
    assert_proved(tmp_path)
    assert_same(tmp_path, [*result, *result.left_over])


async def test_workers_that_cannot_start(tmp_path: Path) -> None:
    """What is to be run is not where the workers are, or cannot be sent there."""
    (tmp_path / "only_here.py").write_text("def build(task, model):\n    pass\n")
    sys.path.insert(0, str(tmp_path))
    try:
        only_here = importlib.import_module("only_here")
        with pytest.raises(ConfigurationError, match="only_here"):
            await run(only_here.build, QUESTIONS[:2], PromptEngine(steps(1)), workers=1)
    finally:
        sys.path.remove(str(tmp_path))
    lock = threading.Lock()
    with pytest.raises(ConfigurationError, match="pickled"):
        await run(lambda task, model: lock, QUESTIONS[:2], PromptEngine(steps(1)), workers=1)


async def test_ray_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"strands-sglang\[ray\]"):
        await run(build, QUESTIONS, PromptEngine(steps(1)), workers=2)
