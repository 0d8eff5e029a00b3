"""Tools of real MCP servers on a real engine: shared and of each episode, over HTTP and stdio, with outages, on Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.proof.verify import verify
from strands_sglang.runs import EndReason, Limits, MCPTools, ReplayVerdict, RunResult, Task, replay, rollout
from support.examples import SOAK, size
from support.lab_servers import LabProcess
from support.local_ray import ray_here
from support.mcp_process import McpServer, client_threads, open_descriptors, stdio, until
from support.rollout_agent import SAMPLING, TOKENIZER, TURNS, agent_for, score, tasks

pytestmark = pytest.mark.engine

EPISODES = size(6, 64)
LIMITS = Limits(max_turns=TURNS, tool_timeout=60.0)


@pytest.fixture(scope="module")
def server() -> Iterator[McpServer]:
    server = McpServer().start()
    yield server
    server.kill()


class Build:
    """Builds agents with the calculator of a server. It can be pickled."""

    def __init__(self, tools: MCPTools) -> None:
        self.tools = tools

    async def __call__(self, task: Task, model: SGLangModel) -> Any:
        loaded = [one for one in await self.tools.load() if one.tool_name == "calculator"]
        return agent_for(model, tools=loaded)


async def played(url: str, build: Any, directory: Path, episodes: int = EPISODES, **settings: Any) -> RunResult:
    async with SGLangClient(url) as client:
        return await rollout(
            build,
            tasks(episodes),
            client=client,
            tokenizer=TOKENIZER,
            directory=directory,
            reward=score,
            limits=LIMITS,
            sampling_params=SAMPLING,
            **settings,
        )


async def late() -> list[float]:
    """Measure the delays of the event loop until it is cancelled."""
    delays: list[float] = []
    try:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            delays.append(time.monotonic() - began - 0.01)
    except asyncio.CancelledError:
        return delays


async def check(run: RunResult, directory: Path) -> None:
    """Check that all was answered and is proved, that nothing is left, and that a replay needs no server."""
    assert {one.end_reason for one in run} <= {EndReason.ANSWERED, EndReason.TURN_LIMIT}
    assert all(one.reward is not None for one in run)
    assert sum(one.metrics.tool_calls for one in run) >= len(run)
    certificate = verify(directory)
    assert certificate.proved, certificate.text()
    replayed = await replay(
        Build(MCPTools(lambda: pytest.fail("connects"))), directory, tokenizer=TOKENIZER, limits=LIMITS
    )
    assert [one.verdict for one in replayed] == [ReplayVerdict.IDENTICAL] * len(run)


@pytest.mark.parametrize("scope", ["process", "episode"])
@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_all_are_answered(
    transport: str, scope: str, tool_policy: LabProcess, server: McpServer, tmp_path: Path
) -> None:
    tools = MCPTools(server.connect if transport == "http" else stdio, scope=scope)
    count = size(3, 64) if (transport, scope) == ("stdio", "episode") else EPISODES  # a server for each takes seconds
    before, watch, began = open_descriptors(), asyncio.ensure_future(late()), time.monotonic()
    run = await played(tool_policy.url, Build(tools), tmp_path, count)
    seconds = time.monotonic() - began
    watch.cancel()
    delays = sorted(await watch)
    assert until(lambda: not client_threads()), client_threads()
    assert open_descriptors() <= before + 8  # of the event loop's own executor and the tokenizer
    p99 = delays[int(0.99 * len(delays))]
    print(
        f"{transport} {scope}: {len(run)} episodes in {seconds:.1f} s, p99 {p99 * 1000:.0f} ms, max {delays[-1]:.2f} s"
    )
    assert p99 < 0.1 or not SOAK
    assert len(run) == count
    await check(run, tmp_path)


async def test_ray_workers(tool_policy: LabProcess, server: McpServer, tmp_path: Path) -> None:
    with ray_here():
        run = await played(tool_policy.url, Build(MCPTools(server.connect)), tmp_path, workers=2)
    assert len(run) == EPISODES
    await check(run, tmp_path)


async def test_server_that_is_killed_in_mid_run(tool_policy: LabProcess, tmp_path: Path) -> None:
    """Calls without an answer end their episodes as outages: not scored, resumed when the server is back."""
    server, ended, count = McpServer().start(), list[str](), size(12, 64)
    build = Build(MCPTools(server.connect))

    def on_episode(episode: Any) -> None:
        ended.append(episode.id)
        if len(ended) == count // 4:
            server.kill()

    try:
        first = await played(tool_policy.url, build, tmp_path, count, concurrency=4, on_episode=on_episode)
        lost = [one for one in first if one.end_reason is EndReason.TOOL_UNAVAILABLE]
        assert {one.end_reason for one in first} == {EndReason.ANSWERED, EndReason.TOOL_UNAVAILABLE}
        assert len(lost) >= count // 4 and all(one.reward is None for one in lost)
        assert verify(tmp_path).tokens.trained == sum(
            int(trajectory.loss_mask.sum())
            for one in first
            if one.end_reason.complete
            for trajectory in one.trajectories
        )
        server.start()
        run = await played(tool_policy.url, build, tmp_path, count)
    finally:
        server.kill()
    assert len(run) == count and sum(one.restored for one in run) == count - len(lost)
    await check(run, tmp_path)  # with the server down
