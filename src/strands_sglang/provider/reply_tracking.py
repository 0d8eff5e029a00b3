"""Tracks which replies become part of a conversation, instead of inferring it.

A hook may discard a reply and repeat the call, a middleware may choose among several replies, and the same text may
occur twice. So a turn of an agent's loop starts as rejected, and is kept once the framework has added its reply, whose
metadata name the turn, to the agent's messages.

Invariant: a tracked turn is kept only if its reply was added to an agent's messages, or is found there; once kept, it
stays kept. Only if the agent is unknown (its calls share their invocation state with other agents, or are made without
an agent's loop) does a turn count as kept once the caller has received all events of its reply (`turn.TurnReply`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, NamedTuple

from strands.hooks import MessageAddedEvent

from strands_sglang.chat.canonical import canonical
from strands_sglang.chat.conversation_index import IndexedTurn
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.tokens import TokenTree, Turn

TURN_KEY = "sglang"

_HOOK_ORDER = -1_000_000  # before every other hook, since one of them may raise
_MAX_PENDING = 64  # pending replies per agent; those that are never added would accumulate


class _PendingReply(NamedTuple):
    tree: weakref.ref[TokenTree]
    turn: Turn
    reply: Any


_pending: weakref.WeakKeyDictionary[Any, list[_PendingReply]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


reply_listeners: weakref.WeakKeyDictionary[TokenTree, Callable[[], None]] = weakref.WeakKeyDictionary()
"""Called when a reply of the tree was added to an agent's messages."""


def track_reply(agent: Any, tree: TokenTree, turn: Turn, entry: IndexedTurn) -> None:
    """Register the reply of a turn as pending: the turn stays rejected until the agent's messages contain it."""
    with _lock:
        known = _pending.get(agent)
        replies = _pending.setdefault(agent, [])
        replies.append(_PendingReply(weakref.ref(tree), turn, entry.reply))
        del replies[:-_MAX_PENDING]
    if known is None:
        agent.add_hook(_on_message_added, MessageAddedEvent, order=_HOOK_ORDER)


@dataclass(slots=True)
class _NamedTurns:
    tree: str
    read: list[Any] = field(default_factory=list)
    turns: dict[int, Any] = field(default_factory=dict)


_named: weakref.WeakKeyDictionary[Any, _NamedTurns] = weakref.WeakKeyDictionary()


def turns_named_in(agent: Any, tree: str) -> Mapping[int, Any]:
    """Return the turns of a tree that an agent's messages name as their origin, each with the message.

    Messages are read once: the metadata of a message, which name the turn, are not edited in place.
    """
    messages = getattr(agent, "messages", ())
    known = _named.get(agent)
    if known is None or known.tree != tree or not _starts_with(messages, known.read):
        known = _named[agent] = _NamedTurns(tree)
    del known.read[-1:]  # the newest is read again: its metadata may have been added since
    for message in messages[len(known.read) :]:
        known.read.append(message)
        if (place := turn_reference(message)) is not None and place[0] == tree:
            known.turns[place[1]] = message
    return known.turns


def _starts_with(messages: Sequence[Any], read: Sequence[Any]) -> bool:
    return len(messages) >= len(read) and all(map(is_, read, messages))


def restore_kept_turns(agent: Any, episode: EpisodeTokens) -> Collection[int]:
    """Keep every turn whose reply is found unchanged in an agent's messages; return all turns that these name."""
    with episode.lock:
        index, tree = episode.index, episode.tree
        named = turns_named_in(agent, tree.id)
        for turn in named.keys() & tree.rejected:
            entry = index.get(turn)
            if entry is not None and canonical(named[turn]) == entry.reply:
                tree.restore(tree[turn])
    return named.keys()


def _on_message_added(event: MessageAddedEvent) -> None:
    message = event.message
    if message["role"] != "assistant":
        return
    place = turn_reference(message)
    with _lock:
        replies = _pending.get(event.agent, [])
        for number in reversed(range(len(replies))):
            reply = replies[number]
            tree = reply.tree()
            if tree is None or not _matches(reply, tree, place, message):
                continue
            del replies[number]
            tree.restore(reply.turn)
            break
        else:
            return
    if (listener := reply_listeners.get(tree)) is not None:
        listener()


def _matches(
    pending: _PendingReply, tree: TokenTree, place: tuple[str, int] | None, message: Mapping[str, Any]
) -> bool:
    if place is not None:
        return place == (tree.id, pending.turn.id)
    # The message was rebuilt from its content. A message without metadata does not come from a model.
    return "metadata" in message and canonical(message) == pending.reply


def turn_reference(message: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the tree and the turn that a message names as its origin; None if it names none."""
    if message.get("role") != "assistant":
        return None
    try:
        known = message["metadata"]["metrics"][TURN_KEY]
        tree, turn = known["tree"], known["turn"]
    except (KeyError, TypeError):
        return None
    return (tree, turn) if isinstance(tree, str) and isinstance(turn, int) else None
