"""An engine outage longer than every limit costs no episode: no episode is scored or trained because of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from strands import tool

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.engine.protocol import in_run
from strands_sglang.errors import EngineUnreachableError
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.runs import EndReason, Limits, RunOptions, RunResult, Task, rollout
from strands_sglang.runs.recording.clock import EngineMonitor
from strands_sglang.runs.workers import local
from support.families import tokenizer
from support.rollout.agent_kinds import plain
from support.rollout.scripts import FAMILY, PromptEngine, assert_proved, assert_same, run
from support.scripted import ScriptedServer, Wire, encoded, serve_rest
from support.scripted_engine import Answer, tool_call

TASKS = [Task(f"question {number}", id=f"t{number}") for number in range(4)]
pytestmark = pytest.mark.timing  # a machine that stands still for a second ends episodes

LIMIT = 1.0
"""Time limit of an episode in seconds."""


@dataclass
class Away:
    """A server that answers ("here"), takes long to ("slow"), resets connections ("gone"), or is "silent"."""

    way: str = "here"

    def __post_init__(self) -> None:
        self._ids = tokenizer(FAMILY).encode("well<|im_end|>", add_special_tokens=False)
        self.server = ScriptedServer(self._handle)

    async def _handle(self, wire: Wire) -> None:
        await wire.read_body()
        while self.way == "silent":
            await asyncio.sleep(0.02)
        if self.way == "gone":
            await wire.reset()
        elif not await serve_rest(wire):
            await asyncio.sleep(60 if self.way == "slow" else 0)
            await wire.reply(encoded(wire.received, self._ids))


async def run_on(away: Away, directory: Path, way: str = "here", retries: int = 10_000) -> RunResult:
    """Return a run on a server that answers once and then behaves as `way`."""
    async with SGLangClient(away.server.url, max_retries=retries, retry_delay=0.05, max_retry_delay=0.1) as client:
        await client.generate([1])
        away.way = way
        return await rollout(
            lambda task, model: plain(model), TASKS, tokenizer=tokenizer(FAMILY), client=client, directory=directory,
            reward=lambda episode: 1.0, limits=Limits(episode_timeout=LIMIT), options=RunOptions(preflight=False),
        )  # fmt: skip


def check_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        local,
        "EngineMonitor",
        lambda engine: EngineMonitor(engine, check_seconds=0.05, quiet_seconds=0.1, sign_timeout=0.3),
    )


@pytest.mark.parametrize("way", ["gone", "silent"])
async def test_outage_longer_than_the_limit_is_not_counted(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_often(monkeypatch)
    away = Away()
    with away.server:
        running = asyncio.ensure_future(run_on(away, tmp_path, way))
        while len(away.server.generates()) < 1 + len(TASKS):
            assert not running.done()
            await asyncio.sleep(0.02)
        await asyncio.sleep(3 * LIMIT)
        assert not running.done()
        away.way = "here"
        done = await running
    assert [episode.end_reason for episode in done] == [EndReason.ANSWERED] * len(TASKS)
    assert all(episode.metrics.seconds > 2 * LIMIT for episode in done)
    assert_proved(tmp_path)


async def test_calls_of_a_run_wait_like_calls_of_a_run(tmp_path: Path) -> None:
    """Those of tools and of a judge too, whichever client they use; not those of the program around it."""
    seen: list[bool] = []

    @tool
    def step(number: int) -> str:
        """Take a step."""
        seen.append(in_run.get())
        return "step 1"

    def judge(episode: Any) -> float:
        seen.append(in_run.get())
        return 1.0

    def script(prompt: str, before: int) -> Answer:
        return "the end" if "<tool_response>" in prompt else tool_call("step", number=1)

    await run(lambda task, model: plain(model, tools=[step]), TASKS[:1], PromptEngine(script), tmp_path, reward=judge)
    assert seen == [True, True] and not in_run.get()


async def test_permanent_outage_gives_unscored_episodes_that_are_resumed(tmp_path: Path) -> None:
    away = Away()
    with away.server:
        done = await run_on(away, tmp_path, "gone", retries=5)
        assert [episode.end_reason for episode in done] == [EndReason.ENGINE_ERROR] * len(TASKS)
        assert all(episode.reward is None and not episode.trajectories for episode in done)
        away.way = "here"
        again = await run_on(away, tmp_path)
    assert [(episode.end_reason, episode.reward) for episode in again] == [(EndReason.ANSWERED, 1.0)] * len(TASKS)
    assert_proved(tmp_path)
    assert_same(tmp_path, again)


async def test_slow_engine_causes_timeouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_often(monkeypatch)
    away = Away()

    with away.server:
        done = await run_on(away, tmp_path, "slow")
    assert [episode.end_reason for episode in done] == [EndReason.TIMEOUT] * len(TASKS)


def with_helper(inside: Callable[[Any], Any]) -> Callable[[Task, SGLangModel], Any]:
    """Return a `build` of an agent whose tool runs a sub-agent with `inside`."""

    def build(task: Task, model: SGLangModel) -> Any:
        @tool
        async def helper(number: int) -> str:
            """Ask a helper."""
            return str(await inside(plain(model, system_prompt="You help.", tools=[])))

        return plain(model, tools=[helper])

    return build


async def trusting(agent: Any) -> Any:
    return await agent.invoke_async("help")


async def catching(agent: Any) -> Any:
    try:
        return await agent.invoke_async("help")
    except Exception as error:
        return f"no help today: {error}"


async def threaded(agent: Any) -> Any:
    return await asyncio.to_thread(agent, "help")


@pytest.mark.parametrize("inside", [trusting, catching, threaded])
async def test_outage_inside_a_tool_is_not_a_result(inside: Callable[[Any], Any], tmp_path: Path) -> None:
    """The framework turns an error of a tool into its result; the model must not be trained on it."""
    here = False

    def script(prompt: str, before: int) -> Answer:
        if "You help." in prompt:
            return "helped" if here else EngineUnreachableError("away")
        return "the end" if "<tool_response>" in prompt else tool_call("helper", number=1)

    engine = PromptEngine(script)
    [episode] = await run(with_helper(inside), TASKS[:1], engine, tmp_path, reward=lambda episode: 1.0)
    assert episode.end_reason is EndReason.ENGINE_ERROR and episode.reward is None and len(episode.tree) == 1
    assert episode.failure is not None and episode.failure.kind == "EngineUnreachableError"
    assert EventKind.TOOL not in [event.kind for event in Ledger(tmp_path).episode("t0/0").events]
    here = True
    [again] = await run(with_helper(inside), TASKS[:1], engine, tmp_path, reward=lambda episode: 1.0)
    assert again.end_reason is EndReason.ANSWERED and again.reward == 1.0 and len(again.tree) == 3
    assert "helped" in engine.decode(list(again.tree[2].context))
    assert_proved(tmp_path)
    assert_same(tmp_path, [again])


async def test_outage_does_not_count_for_the_tool_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sub-agent that waits for the engine does not make its tool time out."""
    ids = tokenizer(FAMILY)
    requests = 0

    async def handle(wire: Wire) -> None:
        nonlocal requests
        received = await wire.read_body()
        if await serve_rest(wire):
            return
        prompt = ids.decode(received.json()["input_ids"])
        if "You help." in prompt:
            requests += 1
            if requests <= 25:
                await wire.reset()
                return
            text = "helped"
        else:
            text = "the end" if "<tool_response>" in prompt else str(tool_call("helper", number=1))
        await wire.reply(encoded(received, ids.encode(text + "<|im_end|>", add_special_tokens=False)))

    with ScriptedServer(handle) as server:
        async with SGLangClient(server.url, retry_delay=0.1, max_retry_delay=0.1) as client:
            done = await rollout(
                with_helper(trusting), TASKS[:1], tokenizer=ids, client=client, directory=tmp_path,
                limits=Limits(tool_timeout=0.8), options=RunOptions(preflight=False),
            )  # fmt: skip
    [episode] = done
    assert episode.end_reason is EndReason.ANSWERED and len(episode.tree) == 3 and episode.metrics.tool_timeouts == 0
    assert_proved(tmp_path)
