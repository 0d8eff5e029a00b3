"""An invocation in chunks: hooks see one, and invocations of one agent at once do not affect each other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from strands import Agent
from strands.hooks import AfterInvocationEvent, BeforeInvocationEvent, HookRegistry
from strands.types.agent import ConcurrentInvocationMode

from strands_sglang import SGLangModel
from strands_sglang._strands_compat import guard, invocation
from strands_sglang._strands_compat.event_loop import SWITCH
from strands_sglang._strands_compat.invocation import ChunkedInvocation
from strands_sglang.runs import EndReason, Task
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, run, steps

METHOD = "invoke_callbacks_async"


@pytest.fixture(autouse=True)
def sdk_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents run the SDK's own loop: the flat one needs no chunks."""
    monkeypatch.setenv(SWITCH, "1")


def hear(agent: Agent, heard: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Record the starts and ends that the agent's hooks see, each with its invocation."""
    agent.add_hook(lambda event: heard.append(("begins", id(event.invocation_state))), BeforeInvocationEvent)
    agent.add_hook(lambda event: heard.append(("ends", id(event.invocation_state))), AfterInvocationEvent)
    return heard


def stepping(count: int) -> tuple[PromptEngine, Agent]:
    engine = PromptEngine(steps(count))
    return engine, plain(SGLangModel(tokenizer=engine.tokenizer, client=engine))


@pytest.mark.parametrize(("turns", "made", "reason"), [(20, 20, "limit_turns"), (None, 21, "end_turn")])
async def test_canary_hooks_see_one_invocation(turns: int | None, made: int, reason: str) -> None:
    engine, agent = stepping(20)
    heard = hear(agent, [])
    result = await ChunkedInvocation(agent, turns).invoke("go")
    look = (
        "strands/agent/agent.py or strands/hooks/registry.py has changed: Agent must call the hooks by "
        "self.hooks.invoke_callbacks_async(event), with the caller's own dict as event.invocation_state, and "
        'limits={"turns": n} must stop with the reason "limit_turns". Adapt _strands_compat/invocation.py'
    )
    assert result.stop_reason == reason and len(engine.calls) == made, look
    assert [kind for kind, _ in heard] == ["begins", "ends"], f"{heard}: {look}"
    assert METHOD not in vars(agent.hooks) and not invocation._running and not invocation._registries


async def test_a_shared_agent_fails_only_in_the_second_episode() -> None:
    """The SDK refuses the second invocation; the first continues as if nothing had happened."""
    engine = PromptEngine(steps(12))
    engine.delay = 0.001
    agents: list[Any] = []

    def build(task: Task, model: SGLangModel) -> Any:
        if not agents:
            agents.append(plain(model))
        return agents[0]

    episodes = await run(build, [Task("go", id="one"), Task("go", id="two")], engine)
    ended = sorted(episode.end_reason for episode in episodes)
    assert ended == [EndReason.AGENT_ERROR, EndReason.ANSWERED]
    healthy, other = sorted(episodes, key=lambda episode: episode.end_reason is EndReason.AGENT_ERROR)
    assert len(healthy.tree) == 13 and healthy.failure is None
    assert other.failure is not None and other.failure.kind == "ConcurrencyException"
    assert METHOD not in vars(agents[0].hooks)


async def test_a_shared_agent_keeps_concurrent_episodes_separate() -> None:
    """The SDK lets an agent be invoked twice at once; its messages are then one list, all else is each episode's."""
    engine = PromptEngine(steps(20))
    engine.delay = 0.001
    agents: list[Agent] = []
    heard: list[tuple[str, int]] = []
    wrapped: list[bool] = []

    def build(task: Task, model: SGLangModel) -> Any:
        if not agents:
            agents.append(plain(model, concurrent_invocation_mode=ConcurrentInvocationMode.UNSAFE_REENTRANT))
            hear(agents[0], heard)
            agents[0].add_hook(lambda event: wrapped.append(METHOD in vars(event.agent.hooks)), AfterInvocationEvent)
        return agents[0]

    episodes = list(await run(build, [Task("go", id="one"), Task("go", id="two")], engine))
    assert [episode.end_reason for episode in episodes] == [EndReason.ANSWERED] * 2, [one.failure for one in episodes]
    assert sum(len(episode.tree) for episode in episodes) == len(engine.calls) > 20
    states = {state for _, state in heard}
    assert len(states) == 2, "each episode has one invocation_state"
    for state in states:
        assert [kind for kind, of in heard if of == state] == ["begins", "ends"]
    assert wrapped == [True, True]
    assert METHOD not in vars(agents[0].hooks) and not invocation._registries


async def test_hooks_are_restored_when_the_last_invocation_ends() -> None:
    hooks = HookRegistry()
    gates = [asyncio.Event(), asyncio.Event()]

    async def use(gate: asyncio.Event, fails: bool) -> None:
        with invocation._wrapped(hooks):
            await gate.wait()
            if fails:
                raise ZeroDivisionError

    first, second = (asyncio.ensure_future(use(gate, fails=number == 0)) for number, gate in enumerate(gates))
    await asyncio.sleep(0)
    ours = vars(hooks)[METHOD]
    gates[0].set()
    with pytest.raises(ZeroDivisionError):
        await first
    assert vars(hooks)[METHOD] is ours
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert METHOD not in vars(hooks)


async def test_another_wrapper_is_preserved() -> None:
    hooks = HookRegistry()

    async def theirs(event: Any) -> Any:
        return event, []

    setattr(hooks, METHOD, theirs)
    with invocation._wrapped(hooks):
        assert vars(hooks)[METHOD] is not theirs
    assert vars(hooks)[METHOD] is theirs
    with invocation._wrapped(hooks):
        setattr(hooks, METHOD, later := SimpleNamespace())
    assert vars(hooks)[METHOD] is later


async def test_an_invocation_inside_a_tool_is_separate() -> None:
    """Also for the same agent: invocations are distinguished by `invocation_state`."""
    _, agent = stepping(10)
    outer = ChunkedInvocation(agent, None)
    outer._continues, outer._turns_left, outer._chunk = True, 8, 4
    invocation._running[id(outer._state)] = outer
    try:
        heard: list[str] = []
        agent.add_hook(lambda event: heard.append("begins"), BeforeInvocationEvent)
        with invocation._wrapped(agent.hooks):
            await agent.hooks.invoke_callbacks_async(BeforeInvocationEvent(agent=agent, invocation_state={}))
            assert heard == ["begins"]
            await agent.hooks.invoke_callbacks_async(BeforeInvocationEvent(agent=agent, invocation_state=outer._state))
            assert heard == ["begins"], "the chunk's own beginning is hidden"
            await agent.hooks.invoke_callbacks_async(BeforeInvocationEvent(agent=agent, invocation_state=outer._state))
            assert heard == ["begins"] * 2, "only one: a hook may have resumed the agent"
    finally:
        del invocation._running[id(outer._state)]


@pytest.mark.parametrize(("turns", "made"), [(12, 12), (None, 21)])
async def test_hooks_that_cannot_be_wrapped_mean_one_chunk(
    turns: int | None, made: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "_reported", set())
    monkeypatch.setattr(invocation, "_recognised", lambda hooks: False)
    engine, agent = stepping(20)
    heard = hear(agent, [])
    await ChunkedInvocation(agent, turns).invoke("go")
    assert len(engine.calls) == made and [kind for kind, _ in heard] == ["begins", "ends"]
    assert "chunked invocation" in caplog.text
    assert not invocation._registries


def test_another_kind_of_registry_is_not_recognised() -> None:
    assert invocation._recognised(HookRegistry())
    assert not invocation._recognised(object())
