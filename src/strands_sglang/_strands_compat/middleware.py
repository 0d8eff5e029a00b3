"""Tool middleware that may return before the tool has ended: `add_tool_middleware`, `leave_running`.

A tool that ignores its cancellation is left running, and its call is answered without it. The SDK however closes the
generators of a middleware when it returns, and closing one that still runs raises RuntimeError, which the SDK treats as
an error of the tool: it replaces the answer. A second middleware around the first catches this error.

Invariant: only the error of a call that was passed to `leave_running` is caught, and the result or exception of the
middleware takes its place.

Uses documented interfaces only (`Agent.add_middleware`, first registered is outermost). Tested with strands-agents
1.62. An SDK that does not close the generators raises nothing, and nothing is caught.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

from strands.middleware import ExecuteToolStage, ToolResultEvent

Next = Callable[[Any], AsyncGenerator[Any, None]]
"""The rest of a middleware chain: takes the context of a tool call, yields its events."""

_left_running: set[int] = set()
"""Ids of the contexts of calls whose tools still run; each is alive while it is here."""


def add_tool_middleware(agent: Any, handler: Callable[[Any, Next], AsyncGenerator[Any, None]]) -> None:
    """Register a tool middleware that may call `leave_running`.

    Args:
        agent: A Strands agent.
        handler: The middleware; its last event is the tool's result.
    """
    agent.add_middleware(ExecuteToolStage, _around)
    agent.add_middleware(ExecuteToolStage, handler)


def leave_running(context: Any) -> None:
    """Declare that the rest of the chain still runs, in another task, when the middleware returns.

    Args:
        context: The context that the middleware was called with.
    """
    _left_running.add(id(context))


async def _around(context: Any, next_fn: Next) -> AsyncGenerator[Any, None]:
    """Pass events on; drop the error that comes from closing a generator which was left running."""
    events = next_fn(context)
    answered, raised = False, None
    try:
        async for event in events:
            answered = answered or isinstance(event, ToolResultEvent)
            yield event
    except GeneratorExit:
        try:
            await events.aclose()
        except RuntimeError:
            if id(context) not in _left_running:
                raise
        raise
    except RuntimeError as error:
        # Without a result, the middleware itself raised, for example a cancellation, and this error followed from it.
        raised = error.__context__
        if id(context) not in _left_running or not (answered or raised):
            raise
    finally:
        _left_running.discard(id(context))
    if raised is not None and not answered:
        raise raised
