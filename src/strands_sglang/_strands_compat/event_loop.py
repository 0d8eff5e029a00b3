"""Runs the SDK's event loop for agents of this package's models without recursion and without unused work.

The SDK's loop calls itself for every turn: each event of a turn passes through three generators for every turn before
it, and on Python 3.11 an invocation of more than 320 turns raises RecursionError. It also deep-copies the conversation
twice per turn with `copy.deepcopy`, builds events for every chunk of a reply, and serialises the conversation for spans
that nobody records.

`use_flat_loop` replaces the one reference through which an agent starts its loop. Agents with another model run the
SDK's loop unchanged. For a `WholeReplyModel`, the SDK's own functions run with four of their globals replaced:

- `recurse_event_loop` does not call the loop again: it ends the turn, and `_FlatLoop` runs the next one.
- `stream_messages` takes the whole reply from the model at once, if nobody receives its events (`model_calls.py`).
- `copy.deepcopy` makes copies that cost little (`copies.py`).
- `get_tracer` returns a tracer that does not serialise the conversation for spans that do not record (`tracing.py`).

Nobody receives the events of an invocation if `invoke_async` (or a plain call of the agent) started it, the agent has
no callback handler, and no middleware sees events or model calls. Otherwise all events are emitted as the SDK does.

Invariants: hooks, callback handlers, middleware, spans, metrics, traces, results and exceptions are the same as with
the SDK's loop. If the SDK is not as expected, or one of its functions was replaced by other code, the SDK's loop runs.
One difference is known: OpenTelemetry context that a hook attaches in one turn is not current in the next.

Set the environment variable `STRANDS_SGLANG_SDK_LOOP` to run the SDK's loop. Tested with strands-agents 1.62.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from types import FunctionType, SimpleNamespace
from typing import Any, cast
from weakref import WeakValueDictionary

from strands.event_loop import streaming
from strands.handlers.callback_handler import null_callback_handler
from strands.types._events import EventLoopStopEvent, ModelStreamChunkEvent
from strands.types.exceptions import (
    ContextWindowOverflowException,
    EventLoopException,
    MaxTokensReachedException,
    StructuredOutputException,
)

from strands_sglang._strands_compat.copies import ConversationCopies, fast_deepcopy
from strands_sglang._strands_compat.guard import report_unrecognised
from strands_sglang._strands_compat.model_calls import WholeReplyModel, has_middleware, stream_messages, unobserved
from strands_sglang._strands_compat.tracing import quiet_tracer

event_loop: Any = import_module("strands.event_loop.event_loop")
agent_module: Any = import_module("strands.agent.agent")

SWITCH = "STRANDS_SGLANG_SDK_LOOP"
"""Environment variable; if it is set and not empty, agents run the SDK's loop unchanged."""

_FRAMES = 40  # frames searched between the loop and the agent's `stream_async`; each stream middleware adds some


class _Again(dict[str, Any]):
    """Yielded by a turn that is complete and must be followed by another; never leaves `_FlatLoop`."""


_loops: WeakValueDictionary[int, _FlatLoop] = WeakValueDictionary()
"""Running loops, by the id of their structured output context, which is passed from turn to turn."""
_conversations: dict[int, tuple[Any, ConversationCopies]] = {}
"""Agents whose events nobody receives, by the id of their messages, and the copies of these."""


class _FlatLoop:
    """One pass of an agent's event loop."""

    def __init__(self, agent: Any, invocation_state: dict[str, Any], context: Any, limits: Any) -> None:
        self._agent, self._state, self._limits = agent, invocation_state, limits
        self._context = context if context is not None else event_loop.StructuredOutputContext()

    async def events(self, cycle: Callable[..., AsyncIterator[Any]]) -> AsyncIterator[Any]:
        """Yield the events of all turns; if nobody receives them, only those that the agent itself uses.

        Args:
            cycle: The SDK's function for one turn.
        """
        agent, key, signal = self._agent, id(self._context), self._agent.cancel_signal
        silent = _nobody_receives_events(agent)
        if silent:
            unobserved[id(signal)] = signal, agent
        else:
            unobserved.pop(id(signal), None)
        _loops[key] = self
        traces: list[Any] = []
        nested, copies, messages = False, ConversationCopies(), None
        try:
            while True:
                again = False
                if silent and agent.messages is not messages:
                    _conversations.pop(id(messages), None)
                    messages = agent.messages
                    _conversations[id(messages)] = agent, copies
                turn = cycle(
                    agent=agent,
                    invocation_state=self._state,
                    structured_output_context=self._context,
                    limits=self._limits,
                )
                async for event in turn:
                    if type(event) is _Again:
                        again = True
                    elif not silent or isinstance(event, _USED_BY_AGENT):
                        yield event
                if not again:
                    break
                nested = True
                # As in the SDK's `recurse_event_loop`.
                cycle_trace = self._state["event_loop_cycle_trace"]
                traces.append(event_loop.Trace("Recursive call", parent_id=cycle_trace.id))
                cycle_trace.add_child(traces[-1])
                if not silent:
                    yield event_loop.StartEvent()
            for trace in reversed(traces):
                trace.end()
        except _UNWRAPPED:
            raise
        except Exception as error:
            if not nested:
                raise
            # With the SDK's loop, the error of a later turn passes through the turns before it, which wrap it.
            yield event_loop.ForceStopEvent(reason=error)
            event_loop.logger.error("exception=<%s> | event loop cycle failed", type(error).__name__)
            event_loop.logger.debug("event loop cycle failed", exc_info=True)
            raise EventLoopException(error, self._state["request_state"]) from error
        finally:
            _loops.pop(key, None)
            unobserved.pop(id(signal), None)
            _conversations.pop(id(messages), None)


