"""Lineage: which recorded turn a conversation goes on from.

A framework hands over messages without identity: fresh copies, every time, from any number of agents. What they say is
the only authority. Each recorded turn is filed under the conversation that led to it and the reply it gave; a new
conversation goes on from the deepest turn whose whole conversation is a prefix of it. Ids of tool calls, which come
back inside the messages, and a hint kept by the agent say where to look first; they never decide alone.

Invariant: a turn is found only if every message up to and including its reply says the same as when it was recorded,
and never if its reply stands nowhere: then the same words are somebody else's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from strands_sglang.chat.canonical import canonical, holds_numbers
from strands_sglang.chat.compare import Said
from strands_sglang.chat.filed import Entry as Entry
from strands_sglang.chat.filed import Preamble as Preamble
from strands_sglang.chat.filed import Stands as Stands
from strands_sglang.chat.shape import Shape, Step

Message = Mapping[str, Any]


Standing: TypeAlias = Callable[[int], Stands]
"""Tells of a turn, by its id, whether its reply stands in some conversation."""


def everywhere(turn: int) -> Stands:
    """Say of every turn that its reply stands."""
    return Stands.SURELY


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

    def called(self, messages: Sequence[Message], stands: Standing = everywhere) -> tuple[Entry, int] | None:
        """Return the latest turn whose tool-call id is in the messages, and the place behind its message."""
        for at in range(len(messages) - 1, -1, -1):
            if messages[at]["role"] == "assistant":
                for block in messages[at].get("content") or ():
                    found = self._by_call.get(block["toolUse"]["toolUseId"]) if "toolUse" in block else None
                    if found is not None and stands(found.turn):
                        return found, at + 1
        return None

    def find(
        self,
        preamble: Preamble,
        messages: Sequence[Message],
        hint: Entry | None = None,
        *,
        named: Collection[int] = (),
        stands: Standing = everywhere,
    ) -> Entry | None:
        """Return the deepest turn that the conversation goes on from; None when it begins anew.

        Args:
            preamble: What stands in front of the conversation.
            messages: The conversation.
            hint: The agent's last turn, by its own memory; None when it has none.
            named: Turns whose replies the agent's messages say they are: of several with the same words, these.
            stands: Tells which replies stand in a conversation.
        """
        called = self.called(messages, stands)
        for likely in (called[0] if called else None, hint):
            if likely is None or stands(likely.turn) is not Stands.SURELY or not likely.leads_to(preamble, messages):
                continue
            if not any(message["role"] == "assistant" for message in messages[likely.count :]):
                return likely
        return self._walk(preamble, messages, hint, named, stands)

    def _walk(
        self,
        preamble: Preamble,
        messages: Sequence[Message],
        hint: Entry | None,
        named: Collection[int],
        stands: Standing,
    ) -> Entry | None:
        """Go down from the beginning, message by message."""
        node = self._nodes.get((-1, preamble.key))
        deepest: tuple[int, tuple[int, ...], Entry] | None = None
        own = {entry.turn for entry in _ancestors(hint)}
        for message in messages:
            if node is None:
                break
            node = self._nodes.get((node, canonical(message)))
            for entry in self._ending_at.get(node, ()) if node is not None else ():
                # The same words from the same question: one whose reply surely stands somewhere; of these the turn that
                # the messages name, the agent's own, one that nobody went on from, the latest.
                rank = stands(entry.turn), entry.turn in named, entry.turn in own, not entry.children, entry.turn
                if rank[0] and (deepest is None or (entry.count, rank) > deepest[:2]):
                    deepest = entry.count, rank, entry
        return None if deepest is None else deepest[2]

    def trimmed(
        self,
        preamble: Preamble,
        messages: Sequence[Message],
        hint: Entry | None = None,
        stands: Standing = everywhere,
    ) -> tuple[Entry, int] | None:
        """Return the turn a conversation goes on from once its oldest messages are dropped, and the place behind it.

        None unless everything that is left says what the turn's conversation said.
        """
        called = self.called(messages, stands)
        likely = [called] if called is not None else []
        if hint is not None and stands(hint.turn):
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
        said: Said | None = None,
        exact: bool = False,
        step: Step | None = None,
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
            said: Its prompt and what was sampled, as text; None when that is not kept.
            exact: Whether its prompt is one rendering of its conversation.
            step: How its prompt was appended; None when it began a branch.

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
        entry.said, entry.exact, entry.step = said, exact, step
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
