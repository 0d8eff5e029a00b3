"""Ends an agent's invocation if a tool of it is unavailable: `raise_outages`, `outage_in`, `reporting_outages`.

The SDK turns every error of a tool into a result for the model, which would then answer, and be scored, for an outage.
In a run, `runs/recording/tool_recorder.py` ends the episode before there is a result. The hooks of this module are for
agents outside a run: their caller gets the error, which the SDK wraps in an `EventLoopException`.

Invariant: the model does not see the result of a tool that raised `ToolUnavailableError`, unless a hook of the user has
the call repeated and it succeeds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from strands.hooks import AfterToolCallEvent, BeforeInvocationEvent

from strands_sglang._async import grouped
from strands_sglang.errors import ToolUnavailableError

_HOOK_ORDER = 1_000_000  # after every other hook, since one of them may have the call repeated

_outages: weakref.WeakKeyDictionary[Any, ToolUnavailableError | None] = weakref.WeakKeyDictionary()
"""The agents that have the hooks, with the outage that ended their latest invocation; None if none did."""


on_tool_request: ContextVar[Callable[[Hashable, ToolUnavailableError | None], None] | None] = ContextVar(
    "strands_sglang_on_tool_request", default=None
)
"""Called with what a tool call of this context asked of a sandbox, and the outage (None: it was answered), whatever the
tool makes of it; None: nothing is called."""


@contextmanager
def reporting_outages(request: Hashable) -> Iterator[None]:
    """Report how the request that is made in this `with` block ended, to `on_tool_request`."""
    report = on_tool_request.get() or (lambda request, outage: None)
    try:
        yield
    except ToolUnavailableError as outage:
        report(request, outage)
        raise
    else:
        report(request, None)


def outage_in(error: BaseException | None) -> ToolUnavailableError | None:
    """Return the outage that an error is, was raised from or while it was handled, or has in its group; None: none."""
    pending, seen = [error], set[int]()
    while pending:
        one = pending.pop()
        if isinstance(one, ToolUnavailableError):
            return one
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            pending += [one.__cause__, None if one.__suppress_context__ else one.__context__, *grouped(one)]
    return None


def raise_outages(agent: Any) -> None:
    """Let outages of an agent's tools reach the caller of the agent."""
    if agent not in _outages:
        _outages[agent] = None
        agent.add_hook(_forget, BeforeInvocationEvent)
        agent.add_hook(_raise, AfterToolCallEvent, order=_HOOK_ORDER)


def _forget(event: BeforeInvocationEvent) -> None:
    _outages[event.agent] = None


def _raise(event: AfterToolCallEvent) -> None:
    outage = outage_in(event.exception)
    if outage is None and (agent := getattr(event.selected_tool, "agent", None)) is not None:
        outage = _outages.get(agent)  # an agent as a tool answers with text, whatever it raised
    if outage is not None and not event.retry:
        _outages[event.agent] = outage
        raise outage
