"""`LoopLimiter`: limits on an agent's loop that end it with an error, as the published package has them.

    limiter = LoopLimiter(max_tool_iters=5)
    agent = Agent(model=model, tools=[...], hooks=[limiter])

Where a limit is reached, `LoopLimitReachedError` is raised behind a user message that is whole: a question, or all the
results of a turn. So no call is left without an answer, and every sampled token can be trained. (Behind the first turn
the framework wraps the error in an `EventLoopException`, as its `__cause__`.) `ToolLimiter` ends without an error.

Invariant: no turn is sampled behind a limit.
"""

from __future__ import annotations

from typing import Any

from strands.hooks import BeforeToolCallEvent, HookProvider, HookRegistry, MessageAddedEvent

from strands_sglang.errors import StrandsSGLangError


class LoopLimitReachedError(StrandsSGLangError):
    """An agent has reached a limit of its loop."""


class MaxToolIterationsReachedError(LoopLimitReachedError):
    """It has used tools in as many turns as it may."""


class MaxToolCallsReachedError(LoopLimitReachedError):
    """It has called tools as often as it may."""


class MaxMessagesReachedError(LoopLimitReachedError):
    """Its conversation has as many new messages as it may."""


class LoopLimiter(HookProvider):
    """Raises where an agent has reached a limit. It counts over all invocations, until `reset()`."""

    def __init__(
        self,
        max_tool_iters: int | None = None,
        max_tool_calls: int | None = None,
        max_parallel_tool_calls: int | None = None,
        max_messages: int | None = None,
    ) -> None:
        """Set the limits; None: no limit.

        Args:
            max_tool_iters: Turns with tool calls, parallel calls counted as one.
            max_tool_calls: Tool calls in all. A turn that goes beyond it is still answered whole.
            max_parallel_tool_calls: Tool calls of one turn that are run; those beyond it are answered, not run.
            max_messages: Messages added, of either role.
        """
        self.max_tool_iters = max_tool_iters
        """Turns with tool calls that are allowed; None: any number."""
        self.max_tool_calls = max_tool_calls
        """Tool calls that are allowed; None: any number."""
        self.max_parallel_tool_calls = max_parallel_tool_calls
        """Tool calls of one turn that are run; None: all."""
        self.max_messages = max_messages
        """Messages that may be added; None: any number."""
        self.reset()

    def reset(self) -> None:
        """Count from the beginning again."""
        self.tool_iter_count = 0
        """Turns with tool calls that were answered."""
        self.tool_call_count = 0
        """Tool calls, those that were not run included."""
        self.cancelled_tool_call_count = 0
        """Tool calls that were not run because their turn had too many."""
        self.message_count = 0
        """Messages added to the conversation."""
        self._turn: list[str] = []

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Register with an agent; called by the framework."""
        registry.add_callback(MessageAddedEvent, self._count)
        registry.add_callback(BeforeToolCallEvent, self._hold_back)

    def _count(self, event: MessageAddedEvent) -> None:
        message = event.message
        self.message_count += 1
        if message["role"] == "assistant":
            self._turn = [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block]
            self.tool_call_count += len(self._turn)
            return
        if any("toolResult" in block for block in message["content"]):
            self.tool_iter_count += 1
            if _reached(self.tool_iter_count, self.max_tool_iters):
                raise MaxToolIterationsReachedError(f"the limit of {self.max_tool_iters} turns with tools is reached")
            if _reached(self.tool_call_count, self.max_tool_calls):
                raise MaxToolCallsReachedError(f"the limit of {self.max_tool_calls} tool calls is reached")
        if _reached(self.message_count, self.max_messages):
            raise MaxMessagesReachedError(f"the limit of {self.max_messages} messages is reached")

    def _hold_back(self, event: BeforeToolCallEvent) -> None:
        limit, call_id = self.max_parallel_tool_calls, event.tool_use.get("toolUseId")
        if limit is not None and not event.cancel_tool and call_id in self._turn[limit:]:
            self.cancelled_tool_call_count += 1
            event.cancel_tool = f"not executed: at most {limit} tool calls are run in one turn"


def _reached(count: int, limit: int | None) -> bool:
    return limit is not None and count >= limit
