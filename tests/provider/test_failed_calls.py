"""Malformed calls in the framework's loop: they are answered with the error, and valid calls of the turn are run."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from strands import tool
from strands.hooks import AfterModelCallEvent, AfterToolCallEvent, BeforeToolCallEvent
from strands.types.exceptions import EventLoopException

from strands_sglang import EpisodeTokens, SGLangModel
from strands_sglang.engine import FinishReason
from strands_sglang.errors import FailedCallError
from support.provider.agents import acting, agent_on, ask, outline, said, scripted_model
from support.scripted_engine import Reply, assert_exact, tool_call

pytestmark = pytest.mark.usefixtures("exact")

BROKEN = '<tool_call>\n{"name": "adder", "arguments": {"a": 1,}}\n</tool_call>'
TOLD = "This tool call was not executed, because it is malformed. The JSON is not valid"


class Adder:
    """A tool whose arguments all have defaults; records its calls."""

    def __init__(self) -> None:
        self.ran: list[tuple[int, int]] = []

        @tool
        async def adder(a: int = 0, b: int = 0) -> str:
            """Add.

            Args:
                a: One.
                b: The other.
            """
            self.ran.append((a, b))
            return str(a + b)

        self.tool = adder


@pytest.fixture
def adder() -> Adder:
    return Adder()


async def test_the_model_receives_the_parse_error_and_no_tool_runs(
    adder: Adder, caplog: pytest.LogCaptureFixture
) -> None:
    agent, engine, tree = acting([BROKEN, tool_call("adder", a=1, b=2), "3"], tools=[adder.tool])
    with caplog.at_level(logging.ERROR):
        result = await agent.invoke_async("add")
    assert adder.ran == [(1, 2)] and result.stop_reason == "end_turn"
    lines = said(agent)
    assert lines[1] == "call malformed_tool_call" and lines[2].startswith(f"error: {TOLD}")
    assert lines[3:] == ["call adder", "success: 3", "assistant: 3"]
    assert f"<tool_response>\n{TOLD}" in engine.prompts[1] and "Unknown tool" not in engine.prompts[1]
    assert "near" in engine.prompts[1] and "not found in registry" not in caplog.text
    assert outline(tree) == [(None, "root"), (0, "proved"), (1, "proved")]
    assert tree[0].detail["failed_calls"] == ["invalid_json"]


async def test_valid_calls_of_the_turn_run_and_results_keep_the_text_order(adder: Adder) -> None:
    good = [tool_call("adder", a=number) for number in (1, 2)]
    agent, engine, _ = acting([f"{good[0]}\n{BROKEN}\n{good[1]}", "done"], "qwen3", tools=[adder.tool])
    await agent.invoke_async("add")
    assert sorted(adder.ran) == [(1, 0), (2, 0)]
    assert said(agent)[1:4] == ["call adder", "call malformed_tool_call", "call adder"]
    results = engine.prompts[1].partition("<|im_start|>user\n<tool_response>")[2]
    assert results.index("\n1\n") < results.index(TOLD) < results.index("\n2\n")


@pytest.mark.parametrize("beside", [[], [tool_call("adder", a=5)]], ids=["alone", "beside a good call"])
async def test_policy_end_stops_the_agent_after_the_turn(adder: Adder, beside: list[str]) -> None:
    agent, engine, _ = acting(["\n".join([*beside, BROKEN])], "qwen3", tools=[adder.tool], on_failed_call="end")
    result = await agent.invoke_async("add")
    assert result.stop_reason == "cancelled" and len(engine.calls) == 1
    assert adder.ran == [(5, 0)] * len(beside)
    assert "toolResult" in agent.messages[-1]["content"][-1] and said(agent)[-1].startswith(f"error: {TOLD}")
    (trajectory,) = agent.model.current_episode.trajectories()
    assert trajectory.loss_mask[-1] == 1  # it ends on sampled tokens: everything in it can be trained


async def test_after_policy_end_a_new_question_continues(adder: Adder) -> None:
    agent, engine, _ = acting([BROKEN, "nothing"], "qwen3", tools=[adder.tool], on_failed_call="end")
    await agent.invoke_async("add")
    result = await agent.invoke_async("so?")
    assert result.stop_reason == "end_turn" and TOLD in engine.prompts[1]


class Strangers:
    """Passes no agent with calls, as with parallel agents that share a state."""

    def __init__(self, *known: int) -> None:
        self._known, self._calls = known, 0
        self._stream = SGLangModel.stream

    def __enter__(self) -> Strangers:
        def stream(model: SGLangModel, *args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            if self._calls not in self._known:
                kwargs["invocation_state"] = {**kwargs["invocation_state"], "agent": None}
            return self._stream(model, *args, **kwargs)

        SGLangModel.stream = stream  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: Any) -> None:
        SGLangModel.stream = self._stream  # type: ignore[method-assign]


async def test_an_unknown_agent_receives_the_parse_error_too(adder: Adder) -> None:
    """No hook is added then: the answer is replaced when the conversation is rendered."""
    agent, engine, _ = acting([BROKEN, "done"], "qwen3", tools=[adder.tool])
    with Strangers():
        await agent.invoke_async("add")
    assert said(agent)[2] == "error: Unknown tool: malformed_tool_call" and adder.ran == []
    assert f"<tool_response>\n{TOLD}" in engine.prompts[1] and "Unknown tool" not in engine.prompts[1]


@pytest.mark.parametrize("known", [(), (2,)], ids=["never known", "known too late"])
async def test_an_unknown_agent_stops_with_an_error(adder: Adder, known: tuple[int, ...]) -> None:
    agent, engine, _ = acting([BROKEN, "done", "yes"], "qwen3", tools=[adder.tool], on_failed_call="end")
    with Strangers(*known), pytest.raises(EventLoopException) as raised:
        await agent.invoke_async("add")
    assert isinstance(raised.value.original_exception, FailedCallError) and len(engine.calls) == 1
    await agent.invoke_async("so?")  # a new question continues
    assert len(engine.calls) == 2 and adder.ran == []


async def test_a_known_agent_is_recognised_by_its_cancel_signal(adder: Adder) -> None:
    agent, engine, _ = acting(
        [tool_call("adder", a=1), BROKEN, "done"], "qwen3", tools=[adder.tool], on_failed_call="end"
    )
    with Strangers(1):
        result = await agent.invoke_async("add")
    assert result.stop_reason == "cancelled" and len(engine.calls) == 2 and TOLD in said(agent)[-1]


async def test_policy_end_stops_the_agent_after_an_interrupt(adder: Adder) -> None:
    agent, engine, _ = acting(
        [f"{tool_call('ask', question='?')}\n{BROKEN}", "went on"],
        "qwen3",
        tools=[adder.tool, ask],
        on_failed_call="end",
    )
    result = await agent.invoke_async("add")
    assert result.stop_reason == "interrupt" and result.interrupts is not None
    response: Any = [{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": "yes"}}]
    result = await agent.invoke_async(response)
    assert result.stop_reason == "cancelled" and len(engine.calls) == 1
    assert sorted(line[:7] for line in said(agent)[-2:]) == ["error: ", "success"]


async def test_a_discarded_turn_does_not_stop_the_agent(adder: Adder) -> None:
    def again(event: AfterModelCallEvent) -> None:
        message = event.stop_response.message if event.stop_response is not None else None
        event.retry = message is not None and "malformed_tool_call" in str(message["content"])

    agent, _, _ = acting([BROKEN, tool_call("adder", a=1), "done"], "qwen3", tools=[adder.tool], on_failed_call="end")
    agent.add_hook(again, AfterModelCallEvent)
    result = await agent.invoke_async("add")
    assert result.stop_reason == "end_turn" and adder.ran == [(1, 0)]


async def test_a_model_cannot_choose_its_own_tool_result(adder: Adder) -> None:
    pretended = tool_call("malformed_tool_call", error="The answer is 42.")
    agent, engine, tree = acting([pretended, "done"], "qwen3", tools=[adder.tool])
    await agent.invoke_async("add")
    answer = engine.prompts[1].rpartition("<tool_response>")[2]
    assert "There is no tool named malformed_tool_call." in answer and "42" not in answer
    assert tree[0].detail["failed_calls"] == ["missing_name"]


async def test_without_tools_calls_are_text() -> None:
    for text in (BROKEN, tool_call("adder", a=1), f"I saw {BROKEN} there"):
        model, engine = scripted_model([text])
        agent = agent_on(model, tools=[])
        result = await agent.invoke_async("add")
        assert result.stop_reason == "end_turn" and agent.messages[-1]["content"] == [{"text": text}]
        assert_exact(engine, model.current_episode)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_hook_may_replace_the_answer(adder: Adder, when: str) -> None:
    def before(event: BeforeToolCallEvent) -> None:
        event.cancel_tool = "try harder"

    def after(event: AfterToolCallEvent) -> None:
        event.result = {**event.result, "content": [{"text": "try harder"}]}

    agent, engine, _ = acting([BROKEN, "done"], "qwen3", tools=[adder.tool])
    if when == "before":
        agent.add_hook(before, BeforeToolCallEvent)
    else:
        agent.add_hook(after, AfterToolCallEvent)
    await agent.invoke_async("add")
    assert "try harder" in engine.prompts[1] and TOLD not in engine.prompts[1]


async def test_a_turn_truncated_inside_a_call_runs_nothing(adder: Adder) -> None:
    from strands.types.exceptions import MaxTokensReachedException

    agent, _, tree = acting([Reply(BROKEN[:40], ended=False, finish=FinishReason.LENGTH)], "qwen3", tools=[adder.tool])
    with pytest.raises(MaxTokensReachedException):
        await agent.invoke_async("add")
    assert adder.ran == [] and tree[0].detail["failed_calls"] == ["unclosed"]


async def test_concurrent_agents_answer_their_own_failed_calls(adder: Adder) -> None:
    model, engine = scripted_model(lambda prompt: "done" if "<tool_response>" in prompt else BROKEN)

    async def play(number: int) -> EpisodeTokens:
        with model.episode(f"e{number}") as episode:
            agent = agent_on(model, tools=[adder.tool])
            await agent.invoke_async(f"add {number}")
            assert said(agent)[2].startswith(f"error: {TOLD}")
            return episode

    assert_exact(engine, *await asyncio.gather(*map(play, range(20))))
    assert adder.ran == []


async def test_history_with_a_failed_call_can_be_rendered_again(adder: Adder) -> None:
    """Loaded from a store and rendered by another model object, the history still contains the parse error."""
    model, _ = scripted_model([BROKEN, "done"])
    agent = agent_on(model, tools=[adder.tool])
    await agent.invoke_async("add")
    again, second = scripted_model(["yes"])
    await agent_on(again, tools=[adder.tool], messages=agent.messages).invoke_async("sure?")
    history = second.prompts[0].rpartition("</tools>")[2]
    assert TOLD in history and '"name": "malformed_tool_call", "arguments": {"call": ' in history


# --- arguments that the schema does not allow ------------------------------------------------------------------------


async def test_by_default_the_tool_validates_its_arguments(adder: Adder) -> None:
    agent, engine, _ = acting([tool_call("adder", a="one"), "done"], "qwen3", tools=[adder.tool])
    await agent.invoke_async("add")
    assert adder.ran == [] and said(agent)[1] == "call adder" and "validation error" in engine.prompts[1].lower()


async def test_the_schema_can_validate_arguments(adder: Adder) -> None:
    calls = "\n".join((tool_call("adder", a="one"), tool_call("adder", a=1)))
    agent, engine, tree = acting([calls, "done"], "qwen3", tools=[adder.tool], arguments_checked_by="schema")
    await agent.invoke_async("add")
    assert adder.ran == [(1, 0)] and said(agent)[1:3] == ["call malformed_tool_call", "call adder"]
    assert (
        "The arguments of adder do not follow its schema: ['a']: 'one' is not of type 'integer'." in engine.prompts[1]
    )
    assert tree[0].detail["failed_calls"] == ["schema"]
