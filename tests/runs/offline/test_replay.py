"""Replay: the same agent gives the same trajectories without an engine; a changed one is located by its first event."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangModel
from strands_sglang.errors import ConfigurationError, EngineUnavailableError
from strands_sglang.ledger.event import EventKind
from strands_sglang.runs import EndReason, Limits, ReplayVerdict, Task, replay
from support.rollout.agent_kinds import KINDS, Kind, build, other_prompt, other_result, other_tools, plain, slow, step
from support.rollout.scripts import RAN, PromptEngine, crashed, last_step, record_of, run, steps
from support.scripted_engine import Answer, tool_call

TASK = Task("go", id="t")
TOKENIZER = PromptEngine(steps(1)).tokenizer


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_same_agent_is_identical(kind: Kind, tmp_path: Path) -> None:
    options = {**kind.options, "samples_per_task": 2, "rerun_tools": ["step"]}
    whole = await run(kind.build, [TASK], kind.engine(), tmp_path / "whole", **options)
    RAN.taken()
    replayed = await replay(kind.build, tmp_path / "whole", tokenizer=TOKENIZER, **kind.options)
    assert [(one.verdict, one.event, one.message) for one in replayed] == [(ReplayVerdict.IDENTICAL, None, "")] * 2
    assert not RAN.taken(), "a tool was run"
    for one, episode in zip(sorted(replayed, key=lambda one: one.id), whole, strict=True):
        assert list(one.trajectories) == episode.trajectories
    # The record of a crashed episode is replayed to its end.
    events = record_of(tmp_path / "whole", "t/0").events
    for kept in {1, 2, len(events) // 2, len(events) - 1}:
        folder = crashed(tmp_path / "whole", tmp_path / "crash", {"t/0": kept})
        (one,) = await replay(kind.build, folder, tokenizer=TOKENIZER, **kind.options)
        assert one.verdict is ReplayVerdict.IDENTICAL, (kept, one)
        assert not RAN.taken()


def shorter(task: Task, model: SGLangModel) -> Any:
    agent = plain(model)

    async def work() -> None:
        await agent.invoke_async("go", limits={"turns": 2})

    return work


def longer(task: Task, model: SGLangModel) -> Any:
    agent = plain(model)

    async def work() -> None:
        await agent.invoke_async("go")
        await agent.invoke_async("and now?")

    return work


def raising(task: Task, model: SGLangModel) -> Any:
    raise ValueError("no agent")


@pytest.mark.parametrize(
    ("changed", "event"),
    [(other_prompt, 1), (other_tools, 1), (other_result, 5), (shorter, 5), (raising, 1)],
    ids=lambda one: getattr(one, "__name__", ""),
)
async def test_changed_agent_diverges_at_an_event(changed: Any, event: int, tmp_path: Path) -> None:
    await run(build, [TASK], PromptEngine(steps(4)), tmp_path)
    assert record_of(tmp_path).events[event].kind is EventKind.CALL
    (one,) = await replay(changed, tmp_path, tokenizer=TOKENIZER)
    assert (one.verdict, one.event) == (ReplayVerdict.DIVERGED, event), one
    assert f"event {event}" in one.message


def other_description(task: Task, model: SGLangModel) -> Any:
    another = copy.copy(step)  # all tests share the tool itself
    another.tool_spec = {**step.tool_spec, "description": "Another."}
    return plain(model, tools=[another])


def other_messages(task: Task, model: SGLangModel) -> Any:
    agent = plain(model)
    agent.messages.append({"role": "user", "content": [{"text": "before"}]})
    agent.messages.append({"role": "assistant", "content": [{"text": "yes"}]})
    return agent


@pytest.mark.parametrize(
    ("changed", "cause", "recorded", "now"),
    [
        (other_prompt, "the system prompt was changed", " Qwen", " another."),
        (other_tools, "the tools were changed: 'slow' was added", "", "slow"),
        (other_description, "the tools were changed: description of 'step'", "", "Another."),
        (other_result, "message 4 (a tool result) was edited", "", "!"),
        (other_messages, "message 0 (the user's message) was edited", "go", "before"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
async def test_cause_of_a_prompt_difference(changed: Any, cause: str, recorded: str, now: str, tmp_path: Path) -> None:
    await run(build, [TASK], PromptEngine(steps(4)), tmp_path)
    (one,) = await replay(changed, tmp_path, tokenizer=TOKENIZER)
    differs = one.difference
    assert differs is not None and differs.event == one.event and differs.cause == cause
    assert recorded in differs.recorded and now in differs.now and differs.recorded != differs.now
    assert cause in one.message and one.why == f"the agent sends another prompt: {cause}"
    # An episode without an end has no recorded conversation: only the part of the prompt is named.
    folder = crashed(tmp_path, tmp_path / "crash", len(record_of(tmp_path).events) - 1)
    (one,) = await replay(changed, folder, tokenizer=TOKENIZER)
    after_first = changed is other_result
    assert one.difference is not None and one.difference.token == differs.token
    assert one.difference.cause.startswith(
        "something after the first turn" if after_first else "something in the first"
    )


async def test_agent_that_continues_after_its_record_is_identical(tmp_path: Path) -> None:
    await run(build, [TASK], PromptEngine(steps(2)), tmp_path)
    (one,) = await replay(longer, tmp_path, tokenizer=TOKENIZER)
    assert one.verdict is ReplayVerdict.IDENTICAL


async def test_limits_apply_in_a_replay(tmp_path: Path) -> None:
    def endless(prompt: str, before: int) -> Answer:
        return tool_call("step", number=last_step(prompt) + 1)

    for limits in (
        Limits(max_turns=10),
        Limits(max_tool_calls=4),
        Limits(max_episode_tokens=100),
        Limits(max_context_tokens=400),
    ):
        folder = tmp_path / str(limits)
        done = await run(build, [TASK], PromptEngine(endless), folder, limits=limits)
        assert done[0].end_reason not in (EndReason.ANSWERED, EndReason.AGENT_ERROR)
        (one,) = await replay(build, folder, tokenizer=TOKENIZER, limits=limits)
        assert one.verdict is ReplayVerdict.IDENTICAL, (limits, one)


async def test_interrupted_episodes(tmp_path: Path) -> None:
    """The agent hung, or the engine failed: the record ends there, and so does the replay."""

    def hanging(task: Task, model: SGLangModel) -> Any:
        agent = plain(model, tools=[step, slow])

        async def work() -> None:
            await agent.invoke_async("go")
            await asyncio.sleep(600)

        return work

    done = await run(hanging, [TASK], PromptEngine(steps(2)), tmp_path / "hangs", limits=Limits(episode_timeout=0.5))
    assert done[0].end_reason is EndReason.TIMEOUT
    (one,) = await asyncio.wait_for(replay(hanging, tmp_path / "hangs", tokenizer=TOKENIZER), 20)
    assert one.verdict is ReplayVerdict.IDENTICAL

    def failing(prompt: str, before: int) -> Answer:
        done = last_step(prompt)
        return EngineUnavailableError("away") if done == 2 else tool_call("step", number=done + 1)

    done = await run(build, [TASK], PromptEngine(failing), tmp_path / "fails")
    assert done[0].end_reason is EndReason.ENGINE_ERROR
    (one,) = await replay(build, tmp_path / "fails", tokenizer=TOKENIZER)
    assert one.verdict is ReplayVerdict.IDENTICAL


async def test_one_of_many_episodes_by_id(tmp_path: Path) -> None:
    tasks = [Task(f"question {number}", id=f"t{number}") for number in range(20)]
    await run(build, tasks, PromptEngine(steps(2)), tmp_path, samples_per_task=2)
    (one,) = await replay(build, tmp_path, tokenizer=TOKENIZER, episodes=["t3/1"])
    assert (one.id, one.verdict) == ("t3/1", ReplayVerdict.IDENTICAL)
    with pytest.raises(ConfigurationError, match="unknown/0"):
        await replay(build, tmp_path, tokenizer=TOKENIZER, episodes=["t3/1", "unknown/0"])
    everything = await replay(build, tmp_path, tokenizer=TOKENIZER, concurrency=3)
    assert {one.verdict for one in everything} == {ReplayVerdict.IDENTICAL} and len(everything) == 40


async def test_many_sub_agents_in_threads(tmp_path: Path) -> None:
    """They wait for each other's answers: with too few threads there would be a deadlock."""
    kind = next(kind for kind in KINDS if kind.name == "helpers")
    tasks = [Task(f"question {number}", id=f"t{number}") for number in range(12)]
    await run(kind.build, tasks, kind.engine(), tmp_path)
    replayed = await asyncio.wait_for(replay(kind.build, tmp_path, tokenizer=TOKENIZER), 100)
    assert [one.verdict for one in replayed] == [ReplayVerdict.IDENTICAL] * 12


async def test_cancelled_replay_leaves_nothing_running(tmp_path: Path) -> None:
    await run(build, [TASK], PromptEngine(steps(2)), tmp_path)
    reached = asyncio.Event()

    def hanging(task: Task, model: SGLangModel) -> Any:
        async def work() -> None:
            reached.set()
            await asyncio.sleep(600)

        return work

    work = asyncio.ensure_future(replay(hanging, tmp_path, tokenizer=TOKENIZER))
    await reached.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) == 1
