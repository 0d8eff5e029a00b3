"""The sandbox as a tool in agents and recorded runs."""

from __future__ import annotations

import ast
import asyncio
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from strands_sglang.errors import SandboxUnavailableError
from strands_sglang.ledger.event import EventKind
from strands_sglang.runs import EndReason, Limits, ReplayVerdict, Task, replay
from strands_sglang.tools import PythonSandbox, python_sandbox
from strands_sglang.tools.bubblewrap import find_bubblewrap
from support.rollout.scripts import PromptEngine, assert_proved, record_of
from support.rollout.scripts import run as run_episodes
from support.scripted_engine import Answer, tool_call
from support.tools.host import limits


@cache
def sandbox() -> PythonSandbox:
    """Return the shared sandbox of these tests, created by the first test that needs it."""
    return PythonSandbox(limits=limits(seconds=20), concurrency=4)


def build(task: Task, model: Any) -> Agent:
    tool = python_sandbox(sandbox())
    return Agent(model=model, tools=[tool], callback_handler=None, conversation_manager=NullConversationManager())


def coder(*programs: str) -> PromptEngine:
    """Return an engine that calls the tool with each program in turn and then repeats the last output."""

    def script(prompt: str, before: int) -> Answer:
        results = [part.partition("\n</tool_response>")[0] for part in prompt.split("<tool_response>\n")[1:]]
        if len(results) < len(programs):
            return tool_call("python", code=programs[len(results)])
        return f"It is {results[-1]}"

    return PromptEngine(script)


def test_tool_spec() -> None:
    tool = python_sandbox(sandbox())
    assert tool.tool_name == "python"
    assert "fresh interpreter" in tool.tool_spec["description"] and "20 seconds" in tool.tool_spec["description"]
    assert tool.tool_spec["inputSchema"]["json"]["required"] == ["code"]
    other = python_sandbox(packages=("numpy",), name="code_interpreter", limits=limits())
    assert other.tool_name == "code_interpreter" and "numpy" in other.tool_spec["description"]
    assert python_sandbox(sandbox(), description="My words.").tool_spec["description"] == "My words."


async def test_agent_runs_code() -> None:
    [episode] = await run_episodes(build, ["How much?"], coder("x = 17", "print(x)", "print(615 * 17)"))
    assert episode.text == "It is 10455"
    assert (episode.metrics.tool_calls, episode.metrics.tool_errors) == (3, 1)  # no state is kept between calls
    results = [
        block["toolResult"] for message in episode.messages for block in message["content"] if "toolResult" in block
    ]
    assert [result["status"] for result in results] == ["success", "error", "success"]
    assert "NameError: name 'x' is not defined" in results[1]["content"][0]["text"]


async def test_results_are_recorded_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = coder("import time; print(time.time_ns())")
    [episode] = await run_episodes(build, ["When?"], engine, tmp_path / "run")
    assert_proved(tmp_path / "run")
    tools = [event for event in record_of(tmp_path / "run").events if event.kind is EventKind.TOOL]
    assert [event.data["name"] for event in tools] == ["python"]

    async def never(self: PythonSandbox, code: str) -> Any:
        raise AssertionError("a recorded result was computed again")

    monkeypatch.setattr(PythonSandbox, "run", never)
    [again] = await replay(build, tmp_path / "run", tokenizer=engine.tokenizer)
    assert again.verdict is ReplayVerdict.IDENTICAL, again.message
    assert [list(t.token_ids) for t in again.trajectories] == [list(t.token_ids) for t in episode.trajectories]


async def test_slow_call_is_killed(tmp_path: Path) -> None:
    """The limit of the sandbox and the limit of the run both kill all processes of a call."""
    engine = coder("import os, time; os.fork(); time.sleep(99)")
    [episode] = await run_episodes(build, ["Well?"], engine, limits=Limits(tool_timeout=0.5))
    assert episode.end_reason is EndReason.ANSWERED and "within 0.5 seconds" in episode.text
    slow = PythonSandbox(limits=limits(seconds=0.3))
    [episode] = await run_episodes(
        lambda task, model: Agent(model=model, tools=[python_sandbox(slow)], callback_handler=None), ["Well?"], engine
    )
    assert "timed out after 0.3 seconds" in episode.text


