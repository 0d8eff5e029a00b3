"""Tools of MCP servers in episodes: recorded lists, outages, connections of a process and of an episode."""

from __future__ import annotations

import asyncio
import pickle
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from strands import Agent
from strands.tools.mcp import MCPClient
from strands.types.exceptions import EventLoopException

from strands_sglang import SGLangModel
from strands_sglang.errors import CallCancelledError, ConfigurationError, ToolUnavailableError
from strands_sglang.ledger.event import EventKind
from strands_sglang.runs import EndReason, Limits, MCPTools, ReplayVerdict, Task, replay
from strands_sglang.runs.recording import mcp_tools
from strands_sglang.runs.recording.tool_recorder import current_tool_recorder
from support.mcp_process import Http, McpServer, client_threads, open_descriptors, stdio, until
from support.rollout.agent_kinds import plain
from support.rollout.scripts import (
    PromptEngine,
    Script,
    assert_proved,
    assert_same,
    crashed,
    record_of,
    run,
    summaries,
)
from support.scripted_engine import tool_call

TASKS = [Task(f"go {number}", id=f"t{number}") for number in range(3)]


@pytest.fixture(scope="module")
def server() -> Iterator[McpServer]:
    server = McpServer().start()
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A run closes what it opened."""
    yield
    assert until(lambda: not client_threads()), client_threads()


def no_server() -> MCPClient:
    raise AssertionError("nothing may connect")


def calling(*calls: str, end: str = "the end") -> Script:
    """Return a script that makes one call after the other, and ends with the last result."""

    def script(prompt: str, before: int) -> str:
        results = re.findall(r"<tool_response>\s*(.*?)\s*</tool_response>", prompt, re.DOTALL)
        return calls[len(results)] if len(results) < len(calls) else f"{end} {results[-1]}"

    return script


COUNT = tool_call("count")
SUM = tool_call("calculator", expression="615 * 17")


def building(tools: MCPTools) -> Any:
    async def build(task: Task, model: SGLangModel) -> Agent:
        return plain(model, tools=await tools.load())

    return build


def kinds(folder: Path, id: str | None = None) -> list[EventKind]:
    return [event.kind for event in record_of(folder, id).events]


async def test_recorded_and_replayed_without_the_server(server: McpServer, tmp_path: Path) -> None:
    engine, tools = PromptEngine(calling(SUM, SUM)), MCPTools(server.connect)
    episodes = await run(
        building(tools), TASKS, engine, tmp_path / "run", reward=lambda one: float("10455" in one.text)
    )
    assert [(one.end_reason, one.reward) for one in episodes] == [(EndReason.ANSWERED, 1.0)] * 3
    assert_proved(tmp_path / "run")
    assert kinds(tmp_path / "run", "t0/0")[:2] == [EventKind.BEGIN, EventKind.TOOL_LIST]
    listed = next(event for event in record_of(tmp_path / "run", "t0/0").events if event.kind is EventKind.TOOL_LIST)
    assert [spec["name"] for spec in listed.data["tools"]] == ["calculator", "count", "wait", "freeze"]

    offline = building(MCPTools(no_server))
    replayed = await replay(offline, tmp_path / "run", tokenizer=engine.tokenizer)
    assert [one.verdict for one in replayed] == [ReplayVerdict.IDENTICAL] * 3, replayed

    # Interrupted anywhere, it is resumed with what is recorded; only what is not recorded asks the server.
    whole = summaries(episodes)
    for kept in range(1, len(kinds(tmp_path / "run", "t0/0"))):
        folder = crashed(tmp_path / "run", tmp_path / f"cut{kept}", kept)
        again = PromptEngine(calling(SUM, SUM))
        for task in TASKS:
            again.follows(record_of(folder, f"{task.id}/0").events)
        needs_server = kinds(folder, "t0/0").count(EventKind.TOOL) < 2
        resumed = await run(building(tools if needs_server else MCPTools(no_server)), TASKS, again, folder)
        assert summaries(resumed) == whole
        assert kinds(folder, "t0/0").count(EventKind.TOOL_LIST) == 1
        assert_proved(folder)


async def test_replay_of_an_agent_that_asks_another_server(server: McpServer, tmp_path: Path) -> None:
    engine = PromptEngine(calling(SUM))
    await run(building(MCPTools(server.connect)), TASKS[:1], engine, tmp_path)
    (replayed,) = await replay(building(MCPTools(no_server, name="other")), tmp_path, tokenizer=engine.tokenizer)
    assert replayed.verdict is ReplayVerdict.DIVERGED
    assert "the tools of the server 'other' are not recorded" in replayed.message


async def test_server_that_dies_is_an_outage(tmp_path: Path) -> None:
    """Nothing is scored; the next call starts another server, and the same call of `rollout` goes on."""
    die = tmp_path / "die"
    die.touch()
    engine = PromptEngine(calling(SUM, tool_call("count", die=str(die))))
    options: dict[str, Any] = {"reward": lambda one: 1.0, "stop_if_first_fail": None}
    build = building(MCPTools(stdio))
    [episode] = await run(build, TASKS[:1], engine, tmp_path / "run", **options)
    assert (episode.end_reason, episode.reward) == (EndReason.TOOL_UNAVAILABLE, None)
    assert "'mcp' did not answer a call of 'count': MCPError: Connection closed" in str(episode.failure)
    assert not any("Connection closed" in prompt for prompt in engine.prompts)
    asked = len(engine.calls)
    [again] = await run(build, TASKS[:1], engine, tmp_path / "run", **options)
    assert (again.end_reason, again.reward, again.text) == (EndReason.ANSWERED, 1.0, "the end 1")
    assert len(engine.calls) == asked + 1
    assert_proved(tmp_path / "run")
    assert_same(tmp_path / "run", [again])


async def test_server_that_hangs_is_an_outage(tmp_path: Path) -> None:
    frozen = McpServer().start()
    try:
        engine, tools = PromptEngine(calling(SUM, tool_call("freeze"))), MCPTools(frozen.connect, patience=1.0)
        limits = Limits(tool_timeout=120.0)
        [one] = await run(building(tools), TASKS[:1], engine, limits=limits, reward=lambda one: 1.0)
        assert (one.end_reason, one.reward) == (EndReason.TOOL_UNAVAILABLE, None)
        assert "'mcp' hangs: it answers neither a call nor a question for its tools within 1 seconds" in str(
            one.failure
        )
    finally:
        frozen.send(signal.SIGCONT)
        frozen.kill()


async def test_slow_tool_of_a_server_that_answers_is_no_outage(server: McpServer) -> None:
    """It is asked for its tools while it works; a tool that takes too long is the model's own fault."""
    engine, limits = PromptEngine(calling(tool_call("wait", seconds=9.0))), Limits(tool_timeout=8.0)
    [one] = await run(building(MCPTools(server.connect)), TASKS[:1], engine, limits=limits)
    assert (one.end_reason, one.text) == (EndReason.ANSWERED, "the end wait did not answer within 8 seconds")


