"""Limits on tool use: an agent that stops behind its last allowed tool results, with nothing made up.

    limiter = ToolLimiter(max_tool_iters=5)
    agent = Agent(model=model, tools=[...], hooks=[limiter])

They use the framework's own deferred stop: tools that were asked for run to their end, their results are appended, and
the model is not asked again. So a trajectory that was limited ends on a tool result: no message that nobody wrote, no
call without an answer, every sampled token trainable. The agent's result has the stop reason "cancelled", and
`result.state["tool_limit"]` says which limit it was.

Invariant: no more tools are run than `max_tool_calls`, and in one invocation no turn is sampled behind a limit.
(Whoever goes on with `invoke_async(None)` behind one asks for one more turn, and gets it.)
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strands.hooks import (
    AfterToolCallEvent,
    AfterToolsEvent,
    BeforeInvocationEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    HookProvider,
    HookRegistry,
)

from strands_sglang.chat.failed_call import FAILED_CALL
from strands_sglang.errors import ConfigurationError

STATE_KEY = "tool_limit"
"""Where an agent's result says which limit stopped it."""


class ToolLimit(str, Enum):
    """Which limit stopped an agent."""

    TOOL_ITERATIONS = "tool_iterations"
    """It has used tools in as many turns as it may."""
    TOOL_CALLS = "tool_calls"
    """It has called tools as often as it may."""


@dataclass
class _Counts:
    """What one agent has used up."""

    iterations: int = 0
    calls: int = 0
    reason: ToolLimit | None = None
    turn: tuple[str, ...] = ()
    """Ids of the calls of the turn that was counted last: one that was interrupted comes again."""
    run: set[str] = field(default_factory=set)
    """Ids of its calls that were counted: one that a hook tries again comes again."""
    held_back: set[str] = field(default_factory=set)
    """Ids of calls that were not run because their turn had too many."""