_USED_BY_AGENT = (EventLoopStopEvent, ModelStreamChunkEvent)
"""Events that the agent itself uses: the result, and chunks, in which a guardrail may replace the question."""
_UNWRAPPED = (
    StructuredOutputException,
    EventLoopException,
    ContextWindowOverflowException,
    MaxTokensReachedException,
    getattr(event_loop, "InterruptException", EventLoopException),
)
"""Exceptions that the SDK's loop passes on unchanged."""


def _recurse(
    agent: Any, invocation_state: dict[str, Any], structured_output_context: Any = None, limits: Any = None
) -> AsyncIterator[Any]:
    """Take the place of `recurse_event_loop`: the next turn is run by the loop, not from within this one."""
    if id(structured_output_context) in _loops:
        return _OneEvent(_Again())
    return cast(
        AsyncIterator[Any],
        event_loop.recurse_event_loop(
            agent=agent,
            invocation_state=invocation_state,
            structured_output_context=structured_output_context,
            limits=limits,
        ),
    )


class _OneEvent:
    """An asynchronous iterator over one event."""

    __slots__ = ("_event",)

    def __init__(self, event: Any) -> None:
        self._event = event

    def __aiter__(self) -> _OneEvent:
        return self

    async def __anext__(self) -> Any:
        event, self._event = self._event, None
        if event is None:
            raise StopAsyncIteration
        return event


def _nobody_receives_events(agent: Any) -> bool:
    """Return whether the events of an agent's running loop are discarded. Call it from the loop itself."""
    if getattr(getattr(agent, "_concurrency", None), "mode", None) != _ONE_AT_A_TIME or has_middleware(agent):
        return False
    if any(getattr(type(agent), name, None) is not item for name, item in _of_agents.items()):
        return False  # a subclass that may look at events
    frame = sys._getframe(1) if hasattr(sys, "_getframe") else None
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if frame.f_code is _STREAM:
            break
        frame = frame.f_back
    else:
        return False
    stream = frame.f_locals
    consumer = frame.f_back
    return (
        stream.get("self") is agent
        and stream.get("callback_handler") is null_callback_handler
        and consumer is not None
        and consumer.f_code is _INVOKE
        and consumer.f_locals.get("self") is agent
    )


_ONE_AT_A_TIME = getattr(getattr(agent_module, "ConcurrentInvocationMode", None), "THROW", object())
_STREAM = getattr(agent_module.Agent.stream_async, "__code__", None)
_INVOKE = getattr(agent_module.Agent.invoke_async, "__code__", None)
_of_agents = {name: getattr(agent_module.Agent, name, None) for name in ("_run_loop", "_execute_event_loop_cycle")}
"""Methods of an agent between `stream_async` and the loop, which pass its events on."""


