"""What agents are called: their own names, and those of the nodes of a graph or a swarm that they stand in.

Invariant: a name is text, or None; nothing here raises, whatever an agent is.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

_nodes: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def name_nodes(graph: Any) -> None:
    """Remember which agents stand in which nodes of a graph or a swarm, and in those inside of it."""
    nodes = getattr(graph, "nodes", None)
    for name, node in nodes.items() if isinstance(nodes, Mapping) else ():
        executor = getattr(node, "executor", None)
        if executor is None or not isinstance(name, str):
            continue
        try:
            _nodes[executor] = name
        except TypeError:  # not to be had as a key
            continue
        name_nodes(executor)


def name_of(agent: Any) -> str | None:
    """Return what an agent is called; None: nobody can tell."""
    try:
        name = _nodes.get(agent) or getattr(agent, "name", None)
    except Exception:
        return None
    return name if isinstance(name, str) else None