class ToolLimiter(HookProvider):
    """Stops an agent behind its last allowed tool results.

    It counts for each agent on its own, from the agent's latest question on: an invocation without a new message
    (`invoke_async(None)`) goes on counting.
    """

    def __init__(
        self,
        max_tool_iters: int | None = None,
        max_tool_calls: int | None = None,
        max_parallel_tool_calls: int | None = None,
    ) -> None:
        """Set the limits.

        Args:
            max_tool_iters: Turns with tool calls, parallel calls counted as one; None: no limit.
            max_tool_calls: Tool calls in all. Calls beyond it in the last turn are answered, not run; None: no limit.
            max_parallel_tool_calls: Tool calls of one turn that are run; those beyond it are answered; None: no limit.

        Raises:
            ConfigurationError: A limit is no whole number above 0.
        """
        self._limits = {
            "max_tool_iters": max_tool_iters,
            "max_tool_calls": max_tool_calls,
            "max_parallel_tool_calls": max_parallel_tool_calls,
        }
        for name, limit in self._limits.items():
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
                raise ConfigurationError(
                    f"{name} must be a whole number above 0 or None, not {limit!r}; an agent without tools needs none"
                )
        self.max_tool_iters = max_tool_iters
        """Turns with tool calls that are allowed; None: any number."""
        self.max_tool_calls = max_tool_calls
        """Tool calls that are allowed; None: any number."""
        self.max_parallel_tool_calls = max_parallel_tool_calls
        """Tool calls of one turn that are run; None: all."""
        self._counts: weakref.WeakKeyDictionary[Any, _Counts] = weakref.WeakKeyDictionary()
        self._latest = _Counts()

    @property
    def tool_iter_count(self) -> int:
        """Turns with tool calls so far, malformed ones included; of the agent that was active last."""
        return self._latest.iterations

    @property
    def tool_call_count(self) -> int:
        """Tools run so far; of the agent that was active last."""
        return self._latest.calls

    @property
    def cancelled_tool_call_count(self) -> int:
        """Calls that were not run because their turn had too many; of the agent that was active last."""
        return len(self._latest.held_back)

    @property
    def reason(self) -> ToolLimit | None:
        """The limit that stopped the agent that was active last; None when none did."""
        return self._latest.reason

    def reset(self) -> None:
        """Count from the beginning again."""
        self._counts.clear()
        self._latest = _Counts()

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Register with an agent; called by the framework."""
        registry.add_callback(BeforeInvocationEvent, self._begin)
        registry.add_callback(BeforeToolsEvent, self._count_turn)
        registry.add_callback(BeforeToolCallEvent, self._count_call)
        registry.add_callback(AfterToolCallEvent, self._uncount_call)
        registry.add_callback(AfterToolsEvent, self._stop)

    def __getstate__(self) -> dict[str, Any]:
        # What was counted is of agents of this process.
        return {name: getattr(self, name) for name in self._limits}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ToolLimiter.__init__(self, **state)

    def _begin(self, event: BeforeInvocationEvent) -> None:
        (event.invocation_state.get("request_state") or {}).pop(STATE_KEY, None)
        if event.messages:
            self._counts[event.agent] = _Counts()
        self._of(event.agent)

    def _count_turn(self, event: BeforeToolsEvent) -> None:
        counts = self._of(event.agent)
        turn = tuple(block["toolUse"]["toolUseId"] for block in event.message["content"] if "toolUse" in block)
        if turn != counts.turn:
            counts.turn, counts.run = turn, set()
            counts.iterations += 1

    def _count_call(self, event: BeforeToolCallEvent) -> None:
        call_id, name = str(event.tool_use.get("toolUseId")), event.tool_use.get("name")
        counts = self._of(event.agent)
        if event.cancel_tool or name == FAILED_CALL or call_id in counts.run or call_id not in counts.turn:
            return
        if (most := self.max_parallel_tool_calls) is not None and call_id in counts.turn[most:]:
            counts.held_back.add(call_id)
            event.cancel_tool = f"not executed: at most {most} tool calls are run in one turn"
            return
        if self.max_tool_calls is not None and counts.calls >= self.max_tool_calls:
            event.cancel_tool = f"not executed: the limit of {self.max_tool_calls} tool calls is reached"
            return
        counts.run.add(call_id)
        counts.calls += 1

    def _uncount_call(self, event: AfterToolCallEvent) -> None:
        counts, call_id = self._of(event.agent), str(event.tool_use.get("toolUseId"))
        if event.cancel_message is not None and call_id in counts.run:
            counts.run.discard(call_id)  # another hook had the last word: no tool was run
            counts.calls -= 1

    def _stop(self, event: AfterToolsEvent) -> None:
        counts = self._of(event.agent)
        if len(event.message["content"]) < len(counts.turn):
            return  # interrupted: the rest of the turn is yet to come
        counts.turn = ()
        if self.max_tool_calls is not None and counts.calls >= self.max_tool_calls:
            counts.reason = ToolLimit.TOOL_CALLS
        elif self.max_tool_iters is not None and counts.iterations >= self.max_tool_iters:
            counts.reason = ToolLimit.TOOL_ITERATIONS
        else:
            return
        event.agent.cancel(after_current_tools=True)
        event.invocation_state.setdefault("request_state", {})[STATE_KEY] = counts.reason.value

    def _of(self, agent: Any) -> _Counts:
        self._latest = self._counts.setdefault(agent, _Counts())
        return self._latest


class ToolIterationLimiter(ToolLimiter):
    """Stops an agent behind the results of its last allowed turn with tool calls."""

    def __init__(self, max_iterations: int | None = None) -> None:
        """Set the limit.

        Args:
            max_iterations: Turns with tool calls, parallel calls counted as one; None: no limit.
        """
        super().__init__(max_tool_iters=max_iterations)

    @property
    def max_iterations(self) -> int | None:
        """Turns with tool calls that are allowed; None: any number."""
        return self.max_tool_iters

    @property
    def iteration_count(self) -> int:
        """Turns with tool calls so far."""
        return self.tool_iter_count
