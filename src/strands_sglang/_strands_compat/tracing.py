"""Keeps the SDK from serialising history for spans that nobody records: `quiet_tracing`, `quiet_tracer`.

The SDK's tracer writes the whole conversation as JSON twice per turn and only then passes it to a span, even where no
tracer provider is set. In a run of 30 turns this is a quarter of the CPU time.

Invariant: a recording span receives everything, also if its provider is set later. The tracer is restored when the last
`quiet_tracing` block ends; `quiet_tracer` changes no tracer, it returns another with the same state.

Tested with strands-agents 1.62. A tracer of another type, or without the expected methods, is left alone.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import Span

from strands_sglang._strands_compat.guard import report_unrecognised

logger = logging.getLogger(__name__)

METHODS = ("_add_event_messages", "_add_system_prompt_event", "end_tool_call_span", "end_agent_span")
"""Methods of the SDK's tracer that serialise messages for a span, their first argument."""

_users: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""How many `quiet_tracing` blocks use each tracer."""
_lock = threading.Lock()


@contextmanager
def quiet_tracing() -> Iterator[None]:
    """Skip the serialisation of history for spans that do not record. Blocks may be nested and may overlap."""
    tracer = _sdk_tracer()
    if tracer is None:
        yield
        return
    with _lock:
        _users[tracer] = _users.get(tracer, 0) + 1
        for name in METHODS:
            method = getattr(tracer, name, None)
            if callable(method) and name not in vars(tracer):
                vars(tracer)[name] = _if_recording(method)
    try:
        yield
    finally:
        with _lock:
            _users[tracer] -= 1
            if not _users[tracer]:
                del _users[tracer]
                for name in METHODS:
                    if getattr(vars(tracer).get(name), "skips_silent_spans", False):
                        del vars(tracer)[name]


_quiet: dict[int, tuple[Any, Any]] = {}
"""The tracer of the SDK by its id, and the quiet one that shares its state. There is at most one."""


def quiet_tracer(tracer: Any) -> Any:
    """Return a tracer that skips the serialisation of history for spans that do not record, and else does the same."""
    known = _quiet.get(id(tracer))
    if known is not None and known[0] is tracer:
        return known[1]
    quiet = tracer
    if _is_known(tracer):
        quiet = object.__new__(_quiet_class(type(tracer)))
        quiet.__dict__ = tracer.__dict__  # so that settings changed later are seen
    _quiet.clear()
    _quiet[id(tracer)] = tracer, quiet
    return quiet


def _quiet_class(kind: type[Any]) -> type[Any]:
    """Return a subclass of a tracer that does nothing for spans that do not record."""
    members = {name: _method_if_recording(kind, name) for name in METHODS}
    return type(f"Quiet{kind.__name__}", (kind,), members)


def _method_if_recording(kind: type[Any], name: str) -> Callable[..., Any]:
    """Return a method of a tracer that does nothing for spans that do not record."""

    def described(self: Any, span: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(span, Span) and not span.is_recording():
            return None
        return getattr(kind, name)(self, span, *args, **kwargs)  # it may have been replaced since

    return described


def _is_known(tracer: Any) -> bool:
    """Return whether a tracer is the SDK's own class with the expected methods."""
    from strands.telemetry.tracer import Tracer

    return type(tracer) is Tracer and hasattr(tracer, "__dict__") and all(hasattr(tracer, name) for name in METHODS)


def _sdk_tracer() -> Any:
    """Return the tracer that all agents share; None if it is not the one this module knows."""
    try:
        from strands.telemetry.tracer import get_tracer

        tracer = get_tracer()
        if _is_known(tracer):
            return tracer
    except Exception:
        logger.debug("the tracer of the SDK could not be found", exc_info=True)
    report_unrecognised("quiet tracing", "history is serialised for spans that nobody records, which takes CPU time")
    return None


def _if_recording(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that does nothing for spans that do not record."""

    def described(*args: Any, **kwargs: Any) -> Any:
        span = args[0] if args else kwargs.get("span")
        if isinstance(span, Span) and not span.is_recording():
            return None
        return method(*args, **kwargs)

    described.skips_silent_spans = True  # type: ignore[attr-defined]  # so that only our own is removed again
    return described
