"""Finds the recorded turn that a conversation continues from: `ConversationIndex.lineage`.

A framework passes messages without identity: fresh copies on every call, from any number of agents. A new conversation
continues from the deepest turn whose whole conversation, with its reply, is a prefix of it. Tool-call ids and a hint
kept by the agent only say where to look first.

Invariant: a turn is found only if every message up to and including its reply has the same content as when it was
recorded, and its reply was not discarded: otherwise equal messages belong to a different turn. Nobody else holds the
messages in the index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import islice
from typing import Any, TypeAlias

from strands_sglang.chat.canonical import canonical, copied, holds_numbers, same_numbers
from strands_sglang.chat.conversation import Conversation, Message, Preamble, call_ids_in
from strands_sglang.chat.conversation_shape import ConversationShape, Step
from strands_sglang.chat.differences import SampledTurn


class ReplyStatus(IntEnum):
    """Whether the reply of a turn is part of some conversation."""

    DISCARDED = 0
    UNCERTAIN = 1
    """It appears to have been discarded, but this was not confirmed."""
    PRESENT = 2


StatusLookup: TypeAlias = Callable[[int], ReplyStatus]


def always_present(turn: int) -> ReplyStatus:
    """Return `PRESENT` for every turn."""
    return ReplyStatus.PRESENT


@dataclass(slots=True, eq=False)
class IndexedTurn:
    """A recorded turn in the index."""

    turn: int
    parent: IndexedTurn | None
    """None if it started a branch."""
    branch: int
    """Id of the turn that started its branch. The first continuation of a turn keeps the branch; later ones do not."""
    preamble: Preamble
    history: list[Any]
    """The messages of its conversation, shared along the branch: the first `count - 1` are its own."""
    numeric: list[int]
    """Indexes of messages in `history` that contain numbers, since `1`, `1.0` and `True` compare equal."""
    count: int
    """Number of messages up to and including its reply."""
    reply: Any
    shape: ConversationShape
    ended_by: int | None
    """Last sampled token if it is a control token."""
    end: int
    """Number of tokens of its branch up to and including what it sampled."""
    sampled: SampledTurn | None = None
    exact: bool = False
    """Whether its prompt equals one rendering of its conversation, as far as known."""
    step: Step | None = None
    children: int = 0
    transient: bool = False
    """Whether its prompt contained text that its conversation does not keep: in its tokens, but not in `history`."""

    @property
    def prompt_count(self) -> int:
        """Number of messages without its reply."""
        return self.count - 1

    def is_prefix_of(self, conversation: Conversation) -> bool:
        """Return whether a conversation starts with this turn's, including its reply."""
        return self.is_replied_in(conversation) and conversation.canonical(self.prompt_count) == self.reply

    def answers_part_of(self, conversation: Conversation) -> bool:
        """Return whether a conversation starts with the messages that this turn replied to."""
        return (
            len(conversation.messages) >= self.prompt_count
            and conversation.preamble == self.preamble
            and self._equals(conversation.messages, self.prompt_count, 0)
        )

    def is_replied_in(self, conversation: Conversation) -> bool:
        """Return whether a conversation starts with this turn's, and then has a reply, which may be another."""
        at, messages = self.prompt_count, conversation.messages
        return len(messages) > at and self.answers_part_of(conversation) and messages[at]["role"] == "assistant"

    def matches_trimmed(self, conversation: Conversation, reply_at: int) -> bool:
        """Return whether a conversation is this turn's without its oldest messages, with its reply at `reply_at`."""
        dropped = self.prompt_count - reply_at
        return (
            dropped > 0
            and conversation.preamble == self.preamble
            and conversation.canonical(reply_at) == self.reply
            and self._equals(conversation.messages, reply_at, dropped)
        )

    def _equals(self, messages: Sequence[Message], count: int, start: int) -> bool:
        end, history = start + count, self.history
        # Every message is compared at every turn, since any may have been edited: in C.
        if end > len(history) or history[start:end] != list(islice(messages, count)):
            return False
        numeric = [at for at in self.numeric if start <= at < end]
        return not numeric or same_numbers(
            [messages[at - start] for at in numeric], [self.history[at] for at in numeric]
        )


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a conversation comes from: the turn that it continues from, and what it leaves behind."""

    parent: IndexedTurn | None = None
    """None: it starts a branch."""
    known: int = 0
    """Number of its messages up to and including the parent's reply."""
    aligned: bool = True
    """Whether it starts with the parent's messages; False if the oldest of them were dropped."""
    rewritten_from: IndexedTurn | None = None
    discarded: IndexedTurn | None = None
    """Of the same agent; the conversation does not contain its reply."""
    call_ids: Mapping[str, str] = field(default_factory=dict)
    """As the model itself wrote them, by the call ids in the messages."""

    def owned(self, conversation: Conversation) -> Conversation:
        """Return the conversation with messages that its caller cannot change: recorded ones, and copies of the others.

        To be called when its prompt is rendered: what is recorded is then what the model saw.
        """
        shared = [] if self.before is None else self.before.history[: self.before.prompt_count]

        def own(messages: Sequence[Message]) -> list[Message]:
            return [*shared, *map(copied, messages[len(shared) :])]

        reminded = conversation.reminded
        return replace(
            conversation, messages=own(conversation.messages), reminded=None if reminded is None else own(reminded)
        )

    @property
    def before(self) -> IndexedTurn | None:
        """The turn whose messages it starts with; None if there is none."""
        return self.parent if self.aligned else None

    def forked(self) -> Lineage:
        """Return the lineage of a new branch that is rendered instead of continuing from the parent."""
        origin = self.rewritten_from or self.parent
        return replace(self, parent=None, known=0, aligned=True, rewritten_from=origin)


