"""Tools of real MCP servers on a real engine: shared and of each episode, over HTTP and stdio, with outages, on Ray."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.proof.verify import verify
from strands_sglang.runs import EndReason, Limits, MCPTools, ReplayVerdict, RunResult, Task, replay, rollout
from support.examples import size
from support.lab_servers import LabProcess
from support.local_ray import ray_here
from support.mcp_process import McpServer, client_threads, open_descriptors, stdio, stdio_servers, until
from support.rollout_agent import SAMPLING, TOKENIZER, TURNS, agent_for, score, tasks

pytestmark = pytest.mark.engine

EPISODES = 64
FEW = size(6, EPISODES)
SLOW = size(3, EPISODES)
"""Episodes with a server of their own, which takes seconds to start."""
SLACK = 2
"""Descriptors that may be open after a run and not before it, whatever the number of its episodes."""
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


class Watched(Build):
    """Writes down what is open in its process when an episode begins."""

    def __init__(self, tools: MCPTools, folder: Path) -> None:
        super().__init__(tools)
        self.folder = folder

    async def __call__(self, task: Task, model: SGLangModel) -> Any:
        with (self.folder / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps([open_descriptors(), len(client_threads())]) + "\n")
        return await super().__call__(task, model)


async def played(url: str, build: Any, directory: Path, episodes: int = FEW, **settings: Any) -> RunResult:
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
    """Measure the delays of the event loop until it is cancelled.

    Without the time for which its thread could run and other programs had the processors.
    """
    delays: list[float] = []
    try:
        while True:
            began, waited = time.monotonic(), kept_waiting()
            await asyncio.sleep(0.01)
            delays.append(time.monotonic() - began - 0.01 - (kept_waiting() - waited))
    except asyncio.CancelledError:
        return delays


def kept_waiting() -> float:
    """Return the seconds that this thread has waited for a processor."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


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
    count = {("http", "process"): EPISODES, ("stdio", "episode"): SLOW}.get((transport, scope), FEW)
    await played(tool_policy.url, Build(tools), tmp_path / "first", 1)  # what is opened once for all runs
    before, watch, began = open_descriptors(), asyncio.ensure_future(late()), time.monotonic()
    run = await played(tool_policy.url, Build(tools), tmp_path / "run", count)
    seconds = time.monotonic() - began
    watch.cancel()
    delays = sorted(await watch)
    assert until(lambda: not client_threads()), client_threads()
    assert until(lambda: open_descriptors() <= before + SLACK, 5), f"{before} -> {open_descriptors()}"
    assert until(lambda: not stdio_servers(), 5)
    p99 = delays[int(0.99 * len(delays))]
    print(
        f"{transport} {scope}: {len(run)} episodes in {seconds:.1f} s, p99 {p99 * 1000:.0f} ms, max {delays[-1]:.2f} s"
    )
    assert p99 < 0.1
    assert len(run) == count
    await check(run, tmp_path / "run")


@pytest.mark.parametrize("scope", ["process", pytest.param("episode", marks=pytest.mark.soak)])
@pytest.mark.parametrize("transport", ["http", pytest.param("stdio", marks=pytest.mark.soak)])
async def test_ray_workers(
    transport: str, scope: str, tool_policy: LabProcess, server: McpServer, tmp_path: Path
) -> None:
    """Each worker plays one episode at a time, so that nothing may be open when one begins but what all share."""
    tools, seen = MCPTools(server.connect if transport == "http" else stdio, scope=scope), tmp_path / "seen"
    seen.mkdir()
    with ray_here():
        run = await played(tool_policy.url, Watched(tools, seen), tmp_path / "run", workers=2, concurrency=2)
    assert until(lambda: not stdio_servers())
    counts = [[json.loads(line) for line in file.read_text().splitlines()] for file in seen.iterdir()]
    print(f"ray, {transport} {scope}: descriptors and threads {counts}")
    assert sum(map(len, counts)) == len(run) == FEW
    for first, *others in counts:
        assert first[1] == 0
        for descriptors, threads in others:
            assert descriptors <= others[0][0] + SLACK and threads == (1 if scope == "process" else 0)
    assert max(map(len, counts)) > 2
    await check(run, tmp_path / "run")


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
