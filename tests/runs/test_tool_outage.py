"""A tool that is unavailable ends the episode: unscored, untrained, resumable. The model is not told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from strands import tool
from strands.multiagent import GraphBuilder
from strands.types.tools import AgentTool

from strands_sglang import SGLangModel
from strands_sglang.errors import SandboxUnavailableError, ToolUnavailableError
from strands_sglang.ledger.event import EventKind
from strands_sglang.runs import EndReason, ReplayVerdict, Task, replay
from strands_sglang.trainers.statuses import is_trainable
from support.rollout.agent_kinds import plain, step
from support.rollout.scripts import RAN, PromptEngine, assert_proved, assert_same, last_step, record_of, run
from support.scripted_engine import Answer, tool_call

TASK = Task("go", id="t")
AWAY = ToolUnavailableError("the browser does not answer")
HERE = {"browser": False}
"""Whether the tools of this module are available."""


def page(number: int) -> str:
    RAN("page")
    if not HERE["browser"]:
        raise AWAY
    return "step 1"


@tool(name="page")
async def on_the_loop(number: int) -> str:
    """Open a page."""
    return page(number)


@tool(name="page")
def in_a_thread(number: int) -> str:
    """Open a page."""
    return page(number)


@tool(name="page")
async def of_another_class(number: int) -> str:
    """Open a page."""
    try:
        return page(number)
    except ToolUnavailableError as error:
        raise KeyError("page") from error


@tool(name="page")
async def reworded(number: int) -> str:
    """Open a page."""
    try:
        return page(number)
    except Exception as error:
        raise ValueError(f"failed: {error}")  # noqa: B904 - as many tools do


@tool(name="page")
async def sandboxed(number: int) -> str:
    """Open a page."""
    try:
        return page(number)
    except ToolUnavailableError:
        raise SandboxUnavailableError("no namespaces", program="bwrap") from None


class Bare(AgentTool):
    """A tool that the framework's decorator does not wrap."""

    tool_name, tool_type = "page", "page"
    tool_spec: Any = {"name": "page", "description": "Open a page.", "inputSchema": {"json": {"type": "object"}}}

    async def stream(self, tool_use: Any, invocation_state: Any, **_: Any) -> AsyncGenerator[Any, None]:
        """Open a page."""
        text = page(1)
        yield {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": text}]}


def alone(model: SGLangModel, tools: list[Any]) -> Any:
    return plain(model, tools=[*tools, step])


def helper(model: SGLangModel, tools: list[Any]) -> Any:
    return plain(model, system_prompt="You help.", name="helper", description="Helps.", tools=[*tools, step])


def inside(model: SGLangModel, tools: list[Any]) -> Any:
    """Return an agent that has the agent with the tool as a tool: its error becomes text there."""
    return plain(model, tools=[helper(model, tools).as_tool()])


def threaded(model: SGLangModel, tools: list[Any]) -> Any:
    @tool(name="helper")
    def ask(input: str) -> str:
        """Ask a helper, and hide what goes wrong."""
        try:
            return str(helper(model, tools)("help"))
        except Exception as error:
            return f"no help today: {error}"

    return plain(model, tools=[ask])


def in_a_graph(model: SGLangModel, tools: list[Any]) -> Any:
    builder = GraphBuilder()
    builder.set_entry_point(builder.add_node(alone(model, tools), "a").node_id)
    return builder.set_max_node_executions(9).build()


def script(prompt: str, before: int) -> Answer:
    """Take a step, open a page beside another step, then end; a main agent with a helper asks it."""
    if '"helper"' in prompt:
        return "the end" if "<tool_response>" in prompt else tool_call("helper", input="help")
    if "<tool_response>" not in prompt:
        return tool_call("step", number=1)
    if prompt.count("<tool_response>") == 1:
        return tool_call("page", number=1) + "\n" + tool_call("step", number=2)
    return f"the end after {last_step(prompt)}"


@pytest.mark.parametrize(
    ("kind", "unavailable"),
    [
        *((alone, one) for one in (on_the_loop, in_a_thread, of_another_class, reworded, sandboxed, Bare())),
        *((inside, one) for one in (on_the_loop, Bare())),
        *((threaded, one) for one in (on_the_loop, in_a_thread)),
        (in_a_graph, on_the_loop),
    ],
)
async def test_unavailable_tool_ends_the_episode(unavailable: Any, kind: Any, tmp_path: Path) -> None:
    HERE["browser"] = False
    RAN.taken()
    engine = PromptEngine(script)

    def build(task: Task, model: SGLangModel) -> Any:
        return kind(model, [unavailable])

    [episode] = await run(build, [TASK], engine, tmp_path, reward=lambda episode: 1.0)
    assert episode.end_reason is EndReason.TOOL_UNAVAILABLE and episode.end_reason.resumable
    assert episode.reward is None and not is_trainable(episode, scored=False)
    assert episode.failure is not None and episode.failure.kind in ("ToolUnavailableError", "SandboxUnavailableError")
    assert not any("browser" in prompt or "namespaces" in prompt for prompt in engine.prompts)
    names = [event.data["name"] for event in record_of(tmp_path).events if event.kind is EventKind.TOOL]
    assert "page" not in names and "helper" not in names
    asked = len(engine.calls)
    assert_proved(tmp_path)
    (replayed,) = await replay(build, tmp_path, tokenizer=engine.tokenizer)
    assert replayed.verdict is ReplayVerdict.IDENTICAL, replayed

    HERE["browser"] = True
    [again] = await run(build, [TASK], engine, tmp_path, reward=lambda episode: 1.0)
    assert (again.end_reason, again.reward, again.epoch) == (EndReason.ANSWERED, 1.0, 1)
    assert len(engine.calls) - asked == (1 if kind in (alone, in_a_graph) else 2)  # nothing was sampled twice
    assert is_trainable(again, scored=True) and RAN.taken()["page"] == 2
    assert_proved(tmp_path)
    assert_same(tmp_path, [again])


async def test_unavailable_tool_of_a_function_and_of_build(tmp_path: Path) -> None:
    """Code of the user that uses a sandbox itself raises the error, and no tool does."""

    async def work() -> str:
        raise AWAY

    def build(task: Task, model: SGLangModel) -> Any:
        if task.id == "b":
            raise AWAY
        return work

    episodes = await run(build, [Task("go", id="a"), Task("go", id="b")], PromptEngine(script), reward=lambda one: 1.0)
    assert [(one.end_reason, one.reward) for one in episodes] == [(EndReason.TOOL_UNAVAILABLE, None)] * 2


async def test_error_that_a_tool_handles_is_its_own_business(tmp_path: Path) -> None:
    @tool(name="page")
    async def falls_back(number: int) -> str:
        """Open a page."""
        try:
            return page(number)
        except ToolUnavailableError:
            return "step 7"

    HERE["browser"] = False
    build = lambda task, model: alone(model, [falls_back])  # noqa: E731
    [episode] = await run(build, [TASK], PromptEngine(script), tmp_path, reward=lambda episode: 1.0)
    assert (episode.end_reason, episode.text) == (EndReason.ANSWERED, "the end after 2")


async def test_other_tools_of_the_turn_are_cancelled(tmp_path: Path) -> None:
    @tool(name="step")
    async def slow(number: int) -> str:
        """Take a step."""
        await asyncio.sleep(0 if number == 1 else 60)
        return f"step {number}"

    HERE["browser"] = False
    build = lambda task, model: plain(model, tools=[on_the_loop, slow])  # noqa: E731
    [episode] = await asyncio.wait_for(run(build, [TASK], PromptEngine(script), tmp_path), 30)
    assert episode.end_reason is EndReason.TOOL_UNAVAILABLE and len(episode.tree) == 2


async def test_tool_that_is_run_again_for_its_state_is_needed(tmp_path: Path) -> None:
    """Without its state the episode cannot go on, although the result is recorded."""
    HERE["browser"] = True
    broken = {"step": True}

    @tool(name="step")
    async def fails(number: int) -> str:
        """Take a step."""
        if number == 2 and broken["step"]:
            raise AWAY
        return f"step {number}"

    build = lambda task, model: plain(model, tools=[on_the_loop, fails])  # noqa: E731

    async def episode() -> Any:
        [one] = await run(build, [TASK], PromptEngine(script), tmp_path, rerun_tools=("page",), reward=lambda one: 1.0)
        return one

    assert (await episode()).end_reason is EndReason.TOOL_UNAVAILABLE
    HERE["browser"], broken["step"] = False, False
    assert (await episode()).end_reason is EndReason.TOOL_UNAVAILABLE
    HERE["browser"] = True
    assert (await episode()).end_reason is EndReason.ANSWERED
    assert_proved(tmp_path)
