"""Messages have equal canonical forms if and only if their content is the same."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strands.event_loop.streaming import _normalize_messages
from strands.types.content import Message

from strands_sglang.chat.canonical import canonical


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def use(arguments: Any, name: str = "t", use_id: str = "a") -> dict[str, Any]:
    return {"toolUse": {"toolUseId": use_id, "name": name, "input": arguments}}


def result(*items: Any, **more: Any) -> dict[str, Any]:
    return {"toolResult": {"toolUseId": "a", "content": list(items), **more}}


TEXT = {"text": "hi"}
POINT = {"cachePoint": {"type": "default"}}
IMAGE = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user(TEXT), {"content": [TEXT], "role": "user", "metadata": {"usage": 1}, "tracking_id": "x"}),
        (user(TEXT), user(POINT, TEXT, POINT)),
        (user(result(TEXT)), user(result(TEXT, status="success"))),
        (user(result(TEXT)), user(result(TEXT, POINT))),
        (user(result({"json": {"a": 1, "b": [2]}})), user(result({"json": {"b": [2], "a": 1}}))),
        (assistant(use({"a": {"x": 1, "y": 2}})), assistant(use({"a": {"y": 2, "x": 1}}))),
        (assistant(use({"a": (1, 2)})), assistant(use({"a": [1, 2]}))),
        (assistant(use({"a": float("nan")})), assistant(use({"a": float("nan")}))),
        (
            assistant({"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}}),
            assistant({"reasoningContent": {"reasoningText": {"text": "hm"}}}),
        ),
        (assistant({"reasoningContent": {"reasoningText": {"text": ""}}}, TEXT), assistant(TEXT)),
        (assistant(), assistant({"text": "[blank text]"})),
        (assistant(), assistant({"text": " \n"})),
        (assistant(), assistant({"text": ""}, {"text": " "})),
        (assistant(), assistant({"text": None})),
        (assistant(TEXT, {"text": " "}), assistant(TEXT, {"text": "[blank text]"})),
        (assistant({"text": "\n"}, use({})), assistant(use({}))),
        (assistant(use({}, name="no such name!")), assistant(use({}, name="INVALID_TOOL_NAME"))),
        (user(IMAGE), user({"image": {"source": {"bytes": b"\x89PNG"}, "format": "png"}})),
    ],
)
def test_equal_content_has_equal_form(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical(one) == canonical(other)
    assert hash(canonical(one)) == hash(canonical(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user(TEXT), assistant(TEXT)),
        (user(TEXT), user({"text": "hi "})),
        (user({"text": "a"}, {"text": "b"}), user({"text": "b"}, {"text": "a"})),
        (user({"text": "a"}, {"text": "b"}), user({"text": "a\nb"})),
        (user(), user({"text": ""})),
        (user({"text": " "}), user({"text": "[blank text]"})),
        (assistant(TEXT), assistant(TEXT, {"text": " "})),
        (assistant(use({}), {"text": "[blank text]"}), assistant(use({}))),
        (assistant(TEXT), assistant({"reasoningContent": {"reasoningText": {"text": "hi"}}})),
        (assistant(use({"a": True})), assistant(use({"a": 1}))),
        (assistant(use({"a": 1})), assistant(use({"a": 1.0}))),
        (assistant(use({"a": 0.0})), assistant(use({"a": -0.0}))),
        (assistant(use({"a": 0})), assistant(use({"a": False}))),
        (assistant(use({"a": "1"})), assistant(use({"a": 1}))),
        (assistant(use({"a": None})), assistant(use({}))),
        (assistant(use({"a": []})), assistant(use({"a": {}}))),
        (assistant(use({"a": [1, 2]})), assistant(use({"a": [2, 1]}))),
        (assistant(use({"a": ["list", 1]})), assistant(use({"a": [["list", 1]]}))),
        (assistant(use({}, use_id="a")), assistant(use({}, use_id="b"))),
        (assistant(use({}, name="t")), assistant(use({}, name="u"))),
        (user(result(TEXT)), user(result(TEXT, status="error"))),
        (user(result({"text": "1"})), user(result({"json": 1}))),
        (user(result({"json": "1"})), user(result({"text": "1"}))),
        (user(result({"json": None})), user(result())),
        (user(IMAGE), user({"image": {"format": "png", "source": {"bytes": b"\x89PNH"}}})),
        (user({"hologram": {"a": 1}}), user({"hologram": {"a": 2}})),
    ],
)
def test_different_content_has_different_form(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize(
    "message",
    [
        *({}, {"role": "user"}, {"role": "user", "content": "plain"}, {"role": "user", "content": 7}),
        *({"role": ["user"], "content": [TEXT]}, user("plain", 3, None, b"bytes"), user({})),
        user({"text": 3}, {"text": ["x"]}),
        user({"hologram": {1: {"x"}, "1": bytearray(b"x"), None: complex(1, 2)}}),
        user({"toolResult": 3}, {"toolResult": {"content": 3}}, {"toolUse": "x"}, {"toolUse": {"name": ["x"]}}),
        assistant({"reasoningContent": 3}, {"reasoningContent": {"reasoningText": ["x"]}}),
        assistant({"reasoningContent": {"redactedContent": b"x"}}),
        user({"text": "a", "image": {}, "cachePoint": {}}),
    ],
)
def test_every_message_has_a_canonical_form(message: dict[str, Any]) -> None:
    hash(canonical(message))
    assert canonical(copy.deepcopy(message)) == canonical(message)


@pytest.mark.parametrize("name", ["t", "a-b_C9", "", "no name", "x" * 64, "x" * 65, "t\n", "é", "a.b"])
def test_tool_name_normalised_by_sdk_has_same_form(name: str) -> None:
    message: Any = assistant(use({}, name=name))
    (handed,) = _normalize_messages([message])
    assert canonical(handed) == canonical(message)


words = st.text(alphabet="ab \n", max_size=3) | st.just("[blank text]")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | words | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
texts = st.builds(lambda word: {"text": word}, words)
reasoning = st.builds(lambda word: {"reasoningContent": {"reasoningText": {"text": word}}}, words)
uses = st.builds(use, st.dictionaries(words, json_values, max_size=3), words)
results = st.builds(
    lambda items, status: result(*items, status=status),
    st.lists(texts | st.fixed_dictionaries({"json": json_values}), max_size=3),
    st.sampled_from(["success", "error"]),
)
images = st.builds(lambda data: {"image": {"format": "png", "source": {"bytes": data}}}, st.binary(max_size=3))
messages = st.builds(
    lambda role, blocks: {"role": role, "content": blocks},
    st.sampled_from(["user", "assistant"]),
    st.lists(texts | reasoning | uses | results | images | st.just(POINT), max_size=4),
)


def turned(value: Any) -> Any:
    """Return the value with the keys of every object reversed."""
    if isinstance(value, dict):
        return {key: turned(item) for key, item in reversed(value.items())}
    return [turned(item) for item in value] if isinstance(value, list) else value


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each leaf as its container and key."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, dict | list) and item:
            yield from leaves(item)
        else:
            yield value, key


@settings(deadline=None)
@given(messages)
def test_copy_has_same_form(message: dict[str, Any]) -> None:
    assert canonical(copy.deepcopy(message)) == canonical(message)
    assert hash(canonical(copy.deepcopy(message))) == hash(canonical(message))
    assert canonical(turned(message)) == canonical(message)


@settings(deadline=None)
@given(messages)
def test_message_from_sdk_has_same_form(message: dict[str, Any]) -> None:
    typed: Message = message  # type: ignore[assignment]
    (handed,) = _normalize_messages([typed])
    assert canonical(handed) == canonical(message)


@settings(deadline=None)
@given(messages, st.data())
def test_changed_leaf_changes_form(message: dict[str, Any], data: st.DataObject) -> None:
    changed = copy.deepcopy(message)
    places = [place for block in changed["content"] if block != POINT for place in leaves(block)]
    if not places:
        return
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = "changed"  # a word that no strategy draws, and that is not blank
    assert canonical(changed) != canonical(message)
