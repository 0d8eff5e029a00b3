"""Finds the recorded turn that a conversation continues from.

A framework passes messages without identity: fresh copies on every call, from any number of agents. Only their content
decides. Each recorded turn is indexed by the conversation that led to it and the reply it gave; a new conversation
continues from the deepest turn whose whole conversation is a prefix of it. Tool-call ids in the messages and a hint
kept by the agent are used to look in the likely place first; they never decide alone.

Invariant: a turn is found only if every message up to and including its reply has the same content as when it was
recorded, and its reply was not discarded: otherwise equal messages belong to a different turn. The index holds copies
of its own, or messages that nobody modifies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any, TypeAlias

from strands_sglang.chat.conversation_shape import ConversationShape, Step
from strands_sglang.chat.differences import SampledTurn, canonical, copied, holds_numbers, same_numbers
from strands_sglang.chat.preamble import Preamble

Message = Mapping[str, Any]


class ReplyStatus(IntEnum):
    """Whether the reply of a turn is part of some conversation."""

    DISCARDED = 0
    """It is not: the reply was discarded."""
    UNCERTAIN = 1
    """It appears to have been discarded, but this was not confirmed."""
    PRESENT = 2
    """It is."""


StatusLookup: TypeAlias = Callable[[int], ReplyStatus]
"""Returns the status of a turn's reply by turn id."""


def always_present(turn: int) -> ReplyStatus:
    """Return `PRESENT` for every turn."""
    return ReplyStatus.PRESENT


@dataclass(slots=True, eq=False)
class IndexedTurn:
    """A recorded turn in the index."""

    turn: int
    """Id of the turn in the tree."""
    parent: IndexedTurn | None
    """The turn that it continues from; None if it started a branch."""
    branch: int
    """Id of the turn that started its branch. The first continuation of a turn keeps the branch; later ones do not."""
    preamble: Preamble
    """System prompt and tools of its conversation."""
    history: list[Any]
    """Copies of its conversation's messages, shared along the branch: the first `count - 1` are its own."""
    numeric: list[int]
    """Indexes of the messages in `history` that contain numbers, since `1`, `1.0` and `True` compare equal. Shared
    likewise."""
    count: int
    """Number of messages up to and including its reply."""
    reply: Any
    """Its reply in canonical form."""
    shape: ConversationShape
    """Shape of its conversation, including the reply."""
    ended_by: int | None
    """Last sampled token if it is a control token."""
    end: int
    """Number of tokens of its branch up to and including what it sampled."""
    sampled: SampledTurn | None = None
    """Its prompt and what was sampled, as text; None if not kept."""
    exact: bool = False
    """Whether its prompt equals one rendering of its conversation, as far as known."""
    step: Step | None = None
    """How its prompt was appended; None if it started a branch."""
    children: int = 0
    """Number of turns that continue from it."""
    transient: bool = False
    """Whether its prompt contained text that its conversation does not keep: in its tokens, but not in `history`."""

    @property
    def prompt_count(self) -> int:
        """Number of messages without its reply."""
        return self.count - 1

    def is_prefix_of(self, preamble: Preamble, messages: Sequence[Message]) -> bool:
        """Return whether the messages start with this turn's conversation, including its reply."""
        at = self.prompt_count
        return (
            len(messages) > at
            and self.prompt_matches(preamble, messages)
            and messages[at]["role"] == "assistant"
            and canonical(messages[at]) == self.reply
        )

    def prompt_matches(self, preamble: Preamble, messages: Sequence[Message]) -> bool:
        """Return whether the messages start with this turn's conversation, without its reply."""
        at = self.prompt_count
        return preamble == self.preamble and len(messages) >= at and self._equals(messages, at, 0)

    def matches_trimmed(self, preamble: Preamble, messages: Sequence[Message], reply_at: int) -> bool:
        """Return whether the messages are this turn's conversation without its oldest, with its reply at `reply_at`."""
        dropped = self.prompt_count - reply_at
        return (
            dropped > 0
            and preamble == self.preamble
            and canonical(messages[reply_at]) == self.reply
            and self._equals(messages, reply_at, dropped)
        )

    def _equals(self, messages: Sequence[Message], count: int, start: int) -> bool:
        """Return whether the first `count` messages equal this turn's conversation from index `start` on."""
        end, history = start + count, self.history
        # Every message is compared at every turn, since any may have been edited: in C, and the same object at once.
        if end > len(history) or history[start:end] != list(islice(messages, count)):
            return False
        numeric = [at for at in self.numeric if start <= at < end and history[at] is not messages[at - start]]
        return not numeric or same_numbers(
            [messages[at - start] for at in numeric], [self.history[at] for at in numeric]
        )


