"""Random edits of histories in random order: every prompt equals one rendering of the messages.

Qwen2.5's template never rewrites history and the replies here are written as it would write them, so that each prompt
can be measured against transformers' own rendering, token by token, and not only against what was recorded.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strands import Agent
from strands.hooks import AfterModelCallEvent
from strands.types.exceptions import EventLoopException, MaxTokensReachedException

from strands_sglang.engine import FinishReason
from strands_sglang.errors import EngineError
from support.provider.agents import agent_on, official, scripted_model
from support.scripted_engine import Reply, assert_exact, tool_call

ONE, TWO = (tool_call("calculator", expression=f"{number}+{number}") for number in (1, 2))
ANSWERS: list[Any] = ["yes", "no", "yes", ONE, f"{ONE}\n{TWO}", f"Let me see.\n{ONE}", "日本 🙂"]
ANSWERS += [Reply("cut", ended=False, finish=FinishReason.LENGTH), Reply("stop", ended=False, detail="stop")]
ANSWERS += [EngineError("the engine failed")]

OPERATIONS = st.sampled_from(
    ["ask", "ask", "ask", "go on", "retry", "steer", "edit", "take back", "insert", "trim", "clear", "system", "copy"]
)
STEPS = st.lists(st.tuples(OPERATIONS, st.integers(0, 2), st.integers(0, 10)), min_size=1, max_size=9)


class Stage:
    """Some agents on one model, and random operations on them."""

    def __init__(self, answers: list[Any]) -> None:
        script = iter(answers)
        self.model, self.engine = scripted_model(lambda prompt: copy.deepcopy(next(script, "enough")), "qwen2.5")
        self.wanted: list[list[int]] = []
        self.retries: list[str] = []
        self.agents = [self.agent() for _ in range(2)]

    def agent(self, **settings: Any) -> Agent:
        return agent_on(self.model, hooks=[self.after], system_prompt="Be kind.", **settings)

    def after(self, event: AfterModelCallEvent) -> None:
        """Store the expected prompt of the call; discard its reply if planned."""
        agent: Any = event.agent
        self.wanted.append(official(agent, self.engine))
        if self.retries and event.stop_response is not None:
            if self.retries.pop() == "steer":
                agent.messages.append({"role": "user", "content": [{"text": "otherwise"}]})
            event.retry = True

    async def do(self, operation: str, who: int, number: int) -> None:
        agent = self.agents[who % len(self.agents)]
        messages: list[Any] = agent.messages
        if operation in ("retry", "steer"):
            self.retries.append(operation)
        if operation in ("ask", "retry", "steer"):
            await self.call(agent, f"question {number % 3}")
        elif operation == "go on":
            await self.call(agent, None if messages and messages[-1]["role"] == "user" else "and?")
        elif operation == "edit" and messages:
            texts = [block for message in messages for block in message["content"] if "text" in block]
            if texts:
                texts[number % len(texts)]["text"] += "!"
        elif operation == "take back":
            del messages[max(0, len(messages) - number % 4) :]
        elif operation == "insert":
            messages.insert(0, {"role": "user", "content": [{"text": "first of all"}]})
        elif operation == "trim":
            del messages[: number % 3]
        elif operation == "clear":
            messages.clear()
        elif operation == "system":
            agent.system_prompt = f"Be kind {number % 2}."
        elif operation == "copy":
            self.agents.append(self.agent(messages=copy.deepcopy(messages)))
            self.agents[-1].system_prompt = agent.system_prompt

    async def call(self, agent: Agent, prompt: str | None) -> None:
        try:
            await agent.invoke_async(prompt, limits={"turns": 4})
        except (EngineError, EventLoopException, MaxTokensReachedException):
            pass


@pytest.fixture(autouse=True)
def quiet() -> Any:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.lists(st.sampled_from(ANSWERS), max_size=14))
async def test_every_prompt_is_one_rendering_of_the_messages(
    steps: list[tuple[str, int, int]], answers: list[Any]
) -> None:
    stage = Stage(answers)
    for operation, who, number in steps:
        await stage.do(operation, who, number)

    assert [call.ids for call in stage.engine.calls] == stage.wanted
    tree = stage.model.current_episode.tree
    assert not any(turn.rejected for turn in tree) or any(step[0] in ("retry", "steer") for step in steps)
    assert_exact(stage.engine, stage.model.current_episode)


PIECES = ["<think>", "</think>", "<tool_call>", "</tool_call>", ONE, tool_call("no such tool!"), tool_call("x" * 65)]
PIECES += [
    *("\n", " ", "\t", "Hello", "[blank text]", "𓀀", "<|im_start|>", "<|endoftext|>", "\ufffd", "INVALID_TOOL_NAME")
]
GARBAGE = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(GARBAGE, GARBAGE, st.booleans(), st.booleans(), st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
async def test_the_conversation_continues_from_any_sampled_turn(
    first: str, second: str, streaming: bool, ended: bool, finish: FinishReason
) -> None:
    """The message that comes back equals the indexed one for every kind of turn, so nothing forks."""
    replies: list[Any] = [Reply(first, ended=ended, finish=finish), Reply(second, ended=ended, finish=finish), "enough"]
    model, engine = scripted_model(replies, streaming=streaming)
    agent = agent_on(model)
    for prompt in ("one", "two", "three"):
        if len(engine.calls) == 3:
            break
        try:
            await agent.invoke_async(prompt, limits={"turns": 1})
        except MaxTokensReachedException:
            pass

    assert [turn.parent for turn in model.current_episode.tree] == [None, 0, 1]
    assert [turn.forked_from for turn in model.current_episode.tree] == [None] * 3
    assert_exact(engine, model.current_episode)
