"""Outside a run, a tool that is unavailable ends the invocation of its agent; the model is not told."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from strands import tool
from strands.hooks import AfterToolCallEvent
from strands.types.exceptions import EventLoopException

from strands_sglang.errors import ToolUnavailableError
from strands_sglang.provider.tool_outage import outage_in
from support.provider.agents import agent_on, calculator, scripted_model
from support.scripted_engine import tool_call

pytestmark = pytest.mark.usefixtures("exact")

AWAY = ToolUnavailableError("the browser does not answer")
HERE = {"browser": False}
PAGE, SUM = tool_call("page", number=1), tool_call("calculator", expression="1 + 1")


@tool
def page(number: int) -> str:
    """Open a page."""
    if not HERE["browser"]:
        raise AWAY
    return "a page"


@pytest.fixture(autouse=True)
def away() -> None:
    HERE["browser"] = False


@pytest.mark.parametrize("first", [[], [SUM]], ids=["first turn", "second turn"])
async def test_caller_gets_the_error(first: list[str]) -> None:
    model, engine = scripted_model([*first, PAGE + "\n" + SUM, "The end."])
    agent = agent_on(model, tools=[page, calculator])
    with pytest.raises(EventLoopException) as caught:
        await agent.invoke_async("Hello")
    assert caught.value.original_exception is AWAY and len(engine.calls) == 1 + len(first)
    # The agent can be asked again: the framework answers the calls that have no result.
    await agent.invoke_async("And now?")
    assert not any("browser" in prompt for prompt in engine.prompts)


def test_synchronous_call_and_direct_call() -> None:
    model, _ = scripted_model([PAGE, "The end."])
    agent = agent_on(model, tools=[page])
    with pytest.raises(EventLoopException, match="the browser does not answer"):
        agent("Hello")
    with pytest.raises(ToolUnavailableError):
        agent.tool.page(number=2)


async def test_agent_as_a_tool() -> None:
    """The framework hides what an agent raised that is a tool; the next call, without an outage, has a result."""
    script = [
        *(tool_call("helper", input="help"), SUM, PAGE),  # the outage
        *(tool_call("helper", input="help"), "I helped.", "The end."),
    ]
    model, engine = scripted_model(script)
    helper = agent_on(model, name="helper", description="Helps.", tools=[page, calculator])
    agent = agent_on(model, tools=[helper.as_tool()])
    with pytest.raises(EventLoopException) as caught:
        await agent.invoke_async("Hello")
    assert caught.value.original_exception is AWAY and len(engine.calls) == 3
    assert str(await agent.invoke_async("Again")).strip() == "The end."


async def test_hook_may_have_the_call_repeated() -> None:
    def again(event: AfterToolCallEvent) -> None:
        event.retry = event.exception is not None
        HERE["browser"] = True

    model, engine = scripted_model([PAGE, "The end."])
    agent = agent_on(model, tools=[page])
    agent.add_hook(again, AfterToolCallEvent)
    assert str(await agent.invoke_async("Hello")).strip() == "The end."
    assert "a page" in engine.prompts[-1]


def test_outage_in() -> None:
    def caused(error: Exception, cause: Any) -> Exception:
        error.__cause__ = cause
        return error

    assert outage_in(None) is None and outage_in(ValueError()) is None
    assert outage_in(caused(ValueError(), caused(KeyError(), AWAY))) is AWAY
    handled = ValueError()
    handled.__context__ = AWAY  # raised while the outage was handled
    assert outage_in(handled) is AWAY
    handled.__suppress_context__ = True  # `raise ... from None`
    assert outage_in(handled) is None
    if (group := getattr(builtins, "ExceptionGroup", None)) is not None:  # since Python 3.11
        inner = group("two tasks", [ValueError(), caused(KeyError(), AWAY)])
        assert outage_in(caused(RuntimeError(), group("a task", [inner]))) is AWAY
        assert outage_in(group("a task", [ValueError()])) is None
    circle = ValueError()
    assert outage_in(caused(circle, caused(KeyError(), circle))) is None
