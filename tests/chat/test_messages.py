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


def test_every_text_block_reaches_the_model() -> None:
    assert only(user(text("one"), text("two"), text("three"))) == {"role": "user", "content": "one\ntwo\nthree"}


def test_empty_content_is_an_empty_text() -> None:
    assert only(user()) == {"role": "user", "content": ""}
    assert only(assistant()) == {"role": "assistant", "content": ""}


def test_tool_result_is_a_separate_message() -> None:
    made = template_messages([assistant(use("a", x=1)), user(result("a", text("87")))])
    assert made[1] == {"role": "tool", "tool_call_id": "a", "name": "calculator", "content": "87"}


def test_name_is_omitted_without_matching_call() -> None:
    assert only(user(result("a", text("87")))) == {"role": "tool", "tool_call_id": "a", "content": "87"}


def test_name_is_from_newest_call_with_the_id() -> None:
    made = template_messages(
        [assistant(use("a", "old")), user(result("a")), assistant(use("a", "new")), user(result("a"))]
    )
    assert [message["name"] for message in made if message["role"] == "tool"] == ["old", "new"]


def test_eleven_results_are_in_call_order() -> None:
    ids = [f"call_{number}" for number in range(11)]
    for shuffled in (sorted(ids), ids[::-1]):
        made = template_messages(
            [assistant(*[use(use_id) for use_id in ids]), user(*[result(use_id, text(use_id)) for use_id in shuffled])]
        )
        assert [message["tool_call_id"] for message in made[1:]] == ids
        assert [message["content"] for message in made[1:]] == ids


def test_results_without_call_come_last_in_order() -> None:
    made = template_messages(
        [assistant(use("a"), use("b")), user(result("z"), result("b"), result("y"), result("a"), result("x"))]
    )
    assert [message["tool_call_id"] for message in made[1:]] == ["a", "b", "z", "y", "x"]


def test_only_the_preceding_assistant_message_orders_the_results() -> None:
    made = template_messages(
        [assistant(use("a"), use("b")), assistant(use("c"), use("d")), user(result("d"), result("b"), result("c"))]
    )
    assert [message["tool_call_id"] for message in made[2:]] == ["c", "d", "b"]


def test_text_next_to_results_follows_them() -> None:
    made = template_messages([user(text("now"), result("a", text("87")), text("go on"))])
    assert [(message["role"], message["content"]) for message in made] == [("tool", "87"), ("user", "now\ngo on")]


def test_results_alone_add_no_user_message() -> None:
    assert [message["role"] for message in template_messages([user(result("a"), result("b"))])] == ["tool", "tool"]


@pytest.mark.parametrize(
    ("items", "content"),
    [
        ([], ""),
        ([text("")], ""),
        ([text("a"), text("b")], "a\nb"),
        ([{"json": {"é": [1, 2.5, None, True]}}], '{"é": [1, 2.5, null, true]}'),
        ([text("a"), {"json": []}, text("b")], "a\n[]\nb"),
        ([{"json": None}], "null"),
        ([text("a"), {"cachePoint": {"type": "default"}}], "a"),
    ],
)
def test_all_content_of_result_reaches_the_model(items: list[Any], content: str) -> None:
    assert only(user(result("a", *items)))["content"] == content


def test_result_without_content_is_empty() -> None:
    assert only(user({"toolResult": {"toolUseId": "a", "status": "success"}}))["content"] == ""


def test_error_result_is_the_tools_text() -> None:
    assert only(user(result("a", text("Error: no such file"), status="error")))["content"] == "Error: no such file"
    assert only(user(result("a", text("no such file"), status="error")))["content"] == "no such file"
    assert only(user(result("a", status="error")))["content"] == "error"
    assert only(user(result("a", text(""), status="error")))["content"] == "error"


# --- assistant messages -------------------------------------------------------------------------------------------


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


def test_keys_are_omitted_without_reasoning_and_calls() -> None:
    assert only(assistant(text("a"))) == {"role": "assistant", "content": "a"}


def test_reasoning_blocks_are_joined_and_redacted_ones_ignored() -> None:
    blocks = [
        {"reasoningContent": {"reasoningText": {"text": "a"}}},
        {"reasoningContent": {"redactedContent": b"\x00"}},
        {"reasoningContent": {"reasoningText": {"signature": "only"}}},
        {"reasoningContent": {"reasoningText": {"text": "b"}}},
    ]
    assert only(assistant(*blocks)) == {"role": "assistant", "content": "", "reasoning_content": "a\nb"}
    assert "reasoning_content" not in only(assistant(blocks[1], blocks[2]))
    assert only(assistant({"reasoningContent": {"reasoningText": {"text": ""}}}))["reasoning_content"] == ""


def test_ids_written_by_the_model_replace_ours() -> None:
    made = template_messages(
        [assistant(use("ours"), use("other")), user(result("other"), result("ours"))],
        call_ids={"ours": "functions.calculator:0"},
    )
    assert [call["id"] for call in made[0]["tool_calls"]] == ["functions.calculator:0", "other"]
    assert [message["tool_call_id"] for message in made[1:]] == ["functions.calculator:0", "other"]


def test_seeded_history_is_rendered_completely() -> None:
    """Pitfall 3: toolUse, reasoningContent and cachePoint in the history."""
    made = template_messages(
        [
            user(text("12*7+3?"), {"cachePoint": {"type": "default"}}),
            assistant({"reasoningContent": {"reasoningText": {"text": "hm"}}}, use("a", expression="12*7+3")),
            user(result("a", {"json": 87})),
            assistant(text("87")),
        ]
    )
    assert [message["role"] for message in made] == ["user", "assistant", "tool", "assistant"]
    assert made[0]["content"] == "12*7+3?"
    assert made[1]["tool_calls"][0]["function"]["arguments"] == {"expression": "12*7+3"}


# --- blocks of both ------------------------------------------------------------------------------------------------


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
        ({"content": [{"text": "a"}]}, "role"),
        ({"role": "user", "content": "a"}, "content"),
        (user("a"), "block"),
        (user({}), "block"),
        (user({"text": 1}), "text"),
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
