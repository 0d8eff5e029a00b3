"""Rows 6, 7, 11 and 12 of "Every way history changes": discarded replies, and messages that were not sampled."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from strands import Agent, tool
from strands.hooks import AfterInvocationEvent, AfterModelCallEvent, AfterToolCallEvent, BeforeModelCallEvent
from strands.interventions import Deny, Guide, InterventionHandler, Proceed
from strands.middleware import InvokeModelStage
from strands.types.exceptions import EventLoopException
from strands.vended_plugins.goal import GoalLoop
from strands.vended_plugins.steering import Guide as Steer
from strands.vended_plugins.steering import LLMSteeringHandler, SteeringHandler
from strands.vended_plugins.steering import Proceed as Pass

from strands_sglang.tokens import TurnStatus
from support.provider.agents import (
    Asked,
    acting,
    calculator,
    context,
    official,
    outline,
    said,
    scripted_model,
)
from support.scripted_engine import tool_call

pytestmark = pytest.mark.usefixtures("exact")

SUM = tool_call("calculator", expression="1+1")


class Coach(InterventionHandler):
    """Intervenes once: before a model call, or after one."""

    name = "coach"

    def __init__(self, when: str) -> None:
        self.when = when
        self.guided = False

    def _once(self, when: str) -> Any:
        if self.guided or when != self.when:
            return Proceed()
        self.guided = True
        return Guide(feedback="be brief")

    def before_model_call(self, event: BeforeModelCallEvent, **_: Any) -> Any:
        return self._once("before")

    def after_model_call(self, event: AfterModelCallEvent, **_: Any) -> Any:
        return self._once("after")


async def test_row_06_an_intervention_appends_a_second_user_message() -> None:
    agent, engine, tree = acting(["short"], interventions=[Coach("before")])
    await agent.invoke_async("go")

    assert said(agent) == ["user: go", "user: [coach] be brief", "assistant: short"]
    assert engine.calls[0].ids == official(agent, engine, 2)
    assert outline(tree) == [(None, "root")]


async def test_row_06_an_intervention_discards_a_reply() -> None:
    coach = Coach("never")
    agent, engine, tree = acting([SUM, "a long story", "short", "more"], interventions=[coach])
    agent.add_hook(lambda event: setattr(coach, "when", "after"), AfterToolCallEvent)
    await agent.invoke_async("go")
    await agent.invoke_async("and?")

    assert said(agent)[-4:] == ["user: [coach] be brief", "assistant: short", "user: and?", "assistant: more"]
    assert outline(tree) == [(None, "root"), (0, "proved"), (0, "proved"), (2, "proved")]
    assert [turn.status for turn in tree] == [TurnStatus.KEPT, TurnStatus.REJECTED, TurnStatus.KEPT, TurnStatus.KEPT]
    # It was discarded, which is not a rewritten history.
    assert [turn.forked_from for turn in tree] == [None] * 4
    assert engine.calls[2].ids == official(agent, engine, 4)
    assert [one.turn_ids for one in tree.trajectories()] == [(0, 2, 3)]
    assert [one.turn_ids for one in tree.trajectories(rejected=True)] == [(0, 1), (0, 2, 3)]


async def test_row_06_an_intervention_denies_a_call() -> None:
    class Guard(InterventionHandler):
        name = "guard"

        def before_tool_call(self, event: Any, **_: Any) -> Any:
            return Deny(reason="not today")

    agent, engine, tree = acting([SUM, "then not"], interventions=[Guard()])
    await agent.invoke_async("go")

    assert said(agent)[2] == "error: DENIED: not today"
    assert outline(tree) == [(None, "root"), (0, "proved")]
    assert engine.calls[1].ids == official(agent, engine, 3)


async def test_row_06_steering_discards_a_reply_twice() -> None:
    class Strict(SteeringHandler):
        def __init__(self) -> None:
            super().__init__()
            self.patience = 2

        async def steer_after_model(self, **_: Any) -> Any:
            self.patience -= 1
            return Steer(reason=f"no ({self.patience})") if self.patience >= 0 else Pass(reason="well")

    agent, _, tree = acting(["a", "a", "a", "b"], plugins=[Strict()])
    await agent.invoke_async("go")
    await agent.invoke_async("more")
    assert [turn.rejected for turn in tree] == [True, True, False, False]
    assert [turn.parent for turn in tree] == [None, None, None, 2]
    # The same reply three times: the next turn continues from the one that was kept.
    assert [one.turn_ids for one in tree.trajectories()] == [(2, 3)]
    assert agent.model.token_manager.token_ids == list(tree.ids(tree[3]))


async def test_row_06_a_steering_llm_is_a_separate_agent() -> None:
    """The SDK creates an agent for it: its turns are a separate branch, tied to the call that it judges."""

    def answer(prompt: str) -> str:
        if "You judge." in prompt:
            return tool_call("_LLMSteering", decision="guide", reason="count again")
        return "well" if "<tool_response>" in prompt else SUM

    agent, _, tree = acting(answer, plugins=[LLMSteeringHandler(system_prompt="You judge.")])
    await agent.invoke_async("go")

    assert said(agent)[2].startswith("error: Tool call cancelled. count again")
    use = agent.messages[1]["content"][0]["toolUse"]["toolUseId"]
    assert [turn.parent for turn in tree] == [None, None, 0]
    assert tree[1].caller == (0, use)
    assert [one.turn_ids for one in tree.trajectories()] == [(1,), (0, 2)]


async def test_row_06_steering_that_rewrites_history_discards_the_reply() -> None:
    def again(event: AfterModelCallEvent) -> None:
        if len(engine.calls) == 1:
            event.agent.messages[0]["content"] = [{"text": "go, but better"}]
            event.retry = True

    agent, engine, tree = acting(["bad", "good"], hooks=[again])
    await agent.invoke_async("go")
    assert [(turn.parent, turn.rejected) for turn in tree] == [(None, True), (None, False)]


async def test_row_06_a_retry_that_keeps_the_reply_does_not_reject_it() -> None:
    def again(event: AfterModelCallEvent) -> None:
        if len(engine.calls) == 1:
            assert event.stop_response is not None
            event.agent.messages.append(event.stop_response.message)
            event.agent.messages.append({"role": "user", "content": [{"text": "go on"}]})
            event.retry = True

    agent, engine, tree = acting(["first half", "second half"], hooks=[again])
    await agent.invoke_async("go")
    assert [(turn.parent, turn.rejected) for turn in tree] == [(None, False), (0, False)]
    assert engine.calls[1].ids == official(agent, engine, 3)


async def test_row_06_middleware_that_calls_twice_keeps_the_second_reply() -> None:
    async def twice(ctx: Any, next_fn: Any) -> Any:
        async for _ in next_fn(ctx):
            pass
        async for event in next_fn(ctx):
            yield event

    agent, _, tree = acting(["first", "second", "third", "fourth"])
    agent.add_middleware(InvokeModelStage, twice)
    await agent.invoke_async("go")
    await agent.invoke_async("more")

    assert said(agent)[1::2] == ["assistant: second", "assistant: fourth"]
    assert [turn.rejected for turn in tree] == [True, False, True, False]
    assert [turn.parent for turn in tree] == [None, None, 1, 1]


async def test_row_07_a_hook_resumes_the_agent() -> None:
    def resume(event: AfterInvocationEvent) -> None:
        if len(engine.calls) == 2:
            event.resume = "and twice that?"

    agent, engine, tree = acting([SUM, "two", "four"], hooks=[resume])
    await agent.invoke_async("1+1?")

    assert outline(tree) == [(None, "root"), (0, "proved"), (1, "proved")]
    assert engine.calls[2].ids == official(agent, engine, 5)


@pytest.mark.parametrize("preserved", [True, False])
async def test_row_07_a_goal_is_retried_until_it_is_met(preserved: bool) -> None:
    asked = Asked()
    met: Any = lambda response, agent: "good" in str(response)  # noqa: E731
    goal = GoalLoop(met, max_attempts=3, preserve_context=preserved)
    agent, engine, tree = acting(["bad", "good"], plugins=[goal], hooks=[asked])
    await agent.invoke_async("go")
    # A failed attempt is a branch, or the start of one, and not discarded.
    assert [(turn.parent, turn.rejected) for turn in tree] == [(None, False), (0 if preserved else None, False)]
    assert engine.calls[1].ids == official(agent, engine, messages=asked.messages[1])


async def test_row_07_a_background_task_result_follows_the_last_reply() -> None:
    replied = threading.Event()

    @tool
    def slow(word: str) -> str:
        """Look a word up, in no hurry.

        Args:
            word: The word.
        """
        assert replied.wait(timeout=60)
        return "found"

    def answer(prompt: str) -> str:
        if "found" in prompt:
            return "finished"
        if "<tool_response>" not in prompt:
            return tool_call("slow", word="w")
        replied.set()
        return "started"

    asked = Asked()
    agent, engine, tree = acting(answer, tools=[slow], background_tasks={"always": ["slow"]}, hooks=[asked])
    await agent.invoke_async("go")

    # The SDK appends a call of its own to the stored reply: it says something else now.
    assert said(agent)[3:5] == ["assistant: started", "call strands_manage_background_task"]
    assert [turn.parent for turn in tree] == [None, 0, 0]
    assert tree[2].forked_from == 1 and not tree[1].rejected
    assert engine.calls[2].ids == official(agent, engine, messages=asked.messages[2])
    assert [one.turn_ids for one in tree.trajectories()] == [(0, 1), (0, 2)]


async def test_row_11_a_dangling_call_and_a_new_prompt() -> None:
    def fail(event: AfterToolCallEvent) -> None:
        if len(engine.calls) == 1:
            raise RuntimeError("the hook failed")

    agent, engine, tree = acting([SUM + "\n" + SUM, "never mind"], hooks=[fail])
    with pytest.raises(EventLoopException):
        await agent.invoke_async("go")
    assert "toolUse" in agent.messages[-1]["content"][-1]
    await agent.invoke_async("something else")

    assert [line.partition(":")[0] for line in said(agent)] == [
        *("user", "call calculator", "call calculator", "error", "error", "user", "assistant")
    ]
    assert outline(tree) == [(None, "root"), (0, "proved")]
    assert engine.calls[1].ids == official(agent, engine, 4)


async def test_row_12_a_direct_tool_call_adds_four_messages() -> None:
    agent, engine, tree = acting([SUM, "two", "three"])
    await agent.invoke_async("1+1?")
    await asyncio.to_thread(agent.tool.calculator, expression="1+2")
    assert len(agent.messages) == 8
    await agent.invoke_async("so?")
    assert outline(tree) == [(None, "root"), (0, "proved"), (1, "kept")]
    assert engine.calls[2].ids == official(agent, engine, 9)
    assert "agent.tool.calculator was called." in context(tree[2], engine)
    assert len(tree.trajectories()) == 1


async def test_row_12_a_direct_tool_call_before_anything_else() -> None:
    model, engine = scripted_model(["three"], "qwen2.5")
    agent = Agent(model=model, tools=[calculator], callback_handler=None)
    await asyncio.to_thread(agent.tool.calculator, expression="1+2")
    await agent.invoke_async("so?")

    assert outline(model.current_episode.tree) == [(None, "root")]
    assert engine.calls[0].ids == official(agent, engine, 5)
