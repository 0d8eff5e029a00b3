"""Finds what an episode's agents answered (`answer_of`), and the branch that answered it, the main one (`main_turn`).

The reward is for the answer, so the main branch is that of the agent that `build` returned or named; else of the agent
whose result, or whose message, a function returned, or of the one node in which a graph or swarm ended; else the only
branch in which the text that was returned is a reply; else the only branch, if every agent has a part in it.

Invariant: what ended first or last in time does not matter. A main branch that is not certain is none: -1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.provider.reply_tracking import turn_reference, turns_named_in
from strands_sglang.tokens import Turn


def answer_of(result: Any) -> tuple[Any, str]:
    """Return the part of a result that is the answer, and its text.

    The answer of a graph is the result of the node whose result no other node that ran could receive; that of a swarm
    is its last node's. If a graph ended in several nodes, or in a cycle, the part is None, because no node is the one.
    """
    nodes = getattr(result, "results", None)
    if not isinstance(nodes, Mapping):
        return result, result if isinstance(result, str) else "" if result is None else str(result).strip()
    ends = sorted(name for name in _last_nodes(result, nodes) if name in nodes)
    if len(ends) == 1:
        return answer_of(nodes[ends[0]].result)
    return None, "\n".join(answer_of(nodes[name].result)[1] for name in ends or list(nodes)[-1:])


def _last_nodes(result: Any, nodes: Mapping[str, Any]) -> list[str]:
    history = getattr(result, "node_history", None)
    if history:  # a swarm runs one node at a time
        return [history[-1].node_id]
    edges = [(start.node_id, end.node_id) for start, end in getattr(result, "edges", ())]
    passed_on = {start for start, end in edges if start != end and end in nodes}
    return [name for name in nodes if name not in passed_on]


def main_turn(tokens: EpisodeTokens, agents: Sequence[Any], named: Any, answer: Any) -> int:
    """Return the id of a turn of the main branch; -1 if it is not certain which one that is.

    Args:
        agents: All agents that made turns, except those inside tools.
        named: The agent that `build` returned or named; None: it returned neither.
        answer: What the agents answered; None: they did not return.
    """
    if named is None:
        message = answer if isinstance(answer, Mapping) else getattr(answer, "message", None)
        place = None if message is None else turn_reference(message)
        if place is not None and place[0] == tokens.id:
            return place[1]
        # The message of a result may be no reply, as at a limit of turns; but only its own agent has its metrics.
        metrics = getattr(answer, "metrics", None)
        owners = (agent for agent in agents if getattr(agent, "event_loop_metrics", None) is metrics)
        named = None if metrics is None else next(owners, None)
    if named is not None and (turns := turns_named_in(named, tokens.id)):
        return list(turns)[-1]
    if named is not None and any(agent is not named for agent in agents):
        return -1
    tree = tokens.tree
    paths = [path for path in map(tree.path, tree.branches()) if path[0].caller is None]
    # An agent of which no reply was kept may still be the one that is rewarded, for what the function made of it.
    lost = len(agents) > 1 and not all(turns_named_in(agent, tokens.id) for agent in agents)
    if len(paths) > 1 or lost:
        text = answer_of(answer)[1].strip()
        said = [turn for turn in tree if text and not turn.rejected and _text(tokens, turn) == text]
        said = [turn for turn in said if tree.path(turn)[0].caller is None]
        # A reply may be returned long before its branch ends. One that is on no branch leaves open whose it is.
        paths = [path for path in paths if any(turn in path for turn in said)]
        if len(paths) == 1 and not all(turn in paths[0] for turn in said):
            return -1
    return paths[0][-1].id if len(paths) == 1 else -1


def _text(tokens: EpisodeTokens, turn: Turn) -> str | None:
    with tokens.lock:
        entry = tokens.index.get(turn.id)
    return None if entry is None else "\n".join(block[1] for block in entry.reply[1:] if block[0] == "text").strip()