def reconnecting(tools: MCPTools, connect: Any) -> Any:
    """Return a build function whose agents find the connection closed, and open it again by `connect`."""

    async def build(task: Task, model: SGLangModel) -> Agent:
        loaded = await tools.load()
        await tools.close()
        tools._connect = connect
        return plain(model, tools=loaded)

    return build


async def test_wait_for_a_connection_is_not_the_tools_time(server: McpServer) -> None:
    """Nor the episode's: the clocks of both stand still."""
    stopped: list[list[bool]] = []

    async def build(task: Task, model: SGLangModel) -> Agent:
        episode = current_tool_recorder.get()
        assert episode is not None
        recorder = episode.recorder

        def connect() -> MCPClient:
            stopped.append([clock.stopped for clock in (recorder.clock, *recorder._tool_clocks.values())])
            return server.connect()

        built: Agent = await reconnecting(MCPTools(server.connect), connect)(task, model)
        return built

    [one] = await run(build, TASKS[:1], PromptEngine(calling(SUM)), limits=Limits(tool_timeout=120.0))
    assert (one.end_reason, one.text) == (EndReason.ANSWERED, "the end 10455"), one.failure
    assert stopped == [[True, True]]


async def test_wait_for_a_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the user's function does not."""
    free = threading.Event()

    def never() -> MCPClient:
        free.wait()
        raise AssertionError("too late")

    monkeypatch.setattr(mcp_tools, "LONGEST_SILENCE", 0.1)
    with pytest.raises(ToolUnavailableError, match=r"it was not ready after 0\.1 seconds"):
        await MCPTools(never).load()
    free.set()


