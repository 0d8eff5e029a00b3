"""ToolRecorder: results are limited in time, recorded before the agent sees them, and answered from the record."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from strands import Agent, tool
from strands.hooks import AfterToolCallEvent, BeforeToolCallEvent

from strands_sglang import SGLangModel
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.event import EventKind
from strands_sglang.runs import EndReason, Limits, ReplayVerdict, Task, replay
from strands_sglang.runs.recording import tool_recorder
from strands_sglang.runs.recording.event_data import raise_location, rebuildable_data, result_of
from strands_sglang.runs.recording.recorder import EpisodeRecorder
from support.rollout.agent_kinds import plain, step
from support.rollout.scripts import (
    RAN,
    PromptEngine,
    Script,
    asked,
    assert_proved,
    crashed,
    record_of,
    run,
    steps,
    summaries,
)
from support.scripted_engine import Answer, tool_call

TASK = Task("go", id="t")


def calls(name: str, count: int = 1) -> Script:
    """Return a script that calls a tool `count` times and then ends."""

    def script(prompt: str, before: int) -> Answer:
        done = prompt.count("<tool_response>")
        return tool_call(name, number=done + 1) if done < count else "the end"

    return script


def with_tools(*tools: Any, **settings: Any) -> Any:
    return lambda task, model: plain(model, tools=list(tools), **settings)


def tools_of(directory: Path) -> list[Any]:
    return [event.data for event in record_of(directory).tools]


def results(agent_messages: list[Any]) -> list[str]:
    """Return status and text of the tool results in the messages."""
    blocks = [
        block["toolResult"] for message in agent_messages for block in message["content"] if "toolResult" in block
    ]
    return [f"{block['status']}: {block['content'][0].get('text', '')}" for block in blocks]


@tool
async def sleeps(number: int) -> str:
    """Sleep forever."""
    await asyncio.sleep(600)
    return "never"


@tool
async def ignores_cancellation(number: int) -> str:
    """Sleep, and ignore cancellation."""
    until = time.monotonic() + 0.8
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            RAN("cancelled")
    RAN("ignored cancellation")
    return "never"


FREE = threading.Event()


@tool
def blocks(number: int) -> str:
    """Block a thread."""
    FREE.wait(2)
    RAN("blocks woke")
    return "never"


async def test_time_of_a_result_is_when_the_tool_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when its episode was scheduled again."""
    now, ended = [0.0], list[float]()

    async def wait_for_slot(recorder: Any) -> None:
        now[0] += 100.0

    @tool
    def notes(number: int) -> str:
        """Note the time."""
        ended.append(now[0])
        return "noted"

    monkeypatch.setattr(EpisodeRecorder, "wait_for_slot", wait_for_slot)
    monkeypatch.setattr(tool_recorder, "time", SimpleNamespace(monotonic=time.monotonic, time=lambda: now[0]))
    await run(with_tools(notes), [TASK], PromptEngine(calls("notes")), tmp_path)
    assert [one["time"] for one in tools_of(tmp_path)] == ended and ended[0] > 0


@pytest.mark.parametrize("hanging_tool", [sleeps, ignores_cancellation, blocks], ids=lambda one: one.tool_name)
async def test_hanging_tool_gives_a_timeout_result_and_the_agent_continues(hanging_tool: Any, tmp_path: Path) -> None:
    RAN.taken()
    FREE.clear()
    name = hanging_tool.tool_name
    done = await run(
        with_tools(hanging_tool), [TASK], PromptEngine(calls(name, 2)), tmp_path, limits=Limits(tool_timeout=0.1)
    )
    episode = done[0]
    assert episode.metrics.seconds < 30
    assert episode.end_reason is EndReason.ANSWERED and episode.text == "the end"
    assert results(episode.messages) == [f"error: {name} did not answer within 0.1 seconds"] * 2
    metrics = episode.metrics
    assert (metrics.tool_calls, metrics.tool_errors, metrics.tool_timeouts) == (2, 2, 2)
    assert 0.2 <= metrics.tool_seconds < 20
    assert [data["outcome"] for data in tools_of(tmp_path)] == ["timeout"] * 2
    FREE.set()
    await asyncio.sleep(1 if hanging_tool is ignores_cancellation else 0.05)
    # What the tool does later is not recorded.
    assert len(tools_of(tmp_path)) == 2 and len(episode.tree) == 3
    assert_proved(tmp_path)


