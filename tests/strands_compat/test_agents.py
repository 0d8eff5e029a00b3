"""The calling agent is found by its cancel signal, or is None. An adaptation that is not applied is reported once."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest
from strands import Agent
from strands.multiagent import GraphBuilder

from strands_sglang import fast_agents
from strands_sglang import model as model_module
from strands_sglang._strands_compat.agents import calling_agent, cycle_of, name_nodes, name_of
from support.provider.agents import agent_on, scripted_model


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, str | None]]:
    """The result for each call: the agent, the agent named in `invocation_state`, and the cycle."""
    seen: list[tuple[Any, Any, str | None]] = []

    def find(invocation_state: Any, cancel_signal: Any) -> Any:
        agent = calling_agent(None, cancel_signal)
        seen.append((agent, (invocation_state or {}).get("agent"), cycle_of(invocation_state)))
        return agent

    monkeypatch.setattr(model_module, "calling_agent", find)
    return seen


@pytest.mark.parametrize("known_by", ["name_nodes", "fast_agents"])
async def test_canary_every_call_of_an_agent_is_recognised(
    known_by: str, found: list[tuple[Any, Any, str | None]]
) -> None:
    model, _ = scripted_model(lambda prompt: "fine")
    nodes = [agent_on(model, name=name, tools=[]) for name in ("one", "two", "three")]
    builder = GraphBuilder()
    for agent in nodes:
        builder.add_node(agent, agent.name)
    graph = builder.build()
    if known_by == "name_nodes":
        name_nodes(graph)
    with fast_agents() if known_by == "fast_agents" else nullcontext():
        await graph.invoke_async("go")
    look = (
        "strands/event_loop/event_loop.py or strands/agent/agent.py has changed: "
        "stream() must be passed the cancel signal of the calling agent (Agent.cancel_signal). Adapt "
        "_strands_compat/agents.py"
    )
    assert len(found) == 3 and {id(agent) for agent, _, _ in found} == {id(agent) for agent in nodes}, look
    assert all(isinstance(stated, Agent) for _, stated, _ in found), look
    assert len({cycle for _, _, cycle in found} - {None}) == 3, (
        "strands/event_loop/event_loop.py has changed: find the id of a cycle, which was "
        'invocation_state["event_loop_cycle_id"], and read it in cycle_of() of _strands_compat/agents.py'
    )
    assert sorted(name_of(agent) or "" for agent in nodes) == ["one", "three", "two"]


def test_an_uncertain_agent_is_none() -> None:
    class Other:
        cancel_signal = threading.Event()

    other = Other()
    assert calling_agent(None, None) is None
    assert calling_agent({"agent": other}, threading.Event()) is None
    assert calling_agent({"agent": other}, "no event") is None
    assert calling_agent({"agent": other}, other.cancel_signal) is other
    assert calling_agent({}, other.cancel_signal) is other, "remembered"
    assert cycle_of(None) is None and cycle_of({}) is None


def test_names() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]
        name = "x"

    assert name_of(object()) is None and name_of(Unhashable()) is None
    name_nodes(object())