async def test_server_that_hangs_delays_only_itself(server: McpServer) -> None:
    free = threading.Event()

    class Hanging(MCPClient):
        def start(self) -> MCPClient:
            free.wait()
            raise ValueError("too late")

    others = [MCPTools(lambda: Hanging(lambda: None), name="other") for _ in range(9)]  # type: ignore[arg-type, return-value]
    served = MCPTools(server.connect)
    waiting = [asyncio.ensure_future(one.load()) for one in others]
    try:
        assert await asyncio.wait_for(served.load(), 60)
        assert not any(one.done() for one in waiting)
    finally:
        free.set()
        await served.close()
    late = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, ToolUnavailableError) for one in late), late


async def test_nothing_is_opened_after_the_episode(server: McpServer) -> None:
    tools, late = MCPTools(server.connect, scope="episode"), list[object]()

    async def build(task: Task, model: SGLangModel) -> Agent:
        await tools.load()
        episode = current_tool_recorder.get()
        assert episode is not None
        waiting = asyncio.ensure_future(tools.call("count", {"toolUseId": "1", "name": "count", "input": {}}, {}))
        await asyncio.sleep(0)  # it waits for the connection, which is closed with the episode
        tools._of_episodes.pop(episode.recorder).result().drop()
        episode.recorder.close()
        late.extend(await asyncio.gather(waiting, return_exceptions=True))
        assert not tools._of_episodes
        return plain(model, tools=[])

    await run(build, TASKS[:1], PromptEngine(calling(SUM)))
    assert isinstance(late[0], CallCancelledError), late


async def test_mistake_in_the_users_function_is_no_result(server: McpServer) -> None:
    [one] = await run(reconnecting(MCPTools(server.connect), no_server), TASKS[:1], PromptEngine(calling(SUM)))
    assert one.end_reason is EndReason.TOOL_UNAVAILABLE and "AssertionError: nothing may connect" in str(one.failure)


async def test_wrong_arguments_are_the_models_business(server: McpServer) -> None:
    engine = PromptEngine(calling(tool_call("calculator", text="six")))
    [one] = await run(building(MCPTools(server.connect)), TASKS[:1], engine)
    assert one.end_reason is EndReason.ANSWERED and "Error executing tool calculator" in one.text


async def test_server_that_is_not_there(tmp_path: Path) -> None:
    """No agent is built, and the run goes on when it is there."""
    gone = McpServer()
    build, engine = building(MCPTools(gone.connect)), PromptEngine(calling(SUM))
    [one] = await run(build, TASKS[:1], engine, tmp_path)
    assert one.end_reason is EndReason.TOOL_UNAVAILABLE and "'mcp' cannot be reached" in str(one.failure)
    gone.start()
    try:
        [one] = await run(build, TASKS[:1], engine, tmp_path)
        assert (one.end_reason, one.text) == (EndReason.ANSWERED, "the end 10455")
    finally:
        gone.kill()


