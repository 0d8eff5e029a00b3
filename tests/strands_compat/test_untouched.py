"""Nothing in the Strands SDK changes unless `fast_agents` is entered, and nothing stays changed after it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from strands import Agent
from strands.hooks import BeforeModelCallEvent

from strands_sglang import SGLangModel, Task, fast_agents, replay
from strands_sglang.runs import ReplayVerdict
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, run, steps
from support.strands_snapshot import Attributes, attributes, changes

LOOP = "strands.agent.agent.event_loop_cycle"


@pytest.fixture
def before() -> Attributes:
    return attributes()


def test_importing_the_package_and_making_objects_change_nothing() -> None:
    """Every module that leans on the SDK, and everything that may wrap or watch an object of it."""
    program = """if True:
        import importlib, pkgutil
        import strands, strands.multiagent, strands.agent.agent, strands.middleware, strands.hooks
        import strands.event_loop.streaming, strands.sandbox.posix_shell, strands.tools.mcp
        import strands.vended_tools.file_editor, strands.vended_tools.shell
        from support.strands_snapshot import attributes, changes
        from strands.tools.mcp import MCPClient
        client = MCPClient(url="http://127.0.0.1:9/mcp")  # the SDK notes that it made its first one
        before = attributes()
        import strands_sglang, strands_sglang.runs.workers.local, strands_sglang.cli.main, strands_sglang.gateway
        for name in strands_sglang.__all__:
            getattr(strands_sglang, name)
        for package in (strands_sglang._strands_compat, strands_sglang.runs.recording, strands_sglang.gateway):
            for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
                importlib.import_module(module.name)
        assert not changes(before), changes(before)
        from support.provider.agents import scripted_model
        model, _ = scripted_model(["hi"])
        assert not changes(before), changes(before)
        from strands import Agent
        from strands_sglang._strands_compat.tool_servers import watch_errors
        from strands_sglang.gateway.session import Session
        from strands_sglang.provider.episode import EpisodeTokens
        from strands_sglang.runs import MCPTools
        from strands_sglang.runs.recording.opened import Opened, close_with
        from strands_sglang.tools import shell_sandbox
        watch_errors(client)
        MCPTools(lambda: client)
        box = shell_sandbox.ShellSandbox()
        box.get_tools()
        close_with(Opened(), Agent(model=model, sandbox=box, callback_handler=None))
        Session(model, EpisodeTokens("t/0"), models={"user": model})
        assert not changes(before), changes(before)
        """
    folder = Path(__file__).parents[1]
    ran = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


async def test_canary_the_snapshot_sees_what_is_replaced(before: Attributes) -> None:
    with fast_agents():
        loop, tracer = "strands.event_loop.event_loop", "strands.telemetry.tracer.Tracer"
        assert changes(before) == {
            *(LOOP, f"{loop}.recurse_event_loop", f"{loop}.copy", "strands.event_loop.streaming.copy"),
            *(f"{tracer}._add_event_messages", f"{tracer}._add_system_prompt_event"),
            *(f"{tracer}.end_tool_call_span", f"{tracer}.end_agent_span"),
        }
    assert not changes(before)


def looking(before: Attributes, seen: list[set[str]]) -> Any:
    """Return a build function whose agents note what has changed in the SDK at every model call."""

    def build(task: Task, model: SGLangModel) -> Agent:
        agent = plain(model)
        agent.add_hook(lambda event: seen.append(changes(before)), BeforeModelCallEvent)
        return agent

    return build


async def test_plain_agents_and_replay_run_on_the_sdk_as_it_is(before: Attributes, tmp_path: Path) -> None:
    seen: list[set[str]] = []
    build, engine = looking(before, seen), PromptEngine(steps(1))
    await build(Task("go"), SGLangModel(tokenizer=engine.tokenizer, client=engine)).invoke_async("go")
    await run(build, ["go"], engine, fast_agents=False)
    assert len(seen) == 4 and not any(seen) and not changes(before)
    await run(build, ["go"], engine, tmp_path / "run")
    assert LOOP in seen[-1] and not changes(before)
    seen.clear()
    (result,) = await replay(build, tmp_path / "run", tokenizer=engine.tokenizer)
    assert result.verdict is ReplayVerdict.IDENTICAL and len(seen) == 2 and not any(seen) and not changes(before)


@pytest.mark.parametrize("end", ["agent raises", "run raises", "cancelled"])
async def test_a_rollout_restores_the_sdk_however_it_ends(before: Attributes, end: str) -> None:
    seen: list[set[str]] = []
    inner, calling = looking(before, seen), asyncio.Event()

    def build(task: Task, model: SGLangModel) -> Agent:
        agent: Agent = inner(task, model)

        async def act(event: BeforeModelCallEvent) -> None:
            calling.set()
            if end == "agent raises":
                raise ValueError("no")
            if end == "cancelled":
                await asyncio.sleep(60)

        agent.add_hook(act, BeforeModelCallEvent)
        return agent

    def tasks() -> Iterator[str]:
        yield "go"
        if end == "run raises":
            raise KeyError("no more tasks")

    running = asyncio.ensure_future(run(build, tasks(), PromptEngine(steps(1)), concurrency=1))
    if end != "run raises":
        await asyncio.wait_for(calling.wait(), 30)
        assert LOOP in changes(before)
    if end == "cancelled":
        running.cancel()
    await asyncio.wait({running}, timeout=30)
    assert running.done() and (running.cancelled() or running.exception() is not None) == (end != "agent raises")
    assert all(LOOP in one for one in seen) and not changes(before)


async def test_overlapping_and_nested_users_restore_the_sdk_once(before: Attributes) -> None:
    second_calls, first_ended = asyncio.Event(), asyncio.Event()
    seen: list[set[str]] = []

    def waiting(mine: asyncio.Event | None, other: asyncio.Event) -> Any:
        def build(task: Task, model: SGLangModel) -> Agent:
            agent: Agent = looking(before, seen)(task, model)

            async def wait(event: BeforeModelCallEvent) -> None:
                if mine is not None:
                    mine.set()
                await other.wait()
                seen.append(changes(before))

            agent.add_hook(wait, BeforeModelCallEvent)
            return agent

        return build

    # The second run starts while the first one runs, and ends after it.
    first = asyncio.ensure_future(run(waiting(None, second_calls), ["go"], PromptEngine(steps(1))))
    second = asyncio.ensure_future(run(waiting(second_calls, first_ended), ["go"], PromptEngine(steps(1))))
    await first
    assert LOOP in changes(before)
    first_ended.set()
    await second
    assert len(seen) == 8 and all(LOOP in one for one in seen) and not changes(before)
    with fast_agents():
        with pytest.raises(KeyError), fast_agents():
            raise KeyError
        await run(looking(before, seen), ["go"], PromptEngine(steps(1)))
        assert LOOP in changes(before)
    assert not changes(before)
