"""A run whose first episodes all fail alike says so and stops; any other goes on, and bad episodes are data."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from rollout.kinds import plain
from rollout.scripts import PromptEngine, assert_proved, run, steps
from strands_sglang import SGLangModel
from strands_sglang.errors import (
    ConfigurationError,
    ContextOverflowError,
    EngineUnreachableError,
    RequestRejectedError,
    RunStoppedError,
)
from strands_sglang.rollout import Ended, Limits, Task
from strands_sglang.rollout.alike import said
from strands_sglang.rollout.episode import Failure

TASKS = [Task(f"question {number}", id=f"{number}") for number in range(20)]


def misspelt(task: Task, model: SGLangModel) -> Any:
    return plain(model, tools=[task.modle])  # type: ignore[attr-defined]


async def test_a_build_that_always_raises(tmp_path: Path) -> None:
    engine = PromptEngine(steps(1))
    with pytest.raises(RunStoppedError) as stopped:
        await run(misspelt, TASKS, engine, tmp_path)
    words = str(stopped.value)
    assert "the first 8 episodes all failed alike" in words and "AttributeError" in words and "modle" in words
    assert "test_alike.py" in words and "in misspelt" in words and "stop_after_failures=None" in words
    # Mended, the same call goes on.
    whole = await run(lambda task, model: plain(model), TASKS, engine, tmp_path)
    assert [one.ended for one in whole] == [Ended.ANSWERED] * len(TASKS)
    assert_proved(tmp_path)


async def test_it_can_be_set() -> None:
    with pytest.raises(RunStoppedError, match="the first 3 episodes"):
        await run(misspelt, TASKS, PromptEngine(steps(1)), stop_after_failures=3, concurrency=1)
    whole = await run(misspelt, TASKS, PromptEngine(steps(1)), stop_after_failures=None)
    assert [one.ended for one in whole] == [Ended.AGENT] * len(TASKS)
    with pytest.raises(ConfigurationError, match="stop_after_failures"):
        await run(misspelt, TASKS, PromptEngine(steps(1)), stop_after_failures=0)


async def test_too_few_to_be_stopped_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "strands_sglang"):
        whole = await run(misspelt, TASKS[:3], PromptEngine(steps(1)))
    assert [one.ended for one in whole] == [Ended.AGENT] * 3
    (record,) = (one for one in caplog.records if "failed alike" in one.getMessage())
    assert "episodes=<3> | all failed alike: AttributeError" in record.getMessage()


async def test_one_good_episode_and_a_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def build(task: Task, model: SGLangModel) -> Any:
        if task.id != "0":
            raise RuntimeError("no agent for this")
        return plain(model)

    whole = await run(build, TASKS, PromptEngine(steps(1)), concurrency=1)
    assert [one.ended for one in whole] == [Ended.ANSWERED] + [Ended.AGENT] * 19
    assert "failed alike" not in caplog.text

    def each_its_own(task: Task, model: SGLangModel) -> Any:
        raise (RuntimeError if int(task.id) % 2 else ValueError)("one of two")

    assert len(await run(each_its_own, TASKS, PromptEngine(steps(1)))) == 20


async def test_the_engine() -> None:
    """What it refuses it would refuse again; what it does not answer is an outage, and what is too long is data."""
    refusing = PromptEngine(lambda prompt, before: RequestRejectedError("temprature is no parameter", status=400))
    with pytest.raises(RunStoppedError, match="temprature is no parameter"):
        await run(lambda task, model: plain(model), TASKS, refusing)
    for error, ended in (
        (EngineUnreachableError("gone"), Ended.ENGINE),
        (ContextOverflowError("too long", limit_tokens=5), Ended.CONTEXT),
    ):
        engine = PromptEngine(lambda prompt, before, error=error: error)  # type: ignore[misc]
        whole = await run(lambda task, model: plain(model), TASKS, engine)
        assert {one.ended for one in whole} == {ended}


@pytest.mark.parametrize(
    ("built", "words"),
    [
        (None, "returned None, not an agent: does it end with `return agent`"),
        ("an agent", "returned 'an agent', which is no agent"),
        (dict, "returned <class 'dict'>, which is no agent"),
        (3, "returned 3, which is no agent"),
    ],
)
async def test_what_build_returns(built: Any, words: str) -> None:
    (episode,) = await run(lambda task, model: built, TASKS[:1], PromptEngine(steps(1)))
    assert episode.ended is Ended.AGENT and episode.failure is not None
    assert episode.failure.kind == "ConfigurationError" and words in episode.failure.message


async def test_a_turn_that_was_cut_has_its_words() -> None:
    engine = PromptEngine(lambda prompt, before: "one two three four five six seven eight nine ten")
    (episode,) = await run(lambda task, model: plain(model), TASKS[:1], engine, limits=Limits(tokens_per_turn=4))
    assert episode.ended is Ended.TURN_CUT
    assert episode.text and "one two three four five".startswith(episode.text)


def test_a_failure_in_one_line() -> None:
    where = 'Traceback:\n  File "a.py", line 1, in a\n    x\n  File "b.py", line 2, in b\n    y\nKeyError: 3\n'
    assert said(Failure("KeyError", "3", where)) == 'KeyError: 3 (File "b.py", line 2, in b)'
    assert said(Failure("WorkerDied", "gone")) == "WorkerDied: gone"
