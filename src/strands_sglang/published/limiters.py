"""The published package's limiters: `ToolIterationLimiter`, and `LoopLimiter` with its errors.

`LoopLimiter` raises after a complete user message: a question, or all results of a turn. After the first turn, the
framework wraps the error in an `EventLoopException`, as its `__cause__`.

Invariant: an error is raised only where every call of the conversation is answered.
"""

from __future__ import annotations

from typing import Any

from strands.hooks import BeforeToolCallEvent, HookProvider, HookRegistry, MessageAddedEvent

from strands_sglang.errors import StrandsSGLangError
from strands_sglang.tool_limits import ToolLimiter


class ToolIterationLimiter(ToolLimiter):
    """Stops an agent after the results of its last allowed turn with tool calls.

    Example:
        agent = Agent(model=model, tools=[calculator], hooks=[ToolIterationLimiter(max_iterations=5)])
    """

    def __init__(self, max_iterations: int | None = None) -> None:
        """Set the limit of turns with tool calls, parallel calls counted as one; None: no limit."""
        super().__init__(max_tool_iters=max_iterations)

    @property
    def max_iterations(self) -> int | None:
        """Allowed turns with tool calls; None: any number."""
        return self.max_tool_iters

    @property
    def iteration_count(self) -> int:
        """Turns with tool calls so far."""
        return self.tool_iter_count


class LoopLimitReachedError(StrandsSGLangError):
    """An agent reached a limit of its loop.

    Example:
        try:
            agent("What is 12 * 7?")
        except LoopLimitReachedError as error:
            print(error)
    """


class MaxToolIterationsReachedError(LoopLimitReachedError):
    """The agent used tools in the largest allowed number of turns.

    Example: `except MaxToolIterationsReachedError: ...`
    """


class MaxToolCallsReachedError(LoopLimitReachedError):
    """The agent made the largest allowed number of tool calls.

    Example: `except MaxToolCallsReachedError: ...`
    """


class MaxMessagesReachedError(LoopLimitReachedError):
    """The largest allowed number of messages was added to the conversation.

    Example: `except MaxMessagesReachedError: ...`
    """


class LoopLimiter(HookProvider):
    """Raises an error when an agent reaches a limit. It counts over all invocations, until `reset()`.

    Example:
        agent = Agent(model=model, tools=[calculator], hooks=[LoopLimiter(max_messages=20)])
    """

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
            max_tool_calls: Tool calls in total. All calls of a turn that exceeds it are still answered.
            max_parallel_tool_calls: Tool calls of one turn that are run; the others are answered, not run.
            max_messages: Messages added, of either role.
        """
        self.max_tool_iters = max_tool_iters
        self.max_tool_calls = max_tool_calls
        self.max_parallel_tool_calls = max_parallel_tool_calls
        self.max_messages = max_messages
        self.reset()

    def reset(self) -> None:
        """Set all counts to 0."""
        self.tool_iter_count = 0
        self.tool_call_count = 0
        self.cancelled_tool_call_count = 0
        """Tool calls that were not run because their turn had too many."""
        self.message_count = 0
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
