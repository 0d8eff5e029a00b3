"""The conversation index: a turn is found by the content of its whole conversation, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.chat.canonical import canonical
from strands_sglang.chat.conversation import Conversation, Preamble
from strands_sglang.chat.conversation_index import ConversationIndex, IndexedTurn, Lineage
from strands_sglang.chat.conversation_shape import ConversationShape

NONE = Preamble(None, (), "none")
OTHER = Preamble("other", (), "other")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"text": text}]}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"text": text}]}


def call(use_id: str, **arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"toolUse": {"toolUseId": use_id, "name": "t", "input": arguments}}]}


def result(use_id: str, **value: Any) -> dict[str, Any]:
    content = [{"json": value}]
    return {"role": "user", "content": [{"toolResult": {"toolUseId": use_id, "status": "success", "content": content}}]}


class RecordingIndex(ConversationIndex):
    """An index to which turns are added by their conversation alone."""

    def record(
        self, messages: Sequence[Any], reply: dict[str, Any], parent: IndexedTurn | None = None, *, aligned: bool = True
    ) -> IndexedTurn:
        number, conversation = len(self), Conversation(NONE, messages)
        lineage = Lineage(parent, aligned=aligned)
        owned = lineage.owned(conversation)
        return self.add(number, owned, lineage, reply, ConversationShape(), ended_by=None, end=number)

    def find(self, preamble: Preamble, messages: Sequence[Any], last: IndexedTurn | None = None) -> IndexedTurn | None:
        return self.lineage(Conversation(preamble, messages), last).parent

    def find_trimmed(
        self, preamble: Preamble, messages: Sequence[Any], last: IndexedTurn | None = None
    ) -> tuple[IndexedTurn | None, int] | None:
        found = self.lineage(Conversation(preamble, messages), last, trimmed=True)
        return None if found.aligned else (found.parent, found.known)


def test_an_empty_index_finds_nothing() -> None:
    index = RecordingIndex()
    assert index.find(NONE, [user("a")]) is None
    assert index.last_caller([call("x")]) is None
    assert index.find_trimmed(NONE, [user("a")]) is None
    assert index.get(None) is None and index.get(0) is None


def test_call_id_alone_is_not_sufficient() -> None:
    index = RecordingIndex()
    first = index.record([user("a")], call("x", n=1))
    assert index.last_caller([user("z"), call("x", n=2), result("x")]) == (first, 2)
    assert index.find(NONE, [user("z"), call("x", n=1), result("x")]) is None
    assert index.find(NONE, [user("a"), call("x", n=2), result("x")]) is None
    assert index.find(NONE, [user("a"), call("x", n=1), result("x")]) is first


def test_numbers_that_json_cannot_write_are_compared() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Odd)

        def __hash__(self) -> int:
            return 0

        def __repr__(self) -> str:
            return "Odd()"

        def __deepcopy__(self, memo: Any) -> Odd:
            return self

    index = RecordingIndex()
    messages = [user("a"), call("x"), result("x", n=Odd())]
    first = index.record(messages, assistant("b"))
    assert index.find(NONE, [*messages, assistant("b"), user("c")], first) is first


def test_indexed_messages_are_copies() -> None:
    index = RecordingIndex()
    messages = [user("a")]
    first = index.record(messages, assistant("b"))
    messages[0]["content"][0]["text"] = "changed"
    assert index.find(NONE, [user("a"), assistant("b"), user("c")]) is first
    assert index.find(NONE, [*messages, assistant("b"), user("c")]) is None


def test_own_turn_is_preferred_among_equal_turns() -> None:
    index = RecordingIndex()
    mine, theirs = (index.record([user("a")], assistant("b")) for _ in range(2))
    talk = [user("a"), assistant("b"), user("c")]
    assert index.find(NONE, talk, mine) is mine
    assert index.find(NONE, talk, theirs) is theirs
    child = index.record(talk, assistant("d"), mine)
    # Asked again after the agent's own turn: the other's has no continuation, but is not the agent's.
    assert index.find(NONE, talk, child) is mine
    # Without a hint, a turn without a continuation is preferred.
    assert index.find(NONE, talk) is theirs


def test_branch_id_changes_only_at_fork() -> None:
    index = RecordingIndex()
    first = index.record([user("a")], assistant("b"))
    talk = [user("a"), assistant("b"), user("c")]
    second = index.record(talk, assistant("d"), first)
    third = index.record(talk, assistant("e"), first)
    fourth = index.record([*talk, assistant("e"), user("f")], assistant("g"), third)
    assert [entry.branch for entry in (first, second, third, fourth)] == [0, 0, 2, 2]
    assert [entry.children for entry in (first, second, third, fourth)] == [2, 0, 1, 0]


def test_trimmed_conversation_is_found_by_call_id_or_hint() -> None:
    index = RecordingIndex()
    first = index.record([user("a")], call("x", n=1))
    talk = [user("a"), call("x", n=1), result("x", n=1)]
    second = index.record(talk, assistant("d"), first)
    assert index.find_trimmed(NONE, [call("x", n=1), result("x")], first) == (first, 1)
    assert index.find_trimmed(NONE, [result("x", n=1), assistant("d"), user("e")], second) == (second, 2)
    assert index.find_trimmed(NONE, [assistant("d"), user("e")], second) == (second, 1)
    assert index.find_trimmed(NONE, [result("x", n=1), assistant("d"), user("e")]) is None
    # Complete, edited, extended at the front, with another preamble: not trimmed.
    assert index.find_trimmed(NONE, [*talk, assistant("d"), user("e")], second) is None
    assert index.find_trimmed(NONE, [result("x", n=2), assistant("d"), user("e")], second) is None
    assert index.find_trimmed(NONE, [result("x", n=1.0), assistant("d"), user("e")], second) is None
    assert index.find_trimmed(NONE, [result("x", n=1), assistant("D"), user("e")], second) is None
    assert index.find_trimmed(OTHER, [result("x", n=1), assistant("d"), user("e")], second) is None


WORDS = st.sampled_from("abc")
TALKS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=5)


@given(st.lists(TALKS, max_size=6), TALKS)
def test_found_turn_is_the_deepest_equal_one(filed: list[list[tuple[str, str]]], asked: list[tuple[str, str]]) -> None:
    """Compared with a plain comparison of whole conversations."""
    index = RecordingIndex()
    known: dict[int, list[Any]] = {}
    for talk in filed:
        messages: list[Any] = []
        for question, answer in talk:
            messages.append(user(question))
            parent = index.find(NONE, messages)
            entry = index.record(messages, assistant(answer), parent)
            messages.append(assistant(answer))
            known[entry.turn] = copy.deepcopy(messages)
    wanted = [message for question, answer in asked for message in (user(question), assistant(answer))][:-1]
    forms = [canonical(message) for message in wanted]
    depths = [
        len(messages)
        for messages in known.values()
        if [canonical(message) for message in messages] == forms[: len(messages)] and len(messages) < len(forms)
    ]
    found = index.find(NONE, wanted)
    assert (0 if found is None else found.count) == max(depths, default=0)
