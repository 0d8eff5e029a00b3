"""Lineage: a turn is found by what the conversation says, all of it, and by nothing else."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.chat.canonical import canonical
from strands_sglang.chat.lineage import Entry, Lineage, Preamble
from strands_sglang.chat.shape import Shape

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


class Filing(Lineage):
    """A lineage that files turns by their conversation alone."""

    def add(
        self,
        messages: Sequence[Any],
        reply: dict[str, Any],
        parent: Entry | None = None,
        preamble: Preamble = NONE,
        **more: Any,
    ) -> Entry:
        number = len(self)
        return self.file(number, parent, preamble, messages, reply, Shape(), ended_by=None, end=number, **more)


def test_an_empty_lineage_finds_nothing() -> None:
    lineage = Lineage()
    assert lineage.find(NONE, [user("a")]) is None
    assert lineage.called([call("x")]) is None
    assert lineage.trimmed(NONE, [user("a")]) is None
    assert lineage.entry(None) is None and lineage.entry(0) is None


def test_the_deepest_turn_is_found_with_and_without_a_hint() -> None:
    lineage = Filing()
    first = lineage.add([user("a")], assistant("b"))
    second = lineage.add([user("a"), assistant("b"), user("c")], assistant("d"), first)
    talk = [user("a"), assistant("b"), user("c"), assistant("d"), user("e")]
    for hint in (None, first, second):
        assert lineage.find(NONE, talk, hint) is second
        assert lineage.find(NONE, talk[:3], hint) is first
        assert lineage.find(NONE, talk[:1], hint) is None
    assert lineage.find(OTHER, talk, second) is None


@pytest.mark.parametrize(
    "edited",
    [
        [user("A"), assistant("b"), user("c")],
        [user("a"), assistant("B"), user("c")],
        [assistant("a"), assistant("b"), user("c")],
        [user("a"), user("b"), user("c")],
        [user("x"), user("a"), assistant("b")],
    ],
)
def test_a_turn_whose_conversation_says_something_else_is_not_found(edited: list[Any]) -> None:
    lineage = Filing()
    first = lineage.add([user("a")], assistant("b"))
    assert lineage.find(NONE, edited, first) is None


def test_a_call_id_alone_decides_nothing() -> None:
    lineage = Filing()
    first = lineage.add([user("a")], call("x", n=1))
    assert lineage.called([user("z"), call("x", n=2), result("x")]) == (first, 2)
    assert lineage.find(NONE, [user("z"), call("x", n=1), result("x")]) is None
    assert lineage.find(NONE, [user("a"), call("x", n=2), result("x")]) is None
    assert lineage.find(NONE, [user("a"), call("x", n=1), result("x")]) is first


@pytest.mark.parametrize("other", [True, 1.0])
def test_numbers_of_another_type_are_something_else(other: Any) -> None:
    lineage = Filing()
    messages = [user("a"), call("x", n=1), result("x", n=1)]
    first = lineage.add(messages, assistant("b"))
    assert lineage.find(NONE, [*messages, assistant("b"), user("c")], first) is first
    for at in (1, 2):
        edited = copy.deepcopy(messages)
        edited[at] = call("x", n=other) if at == 1 else result("x", n=other)
        assert edited == messages
        assert lineage.find(NONE, [*edited, assistant("b"), user("c")], first) is None


def test_numbers_that_only_we_can_write_down_are_compared_too() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Odd)

        def __hash__(self) -> int:
            return 0

        def __repr__(self) -> str:
            return "Odd()"

        def __deepcopy__(self, memo: Any) -> Odd:
            return self

    lineage = Filing()
    messages = [user("a"), call("x"), result("x", n=Odd())]
    first = lineage.add(messages, assistant("b"))
    assert lineage.find(NONE, [*messages, assistant("b"), user("c")], first) is first


def test_the_order_of_keys_says_nothing() -> None:
    lineage = Filing()
    first = lineage.add([user("a"), call("x", n=1, m=2), result("x", n=1, m=2)], assistant("b"))
    swapped = [user("a"), call("x", m=2, n=1), result("x", m=2, n=1), assistant("b"), user("c")]
    assert lineage.find(NONE, swapped, first) is first


def test_what_was_filed_does_not_change_with_what_was_handed_over() -> None:
    lineage = Filing()
    messages = [user("a")]
    first = lineage.add(messages, assistant("b"))
    messages[0]["content"][0]["text"] = "changed"
    assert lineage.find(NONE, [user("a"), assistant("b"), user("c")]) is first
    assert lineage.find(NONE, [*messages, assistant("b"), user("c")]) is None


def test_among_turns_that_say_the_same_ones_own_comes_first() -> None:
    lineage = Filing()
    mine, theirs = (lineage.add([user("a")], assistant("b")) for _ in range(2))
    talk = [user("a"), assistant("b"), user("c")]
    assert lineage.find(NONE, talk, mine) is mine
    assert lineage.find(NONE, talk, theirs) is theirs
    child = lineage.add(talk, assistant("d"), mine)
    # Asked again behind one's own turn: the other's is free, and still not ours.
    assert lineage.find(NONE, talk, child) is mine
    # Without a memory, a turn nobody went on from is likelier.
    assert lineage.find(NONE, talk) is theirs


def test_branches_keep_their_name_as_long_as_they_do_not_fork() -> None:
    lineage = Filing()
    first = lineage.add([user("a")], assistant("b"))
    talk = [user("a"), assistant("b"), user("c")]
    second = lineage.add(talk, assistant("d"), first)
    third = lineage.add(talk, assistant("e"), first)
    fourth = lineage.add([*talk, assistant("e"), user("f")], assistant("g"), third)
    assert [entry.branch for entry in (first, second, third, fourth)] == [0, 0, 2, 2]
    assert [entry.children for entry in (first, second, third, fourth)] == [2, 0, 1, 0]


def test_siblings_do_not_see_each_others_messages() -> None:
    lineage = Filing()
    first = lineage.add([user("a")], assistant("b"))
    one = lineage.add([user("a"), assistant("b"), user("c")], assistant("d"), first)
    two = lineage.add([user("a"), assistant("b"), result("x", n=1)], assistant("d"), first)
    for entry, middle in ((one, user("c")), (two, result("x", n=1))):
        talk = [user("a"), assistant("b"), middle, assistant("d"), user("e")]
        assert lineage.find(NONE, talk, entry) is entry
        assert lineage.find(NONE, talk) is entry


def test_dropping_the_oldest_messages_is_recognised_by_call_or_by_memory() -> None:
    lineage = Filing()
    first = lineage.add([user("a")], call("x", n=1))
    talk = [user("a"), call("x", n=1), result("x", n=1)]
    second = lineage.add(talk, assistant("d"), first)
    assert lineage.trimmed(NONE, [call("x", n=1), result("x")], first) == (first, 1)
    assert lineage.trimmed(NONE, [result("x", n=1), assistant("d"), user("e")], second) == (second, 2)
    assert lineage.trimmed(NONE, [assistant("d"), user("e")], second) == (second, 1)
    assert lineage.trimmed(NONE, [result("x", n=1), assistant("d"), user("e")]) is None
    # Whole, edited, in front of something else, by another preamble: not trimmed.
    assert lineage.trimmed(NONE, [*talk, assistant("d"), user("e")], second) is None
    assert lineage.trimmed(NONE, [result("x", n=2), assistant("d"), user("e")], second) is None
    assert lineage.trimmed(NONE, [result("x", n=1.0), assistant("d"), user("e")], second) is None
    assert lineage.trimmed(NONE, [result("x", n=1), assistant("D"), user("e")], second) is None
    assert lineage.trimmed(OTHER, [result("x", n=1), assistant("d"), user("e")], second) is None


def test_a_trimmed_turn_goes_on_under_what_is_left() -> None:
    lineage = Filing()
    first = lineage.add([user("a")], assistant("b"))
    second = lineage.add([assistant("b"), user("c")], assistant("d"), first, aligned=False)
    talk = [assistant("b"), user("c"), assistant("d"), user("e")]
    assert second.parent is first and second.branch == first.branch
    assert lineage.find(NONE, talk, second) is second
    assert lineage.find(NONE, talk) is second
    assert lineage.find(NONE, [user("a"), *talk], second) is first


WORDS = st.sampled_from("abc")
TALKS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=5)


@given(st.lists(TALKS, max_size=6), TALKS)
def test_found_is_the_deepest_that_says_the_same(
    filed: list[list[tuple[str, str]]], asked: list[tuple[str, str]]
) -> None:
    """Measured against plain comparison of whole conversations."""
    lineage = Filing()
    known: dict[int, list[Any]] = {}
    for talk in filed:
        messages: list[Any] = []
        for question, answer in talk:
            messages.append(user(question))
            parent = lineage.find(NONE, messages)
            entry = lineage.add(messages, assistant(answer), parent)
            messages.append(assistant(answer))
            known[entry.turn] = copy.deepcopy(messages)
    wanted = [message for question, answer in asked for message in (user(question), assistant(answer))][:-1]
    forms = [canonical(message) for message in wanted]
    depths = [
        len(messages)
        for messages in known.values()
        if [canonical(message) for message in messages] == forms[: len(messages)] and len(messages) < len(forms)
    ]
    found = lineage.find(NONE, wanted)
    assert (0 if found is None else found.count) == max(depths, default=0)
