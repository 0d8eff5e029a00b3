"""Finds the agent that makes a model call, its name and its tools, and enables structured output by the provider.

`calling_agent`, `cycle_of`, `name_of`: the SDK does not pass the calling agent to a provider, and
`invocation_state["agent"]` may be another agent if agents share that dict, as the nodes of a graph do. An agent is
identified by its cancel signal: it is passed to `stream()`, and no two agents have the same. Known are the agents that
were named in the state of some call, the nodes of graphs that `rollout` runs, and all agents inside `fast_agents`.

`StructuredOutputModel`, `without_output_tools`: if an agent's turn does not follow the required schema, the SDK calls
the model again, and passes the schema as `structured_output_model`. `WrapperModel` behaves as the model that it wraps.

Invariant: an agent is returned only if its cancel signal is that of the call; otherwise None, which the callers handle.
A name is text or None. No function of this module raises.

Tested with strands-agents 1.62.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from strands.models.model import Model
from strands.tools.structured_output.structured_output_tool import StructuredOutputTool

from strands_sglang._strands_compat import report_unrecognised

_agents: weakref.WeakKeyDictionary[threading.Event, weakref.ref[Any]] = weakref.WeakKeyDictionary()
"""Known agents, by their cancel signals."""
_nodes: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Names of the nodes that agents are in."""
_lock = threading.Lock()


def calling_agent(invocation_state: Mapping[str, Any] | None, cancel_signal: Any) -> Any:
    """Return the agent that makes a model call.

    Args:
        invocation_state: As passed to `stream()`.
        cancel_signal: As passed to `stream()`.

    Returns:
        The agent; None if that is not certain.
    """
    # The state may name another agent than the caller; if so, that one is known when it calls.
    remember((invocation_state or {}).get("agent"))
    with _lock:
        known = _agents.get(cancel_signal) if isinstance(cancel_signal, threading.Event) else None
    return known() if known is not None else None


def remember(agent: Any) -> None:
    """Let `calling_agent` find an agent by its cancel signal."""
    signal = getattr(agent, "cancel_signal", None)
    if isinstance(signal, threading.Event):
        with _lock:
            if signal not in _agents or _agents[signal]() is not agent:
                _agents[signal] = weakref.ref(agent)


def cycle_of(invocation_state: Mapping[str, Any] | None) -> str | None:
    """Return the id of the event loop cycle that makes a model call; None if no event loop makes it."""
    cycle = (invocation_state or {}).get("event_loop_cycle_id")
    return None if cycle is None else str(cycle)


def name_nodes(graph: Any) -> list[Any]:
    """Remember the node names of the agents in a graph or a swarm, and in graphs nested in it; return these agents."""
    nodes, found = getattr(graph, "nodes", None), []
    for name, node in nodes.items() if isinstance(nodes, Mapping) else ():
        executor = getattr(node, "executor", None)
        if executor is None or not isinstance(name, str):
            continue
        try:
            _nodes[executor] = name
        except TypeError:  # not hashable, or without weak references
            continue
        remember(executor)
        found += [executor, *name_nodes(executor)]
    return found


def name_of(agent: Any) -> str | None:
    """Return the name of an agent's node, else the agent's own name; None if it has none."""
    try:
        name = _nodes.get(agent) or getattr(agent, "name", None)
    except Exception:
        return None
    return name if isinstance(name, str) else None


def without_output_tools(agent: Any, tool_specs: Sequence[Any] | None) -> list[Any]:
    """Return tools without those by which the SDK asks for structured output first, before it passes a schema."""
    made = getattr(getattr(agent, "tool_registry", None), "dynamic_tools", {})
    return [spec for spec in tool_specs or () if not isinstance(made.get(spec["name"]), StructuredOutputTool)]


class StructuredOutputModel(Model):
    """A provider that enforces a schema itself.

    The event loop passes `structured_output_model` only to providers with the private class attribute set here; others
    must call a tool that represents the schema. Tested with strands-agents 1.62.
    """

    _supports_structured_output = True


class WrapperModel(Model):
    """A provider that passes its calls on to another one, and so enforces a schema if that one does."""

    def __init__(self, model: Model | None) -> None:
        """Wrap a model; None: it enforces nothing."""
        self._supports_structured_output = bool(getattr(model, "_supports_structured_output", False))


if not hasattr(Model, "_supports_structured_output"):
    report_unrecognised(
        "structured output", "structured output may come from a tool call, not from constrained decoding"
    )
