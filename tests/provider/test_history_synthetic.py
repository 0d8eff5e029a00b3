"""Row 10 of "Every way history changes": truncated or cancelled turns, and turns that were not sampled.

Also related cases: `limits`, interrupts, empty replies.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pydantic import BaseModel
from strands.hooks import AfterToolsEvent, BeforeModelCallEvent, BeforeToolCallEvent
from strands.types.exceptions import MaxTokensReachedException

from strands_sglang.engine import FinishReason
from strands_sglang.tokens import Origin
from support.provider.agents import (
    acting,
    agent_on,
    ask,
    closing,
    context,
    official,
    outline,
    said,
    scripted_model,
)
from support.scripted_engine import Reply, thought, tool_call

pytestmark = pytest.mark.usefixtures("exact")

SUM = tool_call("calculator", expression="1+1")


async def test_row_10_a_truncated_turn_is_closed_before_the_next() -> None:
    long = thought("well", "one two three four five")
    agent, engine, tree = acting([long, "six"], "qwen3", sampling_params={"max_new_tokens": 9})
    with pytest.raises(MaxTokensReachedException):
        await agent.invoke_async("count")
    agent.model.update_config(sampling_params={"max_new_tokens": 100})
    await agent.invoke_async("go on")
    assert (tree[0].finish_reason, len(tree[0].sampled)) == ("length", 9)
    assert (closing(tree[1], engine), tree[1].parent) == ("<|im_end|>", 0)
    trajectory = tree.trajectories()[0]
    (at,) = [number for number, origin in enumerate(trajectory.origins) if origin == Origin.CLOSING]
    assert trajectory.loss_mask[at] == 0 and at == tree[0].end
    segments = agent.model.token_manager.segments
    assert [segment.origin for segment in segments] == [
        *(Origin.CONTEXT, Origin.SAMPLED, Origin.CLOSING, Origin.CONTEXT, Origin.SAMPLED)
    ]


@pytest.mark.parametrize(
    ("family", "reply", "told", "join"),
    [
        ("qwen2.5", f"Let me see.\n{SUM}", [f"assistant: Let me see.\n{SUM}"], "proved"),
        ("qwen3", f"<think>\nmaybe {SUM}", ["thought"], "kept"),
        ("qwen3", thought("hm", f"See:\n{SUM}"), ["thought", f"assistant: See:\n{SUM}"], "kept"),
    ],
    ids=["text", "in reasoning", "after reasoning"],
)
async def test_row_10_a_call_in_a_truncated_turn_is_not_run_and_stays_text(
    family: str, reply: str, told: list[str], join: str
) -> None:
    """The SDK would replace a call of such a turn with its own text; it does not change text."""
    cut = Reply(reply, ended=False, finish=FinishReason.LENGTH)
    agent, engine, tree = acting([cut, thought("so", "ok")], family)
    with pytest.raises(MaxTokensReachedException):
        await agent.invoke_async("go")
    assert said(agent) == ["user: go", *told]
    await agent.invoke_async("go on")
    assert outline(tree) == [(None, "root"), (0, join)]
    assert closing(tree[1], engine) == "<|im_end|>" and len(tree.trajectories()) == 1


async def test_row_10_a_call_cancelled_in_flight_records_nothing() -> None:
    agent, engine, tree = acting([SUM, Reply(hangs=True), "later"])
    signal = threading.Event()

    def stop(event: BeforeModelCallEvent) -> None:
        if len(engine.calls) == 1:
            signal.set()

    agent.add_hook(stop, BeforeModelCallEvent)
    result = await agent.invoke_async("go", cancel_signal=signal)

    assert result.stop_reason == "cancelled"
    assert said(agent)[-1] == "assistant: Cancelled by user"
    assert len(tree) == 1
    await agent.invoke_async("again")
    # The SDK's own text is context.
    assert outline(tree) == [(None, "root"), (0, "kept")]
    assert engine.calls[2].ids == official(agent, engine, 5)
    assert "Cancelled by user" in context(tree[1], engine)


async def test_row_10_a_reply_cancelled_during_its_events_is_discarded() -> None:
    agent, engine, tree = acting(["some words", "more words"])
    agent.callback_handler = lambda **event: agent.cancel() if event.get("data") and len(engine.calls) == 1 else None
    result = await agent.invoke_async("go")

    assert result.stop_reason == "cancelled"
    assert said(agent) == ["user: go", "assistant: Cancelled by user"]
    assert [turn.rejected for turn in tree] == [True]
    assert tree.trajectories() == []
    await agent.invoke_async("again")
    assert [(turn.parent, turn.rejected) for turn in tree] == [(None, True), (None, False)]
    assert tree[1].forked_from == 0


async def test_row_10_cancelled_before_the_tools_run() -> None:
    agent, engine, tree = acting([SUM, "later"])
    agent.callback_handler = lambda **event: agent.cancel() if "message" in event and len(engine.calls) == 1 else None
    result = await agent.invoke_async("go")

    assert result.stop_reason == "cancelled"
    assert said(agent)[2] == "error: Tool execution cancelled"
    await agent.invoke_async("again")
    assert outline(tree) == [(None, "root"), (0, "proved")]


async def test_row_10_a_hook_ends_the_turn_with_its_own_text() -> None:
    def enough(event: AfterToolsEvent) -> None:
        event.end_turn = "That will do."

    agent, engine, tree = acting([SUM, "three"], hooks=[enough])
    await agent.invoke_async("go")
    assert said(agent)[-1] == "assistant: That will do."
    await agent.invoke_async("more")
    assert outline(tree) == [(None, "root"), (0, "kept")]
    assert "That will do." in context(tree[1], engine)
    assert engine.calls[1].ids == official(agent, engine, 5)


async def test_row_10_a_hook_answers_instead_of_the_model() -> None:
    def deny(event: BeforeModelCallEvent) -> None:
        if len(event.agent.messages) == 3:
            event.cancel = "not now"

    agent, engine, tree = acting(["one", "three"], hooks=[deny])
    for prompt in ("first", "second", "third"):
        await agent.invoke_async(prompt)

    assert said(agent)[3] == "assistant: not now"
    assert outline(tree) == [(None, "root"), (0, "kept")]
    assert engine.calls[1].ids == official(agent, engine, 5)


class Sum(BaseModel):
    value: int


async def test_row_10_the_prompt_for_structured_output() -> None:
    agent, engine, tree = acting([SUM, "It is two.", '{"value": 2}'])
    result = await agent.invoke_async("1+1?", structured_output_model=Sum)

    assert result.structured_output == Sum(value=2)
    assert outline(tree) == [(None, "root"), (0, "proved"), (1, "proved")]
    assert '"value"' in engine.calls[2].sampling["json_schema"]
    assert tree[2].detail["constrained"] == "json_schema"
    assert "json_schema" not in engine.calls[1].sampling


async def test_row_10_limits_end_on_a_tool_result_and_the_agent_continues() -> None:
    agent, engine, tree = acting([SUM] * 5 + ["done"])
    result = await agent.invoke_async("go", limits={"turns": 2})
    while result.stop_reason == "limit_turns":
        result = await agent.invoke_async(None, limits={"turns": 2})
    assert outline(tree) == [(None, "root")] + [(number, "proved") for number in range(5)]
    assert engine.calls[5].ids == official(agent, engine, 11)


async def test_row_10_an_interrupt_is_answered_and_the_results_keep_the_order_of_the_calls() -> None:
    def approve(event: BeforeToolCallEvent) -> None:
        if event.tool_use["input"]["expression"] != "2" and event.interrupt("approve", reason="sure?") != "yes":
            event.cancel_tool = "denied"

    calls = "\n".join(tool_call("calculator", expression=str(number)) for number in (1, 2, 3))
    agent, engine, tree = acting([calls, "done"], hooks=[approve])
    result = await agent.invoke_async("go")
    assert result.stop_reason == "interrupt"
    assert result.interrupts is not None and len(result.interrupts) == 2
    answers: list[Any] = [
        {"interruptResponse": {"interruptId": interrupt.id, "response": "yes"}} for interrupt in result.interrupts
    ]
    await agent.invoke_async(answers)

    # The SDK hands the results over in the order in which they came.
    assert said(agent)[4:7] == ["success: 2", "success: 1", "success: 3"]
    assert outline(tree) == [(None, "root"), (0, "proved")]
    told = context(tree[1], engine)
    assert told.index("\n1\n") < told.index("\n2\n") < told.index("\n3\n")


async def test_row_10_a_tool_interrupts_and_another_agent_answers_for_the_human() -> None:
    model, _ = scripted_model([tool_call("ask", question="how many?"), "three", "three it is"], "qwen2.5")
    agent, human = agent_on(model, tools=[ask]), agent_on(model, tools=[])
    result = await agent.invoke_async("go")
    assert result.interrupts is not None
    reply = await human.invoke_async("how many?")
    answer: list[Any] = [
        {"interruptResponse": {"interruptId": result.interrupts[0].id, "response": str(reply).strip()}}
    ]
    await agent.invoke_async(answer)

    tree = model.current_episode.tree
    assert [turn.parent for turn in tree] == [None, None, 0]
    assert said(agent)[2] == "success: three"
