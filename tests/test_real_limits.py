"""On the real engine: limits end an agent behind its tool results, and every token of it is exact.

SmolLM2 has never seen a tool, but it goes on with what it is shown: a conversation in which two tools are called at
once, again and again. So it calls them for as long as it is allowed to.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from strands_sglang import SGLangClient, SGLangModel, ToolIterationLimiter, ToolLimiter
from strands_sglang.tokens import Origin
from strands_sglang.tool_limits import ToolLimit
from support.agent_episodes import Played, check_against_the_wire, largest_difference
from support.examples import size
from support.families import tokenizer
from support.lab_servers import LAB, LabProcess
from support.wire_tap import Tap

pytestmark = pytest.mark.engine

TEMPLATE = (LAB / "tool_policy" / "canonical" / "chat_template.jinja").read_text()


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return str(a + b)


@tool
async def lookup(word: str) -> str:
    """Look a word up.

    Args:
        word: The word.
    """
    return word.upper()


def shown(rounds: int = 3) -> list[Any]:
    """Return a conversation that calls both tools at once, so many times."""
    messages: list[Any] = [{"role": "user", "content": [{"text": "Add and look up, two tools at once, for ever."}]}]
    for number, word in zip(range(rounds), ("cat", "dog", "sun", "tree"), strict=False):
        calls = {
            f"add{number:06d}": ("add", {"a": number, "b": number + 1}, str(2 * number + 1)),
            f"look{number:05d}": ("lookup", {"word": word}, word.upper()),
        }
        uses = [{"toolUse": {"toolUseId": id, "name": name, "input": given}} for id, (name, given, _) in calls.items()]
        results = [
            {"toolResult": {"toolUseId": id, "status": "success", "content": [{"text": result}]}}
            for id, (_, _, result) in calls.items()
        ]
        messages += [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    return messages


async def limited(model: SGLangModel, limiter: ToolLimiter) -> Played:
    """Play one episode under a limit, and check how it ended."""
    with model.episode() as episode:
        agent = Agent(
            model=model,
            tools=[add, lookup],
            hooks=[limiter],
            messages=shown(),
            callback_handler=None,
            conversation_manager=NullConversationManager(),
        )
        result = await agent.invoke_async(None)
        manager = model.token_manager
    assert result.stop_reason == "cancelled" and limiter.reason is not None
    assert result.state["tool_limit"] == limiter.reason.value
    # It ends on the results of all its calls: no message that nobody wrote, no call without an answer.
    asked = [block["toolUse"]["toolUseId"] for block in agent.messages[-2]["content"] if "toolUse" in block]
    answered = [block["toolResult"]["toolUseId"] for block in agent.messages[-1]["content"]]
    assert asked == answered and len(episode.tree) == limiter.tool_iter_count
    # The published view, the tree and the trajectory are one and the same.
    (trajectory,) = episode.trajectories()
    assert list(manager.token_ids) == trajectory.token_ids.tolist()
    assert list(manager.loss_mask) == trajectory.loss_mask.tolist()
    sampled = sum(len(turn.sampled) for turn in episode.tree)
    assert sum(manager.loss_mask) == sampled and manager.loss_mask[-1] == 1
    assert sum(len(segment.token_ids) for segment in manager.segments) == len(manager.token_ids)
    assert manager.segments[-1].origin is Origin.SAMPLED
    return Played(episode, agent.messages, 0.0, result.stop_reason)


async def test_limits_of_iterations_and_calls(smollm2: LabProcess) -> None:
    longest = size(4, 10)
    limits = [
        *(ToolLimiter(max_tool_iters=1), ToolIterationLimiter(max_iterations=3)),
        ToolLimiter(max_tool_iters=longest),
    ]
    calls = ToolLimiter(max_tool_calls=3)
    with Tap(smollm2.url) as tap:
        async with SGLangClient(tap.url) as client:
            sampling = {"max_new_tokens": 120, "temperature": 0.0}
            model = SGLangModel(
                tokenizer=tokenizer("smollm2"), client=client, chat_template=TEMPLATE, sampling_params=sampling
            )
            assert model.tool_parser.name == "hermes"
            played = await asyncio.gather(*(limited(model, limiter) for limiter in [*limits, calls]))
    assert [limiter.tool_iter_count for limiter in limits] == [1, 3, longest]
    # Two tools at once in every turn, counted as one iteration each.
    assert [limiter.tool_call_count for limiter in limits] == [2, 6, 2 * longest]
    assert all(limiter.reason is ToolLimit.TOOL_ITERATIONS for limiter in limits)
    # A limit of calls stops in the middle of a turn.
    assert (calls.tool_iter_count, calls.tool_call_count, calls.reason) == (2, 3, ToolLimit.TOOL_CALLS)
    statuses = [block["toolResult"]["status"] for block in played[-1].messages[-1]["content"]]
    assert statuses == ["success", "error"]
    assert check_against_the_wire(played, tap) == 6 + longest
    assert await largest_difference(smollm2.url, played) < 1e-3