async def test_only_the_hanging_tool_times_out(tmp_path: Path) -> None:
    def script(prompt: str, before: int) -> Answer:
        if "<tool_response>" in prompt:
            return "the end"
        return "\n".join([tool_call("step", number=1), tool_call("sleeps", number=2), tool_call("step", number=3)])

    done = await run(with_tools(step, sleeps), [TASK], PromptEngine(script), tmp_path, limits=Limits(tool_timeout=0.1))
    assert results(done[0].messages) == [
        "success: step 1",
        "error: sleeps did not answer within 0.1 seconds",
        "success: step 3",
    ]
    assert done[0].metrics.tool_timeouts == 1


async def test_sub_agent_of_a_timed_out_thread_makes_no_more_turns(tmp_path: Path) -> None:
    """A thread cannot be stopped, but its engine calls after the end of the tool call are refused."""
    late: list[str] = []

    def build(task: Task, model: SGLangModel) -> Any:
        @tool
        def threaded(number: int) -> str:
            """Ask a sub-agent in a thread."""
            for question in range(20):
                late.append(str(plain(model, system_prompt="You help.")(f"question {question}")))
                time.sleep(0.05)
            return "never"

        return plain(model, tools=[threaded])

    def script(prompt: str, before: int) -> Answer:
        if "You help." in prompt:
            return f"helped with {asked(prompt)}"
        return calls("threaded")(prompt, before)

    engine = PromptEngine(script)
    done = await run(build, [TASK], engine, tmp_path, limits=Limits(tool_timeout=0.2))
    await asyncio.sleep(0.3)
    assert done[0].end_reason is EndReason.ANSWERED and done[0].metrics.tool_timeouts == 1
    turns = len(done[0].tree)
    assert 3 <= turns < 12 and len(engine.calls) <= turns + 1
    (event,) = tools_of(tmp_path)
    assert event["outcome"] == "timeout" and event["calls"] == turns - 2
    assert_proved(tmp_path)
    # Resumed after its result, and replayed, it makes the same turns and no more.
    events = record_of(tmp_path).events
    place = next(event.number for event in events if event.kind is EventKind.TOOL)
    folder = crashed(tmp_path, tmp_path / "crash", place + 1)
    again = PromptEngine(script)
    resumed = await run(build, [TASK], again, folder, limits=Limits(tool_timeout=0.2))
    assert summaries(resumed) == summaries(done) and len(again.calls) == 1
    assert_proved(folder)
    (replayed,) = await replay(build, tmp_path, tokenizer=engine.tokenizer, episodes=["t/0"])
    assert replayed.verdict is ReplayVerdict.IDENTICAL, replayed


@tool
async def exits(number: int) -> str:
    """End the process."""
    sys.exit(3)


@tool
def exits_in_a_thread(number: int) -> str:
    """End the process from a thread."""
    sys.exit()


@tool
async def cancels(number: int) -> str:
    """Cancel itself."""
    raise asyncio.CancelledError("by itself")


@tool
async def raises(number: int) -> str:
    """Raise an error whose message cannot be encoded."""
    raise RuntimeError("no \udcff such thing")


@pytest.mark.parametrize(
    ("failing_tool", "expected"),
    [
        (exits, "error: Error: SystemExit - 3"),
        (exits_in_a_thread, "error: Error: SystemExit"),
        (cancels, "error: Error: CancelledError"),
        (raises, "error: Error: RuntimeError - no \udcff such thing"),
    ],
    ids=lambda one: getattr(one, "tool_name", ""),
)
async def test_failing_tool_gives_an_error_result(failing_tool: Any, expected: str, tmp_path: Path) -> None:
    name = failing_tool.tool_name
    done = await run(with_tools(failing_tool, step), [TASK], PromptEngine(calls(name, 2)), tmp_path)
    assert results(done[0].messages) == [expected] * 2
    assert done[0].metrics.tool_errors == 2
    assert [data["outcome"] for data in tools_of(tmp_path)] == ["raised"] * 2
    if failing_tool is not raises:  # this message cannot be encoded for the model: the episode ends there
        assert done[0].end_reason is EndReason.ANSWERED
    assert_proved(tmp_path)


