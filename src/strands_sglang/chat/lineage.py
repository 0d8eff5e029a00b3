"""Lineage: which recorded turn a conversation goes on from.

A framework hands over messages without identity: fresh copies, every time, from any number of agents. What they say is
the only authority. Each recorded turn is filed under the conversation that led to it and the reply it gave; a new
conversation goes on from the deepest turn whose whole conversation is a prefix of it. Ids of tool calls, which come
back inside the messages, and a hint kept by the agent say where to look first; they never decide alone.

Invariant: a turn is found only if every message up to and including its reply says the same as when it was recorded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strands_sglang.chat.canonical import canonical, holds_numbers, same_numbers
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
    numeric: list[int]
    """Which of those messages hold numbers, shared likewise: `1`, `1.0` and `True` are equal and say three things."""
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
    passing: bool = False
    """Whether it was shown something that its conversation does not keep: it is in its tokens, not in `history`."""

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
        return preamble == self.preamble and len(messages) >= at and self._says(messages[:at], 0)

    def left_behind(self, preamble: Preamble, messages: Sequence[Message], reply_at: int) -> bool:
        """Return whether the conversation is this turn's, but for its oldest messages, with its reply at `reply_at`."""
        dropped = self.prompt_count - reply_at
        return (
            dropped > 0
            and preamble == self.preamble
            and canonical(messages[reply_at]) == self.reply
            and self._says(messages[:reply_at], dropped)
        )

    def _says(self, messages: Sequence[Message], start: int) -> bool:
        """Return whether messages say what this turn's conversation says from `start` on."""
        end = start + len(messages)
        return list(messages) == self.history[start:end] and all(
            same_numbers(messages[at - start], self.history[at]) for at in self.numeric if start <= at < end
        )


class Lineage:
    """The recorded turns of one tree, filed by conversation."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._by_call: dict[str, Entry] = {}
        self._nodes: dict[tuple[int, Any], int] = {}
        self._ending_at: dict[int, list[Entry]] = {}
        self._node_of: dict[int, int] = {}
        self._calls: set[str] = set()
        self.call_ids: dict[str, str] = {}
        """Ids that the model itself wrote, by the ids its calls have in the messages."""

    def __len__(self) -> int:
        return len(self._entries)

    def knows_call(self, call_id: str) -> bool:
        """Return whether a call in some filed conversation has this id, whoever made it."""
        return call_id in self._by_call or call_id in self._calls

    def entry(self, turn: int | None) -> Entry | None:
        """Return a turn by its id; None when it is not filed here."""
        return None if turn is None else self._entries.get(turn)

    def called(self, messages: Sequence[Message]) -> tuple[Entry, int] | None:
        """Return the latest turn whose tool-call id is in the messages, and the place behind its message."""
        for at in range(len(messages) - 1, -1, -1):
            if messages[at]["role"] == "assistant":
                for block in messages[at].get("content") or ():
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
        own = set(_ancestors(hint))
        for message in messages:
            if node is None:
                break
            node = self._nodes.get((node, canonical(message)))
            if node is not None and node in self._ending_at:
                ending = self._ending_at[node]
                # The same words from the same question: the agent's own turn, else one that nobody went on from.
                mine = [entry for entry in ending if entry in own]
                free = [entry for entry in ending if not entry.children]
                deepest = (mine or free or ending)[-1]
        return deepest

    def trimmed(
        self, preamble: Preamble, messages: Sequence[Message], hint: Entry | None = None
    ) -> tuple[Entry, int] | None:
        """Return the turn a conversation goes on from once its oldest messages are dropped, and the place behind it.

        None unless everything that is left says what the turn's conversation said.
        """
        called = self.called(messages)
        likely = [called] if called is not None else []
        if hint is not None:
            replies = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
            likely += [(hint, at + 1) for at in reversed(replies)]
        return next((found for found in likely if found[0].left_behind(preamble, messages, found[1] - 1)), None)

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
            history, numeric = [], []
        elif len(before.history) == known:
            history, numeric = before.history, before.numeric
        else:
            history, numeric = before.history[:known], [at for at in before.numeric if at < known]
        # Copies: whoever called may go on changing what was handed over.
        history.extend(copy.deepcopy(list(messages[known:])))
        numeric.extend(at for at in range(known, len(messages)) if holds_numbers(messages[at].get("content")))
        self._calls.update(call_ids_in(messages[known:]))
        branch = turn if parent is None or parent.children else parent.branch
        count = len(messages) + 1
        entry = Entry(turn, parent, branch, preamble, history, numeric, count, canonical(reply), shape, ended_by, end)
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


def call_ids_in(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the ids of the calls in messages."""
    for message in messages:
        for block in message.get("content") or ():
            if "toolUse" in block:
                yield block["toolUse"]["toolUseId"]


def _ancestors(entry: Entry | None) -> Iterator[Entry]:
    """Yield a turn and those before it in its branch."""
    while entry is not None:
        yield entry
        entry = entry.parent
