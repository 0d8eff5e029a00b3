"""Which replies stand in a conversation: told by the agents themselves, not guessed.

A hook of the user's may throw a reply away and ask again, or raise; a middleware may choose among several; and the
same words may come twice. So a turn that is made for an agent's loop counts as thrown away until the framework has
added its reply to the agent's messages, and the message says which turn it is: its metadata bear the turn's place.

Invariant: a turn is kept only if its reply was added to an agent's messages, or is found there; once kept, it stays
so. Only where no agent can be asked (its calls share a dict with others', or are made by hand) does a turn count as
kept from the beginning.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from strands.hooks import MessageAddedEvent

from strands_sglang.chat.canonical import canonical
from strands_sglang.chat.lineage import Entry
from strands_sglang.provider.episode import Episode
from strands_sglang.provider.turn import Request
from strands_sglang.tokens import TokenTree, Turn

PLACE_KEY = "sglang"
"""Where the metrics of a reply say which turn it is."""

_FIRST = -1_000_000  # before every other hook: one of them may raise
_MOST = 64  # replies of one agent that are waited for; those it never adds would pile up


class _Awaited(NamedTuple):
    """A reply that its agent was given, and has not added yet."""

    tree: weakref.ref[TokenTree]
    turn: Turn
    reply: Any


_awaited: weakref.WeakKeyDictionary[Any, list[_Awaited]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


told_of_standing: weakref.WeakKeyDictionary[TokenTree, Callable[[], None]] = weakref.WeakKeyDictionary()
"""Who is told when a reply of a tree stands."""


def tells(agent: Any, request: Request) -> bool:
    """Return whether an agent will tell what becomes of the reply: only the framework's own loop does."""
    return agent is not None and request.cycle is not None and not request.is_side and hasattr(agent, "add_hook")


def await_reply(agent: Any, tree: TokenTree, turn: Turn, entry: Entry) -> None:
    """Listen for a turn's reply; until it comes, the turn is a rejected one.

    Args:
        agent: Whose turn it is.
        tree: The turn's tree.
        turn: The turn.
        entry: Where it is filed.
    """
    with _lock:
        known = _awaited.get(agent)
        waiting = _awaited.setdefault(agent, [])
        waiting.append(_Awaited(weakref.ref(tree), turn, entry.reply))
        del waiting[:-_MOST]
    if known is None:
        agent.add_hook(_heard, MessageAddedEvent, order=_FIRST)


def named_in(agent: Any, tree: str) -> dict[int, Any]:
    """Return the turns of a tree whose replies an agent's messages say they are, each with the message."""
    named: dict[int, Any] = {}
    for message in getattr(agent, "messages", ()):
        place = _place(message)
        if place is not None and place[0] == tree:
            named[place[1]] = message
    return named


def acknowledge(agent: Any, episode: Episode) -> frozenset[int]:
    """Keep every turn whose reply is found in an agent's messages, whoever put it there.

    Returns:
        The turns that the messages name, whatever they say by now.
    """
    with episode.lock:
        lineage, tree = episode.lineage, episode.tree
        named = named_in(agent, tree.id)
        for turn, message in named.items():
            entry = lineage.entry(turn)
            if entry is not None and tree[turn].rejected and canonical(message) == entry.reply:
                tree.restore(tree[turn])
    return frozenset(named)


def _heard(event: MessageAddedEvent) -> None:
    """Keep the turn whose reply was added to an agent's messages."""
    message = event.message
    if message["role"] != "assistant":
        return
    place = _place(message)
    with _lock:
        waiting = _awaited.get(event.agent, [])
        for number in reversed(range(len(waiting))):
            one = waiting[number]
            tree = one.tree()
            if tree is None or not _is(one, tree, place, message):
                continue
            del waiting[number]
            tree.restore(one.turn)
            break
        else:
            return
    if (told := told_of_standing.get(tree)) is not None:
        told()


def _is(awaited: _Awaited, tree: TokenTree, place: tuple[str, int] | None, message: Mapping[str, Any]) -> bool:
    """Return whether a message is the reply that is waited for."""
    if place is not None:
        return place == (tree.id, awaited.turn.id)
    # Somebody made the message anew from what it says. One without metadata is none that a model gave.
    return "metadata" in message and canonical(message) == awaited.reply


def _place(message: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return tree and turn that a message says it is the reply of; None when it says none."""
    if message.get("role") != "assistant":
        return None
    known: Any = message
    for key in ("metadata", "metrics", PLACE_KEY):
        known = known.get(key)
        if not isinstance(known, Mapping):
            return None
    tree, turn = known.get("tree"), known.get("turn")
    return (tree, turn) if isinstance(tree, str) and isinstance(turn, int) else None
