"""A whole reply is the result that the SDK builds from stream events, and the model receives the same messages."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
from strands.event_loop.streaming import _normalize_messages, process_stream

from strands_sglang._strands_compat.copies import ConversationCopies
from strands_sglang._strands_compat.model_calls import WholeReplyModel, _normalised, stream_messages, unobserved
from strands_sglang.errors import CallCancelledError
from support.provider.agents import agent_on, scripted_model
from support.scripted_engine import Reply, tool_call

LOOK = (
    "strands/event_loop/streaming.py has changed: compare stream_messages, _normalize_messages and process_stream with "
    "_strands_compat/model_calls.py"
)
QUESTION: Any = [{"role": "user", "content": [{"text": "go"}]}]


@pytest.mark.parametrize(
    "answer",
    [
        "it is 4",
        "<think>\nwell\n</think>\n\nit is 4",
        tool_call("calculator", expression="1+\u00e9\U0001f600"),
        "first\n" + tool_call("a", x=1.5, y=[True, None, {"z": "\u2028"}]) + tool_call("b"),
        '<tool_call>\n{"name": "calculator"\n</tool_call>',
        Reply(""),
        Reply("cut", ended=False),
    ],
)
async def test_canary_a_whole_reply_is_what_the_sdk_builds_from_events(answer: Any) -> None:
    def tools() -> Any:
        return [{"name": name, "description": name, "inputSchema": {"json": {}}} for name in ("calculator", "a", "b")]

    async def result(quiet: bool) -> Any:
        model, _ = scripted_model([answer])
        assert isinstance(model, WholeReplyModel)
        signal = threading.Event()
        if quiet:
            unobserved[id(signal)] = signal, agent_on(model)
        try:
            with model.episode("e"):
                events = [
                    event async for event in stream_messages(model, None, QUESTION, tools(), cancel_signal=signal)
                ]
        finally:
            unobserved.pop(id(signal), None)
        assert (len(events) == 1) is quiet
        stop_reason, message, usage, metrics = events[-1]["stop"]
        return stop_reason, message, usage, {**metrics, "latencyMs": 0, "timeToFirstByteMs": 0}

    assert await result(True) == await result(False), LOOK


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_call_that_ends_without_events(cancelled: bool) -> None:
    model, _ = scripted_model([CallCancelledError("cancelled by the test")])

    async def nothing() -> Any:
        events: list[Any] = []
        for event in events:
            yield event

    signal = threading.Event()
    if cancelled:
        signal.set()
    unobserved[id(signal)] = signal, agent_on(model)
    try:
        ours = [event async for event in stream_messages(model, None, QUESTION, [], cancel_signal=signal)]
    finally:
        del unobserved[id(signal)]
    theirs = [event async for event in process_stream(nothing(), 0.0, signal)]
    assert ours == theirs, LOOK


@pytest.mark.parametrize(
    "content",
    [
        [],
        [{"text": ""}],
        [{"text": None}],
        [{"text": " \n"}, {"text": "x"}],
        [{"text": " "}, {"toolUse": {"toolUseId": "1", "name": "ok", "input": {}}}],
        [{"toolUse": {"toolUseId": "1", "name": "not ok", "input": {}}}],
        [{"toolUse": {"toolUseId": "1", "name": "x" * 65, "input": {}}}, {"toolUse": {"toolUseId": "2", "input": {}}}],
        [{"reasoningContent": {"reasoningText": {"text": ""}}}, {"text": "x"}],
    ],
)
def test_canary_messages_are_normalised_as_the_sdk_does(content: Any) -> None:
    messages: Any = [
        {"role": role, "content": copy.deepcopy(content), "metadata": {}} for role in ("assistant", "user")
    ]
    theirs = [{"role": one["role"], "content": one["content"]} for one in _normalize_messages(copy.deepcopy(messages))]
    assert _normalised(copy.deepcopy(messages)) == theirs, LOOK
    copies = ConversationCopies()
    for _ in range(3):
        assert _normalised(copies.copy(messages)) == theirs, LOOK


def test_normalising_does_not_modify_the_copies() -> None:
    messages: list[Any] = [
        {
            "role": "assistant",
            "content": [{"text": " "}, {"toolUse": {"name": "not ok", "toolUseId": "t", "input": {}}}],
        },
        {"role": "assistant", "content": [{"text": ""}]},
        {"role": "assistant", "content": []},
    ]
    copies = ConversationCopies()
    copied = copies.copy(messages)
    assert _normalised(copied) == _normalize_messages(copy.deepcopy(messages)), LOOK
    assert list(copied) == messages
