"""Copies equal their originals, share nothing mutable with them, and notice every edit."""

from __future__ import annotations

import copy
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang._strands_compat.copies import ConversationCopies, fast_deepcopy
from support.provider.agents import agent_on, scripted_model
from support.scripted_engine import tool_call

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    | st.tuples(inner, inner),
    max_leaves=12,
)  # fmt: skip


class Colour(str, Enum):
    RED = "red"


def types(value: Any) -> Any:
    """Return the types in a value."""
    if isinstance(value, dict):
        return dict, {key: types(item) for key, item in value.items()}
    return (type(value), [types(item) for item in value]) if isinstance(value, list | tuple) else type(value)


def mutables(value: Any) -> set[int]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    own = {id(value)} if isinstance(value, dict | list | bytearray) else set()
    return own.union(*(mutables(item) for item in inner))


async def test_canary_the_sdk_copies_the_conversation_for_every_model_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = ConversationCopies.copy

    def counting(self: ConversationCopies, messages: list[Any]) -> list[Any]:
        sizes.append(len(messages))
        return original(self, messages)

    monkeypatch.setattr(ConversationCopies, "copy", counting)
    model, _ = scripted_model([tool_call("calculator", expression="1+1"), "it is 2"])
    await agent_on(model).invoke_async("go")
    assert sizes == [1, 3], (
        "strands/event_loop/event_loop.py has changed: it no longer calls copy.deepcopy(agent.messages) once for every "
        "model call. See how it copies messages now, and adapt _strands_compat/event_loop.py and copies.py"
    )


@given(PLAIN)
def test_a_copy_equals_and_shares_nothing(value: Any) -> None:
    copied = fast_deepcopy([value])
    assert copied == [value] and types(copied) == types([value])
    assert not mutables(copied) & mutables([value])


@pytest.mark.parametrize("value", [bytearray(b"x"), Colour.RED, (1, [2]), 2**70, "\ud800", {1: 2}, {1, 2}, 1e999])
def test_what_json_would_change_keeps_its_type(value: Any) -> None:
    for copied in (fast_deepcopy([value]), ConversationCopies().copy([value])):
        assert copied == [value] and type(copied[0]) is type(value)


@given(st.lists(PLAIN, max_size=5), st.lists(PLAIN, max_size=3), st.data())
def test_a_growing_conversation(messages: list[Any], more: list[Any], data: Any) -> None:
    copies = ConversationCopies()
    assert copies.copy(messages) == messages
    grown = [*messages, *more]
    if grown and data.draw(st.booleans()):
        grown[data.draw(st.integers(0, len(grown) - 1))] = data.draw(PLAIN)
    for _ in range(2):
        copied = copies.copy(grown)
        assert copied == grown and types(list(copied)) == types(grown)
        assert not mutables(list(copied)) & mutables(grown)


def test_older_copies_are_used_again_until_something_changes() -> None:
    messages: list[Any] = [{"a": 1}, {"b": 2}]
    copies = ConversationCopies()
    first = copies.copy(messages)
    messages.append({"c": 3})
    second = copies.copy(messages)
    assert second[0] is first[0] and second[2] == {"c": 3} and len(first) == 2
    for edited in (True, 1.0, "1", [1], None, float("inf"), None, float("-inf"), 1, (1,)):
        before = copies.copy(messages)
        messages[0] = {"a": edited}
        after = copies.copy(messages)
        assert after == messages and types(list(after)) == types(messages) and after[0] is not before[0]
    del messages[0]
    assert copies.copy(messages) == messages == copies.copy(messages)
    assert copies.copy([]) == [] and copies.copy(messages) == messages


def test_prepared_messages_are_prepared_once() -> None:
    messages: list[Any] = [{"a": 1}]
    copies, prepared = ConversationCopies(), []

    def prepare(message: Any) -> Any:
        prepared.append(copy.deepcopy(message))
        return {"of": message}

    for size in (1, 2, 3):
        copied = copies.copy(messages)
        assert copies.prepared(copied, prepare) == [{"of": message} for message in messages]
        assert len(prepared) == size
        messages.append({"a": size})
    messages[0] = {"a": "other"}
    assert copies.prepared(copies.copy(messages), prepare)[0] == {"of": {"a": "other"}}
