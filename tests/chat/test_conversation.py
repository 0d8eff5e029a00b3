"""A conversation: what is kept of it, what is sent, and when two preambles are equal."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang.chat import conversation
from strands_sglang.chat.conversation import Conversation, preamble_of

SPEC: dict[str, Any] = {"name": "t", "description": "A tool.", "inputSchema": {"json": {"type": "object"}}}


def user(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"text": text} for text in texts]}


def call(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"toolUse": {"toolUseId": one, "name": "t", "input": {}}} for one in ids]}


def result(use_id: str, text: str) -> dict[str, Any]:
    content = [{"text": text}]
    return {"role": "user", "content": [{"toolResult": {"toolUseId": use_id, "status": "success", "content": content}}]}


def test_a_conversation_is_sent_as_it_is_kept() -> None:
    messages = [user("a")]
    made = Conversation.of(messages)
    assert made.messages is made.sent is messages and not made.transient


@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        ([user("a", "now")], [user("a")]),
        ([user("a"), call("x"), user("now")], [user("a"), call("x")]),
        ([user("a", "now"), call("x")], [user("a"), call("x")]),
        ([call("x")], [call("x")]),
    ],
)
def test_blocks_of_one_call_are_sent_and_not_kept(messages: list[Any], kept: list[Any]) -> None:
    made = Conversation.of(messages, transient_blocks=1)
    assert (made.sent, made.messages, made.transient) == (messages, kept, True)


def test_call_ids_question_and_results() -> None:
    made = Conversation.of([user("a?"), call("x", "y"), result("x", "1"), call("z"), result("z", "2")])
    assert list(made.call_ids()) == ["x", "y", "z"] and list(made.call_ids(2)) == ["z"]
    assert made.question == "a?" and made.ends_with_results
    assert Conversation.of([]).question == "" and not Conversation.of([user("a")]).ends_with_results


def test_new_messages_are_rendered_as_in_the_whole_conversation() -> None:
    made = Conversation.of([user("a"), call("x"), result("x", "1"), user("b")], system="S")
    whole = made.rendered({"x": "own"})
    assert whole[0] == {"role": "system", "content": "S"}
    assert whole[3] == {"role": "tool", "tool_call_id": "own", "content": "1", "name": "t"}
    assert made.rendered({"x": "own"}, 2) == whole[:3]
    assert made.rendered_from(1, {"x": "own"}) == whole[2:]


def test_preambles_are_limited_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents over HTTP choose their system prompts."""
    monkeypatch.setattr(conversation, "_MAX_CHARACTERS", 1 << 15)
    monkeypatch.setattr(conversation, "_preambles", {})
    for number in range(40):
        first, again = (preamble_of(f"{number}" + "x" * 2000, [SPEC]) for _ in range(2))
        assert first is again and len(first.key) < 100
    kept = conversation._preambles.values()
    assert 5 < len(kept) < 20 and sum(one.size for one in kept) <= 1 << 15
    huge = preamble_of("y" * (1 << 16), [SPEC])
    assert huge == preamble_of("y" * (1 << 16), [SPEC]) != preamble_of("y" * (1 << 16) + "z", [SPEC])
    assert len(kept) == 1


def test_preambles_differ_by_all_their_content() -> None:
    keys = [
        *(preamble_of(None, None).key, preamble_of("", None).key, preamble_of("x", None).key),
        *(preamble_of("x", [SPEC]).key, preamble_of("x", [{**SPEC, "description": "Another."}]).key),
        *(preamble_of("x", [SPEC, SPEC]).key, preamble_of("x \udc80", [SPEC]).key, preamble_of("y \udc80", [SPEC]).key),
        preamble_of("x", [{**SPEC, "inputSchema": {"json": {"maximum": 2**70}}}]).key,
        preamble_of("x", [{**SPEC, "inputSchema": {"json": {"maximum": 2**71}}}]).key,
        preamble_of("x", [{**SPEC, "inputSchema": {"json": {"default": None}}}]).key,
        preamble_of("x", [{**SPEC, "inputSchema": {"json": {"default": float("nan")}}}]).key,
        preamble_of("x", [{**SPEC, "inputSchema": {"json": {"default": float("inf")}}}]).key,
    ]
    assert len(set(keys)) == len(keys)
    assert preamble_of("x", [dict(SPEC)]) == preamble_of("x", [SPEC])