async def test_result_is_recorded_before_the_agent_sees_it(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def build(task: Task, model: SGLangModel) -> Any:
        agent = plain(model)

        def look(event: AfterToolCallEvent) -> None:
            recorder: Any = model.current_episode.observer
            seen.append((len(seen) + 1, recorder._chain.number))

        agent.hooks.add_callback(AfterToolCallEvent, look)
        return agent

    await run(build, [TASK], PromptEngine(steps(3)), tmp_path)
    assert seen == [(1, 3), (2, 5), (3, 7)]


async def test_rerun_tools_are_run_again_on_resume(tmp_path: Path) -> None:
    """The agent gets the recorded result, not the one of the second run."""
    shelf: list[int] = []

    @tool
    async def shelve(number: int) -> str:
        """Put something on the shelf."""
        shelf.append(number)
        RAN("shelve")
        return f"step {number}, {len(shelf)} on the shelf"

    def script(prompt: str, before: int) -> Answer:
        done = prompt.count("<tool_response>")
        return tool_call("shelve", number=done + 1) if done < 4 else "the end"

    RAN.taken()
    whole = await run(with_tools(shelve), [TASK], PromptEngine(script), tmp_path / "whole")
    assert shelf == [1, 2, 3, 4] and RAN.taken()["shelve"] == 4
    for rerun, after in ((("shelve",), [9, 1, 2, 3, 4]), ((), [9, 4])):
        folder = crashed(tmp_path / "whole", tmp_path / "crash", 8)
        shelf[:] = [9]
        resumed = await run(with_tools(shelve), [TASK], PromptEngine(script), folder, rerun_tools=rerun)
        assert shelf == after
        texts = results(resumed[0].messages)
        assert texts[:3] == results(whole[0].messages)[:3]
        assert texts[3] == f"success: step 4, {len(after)} on the shelf"
        assert_proved(folder)


async def test_result_of_a_tool_with_a_sub_agent_is_the_recorded_one(tmp_path: Path) -> None:
    """It is run again for the turns inside it; its result is the recorded one."""
    count = iter(range(100))

    def build(task: Task, model: SGLangModel) -> Any:
        helper = plain(model, system_prompt="You help.")

        @tool
        async def dated(number: int) -> str:
            """Ask a helper, and say when."""
            answer = await helper.invoke_async(f"question {number}")
            return f"{answer} at {next(count)}"

        return plain(model, tools=[dated])

    def script(prompt: str, before: int) -> Answer:
        return "helped" if "You help." in prompt else calls("dated", 2)(prompt, before)

    whole = await run(build, [TASK], PromptEngine(script), tmp_path / "whole")
    for kept in (5, 7, 8):
        folder = crashed(tmp_path / "whole", tmp_path / "crash", kept)
        engine = PromptEngine(script)
        resumed = await run(build, [TASK], engine, folder)
        assert results(resumed[0].messages)[0] == results(whole[0].messages)[0]
        assert not [event for event in record_of(folder).events if event.kind is EventKind.ROLLBACK]
        assert_proved(folder)
    (replayed,) = await replay(build, tmp_path / "whole", tokenizer=PromptEngine(script).tokenizer)
    assert replayed.verdict is ReplayVerdict.IDENTICAL


async def test_tool_is_run_again_if_its_result_could_not_be_recorded(tmp_path: Path) -> None:
    @tool
    async def large(number: int) -> Any:
        """Return a number as a name, which JSON does not have."""
        RAN("large")
        return {"status": "success", "content": [{"json": {3: "three"}}]}

    RAN.taken()
    engine = PromptEngine(calls("large", 2))
    whole = await run(with_tools(large), [TASK], engine, tmp_path / "whole")
    assert [data["result"] for data in tools_of(tmp_path / "whole")] == [None, None]
    folder = crashed(tmp_path / "whole", tmp_path / "crash", 5)
    again = PromptEngine(calls("large", 2))
    resumed = await run(with_tools(large), [TASK], again, folder)
    assert summaries(resumed) == summaries(whole) and RAN.taken()["large"] == 4 and len(again.calls) == 1
    assert_proved(folder)


async def test_each_result_of_a_retried_tool_is_recorded(tmp_path: Path) -> None:
    def build(task: Task, model: SGLangModel) -> Any:
        tries = 0

        @tool
        async def flaky(number: int) -> str:
            """Fail at first."""
            nonlocal tries
            tries += 1
            RAN("flaky")
            if tries % 3:
                raise ValueError(f"try {tries}")
            return f"step {number}"

        agent = plain(model, tools=[flaky])

        def again(event: AfterToolCallEvent) -> None:
            event.retry = event.result["status"] == "error"

        agent.hooks.add_callback(AfterToolCallEvent, again)
        return agent

    RAN.taken()
    whole = await run(build, [TASK], PromptEngine(calls("flaky", 2)), tmp_path / "whole")
    assert results(whole[0].messages) == ["success: step 1", "success: step 2"]
    assert RAN.taken()["flaky"] == 6 and len(tools_of(tmp_path / "whole")) == 6
    events = record_of(tmp_path / "whole").events
    for kept in range(2, len(events) - 1):
        folder = crashed(tmp_path / "whole", tmp_path / "crash", kept)
        resumed = await run(build, [TASK], PromptEngine(calls("flaky", 2)), folder)
        assert results(resumed[0].messages) == ["success: step 1", "success: step 2"], kept
        assert summaries(resumed) == summaries(whole)
        assert_proved(folder)
    (replayed,) = await replay(build, tmp_path / "whole", tokenizer=PromptEngine(steps(1)).tokenizer)
    assert replayed.verdict is ReplayVerdict.IDENTICAL


async def test_hooks_run_again_on_resume_with_the_same_input(tmp_path: Path) -> None:
    """A hook that changes arguments and results does so each time; it gets the recorded result."""

    def build(task: Task, model: SGLangModel) -> Any:
        agent = plain(model)

        def before(event: BeforeToolCallEvent) -> None:
            event.tool_use["input"]["number"] += 10

        def after(event: AfterToolCallEvent) -> None:
            RAN(f"hook saw {event.result['content'][0]['text']}")
            event.result = {**event.result, "content": [{"text": "step 1"}]}

        agent.hooks.add_callback(BeforeToolCallEvent, before)
        agent.hooks.add_callback(AfterToolCallEvent, after)
        return agent

    RAN.taken()
    whole = await run(build, [TASK], PromptEngine(steps(1)), tmp_path / "whole")
    assert RAN.taken() == {"step 11": 1, "hook saw step 11": 1}
    folder = crashed(tmp_path / "whole", tmp_path / "crash", 3)
    resumed = await run(build, [TASK], PromptEngine(steps(1)), folder)
    assert RAN.taken() == {"hook saw step 11": 1}
    assert summaries(resumed) == summaries(whole)


async def test_agent_continues_normally_after_its_episode() -> None:
    """An agent that was part of an episode works like any other agent afterwards."""
    kept: list[Agent] = []

    def build(task: Task, model: SGLangModel) -> Any:
        kept.append(plain(model))
        return kept[-1]

    engine = PromptEngine(steps(1))
    done = await run(build, [TASK], engine)
    assert done[0].end_reason is EndReason.ANSWERED
    result = await kept[0].invoke_async("and now?")
    assert str(result).strip() == "the end"


@tool
def divides(number: int, secret: str = "") -> str:
    """Divide by zero, as JSON would."""
    return str(json.loads("{" * number))


def dividing(task: Task, model: SGLangModel) -> Any:
    agent = plain(model, tools=[divides])

    def hand_over(event: BeforeToolCallEvent) -> None:
        event.tool_use = {**event.tool_use, "input": {**event.tool_use["input"], "secret": "hunter2"}}

    agent.hooks.add_callback(BeforeToolCallEvent, hand_over)
    return agent


def calls_once(prompt: str, before: int) -> str:
    return "the end" if "<tool_response>" in prompt else tool_call("divides", number=1)


@pytest.mark.parametrize("kept", ["record", "digest"])
async def test_arguments_and_error_location_are_recorded(kept: str, tmp_path: Path) -> None:
    (episode,) = await run(dividing, ["go"], PromptEngine(calls_once), tmp_path, tool_arguments=kept)
    assert episode.metrics.tool_errors == 1
    (event,) = record_of(tmp_path).tools
    place, _, function = event.data["raised_at"].partition(" in ")
    line = next(
        number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "json.loads" in text
    )
    assert (place, function) == (f"{__file__}:{line}", "divides")
    assert event.data["raised"].startswith("JSONDecodeError: ")
    arguments = {"number": 1, "secret": "hunter2"}
    assert event.data["arguments"] == (arguments if kept == "record" else None)
    assert_proved(tmp_path)
    assert any("hunter2" in str(one.data) for one in record_of(tmp_path).events) is (kept == "record")
    assert result_of(event, "x").tool_result["status"] == "error"


async def test_tool_arguments_option_is_validated_and_unserializable_arguments_are_none() -> None:
    with pytest.raises(ConfigurationError, match="tool_arguments must be one of 'record', 'digest', got 'none'"):
        await run(dividing, ["go"], PromptEngine(calls_once), tool_arguments="none")
    nested: dict[str, Any] = {}
    nested["itself"] = nested
    assert rebuildable_data(nested) is None and rebuildable_data({1: object()}) is None
    assert rebuildable_data({"a": (1, b"x")}) is not None
    assert raise_location(None) is None and raise_location(ValueError("never raised")) is None
