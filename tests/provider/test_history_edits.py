"""Rows 1, 8, 9 and 16 of "Every way history changes": messages written or edited by others.

The content of the messages decides: a branch continues only where the messages still equal what was recorded.
"""

from __future__ import annotations

from typing import Any

import pytest
from strands.hooks import AfterModelCallEvent, AfterToolCallEvent, BeforeModelCallEvent, BeforeToolCallEvent
from strands.types.content import Message
from strands.vended_plugins.context_offloader import ContextOffloader, InMemoryStorage

from strands_sglang.tokens import Origin
from support.provider.agents import (
    acting,
    agent_on,
    context,
    lookup,
    official,
    outline,
    said,
    sampled,
    scripted_model,
)
from support.scripted_engine import thought, tool_call

pytestmark = pytest.mark.usefixtures("exact")

SUM = tool_call("calculator", expression="1+1")


def user(text: str) -> Message:
    return {"role": "user", "content": [{"text": text}]}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": [{"text": text}]}


async def test_row_01_an_earlier_message_is_edited_between_calls() -> None:
    agent, engine, tree = acting([SUM, "two", "three"])
    await agent.invoke_async("1+1?")
    agent.messages[0]["content"][0]["text"] = "one and one?"
    await agent.invoke_async("plus 1?")
    assert outline(tree) == [(None, "root"), (0, "proved"), (None, "forked")]
    assert tree[2].forked_from == 1
    assert engine.calls[2].ids == official(agent, engine, 5)
    # Both branches are offered; what the first sampled is context in the second.
    first, second = tree.trajectories()
    assert (first.turn_ids, second.turn_ids) == ((0, 1), (2,))
    assert int(second.loss_mask.sum()) == len(tree[2].sampled)


async def test_row_01_an_earlier_message_is_edited_in_the_middle_of_an_invocation() -> None:
    def edit(event: BeforeModelCallEvent) -> None:
        if len(event.agent.messages) == 5:
            event.agent.messages[2]["content"][0]["toolResult"]["content"] = [{"text": "two"}]

    agent, engine, tree = acting([SUM, SUM, "done"], hooks=[edit])
    await agent.invoke_async("go")
    # The edit is after the first turn: the new branch continues from there.
    assert [turn.parent for turn in tree] == [None, 0, 0]
    assert tree[2].forked_from == 1
    assert "\ntwo\n" in context(tree[2], engine)
    assert engine.calls[2].ids == official(agent, engine, 5)


@pytest.mark.parametrize(("before", "after"), [(1, True), (1, 1.0), (0.0, -0.0)])
async def test_row_01_an_edit_between_equal_numbers_is_an_edit(before: Any, after: Any) -> None:
    result = {"toolUseId": "x", "status": "success", "content": [{"json": {"n": before}}]}
    seed: list[Any] = [
        user("go"),
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "x", "name": "calculator", "input": {}}}]},
        {"role": "user", "content": [{"toolResult": result}]},
    ]
    agent, _, tree = acting(["a", "b"], messages=seed)
    await agent.invoke_async(None)
    agent.messages[2]["content"][0]["toolResult"]["content"][0]["json"]["n"] = after
    await agent.invoke_async("more")

    assert outline(tree) == [(None, "root"), (None, "forked")]


async def test_row_01_the_last_exchange_is_removed() -> None:
    agent, engine, tree = acting(["one", "two", "two, again"])
    await agent.invoke_async("first")
    await agent.invoke_async("second")
    del agent.messages[2:]
    await agent.invoke_async("second, otherwise")
    assert [turn.parent for turn in tree] == [None, 0, 0]
    assert tree[2].forked_from == 1
    assert engine.calls[2].ids == official(agent, engine, 3)
    # What both branches share is trained in the first of them only.
    assert [int(one.loss_mask.sum()) for one in tree.trajectories()] == [
        len(tree[0].sampled) + len(tree[1].sampled),
        len(tree[2].sampled),
    ]


async def test_row_01_the_same_question_again_is_another_sample() -> None:
    """Several samples with one agent by clearing its messages: none of them was discarded."""
    agent, _, tree = acting(["one", "two", "two"])
    for _ in range(3):
        agent.messages.clear()
        await agent.invoke_async("guess")
    assert [(turn.parent, turn.rejected) for turn in tree] == [(None, False)] * 3
    assert len(tree.trajectories()) == 3


async def test_row_01_messages_appended_by_hand_are_context() -> None:
    agent, engine, tree = acting(["one", "two"])
    await agent.invoke_async("first")
    agent.messages += [user("by the way"), assistant("noted"), user("also")]
    await agent.invoke_async("second")
    assert outline(tree) == [(None, "root"), (0, "kept")]
    assert engine.calls[1].ids == official(agent, engine, 6)
    assert "noted" in context(tree[1], engine)