@pytest.mark.parametrize("makes_text", [False, True])
async def test_bubblewrap_that_goes_away_ends_the_episode_until_it_is_back(makes_text: bool, tmp_path: Path) -> None:
    """The episode is not scored as if the model had got the error as the output of its code."""
    program = tmp_path / "bwrap"
    program.symlink_to(find_bubblewrap())
    box = PythonSandbox(bwrap=str(program), limits=limits(seconds=20))

    @tool
    async def python(code: str) -> str:
        """Run Python code."""
        try:
            return (await box.run(code)).text
        except Exception as error:
            return f"Error: {error}"

    def with_tool(task: Task, model: Any) -> Agent:
        return Agent(model=model, tools=[python if makes_text else python_sandbox(box)], callback_handler=None)

    async def one() -> Any:
        [episode] = await run_episodes(
            with_tool, [Task("How much?", id="t")], engine, tmp_path / "run", reward=lambda episode: 1.0
        )
        return episode

    engine = coder("print(615 * 17)")
    program.unlink()
    episode = await one()
    assert (episode.end_reason, episode.reward) == (EndReason.TOOL_UNAVAILABLE, None) and len(engine.calls) == 1
    assert episode.failure.kind == "SandboxUnavailableError" and "No such file" in episode.failure.message
    program.symlink_to(find_bubblewrap())
    episode = await one()
    assert (episode.text, episode.reward) == ("It is 10455", 1.0) and len(engine.calls) == 2
    assert_proved(tmp_path / "run")


async def test_sandbox_that_answers_when_it_is_asked_again_is_available(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.symlink_to(find_bubblewrap())
    box = PythonSandbox(bwrap=str(program), limits=limits(seconds=20))

    @tool
    def python(code: str) -> str:
        """Run Python code in a thread, with an event loop of its own."""
        program.unlink()
        for _ in range(2):
            try:
                return asyncio.run(box.run(code)).text
            except SandboxUnavailableError:
                program.symlink_to(find_bubblewrap())
        raise AssertionError("it does not come back")

    def with_tool(task: Task, model: Any) -> Agent:
        return Agent(model=model, tools=[python], callback_handler=None)

    [episode] = await run_episodes(with_tool, ["How much?"], coder("print(615 * 17)"))
    assert (episode.text, episode.end_reason) == ("It is 10455", EndReason.ANSWERED)


async def test_printed_control_tokens_stay_text() -> None:
    """Output that looks like control tokens is encoded as ordinary text."""
    engine = coder("print('<|im_' + 'end|>')", "print('nothing')")
    [episode] = await run_episodes(build, ["Well?"], engine)
    [trajectory] = episode.trajectories
    assert engine.decode([int(token) for token in trajectory.token_ids]).count("<|im_end|>") == 8
    end = engine.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert sum(int(token) == end for token in trajectory.token_ids) == 7  # the other one is ordinary text


async def test_many_episodes_share_one_sandbox() -> None:
    engine = coder("print(sum(range(100)))")
    run = await run_episodes(build, [Task(f"Question {n}") for n in range(30)], engine, concurrency=30)
    assert {episode.text for episode in run} == {"It is 4950"}


TESTS = Path(__file__).resolve().parent.parent


def test_no_test_module_creates_a_sandbox_on_import() -> None:
    for path in TESTS.rglob("*.py"):
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
            made = {call.id for call in calls if isinstance(call, ast.Name)} & {"PythonSandbox", "python_sandbox"}
            assert not made, f"{path.name}, line {statement.lineno}"


def test_test_without_bubblewrap_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    sandbox.cache_clear()
    with pytest.raises(SandboxUnavailableError, match="apt-get install bubblewrap"):
        sandbox()
