"""Rows 2 to 5 of "Every way history changes": conversation managers that make a long history shorter."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import SlidingWindowConversationManager, SummarizingConversationManager
from strands.types.exceptions import ContextWindowOverflowException, EventLoopException

from strands_sglang.errors import BridgeRefusedError
from strands_sglang.provider.config import RewritePolicy
from strands_sglang.tokens import TokenTree, TurnPurpose
from support.provider.agents import (
    Asked,
    acting,
    agent_on,
    calculator,
    context,
    lookup,
    official,
    outline,
    said,
    scripted_model,
)
from support.scripted_engine import Script, ScriptedEngine, thought, tool_call

pytestmark = pytest.mark.usefixtures("exact")

SUM = tool_call("calculator", expression="1+1")


@tool
async def read(name: str) -> str:
    """Read a file.

    Args:
        name: Its name.
    """
    return f"{name}: " + "line of text. " * 60


def windowed(script: Script, family: str = "qwen2.5", **settings: Any) -> tuple[Any, ScriptedEngine, TokenTree]:
    """Act with a window of four messages."""
    manager = SlidingWindowConversationManager(window_size=4, per_turn=True)
    return acting(script, family, conversation_manager=manager, **settings)


async def test_row_02_a_sliding_window_trims_and_history_starts_with_a_call() -> None:
    asked = Asked()
    agent, engine, tree = windowed([SUM, SUM, "done"], hooks=[asked])
    await agent.invoke_async("go")

    assert asked.messages[2][0]["role"] == "assistant"
    assert outline(tree) == [(None, "root"), (0, "proved"), (None, "forked")]
    assert tree[2].forked_from == 1
    assert engine.calls[2].ids == official(agent, engine, messages=asked.messages[2])
    assert "go<|im_end|>" not in engine.prompts[2]


async def test_row_02_policy_keep_ignores_a_trim() -> None:
    agent, engine, tree = windowed([SUM, SUM, SUM, "done"], on_trim="keep")
    await agent.invoke_async("go")

    # One branch with everything in it, and the turns that were joined so say it.
    assert outline(tree) == [(None, "root"), (0, "proved"), (1, "kept"), (2, "kept")]
    assert len(tree.trajectories()) == 1
    assert engine.prompts[3].startswith(engine.prompts[0])


async def test_row_02_policy_keep_ignores_a_trim_without_calls() -> None:
    """There is no call id to identify a turn: only the agent's state and the text."""
    agent, _, tree = acting(
        lambda prompt: "yes", conversation_manager=SlidingWindowConversationManager(window_size=3), on_trim="keep"
    )
    for number in range(4):
        await agent.invoke_async(f"question {number}")

    assert outline(tree) == [(None, "root"), (0, "proved"), (1, "kept"), (2, "kept")]
    assert len(agent.messages) <= 4


async def test_row_02_messages_left_after_a_trim_must_be_unchanged() -> None:
    agent, _, tree = windowed([SUM, SUM, "done", "more"], on_trim="keep")
    await agent.invoke_async("go")
    agent.messages[0]["content"][0]["toolUse"]["input"] = {"expression": "2+2"}
    await agent.invoke_async("and?")

    assert outline(tree)[3] == (None, "forked")
    assert tree[3].forked_from == 2


@pytest.mark.parametrize("reply", [SUM, "yes"])
async def test_row_02_a_trim_may_be_refused(reply: str) -> None:
    agent, engine, tree = windowed(lambda prompt: reply, on_trim=RewritePolicy.REFUSE)
    with pytest.raises((BridgeRefusedError, EventLoopException)) as caught:
        for number in range(4):
            await agent.invoke_async(f"question {number}")

    error = caught.value
    refusal = error.original_exception if isinstance(error, EventLoopException) else error
    assert isinstance(refusal, BridgeRefusedError) and refusal.step == "trim"
    assert "NullConversationManager" in str(refusal)
    # An error leaves the tree as it was.
    assert len(tree) == len(engine.calls) == 2