async def test_row_08_a_tool_result_is_rewritten_before_the_next_call() -> None:
    def shorten(event: AfterToolCallEvent) -> None:
        event.result = {**event.result, "content": [{"text": "about 2"}]}

    agent, engine, tree = acting([SUM, "two"], hooks=[shorten])
    await agent.invoke_async("go")

    assert outline(tree) == [(None, "root"), (0, "proved")]
    assert engine.calls[1].ids == official(agent, engine, 3)
    assert "about 2" in engine.prompts[1]


async def test_row_08_a_large_result_is_offloaded() -> None:
    offloader = ContextOffloader(storage=InMemoryStorage(), max_result_tokens=100, preview_tokens=20)
    agent, engine, tree = acting([tool_call("lookup", word="long " * 400), "done"], tools=[lookup], plugins=[offloader])
    await agent.invoke_async("go")
    assert outline(tree) == [(None, "root"), (0, "proved")]
    assert engine.calls[1].ids == official(agent, engine, 3)
    assert context(tree[1], engine).count("long ") < 100


async def test_row_09_a_hook_edits_the_arguments_of_a_stored_call() -> None:
    def correct(event: BeforeToolCallEvent) -> None:
        event.tool_use["input"]["expression"] = "2+2"

    agent, engine, tree = acting([SUM, "four"], hooks=[correct])
    await agent.invoke_async("go")

    assert said(agent)[2] == "success: 4"
    assert outline(tree) == [(None, "root"), (None, "forked")]
    assert tree[1].forked_from == 0
    assert '"2+2"' in context(tree[1], engine) and '"1+1"' in sampled(tree[0], engine)
    assert engine.calls[1].ids == official(agent, engine, 3)
    # The call as it was sampled is trained in a branch of its own; the one that was run is context.
    assert [one.turn_ids for one in tree.trajectories()] == [(0,), (1,)]


async def test_row_09_a_hook_edits_the_reply() -> None:
    def censor(event: AfterModelCallEvent) -> None:
        assert event.stop_response is not None
        for block in event.stop_response.message["content"]:
            if "text" in block:
                block["text"] = block["text"].replace("secret", "[removed]")

    agent, engine, tree = acting(["a secret", "fine"], hooks=[censor])
    await agent.invoke_async("go")
    await agent.invoke_async("more")
    assert outline(tree) == [(None, "root"), (None, "forked")]
    assert tree[1].forked_from == 0 and not tree[0].rejected
    assert "a [removed]<|im_end|>" in engine.prompts[1]


async def test_row_09_an_edit_of_blank_text_continues_the_branch() -> None:
    """Blank text that a hook adds to a turn with calls is dropped by the SDK, and by us."""

    def pad(event: AfterModelCallEvent) -> None:
        assert event.stop_response is not None
        event.stop_response.message["content"].insert(0, {"text": "  "})

    agent, _, tree = acting([SUM, "two"], hooks=[pad])
    await agent.invoke_async("go")

    assert outline(tree) == [(None, "root"), (0, "proved")]


async def test_row_16_a_history_that_another_model_produced() -> None:
    seed: list[Any] = [
        {"role": "user", "content": [{"text": "1+1?"}, {"cachePoint": {"type": "default"}}]},
        {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "easy", "signature": "theirs"}}},
                {"text": "Let me see."},
                {"toolUse": {"toolUseId": "tooluse_x", "name": "calculator", "input": {"expression": "1+1"}}},
                {"cachePoint": {"type": "default"}},
            ],
        },
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "tooluse_x", "status": "success", "content": [{"text": "2"}]}}],
        },
        assistant("two"),
    ]
    agent, engine, tree = acting([thought("hm", "three")], "qwen3", messages=seed)
    await agent.invoke_async("plus 1?")
    assert outline(tree) == [(None, "root")]
    assert engine.calls[0].ids == official(agent, engine, 5)
    assert SUM in engine.prompts[0]
    trajectory = tree.trajectories()[0]
    assert int(trajectory.loss_mask.sum()) == len(tree[0].sampled)
    assert set(trajectory.origins[: trajectory.prompt_length]) == {Origin.CONTEXT}


async def test_row_16_another_model_answers_in_between() -> None:
    model, engine = scripted_model([SUM, "two", "four"], "qwen2.5")
    other, _ = scripted_model([tool_call("calculator", expression="1+2"), "three"], "qwen2.5")
    agent = agent_on(model)
    await agent.invoke_async("1+1?")
    agent.model = other
    await agent.invoke_async("and 1?")
    agent.model = model
    await agent.invoke_async("and 1?")

    tree, theirs = model.current_episode.tree, other.current_episode.tree
    assert outline(theirs) == [(None, "root"), (0, "proved")]
    # Turns of the other model are context, appended after the last turn of this model.
    assert [turn.parent for turn in tree] == [None, 0, 1]
    assert engine.calls[2].ids == official(agent, engine, 9)
    assert "three" in context(tree[2], engine)
