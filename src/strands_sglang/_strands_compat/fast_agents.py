"""Runs agents without recursion and repeated work while somebody asks for it: `fast_agents`.

The SDK's event loop calls itself for every turn: each event of a turn passes through three generators for every turn
before it, and on Python 3.11 an invocation of more than 320 turns raises RecursionError. It also deep-copies the
conversation twice per turn with `copy.deepcopy`, and serialises it for spans that nobody records. Inside `fast_agents`,
for all agents of the process:

- `recurse_event_loop` notes that another turn is due, and `_flat_loop`, which every invocation starts with, runs it;
- `copy.deepcopy`, as the event loop calls it, copies plain data by `marshal`;
- the tracer does not describe spans that do not record;
- `_flat_loop` drops the events of an invocation whose caller has declared by `result_only` that it receives none.

Everything else is the SDK's own code, called as before.

Invariants: hooks, events, middleware, spans, metrics, traces, results and exceptions are those of the SDK's loop. One
difference is known: OpenTelemetry context that a hook attaches in one turn is not current in the next. What is replaced
is restored when the last block ends. An invocation under way when a block begins or ends continues as it is.

Tested with strands-agents 1.62. If the SDK is not as expected, nothing is replaced.
"""

from __future__ import annotations

import copy
import inspect
import logging
import marshal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import orjson
from strands.handlers import null_callback_handler
from strands.types.exceptions import (
    ContextWindowOverflowException,
    EventLoopException,
    MaxTokensReachedException,
    StructuredOutputException,
)

from strands_sglang._strands_compat import report_unrecognised
from strands_sglang._strands_compat.agents import remember

# By name, because `strands.agent` and `strands.event_loop` have attributes with the names of these modules.
_agent: Any = import_module("strands.agent.agent")
_loop: Any = import_module("strands.event_loop.event_loop")
_streaming: Any = import_module("strands.event_loop.streaming")
_tracing: Any = import_module("strands.telemetry.tracer")

TRACER_METHODS = ("_add_event_messages", "_add_system_prompt_event", "end_tool_call_span", "end_agent_span")
"""Methods of the SDK's tracer that serialise messages for a span, their first argument."""

_lock = threading.Lock()
_users = 0
_replaced: list[tuple[Any, str, Any, Any]] = []
"""Owner, name, original and replacement of what is replaced now."""
_unheard: set[int] = set()
"""Ids of agents in `result_only`; each is alive while it is here."""


@contextmanager
def fast_agents() -> Iterator[None]:
    """Run agents without recursion, so that an invocation may have any number of turns, and with less CPU time.

    `rollout` does this by itself, unless `RunOptions(fast_agents=False)` is passed. Blocks may be nested and may
    overlap, also in several threads; the SDK is as before when the last one ends. With a version of the SDK that is not
    recognised, a warning is logged once, and the SDK's own loop runs.

    Example:
        ```python
        with fast_agents():
            await agent.invoke_async("Fix the failing test.")
        ```
    """
    global _users
    with _lock:
        if not _users:
            _replace()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _restore()


@contextmanager
def result_only(agent: Any) -> Iterator[None]:
    """Declare that the caller of an agent waits for its result and receives none of its events.

    Inside `fast_agents`, events are then not passed through the layers of the SDK above its loop, unless somebody else
    receives them: a callback handler, or middleware around the agent's stream.
    """
    if getattr(agent, "callback_handler", None) is null_callback_handler:
        _unheard.add(id(agent))
    try:
        yield
    finally:
        _unheard.discard(id(agent))


def _replace() -> None:
    if not _recognised():
        report_unrecognised(
            "fast_agents",
            "turns of long conversations take more CPU time, and an invocation of more than about 300 turns fails",
        )
        return
    fast_copy = SimpleNamespace(deepcopy=fast_deepcopy, copy=copy.copy)
    tracer = _tracing.Tracer
    for owner, name, replacement in (
        (_agent, "event_loop_cycle", _flat_loop),
        (_loop, "recurse_event_loop", _noting_next_turn(_loop.recurse_event_loop)),
        (_loop, "copy", fast_copy),
        (_streaming, "copy", fast_copy),
        *((tracer, name, _if_recording(vars(tracer)[name])) for name in TRACER_METHODS),
    ):
        _replaced.append((owner, name, vars(owner)[name], replacement))
        setattr(owner, name, replacement)


def _restore() -> None:
    while _replaced:
        owner, name, original, replacement = _replaced.pop()
        # Other code may have wrapped our replacement; it does what the original does, and may stay below a wrapper.
        if vars(owner).get(name) is replacement:
            setattr(owner, name, original)


