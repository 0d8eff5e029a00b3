"""Limits on an agent's tool use: `ToolLimiter`.

`ToolLimiter` uses the framework's deferred stop: requested tools run to their end, their results are appended, and the
model is not called again. A limited conversation therefore ends on a tool result, without invented messages or
unanswered calls, and every sampled token is trainable. The agent's result has the stop reason "cancelled", and
`result.state["tool_limit"]` names the limit.

Invariant: `ToolLimiter` runs at most `max_tool_calls` tools. Within one invocation, no turn is sampled after a limit is
reached. (`invoke_async(None)` after a limit samples one more turn.)
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

from strands_sglang._checks import check_int
from strands_sglang.chat.failed_call import FAILED_CALL

_LIMITS = ("max_tool_iters", "max_tool_calls", "max_parallel_tool_calls")
STATE_KEY = "tool_limit"  # key in an agent's result state that names the limit that stopped it


class ToolLimit(str, Enum):
    """Which limit stopped an agent."""

    TOOL_ITERATIONS = "tool_iterations"
    """The agent used tools in the largest allowed number of turns."""
    TOOL_CALLS = "tool_calls"
    """The agent made the largest allowed number of tool calls."""


@dataclass
class _Counts:
    iterations: int = 0
    calls: int = 0
    reason: ToolLimit | None = None
    turn_call_ids: tuple[str, ...] = ()
    """Ids of the calls of the turn that was counted last; an interrupted turn is seen again."""
    counted_call_ids: set[str] = field(default_factory=set)
    """Ids of its calls that were counted; a call that a hook retries is seen again."""
    held_back: set[str] = field(default_factory=set)
    """Ids of calls that were not run because their turn had too many."""


class ToolLimiter(HookProvider):
    """Stops an agent after its last allowed tool results, without an error.

    It counts for each agent separately, from the agent's latest question on. An invocation without a new message
    (`invoke_async(None)`) continues the count.

    Example:
        limiter = ToolLimiter(max_tool_iters=5, max_tool_calls=20)
        agent = Agent(model=model, tools=[calculator], hooks=[limiter])
        result = agent("What is 12 * 7?")
        limiter.tool_iter_count, limiter.reason
    """

    def __init__(
        self,
        max_tool_iters: int | None = None,
        max_tool_calls: int | None = None,
        max_parallel_tool_calls: int | None = None,
    ) -> None:
        """Set the limits, each an int >= 1.

        Args:
            max_tool_iters: Turns with tool calls, parallel calls counted as one; None: no limit.
            max_tool_calls: Tool calls in total. Calls beyond it in the last turn are answered, not run; None: no limit.
            max_parallel_tool_calls: Tool calls of one turn that are run, the others are only answered; None: no limit.
        """
        self.max_tool_iters = max_tool_iters
        self.max_tool_calls = max_tool_calls
        self.max_parallel_tool_calls = max_parallel_tool_calls
        for name in _LIMITS:
            check_int(name, getattr(self, name), hint="an agent without tools needs no limit")
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
        """The limit that stopped the agent that was active last; None if none did."""
        return self._latest.reason

    def reset(self) -> None:
        """Set all counts to 0."""
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
        # Counts belong to agents of this process.
        return {name: getattr(self, name) for name in _LIMITS}

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
        if turn != counts.turn_call_ids:
            counts.turn_call_ids, counts.counted_call_ids = turn, set()
            counts.iterations += 1

    def _count_call(self, event: BeforeToolCallEvent) -> None:
        call_id, name = str(event.tool_use.get("toolUseId")), event.tool_use.get("name")
        counts = self._of(event.agent)
        if (
            event.cancel_tool
            or name == FAILED_CALL
            or call_id in counts.counted_call_ids
            or call_id not in counts.turn_call_ids
        ):
            return
        if (most := self.max_parallel_tool_calls) is not None and call_id in counts.turn_call_ids[most:]:
            counts.held_back.add(call_id)
            event.cancel_tool = f"not executed: at most {most} tool calls are run in one turn"
            return
        if self.max_tool_calls is not None and counts.calls >= self.max_tool_calls:
            event.cancel_tool = f"not executed: the limit of {self.max_tool_calls} tool calls is reached"
            return
        counts.counted_call_ids.add(call_id)
        counts.calls += 1

    def _uncount_call(self, event: AfterToolCallEvent) -> None:
        counts, call_id = self._of(event.agent), str(event.tool_use.get("toolUseId"))
        if event.cancel_message is not None and call_id in counts.counted_call_ids:
            counts.counted_call_ids.discard(call_id)  # cancelled by a later hook: no tool was run
            counts.calls -= 1

    def _stop(self, event: AfterToolsEvent) -> None:
        counts = self._of(event.agent)
        if len(event.message["content"]) < len(counts.turn_call_ids):
            return  # interrupted: the rest of the turn follows
        counts.turn_call_ids = ()
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
