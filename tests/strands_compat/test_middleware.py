"""A tool that ignores its cancellation is left running, and its call keeps the answer that the middleware gave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from strands import tool
from strands.middleware import ExecuteToolStage, ToolResultEvent

from strands_sglang._strands_compat import middleware
from strands_sglang._strands_compat.middleware import Next, add_tool_middleware, leave_running
from support.provider.agents import agent_on, scripted_model
from support.scripted_engine import tool_call

LOOK = (
    "strands/middleware/_registry.py has changed: it closes the generators of a middleware that returns, and closing "
    "one that runs raises RuntimeError, which _around() in _strands_compat/middleware.py catches in an outer middleware"
)
ANSWER = "not waited for"


class Stubborn:
    """A tool that ignores its cancellation, and a middleware that does not wait for it."""

    def __init__(self) -> None:
        self.free, self.begun, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.answers = True

    @property
    def tool(self) -> Any:
        @tool
        async def stubborn() -> str:
            """Ignore everything."""
            self.begun.set()
            while not self.free.is_set():
                try:
                    await self.free.wait()
                except asyncio.CancelledError:
                    continue
            self.ended.set()
            return "too late"

        return stubborn

    async def middleware(self, context: Any, next_fn: Next) -> AsyncGenerator[Any, None]:
        async def consume() -> None:
            async for _ in next_fn(context):
                pass

        self.task = asyncio.ensure_future(consume())
        try:
            await self.begun.wait()
            if not self.answers:
                await asyncio.Event().wait()
        finally:
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=0.01)
            leave_running(context)
        result: Any = {"toolUseId": context.tool_use["toolUseId"], "status": "error", "content": [{"text": ANSWER}]}
        yield ToolResultEvent(result)

    async def release(self) -> None:
        """Let the tool end; the generators that were left running must still be intact."""
        self.free.set()
        assert self.task is not None
        await asyncio.wait({self.task}, timeout=5)
        assert self.ended.is_set() and self.task.done() and not middleware._left_running


def agent_with(stubborn: Stubborn, **settings: Any) -> Any:
    model, _ = scripted_model([tool_call("stubborn"), "the end"])
    return agent_on(model, tools=[stubborn.tool], **settings)


def results(agent: Any) -> list[str]:
    blocks = [block for message in agent.messages for block in message["content"] if "toolResult" in block]
    return [block["toolResult"]["content"][0]["text"] for block in blocks]


async def test_canary_the_answer_is_kept_while_the_tool_runs() -> None:
    stubborn = Stubborn()
    agent = agent_with(stubborn)
    add_tool_middleware(agent, stubborn.middleware)
    try:
        raise ValueError("an error that is being handled meanwhile is none of ours")
    except ValueError:
        result = await asyncio.wait_for(agent.invoke_async("go"), 10)
    assert results(agent) == [ANSWER], LOOK
    assert str(result).strip() == "the end"
    await stubborn.release()


async def test_without_the_outer_middleware_the_answer_is_replaced() -> None:
    """If this fails, the SDK was fixed, and `_strands_compat/middleware.py` can be removed."""
    stubborn = Stubborn()
    agent = agent_with(stubborn)
    agent.add_middleware(ExecuteToolStage, stubborn.middleware)
    await asyncio.wait_for(agent.invoke_async("go"), 10)
    assert results(agent) != [ANSWER] and "already running" in results(agent)[0]
    middleware._left_running.clear()
    await stubborn.release()


async def test_a_cancellation_stays_a_cancellation() -> None:
    stubborn = Stubborn()
    stubborn.answers = False
    raised: list[BaseException] = []

    async def outer(context: Any, next_fn: Next) -> AsyncGenerator[Any, None]:
        try:
            async for event in next_fn(context):
                yield event
        except BaseException as error:
            raised.append(error)
            raise

    seen = agent_with(stubborn)
    seen.add_middleware(ExecuteToolStage, outer)
    add_tool_middleware(seen, stubborn.middleware)
    work = asyncio.ensure_future(seen.invoke_async("go"))
    await stubborn.begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(work, 10)
    assert [type(error) for error in raised] == [asyncio.CancelledError], LOOK
    await stubborn.release()


async def test_an_outer_middleware_may_stop_at_the_result() -> None:
    stubborn = Stubborn()
    agent = agent_with(stubborn)

    async def first_only(context: Any, next_fn: Next) -> AsyncGenerator[Any, None]:
        async for event in next_fn(context):
            if isinstance(event, ToolResultEvent):
                yield event
                return

    agent.add_middleware(ExecuteToolStage, first_only)
    add_tool_middleware(agent, stubborn.middleware)
    await asyncio.wait_for(agent.invoke_async("go"), 10)
    assert results(agent) == [ANSWER], LOOK
    await stubborn.release()


async def test_other_errors_propagate() -> None:
    stubborn = Stubborn()
    agent = agent_with(stubborn)

    async def failing(context: Any, next_fn: Next) -> AsyncGenerator[Any, None]:
        raise RuntimeError("a mistake")
        yield

    add_tool_middleware(agent, failing)
    await agent.invoke_async("go")
    assert results(agent) == ["Error: a mistake"]
