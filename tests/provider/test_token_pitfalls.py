"""Pitfalls of token-exact rollouts, rows 1 to 13 of "Tokens": each was seen to go wrong elsewhere.

Rows 3, 4, 9, 11 and 13 are ways in which history changes: the files `test_history_*` have them (a history of another
model, a sliding window, edits, changes of the preamble, agents as tools).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from strands import tool
from strands.agent.conversation_manager import SlidingWindowConversationManager, SummarizingConversationManager
from strands.hooks import AfterModelCallEvent, BeforeModelCallEvent
from strands.types.exceptions import ContextWindowOverflowException

from strands_sglang.engine import FinishReason
from strands_sglang.errors import ContextOverflowError, EngineError
from strands_sglang.tokens import Join, TurnPurpose, TurnStatus
from support.provider.agents import (
    acting,
    agent_on,
    closing,
    context,
    official,
    outline,
    said,
    scripted_model,
)
from support.scripted_engine import Reply, tool_call

pytestmark = pytest.mark.usefixtures("exact")

SUM = tool_call("calculator", expression="1+1")


@tool
async def parts(count: int) -> dict[str, Any]:
    """Return several things.

    Args:
        count: How many.
    """
    content: list[Any] = [{"text": f"part {number}"} for number in range(count)]
    return {"status": "success", "content": [*content, {"json": {"last": True}}] if count else []}


async def test_row_01_every_block_reaches_the_model() -> None:
    agent, engine, tree = acting([tool_call("parts", count=3), "ok"], tools=[parts])
    blocks: list[Any] = [{"text": "first"}, {"text": "second"}]
    await agent.invoke_async(blocks)

    assert "first\nsecond<|im_end|>" in engine.prompts[0]
    result = context(tree[1], engine)
    assert 'part 0\npart 1\npart 2\n{"last": true}' in result
    assert engine.calls[1].ids == official(agent, engine, 3)


async def test_row_02_an_empty_tool_result() -> None:
    agent, engine, tree = acting([tool_call("parts", count=0), "ok"], tools=[parts])
    await agent.invoke_async("go")

    assert "<tool_response>\n\n</tool_response>" in context(tree[1], engine)
    assert engine.calls[1].ids == official(agent, engine, 3)


@pytest.mark.parametrize("summarising", [False, True])
async def test_row_05_overflow_after_some_turns_is_raised_and_then_forks(summarising: bool) -> None:
    overflow = ContextOverflowError("too long", requested_tokens=900, limit_tokens=None)

    def answer(prompt: str) -> Any:
        if "Please summarize this conversation." in prompt:
            return "SUMMARY"
        return overflow if prompt.count("question") > 3 else "yes"

    manager: Any = SlidingWindowConversationManager(window_size=6)
    if summarising:
        manager = SummarizingConversationManager(summary_ratio=0.5, preserve_recent_messages=2)
    agent, engine, tree = acting(answer, tools=[], conversation_manager=manager)
    for number in range(4):
        await agent.invoke_async(f"question {number}")
    assert said(agent)[-2:] == ["user: question 3", "assistant: yes"]
    last = tree[len(tree) - 1]
    assert (last.join, last.parent, last.forked_from) == (Join.FORKED, None, 2)
    assert [turn.purpose for turn in tree].count(TurnPurpose.SIDE) == int(summarising)
    assert sum(not call.answered for call in engine.calls) == 1


async def test_row_05_unhandled_overflow_is_raised() -> None:
    agent, _, tree = acting([SUM, ContextOverflowError("too long"), "two"])
    with pytest.raises(ContextWindowOverflowException, match="too long"):
        await agent.invoke_async("1+1?")
    assert len(tree) == 1
    # Nothing of it was used: the agent continues from where it was.
    await agent.invoke_async(None)
    assert outline(tree) == [(None, "root"), (0, "proved")]


async def test_row_06_a_retried_reply_has_its_own_branch_and_is_not_trained() -> None:
    def again(event: AfterModelCallEvent) -> None:
        event.retry = len(engine.calls) in (2, 3)

    agent, engine, tree = acting([SUM, "zwei", "deux", "two"], hooks=[again])
    await agent.invoke_async("1+1?")
    assert [turn.parent for turn in tree] == [None, 0, 0, 0]
    assert [turn.status for turn in tree][1:] == [TurnStatus.REJECTED, TurnStatus.REJECTED, TurnStatus.KEPT]
    assert [one.turn_ids for one in tree.trajectories()] == [(0, 3)]
    manager = agent.model.token_manager
    assert "zwei" not in engine.decode(manager.token_ids)
    assert sum(manager.loss_mask) == len(tree[0].sampled) + len(tree[3].sampled)


async def test_row_06_a_retry_after_an_error_is_no_attempt_of_the_model() -> None:
    def again(event: AfterModelCallEvent) -> None:
        event.retry = event.exception is not None

    agent, _, tree = acting([EngineError("oops"), "two"], hooks=[again])
    await agent.invoke_async("1+1?")

    assert outline(tree) == [(None, "root")]


CUT = [
    Reply("one two", ended=False, finish=FinishReason.LENGTH),
    Reply("one STOP", ended=False, detail="STOP"),
    Reply("one two", ended=False),
]


@pytest.mark.parametrize("reply", CUT, ids=["length", "stop string", "stop token"])
async def test_row_07_a_turn_without_its_end_is_closed_before_the_next(reply: Reply) -> None:
    agent, engine, tree = acting([reply, "three"])
    result: Any = None
    try:
        result = await agent.invoke_async("count")
    except Exception as error:
        assert type(error).__name__ == "MaxTokensReachedException"
    assert result is None or result.stop_reason == ("stop_sequence" if reply.detail else "end_turn")
    await agent.invoke_async("go on")
    assert closing(tree[1], engine) == "<|im_end|>"
    assert context(tree[1], engine).startswith("\n<|im_start|>user\ngo on")
    assert engine.calls[1].ids == official(agent, engine, 3)
    mask = agent.model.token_manager.loss_mask
    assert mask[tree[0].end - 1 : tree[0].end + 2] == [1, 0, 0]


async def test_row_07_a_turn_stopped_right_after_a_call_keeps_the_call() -> None:
    stopped = Reply(SUM, ended=False, detail="</tool_call>")
    agent, engine, tree = acting([stopped, "two"], sampling_params={"stop": ["</tool_call>"]})
    await agent.invoke_async("1+1?")

    assert said(agent) == ["user: 1+1?", "call calculator", "success: 2", "assistant: two"]
    assert closing(tree[1], engine) == "<|im_end|>"
    assert engine.calls[1].ids == official(agent, engine, 3)


async def test_row_07_an_end_of_turn_that_was_sampled_is_not_added_again() -> None:
    agent, engine, tree = acting(["one", Reply("two<|endoftext|>", ended=False), "three"])
    for prompt in ("a", "b", "c"):
        await agent.invoke_async(prompt)
    assert closing(tree[1], engine) == ""
    assert "<|im_end|><|im_end|>" not in engine.prompts[2]
    assert said(agent)[3] == "assistant: two"


async def test_row_10_a_hook_inserts_a_message_in_front() -> None:
    def insert(event: BeforeModelCallEvent) -> None:
        if len(engine.calls) == 1:
            event.agent.messages.insert(0, {"role": "user", "content": [{"text": "Hear, hear."}]})

    agent, engine, tree = acting([SUM, "two"], hooks=[insert])
    await agent.invoke_async("1+1?")
    assert (tree[1].join, tree[1].forked_from) == (Join.FORKED, 0)
    assert engine.prompts[1].count(SUM) == 1
    assert engine.calls[1].ids == official(agent, engine, 4)


async def test_row_12_two_agents_share_one_model_at_once() -> None:
    """Same questions and replies, concurrent steps, and no episodes to distinguish them."""
    together: list[asyncio.Event] = []

    def paired() -> Reply:
        async def wait() -> None:
            together.append(asyncio.Event())
            if len(together) % 2 == 0:
                together[-2].set()
                together[-1].set()
            await together[(len(together) - 1) // 2 * 2].wait()

        return Reply("", before=wait)

    def answer(prompt: str) -> Reply:
        reply = paired()
        done = prompt.rstrip().endswith("</tool_response><|im_end|>\n<|im_start|>assistant")
        reply.text = "two" if done else SUM
        return reply

    model, _ = scripted_model(answer, "qwen2.5")
    agents = [agent_on(model) for _ in range(2)]
    for prompt in ("1+1?", "and again?"):
        await asyncio.gather(*(agent.invoke_async(prompt) for agent in agents))

    tree = model.current_episode.tree
    assert len(tree) == 8
    branches = [one.turn_ids for one in tree.trajectories()]
    assert len(branches) == 2 and all(len(ids) == 4 for ids in branches)
    assert not set(branches[0]) & set(branches[1])
    for agent in agents:
        kept: list[Any] = [message["metadata"] for message in agent.messages if "metadata" in message]
        assert tuple(metadata["metrics"]["sglang"]["turn"] for metadata in kept) in branches
