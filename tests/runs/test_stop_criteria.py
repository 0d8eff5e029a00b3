"""A run whose first episodes all fail with the same error stops, otherwise they are data; a run with enough groups."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang import SGLangModel
from strands_sglang.errors import (
    ConfigurationError,
    ContextOverflowError,
    EngineUnreachableError,
    RequestRejectedError,
    RunStoppedError,
    SandboxUnavailableError,
)
from strands_sglang.runs import EndReason, Episode, Task
from strands_sglang.runs.episode import Failure
from strands_sglang.runs.stop_criteria import StopCriteria, failure_line
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, assert_proved, run, steps

MAYBE = st.none() | st.integers(1, 20)
TASKS = [Task(f"question {number}", id=f"{number}") for number in range(20)]


def misspelt(task: Task, model: SGLangModel) -> Any:
    return plain(model, tools=[task.modle])  # type: ignore[attr-defined]


async def test_build_that_always_raises_stops_run(tmp_path: Path) -> None:
    engine = PromptEngine(steps(1))
    with pytest.raises(RunStoppedError) as stopped:
        await run(misspelt, TASKS, engine, tmp_path)
    message = str(stopped.value)
    assert "the first 8 episodes all failed with the same error" in message
    assert "AttributeError" in message and "modle" in message
    assert "test_stop_criteria.py" in message and "in misspelt" in message
    assert "stop_if_first_fail=None" in message
    # After the fix, the same call continues the run.
    whole = await run(lambda task, model: plain(model), TASKS, engine, tmp_path)
    assert [one.end_reason for one in whole] == [EndReason.ANSWERED] * len(TASKS)
    assert_proved(tmp_path)


async def test_stop_if_first_fail_is_configurable() -> None:
    with pytest.raises(RunStoppedError, match="the first 3 episodes"):
        await run(misspelt, TASKS, PromptEngine(steps(1)), stop_if_first_fail=3, concurrency=1)
    whole = await run(misspelt, TASKS, PromptEngine(steps(1)), stop_if_first_fail=None)
    assert [one.end_reason for one in whole] == [EndReason.AGENT_ERROR] * len(TASKS)
    with pytest.raises(ConfigurationError, match="stop_if_first_fail"):
        await run(misspelt, TASKS, PromptEngine(steps(1)), stop_if_first_fail=0)


async def test_too_few_failures_to_stop_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "strands_sglang"):
        whole = await run(misspelt, TASKS[:3], PromptEngine(steps(1)))
    assert [one.end_reason for one in whole] == [EndReason.AGENT_ERROR] * 3
    (record,) = (one for one in caplog.records if "failed with the same error" in one.getMessage())
    assert "episodes=<3>, error=<AttributeError" in record.getMessage()


async def test_other_outcome_keeps_run_going(caplog: pytest.LogCaptureFixture) -> None:
    def build(task: Task, model: SGLangModel) -> Any:
        if task.id != "0":
            raise RuntimeError("no agent for this")
        return plain(model)

    whole = await run(build, TASKS, PromptEngine(steps(1)), concurrency=1)
    assert [one.end_reason for one in whole] == [EndReason.ANSWERED] + [EndReason.AGENT_ERROR] * 19
    assert "failed with the same error" not in caplog.text

    def each_its_own(task: Task, model: SGLangModel) -> Any:
        raise (RuntimeError if int(task.id) % 2 else ValueError)("one of two")

    assert len(await run(each_its_own, TASKS, PromptEngine(steps(1)))) == 20


async def test_rejected_requests_stop_run_but_outages_do_not() -> None:
    """A rejected request would be rejected again; no answer is an outage, and a context overflow is data."""
    rejecting = PromptEngine(lambda prompt, before: RequestRejectedError("temprature is no parameter", status=400))
    with pytest.raises(RunStoppedError, match="temprature is no parameter"):
        await run(lambda task, model: plain(model), TASKS, rejecting)

    def without_sandbox(task: Task, model: SGLangModel) -> Any:
        raise SandboxUnavailableError("bubblewrap is not installed")

    with pytest.raises(RunStoppedError, match="bubblewrap is not installed"):  # it fails at once, unlike the engine
        await run(without_sandbox, TASKS, PromptEngine(steps(1)))
    for error, ended in (
        (EngineUnreachableError("gone"), EndReason.ENGINE_ERROR),
        (ContextOverflowError("too long", limit_tokens=5), EndReason.CONTEXT_LENGTH),
    ):
        engine = PromptEngine(lambda prompt, before, error=error: error)  # type: ignore[misc]
        whole = await run(lambda task, model: plain(model), TASKS, engine)
        assert {one.end_reason for one in whole} == {ended}


async def test_rewards_that_all_fail_stop_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def misspelt_reward(episode: Episode) -> float:
        return float(episode.txt == "the end")  # type: ignore[attr-defined]

    engine, build = PromptEngine(steps(1)), lambda task, model: plain(model)
    with pytest.raises(RunStoppedError) as stopped:
        await run(build, TASKS, engine, tmp_path, reward=misspelt_reward, concurrency=4)
    message = str(stopped.value)
    assert "the rewards of the first 8 episodes all failed with the same error" in message
    assert "AttributeError" in message and "test_stop_criteria.py" in message
    assert "strands-sglang score DIRECTORY --reward MODULE:FUNCTION --unscored" in message
    await run(build, TASKS[:3], engine, reward=misspelt_reward)
    assert "all rewards failed with the same error" in caplog.text
    # After the fix, the same call scores the recorded episodes without sampling them again.
    sampled = len(engine.calls)
    whole = await run(build, TASKS[:4], engine, tmp_path, reward=lambda episode: 1.0)
    assert [one.reward for one in whole] == [1.0] * 4 and len(engine.calls) == sampled


async def test_rewards_and_agents_that_fail_with_the_same_class_are_different() -> None:
    def build(task: Task, model: SGLangModel) -> Any:
        if int(task.id) % 2:
            raise ValueError("the agent")
        return plain(model)

    def reward(episode: Episode) -> float:
        raise ValueError("the reward")

    assert len(await run(build, TASKS, PromptEngine(steps(1)), reward=reward, concurrency=1)) == 20


def test_failure_line() -> None:
    where = 'Traceback:\n  File "a.py", line 1, in a\n    x\n  File "b.py", line 2, in b\n    y\nKeyError: 3\n'
    assert failure_line(Failure("KeyError", "3", where)) == 'KeyError: 3 (File "b.py", line 2, in b)'
    assert failure_line(Failure("WorkerDied", "gone")) == "WorkerDied: gone"


@given(MAYBE, st.integers(1, 20), st.integers(0, 40))
def test_group_is_complete_with_its_samples(samples: int | None, per_task: int, done: int) -> None:
    criteria = StopCriteria(samples=samples)
    assert 1 <= criteria.needed(per_task) <= per_task
    assert (done >= criteria.needed(per_task)) == (done >= min(samples or per_task, per_task))


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "4"])
async def test_stop_criteria_must_be_positive_ints(bad: Any) -> None:
    for name in ("stop_after_groups", "min_samples_per_task"):
        with pytest.raises(ConfigurationError, match=f"{name} must be"):
            await run(misspelt, ["q"], PromptEngine(steps(1)), samples_per_task=2, **{name: bad})