class ConversationIndex:
    """The recorded turns of one tree, indexed by conversation (a trie of canonical messages)."""

    def __init__(self) -> None:
        self._turns: dict[int, IndexedTurn] = {}
        self._by_call: dict[str, IndexedTurn] = {}
        self._nodes: dict[tuple[int, Any], int] = {}
        self._ending_at: dict[int, list[IndexedTurn]] = {}
        self._node_of: dict[int, int] = {}
        self._calls: set[str] = set()
        self.call_ids: dict[str, str] = {}
        """Maps the ids of calls in the messages to the ids that the model itself wrote."""

    def __len__(self) -> int:
        return len(self._turns)

    def has_call_id(self, call_id: str) -> bool:
        """Return whether some call in an indexed conversation has this id, for any caller."""
        return call_id in self._by_call or call_id in self._calls

    def get(self, turn: int | None) -> IndexedTurn | None:
        """Return a turn by its id; None if it is not in the index."""
        return None if turn is None else self._turns.get(turn)

    def last_caller(
        self, messages: Sequence[Message], status: StatusLookup = always_present
    ) -> tuple[IndexedTurn, int] | None:
        """Return the latest turn with a tool-call id in the messages, and the index after its message."""
        for at in range(len(messages) - 1, -1, -1):
            if messages[at]["role"] == "assistant":
                for block in messages[at].get("content") or ():
                    found = self._by_call.get(block["toolUse"]["toolUseId"]) if "toolUse" in block else None
                    if found is not None and status(found.turn):
                        return found, at + 1
        return None

    def find(
        self,
        preamble: Preamble,
        messages: Sequence[Message],
        hint: IndexedTurn | None = None,
        *,
        turns_in_messages: Collection[int] = (),
        status: StatusLookup = always_present,
    ) -> IndexedTurn | None:
        """Return the deepest turn that the conversation continues from; None if it starts a new branch.

        Args:
            preamble: System prompt and tools of the conversation.
            messages: The conversation.
            hint: The agent's last turn, from its own state; None if it has none.
            turns_in_messages: Ids of the turns found in the metadata of the messages. They are preferred among turns
                with equal content.
            status: Tells which replies are part of a conversation.
        """
        caller = self.last_caller(messages, status)
        for likely in (caller[0] if caller else None, hint):
            if (
                likely is None
                or status(likely.turn) is not ReplyStatus.PRESENT
                or not likely.is_prefix_of(preamble, messages)
            ):
                continue
            if not any(message["role"] == "assistant" for message in messages[likely.count :]):
                return likely
        return self._find_from_start(preamble, messages, hint, turns_in_messages, status)

    def _find_from_start(
        self,
        preamble: Preamble,
        messages: Sequence[Message],
        hint: IndexedTurn | None,
        turns_in_messages: Collection[int],
        status: StatusLookup,
    ) -> IndexedTurn | None:
        """Descend the trie from the first message."""
        node = self._nodes.get((-1, preamble.key))
        deepest: tuple[int, tuple[int, ...], IndexedTurn] | None = None
        own = {turn.turn for turn in _ancestors(hint)}
        for message in messages:
            if node is None:
                break
            node = self._nodes.get((node, canonical(message)))
            for turn in self._ending_at.get(node, ()) if node is not None else ():
                # Among turns with equal content, prefer in this order: a reply that is certainly present, a turn named
                # by the messages, one of the agent's own, one without a continuation, the latest.
                rank = status(turn.turn), turn.turn in turns_in_messages, turn.turn in own, not turn.children, turn.turn
                if rank[0] and (deepest is None or (turn.count, rank) > deepest[:2]):
                    deepest = turn.count, rank, turn
        return None if deepest is None else deepest[2]

    def find_trimmed(
        self,
        preamble: Preamble,
        messages: Sequence[Message],
        hint: IndexedTurn | None = None,
        status: StatusLookup = always_present,
    ) -> tuple[IndexedTurn, int] | None:
        """Return the turn that a conversation without its oldest messages continues from, and the index after it.

        Returns None unless all remaining messages equal those of the turn's conversation.
        """
        caller = self.last_caller(messages, status)
        likely = [caller] if caller is not None else []
        if hint is not None and status(hint.turn):
            replies = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
            likely += [(hint, at + 1) for at in reversed(replies)]
        return next((found for found in likely if found[0].matches_trimmed(preamble, messages, found[1] - 1)), None)

    def add(
        self,
        turn: int,
        parent: IndexedTurn | None,
        preamble: Preamble,
        messages: Sequence[Message],
        reply: Message,
        shape: ConversationShape,
        *,
        ended_by: int | None,
        end: int,
        aligned: bool = True,
        sampled: SampledTurn | None = None,
        exact: bool = False,
        step: Step | None = None,
        shared: bool = False,
    ) -> IndexedTurn:
        """Add a committed turn.

        Args:
            turn: Its id.
            parent: The turn that it continues from.
            preamble: System prompt and tools of its conversation.
            messages: The whole conversation without the reply. The part shared with the parent's is not read.
            reply: The assistant message that it gave.
            shape: Shape of the conversation, including the reply.
            ended_by: Last sampled token if it is a control token.
            end: Number of tokens of its branch.
            aligned: Whether the messages start with the parent's; False if the oldest were dropped.
            sampled: Its prompt and what was sampled, as text; None if not kept.
            exact: Whether its prompt equals one rendering of its conversation.
            step: How its prompt was appended; None if it started a branch.
            shared: Whether the messages are never modified, so that the index keeps them instead of copies.

        Returns:
            The indexed turn.
        """
        before = parent if aligned else None
        known = before.prompt_count if before is not None else 0
        if before is None:
            history, numeric = [], []
        elif len(before.history) == known:
            history, numeric = before.history, before.numeric
        else:
            history, numeric = before.history[:known], [at for at in before.numeric if at < known]
        # Copies: the caller may modify its messages later.
        new = messages[known:]
        for at, message in enumerate(new, known):
            if shared:
                history.append(message)
                if holds_numbers(message.get("content")):
                    numeric.append(at)
                continue
            # Numbers count only in the content: the rest of a message is not compared by type.
            content, numbers = copied(message.get("content"))
            if type(message) is dict:
                made = {key: content if key == "content" else copied(item)[0] for key, item in message.items()}
            else:
                made = copied(message)[0]
            history.append(made)
            if numbers:
                numeric.append(at)
        self._calls.update(call_ids_in(new))
        branch = turn if parent is None or parent.children else parent.branch
        count = len(messages) + 1
        added = IndexedTurn(
            turn, parent, branch, preamble, history, numeric, count, canonical(reply), shape, ended_by, end
        )
        added.sampled, added.exact, added.step = sampled, exact, step
        if parent is not None:
            parent.children += 1
        self._turns[turn] = added
        for block in reply["content"]:
            if "toolUse" in block:
                self._by_call[block["toolUse"]["toolUseId"]] = added
        self._insert(added, before)
        return added

    def _insert(self, turn: IndexedTurn, before: IndexedTurn | None) -> None:
        """Insert a turn into the trie, at the node where its conversation ends."""
        if before is None:
            node, start = self._node(-1, turn.preamble.key), 0
        else:
            node, start = self._node_of[before.turn], before.count
        for message in turn.history[start : turn.prompt_count]:
            node = self._node(node, canonical(message))
        node = self._node(node, turn.reply)
        self._node_of[turn.turn] = node
        self._ending_at.setdefault(node, []).append(turn)

    def _node(self, node: int, key: Any) -> int:
        return self._nodes.setdefault((node, key), len(self._nodes))


def call_ids_in(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the ids of the calls in messages."""
    for message in messages:
        for block in message.get("content") or ():
            if "toolUse" in block:
                yield block["toolUse"]["toolUseId"]


def _ancestors(turn: IndexedTurn | None) -> Iterator[IndexedTurn]:
    """Yield a turn and its predecessors in the branch."""
    while turn is not None:
        yield turn
        turn = turn.parent