async def test_server_of_each_episode_keeps_its_state(tmp_path: Path) -> None:
    """A resumed episode restores it by `rerun_tools`."""
    tools, script = MCPTools(stdio, scope="episode"), calling(COUNT, COUNT)
    whole = await run(building(tools), TASKS[:2], PromptEngine(script), tmp_path / "run")
    assert [one.text for one in whole] == ["the end 2"] * 2
    assert not client_threads()
    folder = crashed(tmp_path / "run", tmp_path / "cut", {"t0/0": 4})
    assert kinds(folder, "t0/0")[-1] is EventKind.TOOL
    again = PromptEngine(script).follows(record_of(folder, "t0/0").events)
    [one] = await run(building(tools), TASKS[:1], again, folder, rerun_tools=("count",))
    assert one.text == "the end 2"


async def test_agent_that_holds_a_client_leaves_no_thread(server: McpServer, tmp_path: Path) -> None:
    def build(task: Task, model: SGLangModel) -> Agent:
        return plain(model, tools=[server.connect()])

    [first] = await run(build, TASKS[:1], PromptEngine(calling(SUM)), tmp_path)
    before = open_descriptors()
    engine = PromptEngine(calling(SUM))
    episodes = await run(build, [Task("go", id=f"t{number}") for number in range(1, 7)], engine, concurrency=2)
    assert {one.end_reason for one in (first, *episodes)} == {EndReason.ANSWERED}
    assert not client_threads()
    assert open_descriptors() <= before + 4
    (replayed,) = await replay(build, tmp_path, tokenizer=engine.tokenizer)
    assert replayed.verdict is ReplayVerdict.IDENTICAL


async def test_client_that_agents_share_is_not_closed_under_them(server: McpServer) -> None:
    shared = server.connect()

    def build(task: Task, model: SGLangModel) -> Agent:
        return plain(model, tools=[shared])

    tasks = [Task("go", id=f"t{number}") for number in range(6)]
    try:
        episodes = await run(build, tasks, PromptEngine(calling(SUM, SUM, SUM)), concurrency=3)
        assert {one.text for one in episodes} == {"the end 10455"}
    finally:
        await asyncio.to_thread(shared.stop, None, None, None)


async def test_agent_outside_a_run(server: McpServer) -> None:
    tools, engine = MCPTools(stdio), PromptEngine(calling(SUM, tool_call("count", die=__file__ + ".none")))
    model = SGLangModel(client=engine, tokenizer=engine.tokenizer)
    agent = plain(model, tools=await tools.load())
    assert str(await agent.invoke_async("go")).strip() == "the end 1"
    await tools.close()

    gone = MCPTools(Http(9))
    with pytest.raises(ToolUnavailableError, match=r"cannot be reached: .*Connect"):
        await gone.load()
    gone_tools = MCPTools(server.connect)
    loaded = await gone_tools.load()
    await gone_tools.close()
    gone_tools._connect = Http(9)
    with pytest.raises(EventLoopException) as raised:
        await plain(model, tools=loaded).invoke_async("go")
    assert isinstance(raised.value.original_exception, ToolUnavailableError)


async def test_wrong_use(server: McpServer) -> None:
    with pytest.raises(ConfigurationError, match="connect must be a function that makes an MCPClient, got"):
        MCPTools(server.connect())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="patience must be"):
        MCPTools(server.connect, patience=0)
    with pytest.raises(ValueError, match="'run' is not a valid Scope"):
        MCPTools(server.connect, scope="run")
    with pytest.raises(ConfigurationError, match="must be used in an episode"):
        await MCPTools(server.connect, scope="episode").load()
    with pytest.raises(ConfigurationError, match="connect must make an MCPClient, got 5"):
        await MCPTools(lambda: 5).load()  # type: ignore[arg-type, return-value]


async def test_it_travels_as_its_function(server: McpServer) -> None:
    tools = MCPTools(server.connect, name="lab", patience=7.0)
    await tools.load()
    copy = pickle.loads(pickle.dumps(tools))
    assert (copy.name, copy.patience, copy.scope) == ("lab", 7.0, tools.scope)
    assert [one.tool_name for one in await copy.load()] == [one.tool_name for one in await tools.load()]
    await asyncio.gather(tools.close(), copy.close())