async def test_row_03_overflow_truncates_a_result_before_it_was_sent() -> None:
    agent, engine, tree = acting(
        [tool_call("read", name="a"), "done"],
        tools=[read],
        conversation_manager=SlidingWindowConversationManager(),
        context_window_limit=350,
    )
    await agent.invoke_async("go")
    # The prompt that did not fit was never sent: there is nothing to fork from.
    assert outline(tree) == [(None, "root"), (0, "proved")]
    assert "[truncated:" in context(tree[1], engine)
    assert engine.calls[1].ids == official(agent, engine, 3)


async def test_row_03_overflow_truncates_a_result_in_the_past_and_then_trims() -> None:
    calls = [tool_call("read", name=name) for name in "ab"]
    agent, engine, tree = acting(
        [*calls, "done", "more"],
        tools=[read],
        conversation_manager=SlidingWindowConversationManager(),
        context_window_limit=700,
    )
    await agent.invoke_async("go")
    # Turn 1 had the whole first result, turn 2 has it truncated: a branch after turn 0.
    assert [turn.parent for turn in tree] == [None, 0, 0]
    assert tree[2].forked_from == 1
    assert engine.calls[2].ids == official(agent, engine, 5)
    assert "[truncated:" in context(tree[2], engine) and "[truncated:" not in context(tree[1], engine)

    agent.model.update_config(context_window_limit=len(engine.calls[2].ids) + 5)
    await agent.invoke_async("and now?")
    assert said(agent)[-2:] == ["user: and now?", "assistant: more"]
    assert tree[3].forked_from == 2
    assert engine.calls[3].ids == official(agent, engine, len(agent.messages) - 1)


def summarised(prompt: str) -> str:
    return "THE SUMMARY" if "Please summarize this conversation." in prompt else "an answer"


async def test_row_04_a_summary_is_a_side_turn_and_rewrites_the_start() -> None:
    threads: list[str] = []

    def answer(prompt: str) -> str:
        threads.append(threading.current_thread().name)
        return summarised(prompt)

    manager = SummarizingConversationManager(
        summary_ratio=0.5, preserve_recent_messages=2, summarization_system_prompt="You sum up."
    )
    asked = Asked()
    agent, engine, tree = acting(
        answer, tools=[], conversation_manager=manager, hooks=[asked], context_window_limit=450
    )
    for number in range(5):
        await agent.invoke_async(f"question {number} " + "word " * 100)
    purposes = [turn.purpose for turn in tree]
    assert purposes.count(TurnPurpose.SIDE) == 1
    side = purposes.index(TurnPurpose.SIDE)
    assert threads[side] != threads[0]
    # The summary continues no turn and has no caller: it is the framework's own call.
    assert (tree[side].parent, tree[side].caller, tree[side].join.value) == (None, None, "root")
    after = tree[side + 1]
    assert (after.parent, after.join.value, after.forked_from) == (None, "forked", side - 1)
    assert "THE SUMMARY" in context(after, engine)
    seen = next(messages for messages in asked.messages if "THE SUMMARY" in str(messages))
    assert engine.calls[side + 1].ids == official(agent, engine, messages=seen)
    # It is recorded, and not trained unless it is asked for.
    assert all(side not in one.turn_ids for one in tree.trajectories())
    assert [one.turn_ids for one in tree.trajectories(purpose=TurnPurpose.SIDE)] == [(side,)]