class _FlatLimits(dict[str, Any]):
    """The limits of an invocation, which the SDK passes on from turn to turn; they tell `_flat_loop` what to do next.

    An invocation with other limits has started outside of `_flat_loop`, and runs the SDK's recursion.
    """

    next_turn = False


async def _flat_loop(
    agent: Any, invocation_state: dict[str, Any], structured_output_context: Any = None, limits: Any = None
) -> AsyncIterator[Any]:
    """Take the place of `event_loop_cycle` where an agent starts its loop."""
    remember(agent)
    passed_on = _FlatLimits(limits or {})
    context = structured_output_context or _loop.StructuredOutputContext()
    traces: list[Any] = []
    unheard = id(agent) in _unheard and not agent._middleware_registry._handlers.get(_agent.AgentStreamStage)
    try:
        while True:
            passed_on.next_turn = False
            async for event in _loop.event_loop_cycle(
                agent=agent, invocation_state=invocation_state, structured_output_context=context, limits=passed_on
            ):
                if not unheard or isinstance(event, _loop.EventLoopStopEvent):
                    yield event
            if not passed_on.next_turn:
                break
            # As in the SDK's `recurse_event_loop`.
            cycle_trace = invocation_state["event_loop_cycle_trace"]
            traces.append(_loop.Trace("Recursive call", parent_id=cycle_trace.id))
            cycle_trace.add_child(traces[-1])
            yield _loop.StartEvent()
        for trace in reversed(traces):
            trace.end()
    except _UNWRAPPED:
        raise
    except Exception as error:
        if not traces:
            raise
        # With the SDK's loop, the error of a later turn passes through the turns before it, which wrap it.
        yield _loop.ForceStopEvent(reason=error)
        _loop.logger.error("exception=<%s> | event loop cycle failed", type(error).__name__)
        _loop.logger.debug("event loop cycle failed", exc_info=True)
        raise EventLoopException(error, invocation_state["request_state"]) from error


_UNWRAPPED = (
    StructuredOutputException,
    EventLoopException,
    ContextWindowOverflowException,
    MaxTokensReachedException,
    getattr(_loop, "InterruptException", EventLoopException),
)
"""Exceptions that the SDK's loop passes on unchanged."""


def _noting_next_turn(recurse: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    """Return `recurse_event_loop` that leaves the next turn of an invocation to `_flat_loop`, if that runs it."""

    async def recurse_event_loop(
        agent: Any, invocation_state: dict[str, Any], structured_output_context: Any = None, limits: Any = None
    ) -> AsyncIterator[Any]:
        if isinstance(limits, _FlatLimits):
            limits.next_turn = True
            return
        async for event in recurse(agent, invocation_state, structured_output_context, limits):
            yield event

    return recurse_event_loop


def _if_recording(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of the tracer that does nothing for spans that do not record."""

    def described(self: Any, span: Any, *args: Any, **kwargs: Any) -> Any:
        if span is not None and not span.is_recording():
            return None
        return method(self, span, *args, **kwargs)

    return described


_STRICT = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def fast_deepcopy(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Return a deep copy; see `copy.deepcopy`."""
    if type(value) in (list, dict) and value and not memo:
        try:
            orjson.dumps(value, option=_STRICT)  # refuses what marshal would change: buffers become bytes
            return marshal.loads(marshal.dumps(value))
        except (TypeError, ValueError, RecursionError):  # bytes, objects, enums, large ints, deep nesting
            pass
    return copy.deepcopy(value, memo)


_PARAMETERS = ["agent", "invocation_state", "structured_output_context", "limits"]
_NEEDED = (
    "EventLoopStopEvent",
    "ForceStopEvent",
    "InterruptException",
    "StartEvent",
    "StructuredOutputContext",
    "Trace",
    "logger",
)


def _recognised() -> bool:
    """Return whether the SDK's loop is built as this module expects."""
    try:
        return (
            all(hasattr(_loop, name) for name in _NEEDED)
            and isinstance(_agent.MiddlewareRegistry()._handlers, dict)
            and hasattr(_agent, "AgentStreamStage")
            and list(inspect.signature(_loop.event_loop_cycle).parameters) == _PARAMETERS
            and list(inspect.signature(_loop.recurse_event_loop).parameters) == _PARAMETERS
            and _agent.event_loop_cycle is _loop.event_loop_cycle
            and _loop.copy is _streaming.copy is copy
            and all(
                list(inspect.signature(vars(_tracing.Tracer)[name]).parameters)[1] == "span" for name in TRACER_METHODS
            )
        )
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        logging.getLogger(__name__).debug("the event loop of the SDK could not be read", exc_info=True)
        return False