class ConversationIndex:
    """The recorded turns of one tree, indexed by conversation (a trie of canonical messages)."""

    def __init__(self) -> None:
        self._turns: dict[int, IndexedTurn] = {}
        self._by_call: dict[str, IndexedTurn] = {}
        self._nodes: dict[tuple[int, Any], int] = {}
        self._ending_at: dict[int, list[IndexedTurn]] = {}
        self._replying_at: dict[int, list[IndexedTurn]] = {}
        """Turns by the node of the last message of their prompt."""
        self._node_of: dict[int, int] = {}
        self._calls: set[str] = set()
        self.call_ids: dict[str, str] = {}

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

    def with_replies(
        self,
        preamble: Preamble,
        messages: Sequence[Message],
        replace: Callable[[Sequence[IndexedTurn], Message], tuple[IndexedTurn, Message] | None],
    ) -> list[Message]:
        """Return messages with the assistant messages that `replace` recognises replaced by recorded replies.

        `replace` gets the turns that reply to the messages before an assistant message, and that message. It returns
        the turn whose reply stands there, and the reply; None: the message is none of these replies.
        """
        made: list[Message] = []
        node = self._nodes.get((-1, preamble.key))
        for message in messages:
            if node is not None and message["role"] == "assistant":
                found = replace(self._replying_at.get(node, ()), message)
                if found is not None:
                    node = self._node_of[found[0].turn]
                    made.append(found[1])
                    continue
            node = None if node is None else self._nodes.get((node, canonical(message)))
            made.append(message)
        return made

    def lineage(
        self,
        conversation: Conversation,
        last: IndexedTurn | None = None,
        *,
        is_retry: bool = False,
        turns_in_messages: Collection[int] = (),
        status: StatusLookup = always_present,
        trimmed: bool = False,
    ) -> Lineage:
        """Return where a conversation comes from.

        `turns_in_messages`, from the metadata of the messages, are preferred among turns with equal content.
        `is_retry`: the agent repeats the call that its `last` turn answered.
        `trimmed`: a conversation without its oldest messages continues from its turn.
        """
        called = self.last_caller(conversation.messages, status)
        parent = self._find(conversation, called, last, turns_in_messages, status)
        known, aligned = 0 if parent is None else parent.count, True
        found = self._find_trimmed(conversation, called, last, status) if trimmed else None
        if found is not None and found[0] is not parent:
            parent, known, aligned = *found, False
        origin = called[0] if last is None and called is not None else last
        discarded = None
        if is_retry and last is not None and last is not parent and not last.is_replied_in(conversation):
            discarded = last
        if origin is parent or origin is discarded or (origin is not None and origin in _ancestors(parent)):
            origin = None
        return Lineage(parent, known, aligned, origin, discarded, self.call_ids)

    def _find(
        self,
        conversation: Conversation,
        called: tuple[IndexedTurn, int] | None,
        last: IndexedTurn | None,
        turns_in_messages: Collection[int],
        status: StatusLookup,
    ) -> IndexedTurn | None:
        for likely in (called[0] if called else None, last):
            if (
                likely is None
                or status(likely.turn) is not ReplyStatus.PRESENT
                or not likely.is_prefix_of(conversation)
            ):
                continue
            if not any(message["role"] == "assistant" for message in conversation.messages[likely.count :]):
                return likely
        # Descend the trie from the first message.
        node = self._nodes.get((-1, conversation.preamble.key))
        deepest: tuple[int, tuple[int, ...], IndexedTurn] | None = None
        own = {turn.turn for turn in _ancestors(last)}
        for at in range(len(conversation.messages)):
            if node is None:
                break
            node = self._nodes.get((node, conversation.canonical(at)))
            for turn in self._ending_at.get(node, ()) if node is not None else ():
                # Among turns with equal content, prefer in this order: a reply that is certainly present, a turn named
                # by the messages, one of the agent's own, one without a continuation, the latest.
                rank = status(turn.turn), turn.turn in turns_in_messages, turn.turn in own, not turn.children, turn.turn
                if rank[0] and (deepest is None or (turn.count, rank) > deepest[:2]):
                    deepest = turn.count, rank, turn
        return None if deepest is None else deepest[2]

    def _find_trimmed(
        self,
        conversation: Conversation,
        called: tuple[IndexedTurn, int] | None,
        last: IndexedTurn | None,
        status: StatusLookup,
    ) -> tuple[IndexedTurn, int] | None:
        """Return the turn that a conversation without its oldest messages continues from, and the index after it."""
        likely = [called] if called is not None else []
        if last is not None and status(last.turn):
            replies = [at for at, message in enumerate(conversation.messages) if message["role"] == "assistant"]
            likely += [(last, at + 1) for at in reversed(replies)]
        return next((found for found in likely if found[0].matches_trimmed(conversation, found[1] - 1)), None)

    def add(
        self,
        turn: int,
        conversation: Conversation,
        lineage: Lineage,
        reply: Message,
        shape: ConversationShape,
        *,
        ended_by: int | None,
        end: int,
        sampled: SampledTurn | None = None,
        exact: bool = False,
        step: Step | None = None,
    ) -> IndexedTurn:
        """Add a committed turn; its conversation is one that nobody else can change (`Lineage.owned`)."""
        parent, before, messages = lineage.parent, lineage.before, conversation.messages
        known = before.prompt_count if before is not None else 0
        if before is None:
            history, numeric = [], []
        elif len(before.history) == known:
            history, numeric = before.history, before.numeric
        else:
            history, numeric = before.history[:known], [at for at in before.numeric if at < known]
        new = messages[known:]
        history += new
        # Numbers count only in the content: the rest of a message is not compared by type.
        numeric += [at for at, message in enumerate(new, known) if holds_numbers(message.get("content"))]
        self._calls.update(call_ids_in(new))
        branch = turn if parent is None or parent.children else parent.branch
        count, preamble = len(messages) + 1, conversation.preamble
        added = IndexedTurn(
            turn, parent, branch, preamble, history, numeric, count, canonical(reply), shape, ended_by, end
        )
        added.sampled, added.exact, added.step, added.transient = sampled, exact, step, conversation.transient
        if parent is not None:
            parent.children += 1
        self._turns[turn] = added
        for block in reply["content"]:
            if "toolUse" in block:
                self._by_call[block["toolUse"]["toolUseId"]] = added
        self._insert(added, before)
        return added

    def _insert(self, turn: IndexedTurn, before: IndexedTurn | None) -> None:
        if before is None:
            node, start = self._node(-1, turn.preamble.key), 0
        else:
            node, start = self._node_of[before.turn], before.count
        for message in turn.history[start : turn.prompt_count]:
            node = self._node(node, canonical(message))
        self._replying_at.setdefault(node, []).append(turn)
        node = self._node(node, turn.reply)
        self._node_of[turn.turn] = node
        self._ending_at.setdefault(node, []).append(turn)

    def _node(self, node: int, key: Any) -> int:
        return self._nodes.setdefault((node, key), len(self._nodes))


def _ancestors(turn: IndexedTurn | None) -> Iterator[IndexedTurn]:
    while turn is not None:
        yield turn
        turn = turn.parent