async def test_row_04_a_summary_before_the_first_turn_is_a_side_turn() -> None:
    model, _ = scripted_model(summarised, "qwen2.5", context_window_limit=450)
    seed: list[Any] = []
    for number in range(5):
        seed.append({"role": "user", "content": [{"text": f"question {number} " + "word " * 100}]})
        seed.append({"role": "assistant", "content": [{"text": "an answer"}]})
    manager = SummarizingConversationManager(summary_ratio=0.8, preserve_recent_messages=1)
    # The summary itself must fit.
    model.update_config(context_window_limit=900)
    agent = agent_on(model, tools=[], messages=[*seed, *seed], conversation_manager=manager)
    with pytest.raises(ContextWindowOverflowException):
        await agent.invoke_async("and now?")
    assert len(model.current_episode.tree) == 0

    agent = agent_on(model, tools=[], messages=list(seed), conversation_manager=manager)
    await agent.invoke_async("and now? " + "word " * 450)
    tree = model.current_episode.tree
    assert [turn.purpose.value for turn in tree] == ["side", "episode"]


async def test_row_04_a_separate_summarising_agent_has_its_own_branch() -> None:
    model, engine = scripted_model(summarised, "qwen2.5", context_window_limit=600)
    helper = agent_on(model, tools=[lookup], system_prompt="You sum up.")
    manager = SummarizingConversationManager(summary_ratio=0.5, preserve_recent_messages=2, summarization_agent=helper)
    agent = agent_on(model, tools=[], conversation_manager=manager)
    for number in range(7):
        await agent.invoke_async(f"question {number} " + "word " * 100)

    tree = model.current_episode.tree
    (summary,) = [turn for turn in tree if "You sum up." in context(turn, engine)]
    assert (summary.parent, summary.purpose) == (None, TurnPurpose.EPISODE)
    assert tree[summary.id + 1].forked_from == summary.id - 1


async def test_row_05_the_automatic_context_manager() -> None:
    def answer(prompt: str) -> str:
        if "You are a summarization assistant." in prompt:
            return "SHORT"
        return tool_call("read", name="a") if prompt.rstrip().endswith("go<|im_end|>\n<|im_start|>assistant") else "ok"

    model, engine = scripted_model(answer, "qwen2.5", context_window_limit=3000)
    agent = Agent(model=model, tools=[read], context_manager="auto", callback_handler=None)
    await agent.invoke_async("go")
    for number in range(4):
        await agent.invoke_async(f"question {number} " + "word " * 500)

    tree = model.current_episode.tree
    sides = [turn for turn in tree if turn.purpose is TurnPurpose.SIDE]
    assert sides and all(turn.parent is None and turn.caller is None for turn in sides)
    following = tree[sides[0].id + 1]
    assert following.join.value == "forked" or following.forked_from is not None
    assert "SHORT" in engine.prompts[following.id]
    assert engine.calls[-1].ids == official(agent, engine, len(agent.messages) - 1)


async def test_row_05_policy_keep_keeps_the_status_of_the_agentic_context_manager() -> None:
    model, engine = scripted_model([SUM, "two"], "qwen2.5", context_window_limit=50_000)
    agent = Agent(model=model, tools=[calculator], context_manager="agentic", callback_handler=None)
    await agent.invoke_async("go")

    assert outline(model.current_episode.tree) == [(None, "root"), (0, "kept")]
    assert [prompt.count("<context-status>") for prompt in engine.prompts] == [1, 2]


async def test_row_05_the_model_shortens_its_own_context() -> None:
    steps = [SUM, SUM, tool_call("truncate_context"), "done"]
    model, _ = scripted_model(steps, "qwen2.5", context_window_limit=50_000)
    agent = Agent(model=model, tools=[calculator], context_manager="agentic", callback_handler=None)
    result = await agent.invoke_async("go")

    assert str(result) == "done\n"
    assert len(model.current_episode.tree) == 4


async def test_row_02_reasoning_survives_a_trim_that_is_kept() -> None:
    agent, engine, tree = windowed(
        [thought("a", SUM), thought("b", SUM), thought("c", "done")], "qwen3", on_trim="keep"
    )
    await agent.invoke_async("go")

    assert outline(tree) == [(None, "root"), (0, "proved"), (1, "kept")]
    assert "<think>\na\n</think>" in engine.prompts[2]
