"""Strands messages become template messages verbatim and in order, or raise a typed error."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.chat.messages import template_messages, template_system, template_tools
from strands_sglang.errors import StrandsSGLangError, UnsupportedContentError


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def use(use_id: str, name: str = "calculator", **arguments: Any) -> dict[str, Any]:
    return {"toolUse": {"toolUseId": use_id, "name": name, "input": arguments}}


def result(use_id: str, *items: Any, status: str = "success") -> dict[str, Any]:
    return {"toolResult": {"toolUseId": use_id, "status": status, "content": list(items)}}


def text(value: str) -> dict[str, Any]:
    return {"text": value}


def only(message: dict[str, Any]) -> dict[str, Any]:
    (rendered,) = template_messages([message])
    return rendered


def refused(*messages: dict[str, Any]) -> UnsupportedContentError:
    with pytest.raises(UnsupportedContentError) as caught:
        template_messages(messages)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, StrandsSGLangError)
    return caught.value


# --- user messages ------------------------------------------------------------------------------------------------


CALLS = [assistant(use("a"), use("b")), assistant(use("c"), use("d"))]


@pytest.mark.parametrize(
    ("message", "rendered"),
    [
        (user(text("one"), text("two"), text("three")), [("user", None, "one\ntwo\nthree")]),
        (user(), [("user", None, "")]),
        (assistant(), [("assistant", None, "")]),
        (user(result("a", text("87"))), [("tool", "a", "87")]),
        (
            user(text("now"), result("a", text("87")), text("go on")),
            [("tool", "a", "87"), ("user", None, "now\ngo on")],
        ),
        (user(result("a"), result("b")), [("tool", "a", ""), ("tool", "b", "")]),
    ],
)
def test_text_and_results_are_separate_messages_in_order(message: dict[str, Any], rendered: list[Any]) -> None:
    made = template_messages([message])
    assert [(one["role"], one.get("tool_call_id"), one["content"]) for one in made] == rendered
    assert not any("name" in one for one in made), "no call has the name"


@pytest.mark.parametrize(
    ("calls", "given", "ordered"),
    [
        *((CALLS[:1], "zbyax", "abzyx"), (CALLS, "dbc", "cdb")),  # without a call in the message before: last, in order
        *(([assistant(*map(use, "0123456789A"))], given, "0123456789A") for given in ("0A123456789", "A9876543210")),
    ],
)
def test_results_are_in_call_order(calls: list[Any], given: str, ordered: str) -> None:
    made = template_messages([*calls, user(*[result(one, text(one)) for one in given])])
    assert [(one["tool_call_id"], one["content"]) for one in made[len(calls) :]] == [(one, one) for one in ordered]


def test_name_is_from_newest_call_with_the_id() -> None:
    old, new = ([assistant(use("a", name)), user(result("a", text("87")))] for name in ("old", "new"))
    made = template_messages([*old, *new])
    assert made[1] == {"role": "tool", "tool_call_id": "a", "name": "old", "content": "87"}
    assert made[3]["name"] == "new"


@pytest.mark.parametrize(
    ("items", "content"),
    [
        *(([], ""), ([text("")], ""), ([text("a"), text("b")], "a\nb")),
        ([{"json": {"é": [1, 2.5, None, True]}}], '{"é": [1, 2.5, null, true]}'),
        ([text("a"), {"json": []}, text("b")], "a\n[]\nb"),
        ([{"json": None}], "null"),
        ([text("a"), {"cachePoint": {"type": "default"}}], "a"),
    ],
)
def test_all_content_of_result_reaches_the_model(items: list[Any], content: str) -> None:
    assert only(user(result("a", *items)))["content"] == content


@pytest.mark.parametrize(
    ("items", "content"),
    [
        *(([text("Error: no such file")], "Error: no such file"), ([text("no such file")], "no such file")),
        *(([], "error"), ([text("")], "error")),
    ],
)
def test_error_result_is_the_tools_text(items: list[Any], content: str) -> None:
    assert only(user(result("a", *items, status="error")))["content"] == content
    assert only(user({"toolResult": {"toolUseId": "a", "status": "success"}}))["content"] == ""


def test_complete_assistant_message() -> None:
    reasoning = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}}
    assert only(assistant(reasoning, text("a"), text("b"), use("1", x=[1]), use("2", "search"))) == {
        "role": "assistant",
        "content": "a\nb",
        "reasoning_content": "hm",
        "tool_calls": [
            {"type": "function", "id": "1", "function": {"name": "calculator", "arguments": {"x": [1]}}},
            {"type": "function", "id": "2", "function": {"name": "search", "arguments": {}}},
        ],
    }


def test_reasoning_blocks_are_joined_and_redacted_ones_ignored() -> None:
    blocks = [
        {"reasoningContent": {"reasoningText": {"text": "a"}}},
        {"reasoningContent": {"redactedContent": b"\x00"}},
        {"reasoningContent": {"reasoningText": {"signature": "only"}}},
        {"reasoningContent": {"reasoningText": {"text": "b"}}},
    ]
    assert only(assistant(*blocks)) == {"role": "assistant", "content": "", "reasoning_content": "a\nb"}
    assert only(assistant(blocks[1], blocks[2], text("a"))) == {"role": "assistant", "content": "a"}
    assert only(assistant({"reasoningContent": {"reasoningText": {"text": ""}}}))["reasoning_content"] == ""


def test_ids_written_by_the_model_replace_ours() -> None:
    made = template_messages(
        [assistant(use("ours"), use("other")), user(result("other"), result("ours"))],
        call_ids={"ours": "functions.calculator:0"},
    )
    assert [call["id"] for call in made[0]["tool_calls"]] == ["functions.calculator:0", "other"]
    assert [message["tool_call_id"] for message in made[1:]] == ["functions.calculator:0", "other"]


@pytest.mark.parametrize("make", [user, assistant])
def test_guarded_and_cited_text_is_text(make: Any) -> None:
    blocks = [
        {"guardContent": {"text": {"text": "guarded", "qualifiers": ["query"]}}},
        {"citationsContent": {"citations": [{"title": "t"}], "content": [{"text": "cited"}, {"text": "too"}]}},
        {"cachePoint": {"type": "default"}},
    ]
    assert only(make(text("a"), *blocks, text("b")))["content"] == "a\nguarded\ncited\ntoo\nb"


@pytest.mark.parametrize("kind", ["document", "video", "audio", "hologram"])
def test_unsupported_content_is_an_error(kind: str) -> None:
    error = refused(user(text("a")), user(text("b"), {kind: {"format": "x"}}))
    assert (error.message_index, error.block_index, error.kind) == (1, 1, kind)
    assert "message 1, content block 1" in str(error) and repr(kind) in str(error)
    assert "before the model is called" in str(error)
    inside = refused(user(text("a"), text("b"), result("x", text("t"), {kind: {"format": "x"}})))
    assert (inside.message_index, inside.block_index, inside.kind) == (0, 2, kind)
    assert "inside a tool result" in str(inside)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"role": "system", "content": [{"text": "a"}]}, "role"),
        *(({"content": [{"text": "a"}]}, "role"), ({"role": "user", "content": "a"}, "content"), (user("a"), "block")),
        *((user({}), "block"), (user({"text": 1}), "text")),
        (user({"guardContent": {"image": {}}}), "guardContent"),
        (user(use("a")), "toolUse"),
        (user({"reasoningContent": {"reasoningText": {"text": "a"}}}), "reasoningContent"),
        (user({"toolResult": {"content": []}}), "toolResult"),
        (user({"toolResult": {"toolUseId": "a", "content": "plain"}}), "content"),
        (user(result("a", {"json": {1, 2}})), "json"),
        (assistant(result("a")), "toolResult"),
        (assistant({"toolUse": {"toolUseId": "a"}}), "toolUse"),
        (assistant({"reasoningContent": {"reasoningText": "a"}}), "reasoningContent"),
    ],
)
def test_malformed_messages_are_typed_errors(message: dict[str, Any], kind: str) -> None:
    error = refused(message)
    assert (error.message_index, error.kind) == (0, kind)


def test_error_keeps_its_fields_when_pickled() -> None:
    error = refused(user(text("a")), user(text("b"), {"image": {}}))
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error) and str(copied) == str(error) and vars(copied) == vars(error)


# --- system prompt and tools ---------------------------------------------------------------------------------------


def test_the_system_prompt() -> None:
    assert template_system(None, None) is None
    assert template_system("a", None) == "a"
    assert template_system("a", []) == "a"
    assert template_system("", [{"text": ""}]) == ""
    blocks = [text("b"), {"cachePoint": {"type": "default"}}, {"guardContent": {"text": {"text": "c"}}}]
    assert template_system("a", blocks) == "b\nc"
    assert template_system(None, [{"cachePoint": {"type": "default"}}]) is None
    with pytest.raises(UnsupportedContentError, match="the system prompt, content block 1") as caught:
        template_system("a", [text("b"), {"image": {}}])
    assert caught.value.message_index is None and caught.value.kind == "image"


def test_system_blocks_are_joined_as_the_sdk_does() -> None:
    from strands.types.content import split_system_prompt

    joined, blocks = split_system_prompt([{"text": "a"}, {"cachePoint": {"type": "default"}}, {"text": "b"}])
    assert template_system(None, blocks) == joined


def test_tools() -> None:
    schema = {"type": "object", "properties": {"json": {"type": "string"}}, "required": ["json"]}
    made = {"type": "function", "function": {"name": "t", "description": "d", "parameters": schema}}
    assert template_tools([{"name": "t", "description": "d", "inputSchema": {"json": schema}}]) == [made]
    assert template_tools([{"name": "t", "description": "d", "inputSchema": schema, "annotations": {}}]) == [made]
    assert template_tools([{"name": "t"}]) == [
        {"type": "function", "function": {"name": "t", "description": "", "parameters": {}}}
    ]
    assert template_tools([]) is None and template_tools(None) is None


# --- any conversation ------------------------------------------------------------------------------------------------

words = st.text(max_size=8)
ids = st.sampled_from("abcd")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
texts = st.builds(text, words)
results = st.builds(
    lambda use_id, items: result(use_id, *items),
    ids,
    st.lists(texts | st.fixed_dictionaries({"json": json_values}), max_size=3),
)
uses = st.builds(lambda use_id, value: use(use_id, value=value), ids, json_values)
users = st.builds(lambda blocks: user(*blocks), st.lists(texts | results, max_size=4))
assistants = st.builds(lambda blocks: assistant(*blocks), st.lists(texts | uses, max_size=4))


@settings(deadline=None)
@given(st.lists(users | assistants, max_size=5))
def test_all_text_is_kept_and_input_is_unchanged(messages: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(messages)
    made = template_messages(messages)
    assert messages == before
    assert all(isinstance(message["content"], str) for message in made)
    assert sum(message["role"] == "assistant" for message in made) == sum(m["role"] == "assistant" for m in messages)
    blocks = [block for message in messages for block in message["content"]]
    assert sum(message["role"] == "tool" for message in made) == sum("toolResult" in block for block in blocks)
    assert sum(len(message.get("tool_calls", ())) for message in made) == sum("toolUse" in block for block in blocks)
    written = "".join(message["content"].replace("\n", "") for message in made if message["role"] != "tool")
    assert written == "".join(block["text"].replace("\n", "") for block in blocks if "text" in block)
