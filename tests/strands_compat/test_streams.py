"""The whole answer of a model, as the SDK's own agent gets it."""

from __future__ import annotations

from typing import Any

from strands import Agent

from strands_sglang._strands_compat.streams import whole_answer
from support.rollout.other_models import Speaker, spoken


async def test_canary_an_answer_is_what_an_agent_gets() -> None:
    events: list[Any] = spoken("Let me look.", "max_tokens")
    thought = {"contentBlockDelta": {"delta": {"reasoningContent": {"text": "Hm."}}}}
    events[1:1] = [{"contentBlockStart": {"start": {}}}, thought, {"contentBlockStop": {}}]
    model = Speaker(lambda messages, before: events)
    stop_reason, blocks, usage = await whole_answer(model.stream([{"role": "user", "content": [{"text": "Hello."}]}]))
    assert (stop_reason, usage["inputTokens"], usage["outputTokens"]) == ("max_tokens", 3, 4)
    events[-2] = {"messageStop": {"stopReason": "end_turn"}}
    agent = Agent(model=model, callback_handler=None)
    await agent.invoke_async("Hello.")
    assert blocks == agent.messages[-1]["content"]
    assert [*blocks[0], *blocks[1]] == ["reasoningContent", "text"]
