"""Lineage: which recorded turn a conversation goes on from.

A framework hands over messages without identity: fresh copies, every time, from any number of agents. What they say is
the only authority. Each recorded turn is filed under the conversation that led to it and the reply it gave; a new
conversation goes on from the deepest turn whose whole conversation is a prefix of it. Ids of tool calls, which come
back inside the messages, and a hint kept by the agent say where to look first; they never decide alone.

Invariant: a turn is found only if every message up to and including its reply says the same as when it was recorded.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strands_sglang.chat.canonical import canonical
from strands_sglang.chat.shape import Shape

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Preamble:
    """What stands in front of the messages: another one begins another branch."""

    system: str | None = field(compare=False)
    """The system prompt; None when there is none."""
    tools: tuple[Any, ...] = field(compare=False)
    """The tools, as they came."""
    key: str
    """Both, in a form that can be compared and looked up."""


@dataclass(slots=True, eq=False)
class Entry:
    """A recorded turn, filed."""

    turn: int
    """Its id in the tree."""
    parent: Entry | None
    """The turn it goes on from; None when it began a branch."""
    branch: int
    """Id of the turn that began its branch: kept by the first that goes on from a turn, not by later ones."""
    preamble: Preamble
    """What stood in front of its messages."""
    history: list[Any]
    """Its conversation, shared with its branch: the first `count - 1` messages, copies of our own."""
    count: int
    """Messages up to and including its reply."""
    reply: Any
    """Its reply, in canonical form."""
    shape: Shape
    """The shape of its conversation, reply included."""
    ended_by: int | None
    """Its last sampled token, if that is a control token."""
    end: int
    """Tokens of its branch up to and including what it sampled."""
    children: int = 0
    """Turns that go on from it."""

    @property
    def prompt_count(self) -> int:
        """Messages without its reply."""
        return self.count - 1

    def leads_to(self, preamble: Preamble, messages: Sequence[Message]) -> bool:
        """Return whether the conversation begins with this turn's, reply included."""
        at = self.prompt_count
        return (
            len(messages) > at
            and self.asked(preamble, messages)
            and messages[at]["role"] == "assistant"
            and canonical(messages[at]) == self.reply
        )

    def asked(self, preamble: Preamble, messages: Sequence[Message]) -> bool:
        """Return whether the conversation begins with what this turn was asked."""
        at = self.prompt_count
        return preamble == self.preamble and len(messages) >= at and list(messages[:at]) == self.history[:at]


class Lineage:
    """The recorded turns of one tree, filed by conversation."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._by_call: dict[str, Entry] = {}
        self._nodes: dict[tuple[int, Any], int] = {}
        self._ending_at: dict[int, list[Entry]] = {}
        self._node_of: dict[int, int] = {}
        self.call_ids: dict[str, str] = {}
        """Ids that the model itself wrote, by the ids its calls have in the messages."""

    def __len__(self) -> int:
        return len(self._entries)

    def knows_call(self, call_id: str) -> bool:
        """Return whether a call of a filed turn has this id."""
        return call_id in self._by_call

    def entry(self, turn: int | None) -> Entry | None:
        """Return a turn by its id; None when it is not filed here."""
        return None if turn is None else self._entries.get(turn)

    def called(self, messages: Sequence[Message]) -> tuple[Entry, int] | None:
        """Return the latest turn whose tool-call id is in the messages, and the place behind its message."""
        for at in range(len(messages) - 1, -1, -1):
            if messages[at]["role"] == "assistant":
                for block in messages[at]["content"]:
                    found = self._by_call.get(block["toolUse"]["toolUseId"]) if "toolUse" in block else None
                    if found is not None:
                        return found, at + 1
        return None

    def find(self, preamble: Preamble, messages: Sequence[Message], hint: Entry | None = None) -> Entry | None:
        """Return the deepest turn that the conversation goes on from; None when it begins anew."""
        called = self.called(messages)
        for likely in (called[0] if called else None, hint):
            if likely is None or not likely.leads_to(preamble, messages):
                continue
            if not any(message["role"] == "assistant" for message in messages[likely.count :]):
                return likely
        return self._walk(preamble, messages, hint)

    def _walk(self, preamble: Preamble, messages: Sequence[Message], hint: Entry | None) -> Entry | None:
        """Go down from the beginning, message by message."""
        node, deepest = self._nodes.get((-1, preamble.key)), None
        for message in messages:
            if node is None:
                break
            node = self._nodes.get((node, canonical(message)))
            if node is not None and node in self._ending_at:
                ending = self._ending_at[node]
                # The same words from the same question: a turn nobody went on from is likelier than one in use.
                free = [entry for entry in ending if not entry.children]
                deepest = hint if hint in ending else (free or ending)[-1]
        return deepest

    def trimmed(self, preamble: Preamble, messages: Sequence[Message]) -> tuple[Entry, int] | None:
        """Return the turn a conversation goes on from once its oldest messages are dropped, and where.

        None unless everything that is left says what the turn's conversation said.
        """
        found = self.called(messages)
        if found is None:
            return None
        entry, behind = found
        kept = behind - 1
        dropped = entry.prompt_count - kept
        if dropped <= 0 or preamble != entry.preamble or canonical(messages[kept]) != entry.reply:
            return None
        return found if list(messages[:kept]) == entry.history[dropped : entry.prompt_count] else None

    def file(
        self,
        turn: int,
        parent: Entry | None,
        preamble: Preamble,
        messages: Sequence[Message],
        reply: Message,
        shape: Shape,
        *,
        ended_by: int | None,
        end: int,
        aligned: bool = True,
    ) -> Entry:
        """File a turn that was committed.

        Args:
            turn: Its id.
            parent: The turn it goes on from.
            preamble: What stood in front of its messages.
            messages: The whole conversation it was asked; what it shares with the parent's is not looked at.
            reply: The assistant message it gave.
            shape: The shape of all that.
            ended_by: Its last sampled token, if that is a control token.
            end: Tokens of its branch.
            aligned: Whether the messages begin with the parent's; False when the oldest were dropped.

        Returns:
            The turn, filed.
        """
        before = parent if aligned else None
        known = before.prompt_count if before is not None else 0
        if before is None:
            history = []
        else:
            history = before.history if len(before.history) == known else before.history[:known]
        # Copies: whoever called may go on changing what was handed over.
        history.extend(copy.deepcopy(list(messages[known:])))
        branch = turn if parent is None or parent.children else parent.branch
        count = len(messages) + 1
        entry = Entry(turn, parent, branch, preamble, history, count, canonical(reply), shape, ended_by, end)
        if parent is not None:
            parent.children += 1
        self._entries[turn] = entry
        for block in reply["content"]:
            if "toolUse" in block:
                self._by_call[block["toolUse"]["toolUseId"]] = entry
        self._place(entry, before)
        return entry

    def _place(self, entry: Entry, before: Entry | None) -> None:
        """Put a turn where walking down its conversation ends."""
        if before is None:
            node, start = self._node(-1, entry.preamble.key), 0
        else:
            node, start = self._node_of[before.turn], before.count
        for message in entry.history[start : entry.prompt_count]:
            node = self._node(node, canonical(message))
        node = self._node(node, entry.reply)
        self._node_of[entry.turn] = node
        self._ending_at.setdefault(node, []).append(entry)

    def _node(self, node: int, key: Any) -> int:
        return self._nodes.setdefault((node, key), len(self._nodes))