def _deepcopy(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Take the place of `copy.deepcopy`."""
    known = _conversations.get(id(value))
    if known is not None and known[0].messages is value and not has_middleware(known[0]):
        return known[1].copy(value)
    return fast_deepcopy(value, memo)


_original: dict[str, Any] = {}
"""The names of the SDK's module as they were when the loop was installed; empty: not installed."""
_of_streaming = {name: getattr(streaming, name, None) for name in ("process_stream", "_normalize_messages")}
"""Functions whose work `model_calls.py` does."""
_cycle: Callable[..., AsyncIterator[Any]] | None = None
"""The SDK's function for one turn, with our replacements; None: not installed."""


def use_flat_loop() -> None:
    """Use the flat loop for agents whose model is a `WholeReplyModel`; further calls do nothing."""
    global _cycle
    if _cycle is not None:
        return
    if not _recognised():
        report_unrecognised("flat event loop", "long conversations take more CPU time for every turn")
        return
    known = vars(event_loop)
    own = [name for name, item in known.items() if isinstance(item, FunctionType) and item.__globals__ is known]
    _original.update({name: item for name, item in known.items() if not name.startswith("__")})
    replaced = {
        **known,
        "recurse_event_loop": _recurse,
        "stream_messages": stream_messages,
        "get_tracer": lambda: quiet_tracer(event_loop.get_tracer()),
        "copy": SimpleNamespace(deepcopy=_deepcopy, copy=event_loop.copy.copy),
    }
    for name in own:
        if name != "recurse_event_loop":
            function = known[name]
            clone = FunctionType(function.__code__, replaced, name, function.__defaults__, function.__closure__)
            clone.__kwdefaults__ = function.__kwdefaults__
            replaced[name] = clone
    _cycle = replaced["event_loop_cycle"]
    agent_module.event_loop_cycle = _start_loop


def use_sdk_loop() -> None:
    """Undo `use_flat_loop`; running loops end as they started."""
    global _cycle
    if _cycle is not None and agent_module.event_loop_cycle is _start_loop:
        agent_module.event_loop_cycle = _original["event_loop_cycle"]
        _cycle = None
        _original.clear()


def is_flat(agent: Any) -> bool:
    """Return whether an agent's loop runs without recursion."""
    if (
        _cycle is None
        or not issubclass(type(getattr(agent, "model", None)), WholeReplyModel)
        or agent_module.event_loop_cycle is not _start_loop
        or os.environ.get(SWITCH)
    ):
        return False
    known = vars(event_loop)
    for name, item in _original.items():
        if known.get(name) is not item:
            return False  # replaced by other code, for example an instrumentation
    known = vars(streaming)
    for name, item in _of_streaming.items():
        if known.get(name) is not item:
            return False
    return True


def _start_loop(
    agent: Any, invocation_state: dict[str, Any], structured_output_context: Any = None, limits: Any = None
) -> AsyncIterator[Any]:
    """Take the place of `event_loop_cycle` where an agent starts its loop."""
    if is_flat(agent) and _cycle is not None:
        return _FlatLoop(agent, invocation_state, structured_output_context, limits).events(_cycle)
    return cast(
        AsyncIterator[Any],
        _original.get("event_loop_cycle", event_loop.event_loop_cycle)(
            agent=agent,
            invocation_state=invocation_state,
            structured_output_context=structured_output_context,
            limits=limits,
        ),
    )


_PARAMETERS = {
    "event_loop_cycle": ["agent", "invocation_state", "structured_output_context", "limits"],
    "recurse_event_loop": ["agent", "invocation_state", "structured_output_context", "limits"],
    "stream_messages": [
        *("model", "system_prompt", "messages", "tool_specs", "tool_choice", "system_prompt_content"),
        *("invocation_state", "model_state", "dynamic_trailing_blocks", "cancel_signal", "agent_metadata"),
        *("structured_output_model", "kwargs"),
    ],
}
_NEEDED = (
    *("ForceStopEvent", "StartEvent", "ModelStopReason", "Trace", "StructuredOutputContext", "InterruptException"),
    *("event_loop_cycle", "recurse_event_loop", "stream_messages", "get_tracer", "copy", "logger"),
)


def _recognised() -> bool:
    """Return whether the SDK's loop is built as this module expects."""
    try:
        return (
            all(hasattr(event_loop, name) for name in _NEEDED)
            and all(
                list(inspect.signature(getattr(event_loop, name)).parameters) == p for name, p in _PARAMETERS.items()
            )
            and event_loop.stream_messages is streaming.stream_messages
            and agent_module.event_loop_cycle is event_loop.event_loop_cycle
            and event_loop.EventLoopStopEvent is EventLoopStopEvent
            and _STREAM is not None
            and _INVOKE is not None
            and "callback_handler" in _STREAM.co_varnames
            and None not in _of_streaming.values()
            and None not in _of_agents.values()
            and set(event_loop.event_loop_cycle.__code__.co_names)
            >= {"_handle_model_execution", "_handle_tool_execution"}
            and "_concurrency" in agent_module.Agent.__init__.__code__.co_names
        )
    except (AttributeError, TypeError, ValueError):
        logging.getLogger(__name__).debug("the event loop of the SDK could not be read", exc_info=True)
        return False
