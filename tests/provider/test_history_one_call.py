"""Rows 15 and 17 to 20 of "Every way history changes": changes for one call only, and changes of the preamble."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from pydantic import BaseModel
from strands import Agent, tool
from strands.agent.conversation_manager import SummarizingConversationManager
from strands.hooks import AfterModelCallEvent, BeforeModelCallEvent
from strands.middleware import InvokeModelStage
from strands.models.model import Model
from strands.types.exceptions import EventLoopException
from strands.types.tools import ToolSpec
from strands.vended_plugins.context_injector import ContextInjector
from strands.vended_plugins.skills import AgentSkills, Skill

from strands_sglang import SGLangModel
from strands_sglang.errors import BridgeRefusedError
from strands_sglang.tokens import Join, TurnPurpose
from support.families import tokenizer
from support.provider.agents import (
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
from support.scripted_engine import ScriptedEngine, assert_exact, tool_call

pytestmark = pytest.mark.usefixtures("exact")

SUM = tool_call("calculator", expression="1+1")


class Guarded(SGLangModel):
    """A model with a guardrail that removes the first question and its answer."""

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        blocked = not len(self.current_episode.tree)
        async for event in super().stream(*args, **kwargs):
            yield event
        if blocked:
            yield {
                "redactContent": {
                    "redactUserContentMessage": "[question taken back]",
                    "redactAssistantContentMessage": "[answer taken back]",
                }
            }


async def test_row_15_a_guardrail_removes_question_and_answer() -> None:
    engine = ScriptedEngine(tokenizer("qwen2.5"), ["secret", "fine"])
    model = Guarded(tokenizer=engine.tokenizer, client=engine)
    agent = agent_on(model)
    await agent.invoke_async("tell me")
    assert said(agent) == ["user: [question taken back]", "assistant: [answer taken back]"]
    await agent.invoke_async("something else")

    tree = model.current_episode.tree
    assert outline(tree) == [(None, "root"), (None, "forked")]
    assert tree[1].forked_from == 0
    assert "secret" not in engine.prompts[1]
    assert engine.calls[1].ids == official(agent, engine, 3)


async def test_row_15_the_model_is_stateless() -> None:
    model, engine = scripted_model(["one", "two"], "qwen2.5")
    assert not model.stateful
    agent = agent_on(model)
    await agent.invoke_async("first")
    assert len(agent.messages) == 2

    class Stateful(SGLangModel):
        """For a model that declares itself stateful, the SDK clears the messages."""

        @property
        def stateful(self) -> bool:
            return True

    clearing = Stateful(tokenizer=engine.tokenizer, client=engine)
    agent = Agent(model=clearing, callback_handler=None)
    await agent.invoke_async("first")
    assert agent.messages == []
    assert_exact(engine, model.current_episode, clearing.current_episode)


async def test_row_17_a_name_that_no_tool_can_have() -> None:
    calls = "\n".join([SUM, tool_call("no such tool!", x=1), tool_call("n" * 65), SUM])
    agent, engine, tree = acting([calls, "I see", "well"])
    await agent.invoke_async("go")
    await agent.invoke_async("and?")
    # The SDK answers bad names first and calls them INVALID_TOOL_NAME; the turn is what was sampled.
    assert outline(tree) == [(None, "root"), (0, "proved"), (1, "proved")]
    assert "no such tool!" in engine.prompts[2] and "INVALID_TOOL_NAME" not in engine.prompts[2]
    results = context(tree[1], engine).split("<tool_response>")[1:]
    assert ["2" in results[0], "invalid" in results[1], "invalid" in results[2], "2" in results[3]] == [True] * 4


async def test_row_17_a_tool_that_does_not_exist() -> None:
    agent, engine, tree = acting([tool_call("nothing"), "I see"])
    await agent.invoke_async("go")

    assert said(agent)[2].startswith("error: Unknown tool")
    assert outline(tree) == [(None, "root"), (0, "proved")]
    assert engine.calls[1].ids == official(agent, engine, 3)


async def test_row_18_middleware_replaces_the_messages_of_one_call() -> None:
    def other(ctx: Any) -> Any:
        if len(engine.calls) != 1:
            return ctx
        return ctx.replace(messages=[{"role": "user", "content": [{"text": "only this"}]}])

    agent, engine, tree = acting([SUM, "this", "two"])
    agent.add_middleware(InvokeModelStage.Input, other)
    await agent.invoke_async("1+1?")
    await agent.invoke_async("so?")
    # The call with other messages is its own branch; its reply is context where the conversation continues.
    assert [turn.parent for turn in tree] == [None, None, 0]
    assert [turn.forked_from for turn in tree] == [None, 0, 1]
    assert not any(turn.rejected for turn in tree)
    assert "only this" in engine.prompts[1] and "1+1?" not in engine.prompts[1]
    assert engine.calls[2].ids == official(agent, engine, 5)


async def test_row_18_middleware_replaces_the_system_prompt_of_one_call() -> None:
    def terse(ctx: Any) -> Any:
        return ctx.replace(system_prompt="Be terse.") if len(engine.calls) == 1 else ctx

    agent, engine, tree = acting([SUM, "2", "three"], system_prompt="Be kind.")
    agent.add_middleware(InvokeModelStage.Input, terse)
    await agent.invoke_async("1+1?")
    await agent.invoke_async("and 1?")
    assert [turn.parent for turn in tree] == [None, None, 0]
    assert ["Be terse." in prompt for prompt in engine.prompts] == [False, True, False]
    assert engine.calls[2].ids == official(agent, engine, 5)


async def test_row_18_middleware_sends_a_call_to_another_model() -> None:
    other, other_engine = scripted_model(["elsewhere"], "qwen2.5")

    def route(ctx: Any) -> Any:
        model: Model = other if len(engine.calls) == 1 and not other_engine.calls else ctx.model
        return ctx.replace(model=model)

    model, engine = scripted_model([SUM, "back"], "qwen2.5")
    agent = agent_on(model)
    agent.add_middleware(InvokeModelStage.Input, route)
    await agent.invoke_async("1+1?")
    await agent.invoke_async("so?")

    assert outline(model.current_episode.tree) == [(None, "root"), (0, "kept")]
    assert engine.calls[1].ids == official(agent, engine, 5)


@pytest.mark.parametrize("trigger", ["userTurn", "everyTurn"])
async def test_row_19_injected_context_stays_in_the_branch(trigger: Any) -> None:
    """The prompt is recorded as sent, and the conversation continues after it."""
    clock = ContextInjector(lambda _: f"<now>{len(engine.calls)}</now>", trigger=trigger)
    agent, engine, tree = acting([SUM, "two", "three", "four"], plugins=[clock])
    await agent.invoke_async("1+1?")
    await agent.invoke_async("and 1?")
    await agent.invoke_async("and 1?")

    joins = {"userTurn": ["root", "kept", "proved", "kept"], "everyTurn": ["root", "kept", "kept", "kept"]}
    assert [turn.parent for turn in tree] == [None, 0, 1, 2]
    assert [turn.join.value for turn in tree] == joins[trigger]
    last = engine.prompts[3]
    shown = [f"<now>{number}</now>" in last for number in range(4)]
    assert shown == [True, trigger == "everyTurn", True, True]
    assert not any("<now>" in str(message) for message in agent.messages)
    assert len(agent.model.current_episode.trajectories()) == 1


async def test_row_19_many_reminders_fork_only_where_history_is_rewritten() -> None:
    """Sixty calls with reminders and a summary in between: a branch for the summary, and none for a reminder."""
    calls = itertools.count(1)

    def answer(prompt: str) -> str:
        if prompt.startswith("<|im_start|>system\nYou sum up."):
            return "THE SUMMARY"
        return "done" if next(calls) % 12 == 0 else tool_call("lookup", word="word " * 20)

    manager = SummarizingConversationManager(summary_ratio=0.8, summarization_system_prompt="You sum up.")
    reminder = ContextInjector(lambda _: f"<left>{90 - len(engine.calls)}</left>", trigger="everyTurn")
    agent, engine, tree = acting(
        answer, context_window_limit=6000, tools=[lookup], conversation_manager=manager, plugins=[reminder]
    )
    for part in range(6):
        await agent.invoke_async(f"part {part}")

    forks = [turn for turn in tree if turn.join is Join.FORKED and turn.purpose is TurnPurpose.EPISODE]
    rewrites = sum(turn.purpose is TurnPurpose.SIDE for turn in tree)
    assert len(tree) > 60 and rewrites > 0
    assert len(forks) == rewrites and all("THE SUMMARY" in context(turn, engine) for turn in forks)
    trajectories = agent.model.current_episode.trajectories()
    assert len(trajectories) == 1 + rewrites
    sampled = sum(len(turn.sampled) for turn in tree if turn.purpose is TurnPurpose.EPISODE)
    assert sum(int(trajectory.loss_mask.sum()) for trajectory in trajectories) == sampled


async def test_row_19_a_retried_call_has_its_own_reminder() -> None:
    """A retry with other text injected: another turn after the same question, and the first one is rejected."""
    clock = ContextInjector(lambda _: f"<now>{len(engine.calls)}</now>")
    retried: list[str] = []

    def retry(event: AfterModelCallEvent) -> None:
        if not retried:
            retried.append("once")
            event.retry = True

    agent, engine, tree = acting(["bad", "good", "on"], plugins=[clock], hooks=[retry])
    await agent.invoke_async("hi")
    await agent.invoke_async("and?")

    assert [turn.parent for turn in tree] == [None, None, 1]
    assert [turn.rejected for turn in tree] == [True, False, False]
    assert "<now>1</now>" in engine.prompts[2] and "<now>0</now>" not in engine.prompts[2]


async def test_row_19_a_message_of_nothing_but_injected_blocks() -> None:
    model, engine = scripted_model(["one", "two"], "qwen2.5")
    state: dict[str, Any] = {}
    talk: list[Any] = [{"role": "user", "content": [{"text": "hi"}]}]
    note: Any = {"role": "user", "content": [{"text": "be brief"}]}
    async for _ in model.stream([*talk, note], model_state=state, dynamic_trailing_blocks=1):
        pass
    talk += [{"role": "assistant", "content": [{"text": "one"}]}, {"role": "user", "content": [{"text": "more"}]}]
    async for _ in model.stream(talk, model_state=state):
        pass

    assert outline(model.current_episode.tree) == [(None, "root"), (0, "kept")]
    assert "be brief" in engine.prompts[1]


async def test_row_19_injected_context_can_be_refused() -> None:
    agent, engine, _ = acting([SUM, "two"], plugins=[ContextInjector(lambda _: "<now/>")], on_reminder="refuse")
    with pytest.raises(EventLoopException, match="on_reminder is 'refuse'") as raised:
        await agent.invoke_async("1+1?")
    assert isinstance(raised.value.original_exception, BridgeRefusedError)
    assert len(engine.calls) == 1


@pytest.mark.parametrize("trigger", ["userTurn", "everyTurn"])
async def test_row_19_policy_fork_drops_injected_context(trigger: Any) -> None:
    clock = ContextInjector(lambda _: f"<now>{len(engine.calls)}</now>", trigger=trigger)
    agent, engine, tree = acting([SUM, "two", "three"], on_reminder="fork", plugins=[clock])
    await agent.invoke_async("1+1?")
    await agent.invoke_async("and 1?")

    # Turn 1 does not see what turn 0 was shown: another branch.
    assert [turn.parent for turn in tree][:2] == [None, None]
    assert tree[1].forked_from == 0
    assert "<now>0</now>" in engine.prompts[0] and "<now>0</now>" not in engine.prompts[1]
    assert ("<now>1</now>" in engine.prompts[1]) == (trigger == "everyTurn")
    # Without injected text the conversation continues; with it, it cannot.
    assert "<now>2</now>" in engine.prompts[2]
    assert not any(turn.rejected for turn in tree)
    assert outline(tree)[2] == ((1, "proved") if trigger == "userTurn" else (None, "forked"))


async def test_row_20_the_system_prompt_is_rewritten() -> None:
    def rewrite(event: BeforeModelCallEvent) -> None:
        event.agent.system_prompt = f"You have made {len(engine.calls)} calls."

    agent, engine, tree = acting([SUM, "two"], system_prompt="You are new.", hooks=[rewrite])
    await agent.invoke_async("1+1?")
    assert outline(tree) == [(None, "root"), (None, "forked")]
    assert tree[1].forked_from == 0
    assert engine.calls[1].ids == official(agent, engine, 3)


async def test_row_20_a_system_prompt_of_blocks_is_the_same_as_its_text() -> None:
    agent, _, tree = acting(
        ["one", "two"], system_prompt=[{"text": "You are"}, {"cachePoint": {"type": "default"}}, {"text": "kind."}]
    )
    await agent.invoke_async("first")
    agent.system_prompt = "You are\nkind."
    await agent.invoke_async("second")

    assert outline(tree) == [(None, "root"), (0, "proved")]


async def test_row_20_tools_are_added_and_removed() -> None:
    agent, engine, tree = acting([SUM, "two", "three", "four"])
    await agent.invoke_async("1+1?")
    agent.tool_registry.process_tools([lookup])
    await agent.invoke_async("and 1?")
    assert "lookup" in engine.prompts[2]
    del agent.tool_registry.registry["lookup"]
    await agent.invoke_async("and 1?")
    assert [turn.parent for turn in tree] == [None, 0, None, 1]
    assert [turn.forked_from for turn in tree] == [None, None, 1, 2]
    assert engine.calls[3].ids == official(agent, engine, 7)


async def test_row_20_a_tool_is_reloaded_with_another_description() -> None:
    def made(words: str) -> Any:
        @tool(name="lookup", description=words)
        def found(word: str) -> str:
            return word

        return found

    agent, engine, tree = acting(["one", "two"], tools=[made("Old words.")])
    await agent.invoke_async("first")
    agent.tool_registry.registry.clear()
    agent.tool_registry.process_tools([made("New words.")])
    await agent.invoke_async("second")

    assert outline(tree) == [(None, "root"), (None, "forked")]
    assert "New words." in engine.prompts[1] and "Old words." not in engine.prompts[1]


async def test_row_20_skills_rewrite_the_system_prompt_of_every_call() -> None:
    skill = Skill(name="sums", description="How to add.", instructions="Count on your fingers.")
    agent, engine, tree = acting(
        [tool_call("skills", skill_name="sums"), "ready", "two"], plugins=[AgentSkills(skills=[skill])]
    )
    await agent.invoke_async("get ready")
    await agent.invoke_async("1+1?")

    assert "How to add." in engine.prompts[0]
    assert "Count on your fingers." in engine.prompts[1]
    # The catalogue is the same every time, so the conversation continues.
    assert outline(tree) == [(None, "root"), (0, "proved"), (1, "proved")]


class Sum(BaseModel):
    value: int


async def test_row_20_structured_output_adds_and_removes_a_tool() -> None:
    agent, engine, tree = acting(["one", tool_call("Sum", value=2), "three"], tools=[calculator])
    await agent.invoke_async("first")
    result = await agent.invoke_async("1+1?", structured_output_model=Sum)
    await agent.invoke_async("third")

    assert result.structured_output == Sum(value=2)
    assert [turn.parent for turn in tree] == [None, None, 0]
    assert [turn.forked_from for turn in tree] == [None, 0, 1]
    systems = [prompt.split("<|im_end|>")[0] for prompt in engine.prompts]
    assert ['"name": "Sum"' in system for system in systems] == [False, True, False]


async def test_row_20_a_preamble_may_hold_values_outside_json() -> None:
    """A lone surrogate in a system prompt and an int of 70 bits in a schema are rendered and distinguished."""
    spec: ToolSpec = {
        "name": "big",
        "description": "Takes a big number.",
        "inputSchema": {"json": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 2**70}}}},
    }
    model, engine = scripted_model(lambda prompt: "ok", "qwen2.5")
    state: dict[str, Any] = {}
    messages: list[Any] = [{"role": "user", "content": [{"text": "hi \udc80"}]}]
    for system in ("a \udc80 file", "a \udc80 file", "another \udc80 file"):
        async for _ in model.stream(messages, [spec], system, model_state=state):
            pass
        messages += [{"role": "assistant", "content": [{"text": "ok"}]}, {"role": "user", "content": [{"text": "on"}]}]

    assert outline(model.current_episode.tree) == [(None, "root"), (0, "proved"), (None, "forked")]
    assert str(2**70) in engine.prompts[0] and "a \ufffd file" in engine.prompts[0]


async def test_row_20_thinking_can_be_turned_off_for_the_whole_model() -> None:
    agent, engine, tree = acting([SUM, "two"], "qwen3", enable_thinking=False)
    await agent.invoke_async("1+1?")

    assert all(prompt.endswith("<think>\n\n</think>\n\n") for prompt in engine.prompts)
    assert engine.calls[0].ids == official(agent, engine, 1, enable_thinking=False)
    assert [turn.parent for turn in tree] == [None, 0]
    assert said(agent)[-1] == "assistant: two"
