"""An engine that goes away for longer than every limit costs no episode: nothing is scored or trained because of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from strands import tool

from families import tokenizer
from rollout.kinds import plain
from rollout.scripts import FAMILY, PromptEngine, assert_proved, assert_same, run
from scripted import ScriptedServer, Wire, encoded, serve_rest
from scripted_engine import Answer, tool_call
from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.errors import EngineUnreachableError
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.rollout import Ended, Limits, RolloutResult, Task, local, rollout
from strands_sglang.rollout.pulse import Pulse

TASKS = [Task(f"question {number}", id=f"t{number}") for number in range(4)]
LIMIT = 1.0
"""Seconds of an episode."""


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


async def played(away: Away, directory: Path, way: str = "here", retries: int = 10_000) -> RolloutResult:
    """Return a run on a server that has answered once, and from then on does as told."""
    async with SGLangClient(away.server.url, max_retries=retries, retry_delay=0.05, max_retry_delay=0.1) as client:
        await client.generate([1])
        away.way = way
        return await rollout(
            lambda task, model: plain(model),
            TASKS,
            tokenizer=tokenizer(FAMILY),
            client=client,
            directory=directory,
            reward=lambda episode: 1.0,
            limits=Limits(seconds_per_episode=LIMIT),
            preflight=False,
        )


def beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the engine asked for signs of life at once."""
    monkeypatch.setattr(local, "Pulse", lambda engine: Pulse(engine, beat=0.05, quiet=0.1, patience=0.3))


@pytest.mark.parametrize("way", ["gone", "silent"])
async def test_an_outage_longer_than_the_limit_is_not_the_episodes_time(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats(monkeypatch)
    away = Away()
    with away.server:
        running = asyncio.ensure_future(played(away, tmp_path, way))
        while len(away.server.generates()) < 1 + len(TASKS):
            assert not running.done()
            await asyncio.sleep(0.02)
        await asyncio.sleep(3 * LIMIT)
        assert not running.done()
        away.way = "here"
        done = await running
    assert [episode.ended for episode in done] == [Ended.ANSWERED] * len(TASKS)
    assert all(episode.metrics.seconds > 2 * LIMIT for episode in done)
    assert_proved(tmp_path)


async def test_an_engine_that_stays_away_ends_episodes_unscored_and_the_same_call_goes_on(tmp_path: Path) -> None:
    away = Away()
    with away.server:
        done = await played(away, tmp_path, "gone", retries=5)
        assert [episode.ended for episode in done] == [Ended.ENGINE] * len(TASKS)
        assert all(episode.reward is None and not episode.trajectories for episode in done)
        away.way = "here"
        again = await played(away, tmp_path)
    assert [(episode.ended, episode.reward) for episode in again] == [(Ended.ANSWERED, 1.0)] * len(TASKS)
    assert_proved(tmp_path)
    assert_same(tmp_path, again)


async def test_an_engine_that_is_here_and_slow_uses_up_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats(monkeypatch)
    away = Away()

    with away.server:
        done = await played(away, tmp_path, "slow")
    assert [episode.ended for episode in done] == [Ended.TIMEOUT] * len(TASKS)


def asks(inside: Callable[[Any], Any]) -> Callable[[Task, SGLangModel], Any]:
    """Return a `build` of an agent whose tool asks a helper, in its own way."""

    def build(task: Task, model: SGLangModel) -> Any:
        @tool
        async def helper(number: int) -> str:
            """Ask a helper.

            Args:
                number: Any.
            """
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
async def test_an_outage_inside_of_a_tool_is_no_result(inside: Callable[[Any], Any], tmp_path: Path) -> None:
    """The framework makes an error of a tool its result; the model must not be trained on that."""
    here = False

    def script(prompt: str, before: int) -> Answer:
        if "You help." in prompt:
            return "helped" if here else EngineUnreachableError("away")
        return "the end" if "<tool_response>" in prompt else tool_call("helper", number=1)

    engine = PromptEngine(script)
    [episode] = await run(asks(inside), TASKS[:1], engine, tmp_path, reward=lambda episode: 1.0)
    assert episode.ended is Ended.ENGINE and episode.reward is None and len(episode.tree) == 1
    assert episode.failure is not None and episode.failure.kind == "EngineUnreachableError"
    assert EventKind.TOOL not in [event.kind for event in Ledger(tmp_path).episode("t0/0").events]
    here = True
    [again] = await run(asks(inside), TASKS[:1], engine, tmp_path, reward=lambda episode: 1.0)
    assert again.ended is Ended.ANSWERED and again.reward == 1.0 and len(again.tree) == 3
    assert "helped" in engine.decode(list(again.tree[2].context))
    assert_proved(tmp_path)
    assert_same(tmp_path, [again])


async def test_a_tools_time_stands_still_in_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that waits for the engine is not a tool that takes too long."""
    ids = tokenizer(FAMILY)
    asked = 0

    async def handle(wire: Wire) -> None:
        nonlocal asked
        received = await wire.read_body()
        if await serve_rest(wire):
            return
        prompt = ids.decode(received.json()["input_ids"])
        if "You help." in prompt:
            asked += 1
            if asked <= 25:
                await wire.reset()
                return
            text = "helped"
        else:
            text = "the end" if "<tool_response>" in prompt else str(tool_call("helper", number=1))
        await wire.reply(encoded(received, ids.encode(text + "<|im_end|>", add_special_tokens=False)))

    with ScriptedServer(handle) as server:
        async with SGLangClient(server.url, retry_delay=0.1, max_retry_delay=0.1) as client:
            done = await rollout(
                asks(trusting),
                TASKS[:1],
                tokenizer=ids,
                client=client,
                directory=tmp_path,
                limits=Limits(seconds_per_tool=0.8),
                preflight=False,
            )
    [episode] = done
    assert episode.ended is Ended.ANSWERED and len(episode.tree) == 3 and episode.metrics.tool_timeouts == 0
    assert_proved(tmp_path)
