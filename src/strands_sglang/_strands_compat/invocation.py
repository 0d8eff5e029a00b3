"""Runs long invocations of the SDK's own loop efficiently: in chunks, and with messages that are cheap to copy.

Both are for agents whose loop is not flat (`event_loop.py`): those with another model, or another version of the SDK.

`ChunkedInvocation`: the SDK's event loop calls itself for every turn. On Python 3.11 it raises RecursionError after 320
turns, and a turn costs more the deeper it is. An agent is therefore invoked for a few turns at a time
(`limits={"turns": n}`), and continued by `invoke_async(None)`. Between two chunks the SDK calls the hooks for the end
and the start of an invocation; there is no documented way to prevent this, so the hook registry of the agent is wrapped
while it runs. If hooks cannot be wrapped, the agent runs in one chunk.

`use_fast_copies`: the SDK deep-copies the whole conversation twice per turn (for the context of a model call, and to
normalise it). With Python's `copy.deepcopy` this costs more than everything else in a turn once a conversation is long.
Messages are plain data, which a JSON round trip copies about ten times faster. An SDK that does not deep-copy
`agent.messages`, or keeps it in another type, does not use this.

Invariants: hooks see one invocation, and `invocation_state` is one dict. Concurrent invocations of one agent, in other
episodes or inside its own tools, are distinguished by that dict and do not affect each other. The hook registry is
restored when the last of them ends. A copy equals its original and shares nothing mutable with it; values that a JSON
round trip would change are copied by `copy.deepcopy`.

Tested with strands-agents 1.62.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from strands.hooks import AfterInvocationEvent, BeforeInvocationEvent, HookRegistry

from strands_sglang._strands_compat.event_loop import is_flat
from strands_sglang._strands_compat.guard import report_unrecognised

TURN_LIMIT = "limit_turns"
"""Stop reason of an invocation that has made the turns it was limited to."""

_TURNS_PER_CHUNK = 8  # where a turn costs least: each invocation has a fixed cost, each level of recursion another
_METHOD = "invoke_callbacks_async"
_MISSING = object()

_running: dict[int, ChunkedInvocation] = {}
"""Invocations under way, by the id of their `invocation_state`."""


class ChunkedInvocation:
    """One invocation of an agent; used once."""

    def __init__(self, agent: Any, turns: int | None) -> None:
        """Prepare an invocation.

        Args:
            agent: A Strands agent.
            turns: Turns it may make; None: any number.
        """
        self._agent, self._turns_left = agent, turns
        self._state: dict[str, Any] = {}
        self._chunk = 0
        self._continues = False  # the next start of an invocation is that of a further chunk
        self._seen = False  # hook events of this invocation pass through our wrapper

    async def invoke(self, prompt: Any) -> Any:
        """Invoke the agent.

        Args:
            prompt: Its input.

        Returns:
            The SDK's result; its stop reason is `TURN_LIMIT` if no turn is left.
        """
        hooks = self._agent.hooks
        if (flat := is_flat(self._agent)) or not _recognised(hooks):
            if not flat:
                report_unrecognised("chunked invocation", "an invocation of more than about 300 turns fails")
            limits = None if self._turns_left is None else {"turns": self._turns_left}
            return await self._agent.invoke_async(prompt, invocation_state=self._state, limits=limits)
        _running[id(self._state)] = self
        try:
            with _wrapped(hooks):
                return await self._chunks(prompt)
        finally:
            del _running[id(self._state)]

    async def _chunks(self, prompt: Any) -> Any:
        while True:
            left = self._turns_left
            self._chunk = _TURNS_PER_CHUNK if left is None else min(left, _TURNS_PER_CHUNK)
            result = await self._agent.invoke_async(prompt, invocation_state=self._state, limits={"turns": self._chunk})
            if self._turns_left is not None:
                self._turns_left -= self._chunk
            if result.stop_reason != TURN_LIMIT or self._turns_left == 0:
                return result
            if not self._seen:
                report_unrecognised("chunked invocation", "hooks see several invocations where there is one")
            prompt, self._continues = None, True

    def hides(self, event: Any) -> bool:
        """Return whether an event with this invocation's state is an end or a start between two chunks."""
        if event.agent is not self._agent:
            return False
        if type(event) is BeforeInvocationEvent:
            self._seen = True
            hidden, self._continues = self._continues, False
            return hidden
        reason = getattr(getattr(event, "result", None), "stop_reason", None)
        return type(event) is AfterInvocationEvent and reason == TURN_LIMIT and self._turns_left != self._chunk


def _recognised(hooks: Any) -> bool:
    """Return whether hook events can be distinguished and the registry can be wrapped."""
    before, after = ({field.name for field in dataclasses.fields(one)} for one in _EVENTS)
    return (
        {"agent", "invocation_state"} <= before
        and {"agent", "invocation_state", "result"} <= after
        and isinstance(hooks, HookRegistry)
        and callable(getattr(hooks, _METHOD, None))
        and hasattr(hooks, "__dict__")
    )


_EVENTS = (BeforeInvocationEvent, AfterInvocationEvent)


class _Wrapped:
    """The wrapper of an agent's hook registry, the method it replaced, and the number of invocations that use it."""

    def __init__(self, hooks: Any) -> None:
        self.users = 0
        self.previous: Any = vars(hooks).get(_METHOD, _MISSING)
        self.ours = _without_boundaries(getattr(hooks, _METHOD))


_registries: weakref.WeakKeyDictionary[Any, _Wrapped] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


@contextmanager
def _wrapped(hooks: Any) -> Iterator[None]:
    """Keep events between chunks from the callbacks of a hook registry. Blocks may be nested and may overlap."""
    with _lock:
        wrapped = _registries.get(hooks)
        if wrapped is None:
            wrapped = _registries[hooks] = _Wrapped(hooks)
            setattr(hooks, _METHOD, wrapped.ours)
        wrapped.users += 1
    try:
        yield
    finally:
        with _lock:
            wrapped.users -= 1
            if not wrapped.users:
                del _registries[hooks]
                if vars(hooks).get(_METHOD) is not wrapped.ours:
                    pass  # wrapped again by other code; our wrapper only forwards from now on
                elif wrapped.previous is _MISSING:
                    delattr(hooks, _METHOD)
                else:
                    setattr(hooks, _METHOD, wrapped.previous)


def _without_boundaries(invoke: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Return `HookRegistry.invoke_callbacks_async` without the events between chunks."""

    def invoke_callbacks_async(event: Any) -> Awaitable[Any]:
        invocation = _running.get(id(getattr(event, "invocation_state", None)))
        return _no_callbacks(event) if invocation is not None and invocation.hides(event) else invoke(event)

    return invoke_callbacks_async


async def _no_callbacks(event: Any) -> tuple[Any, list[Any]]:
    """Return what `invoke_callbacks_async` returns for an event without callbacks."""
    return event, []


class FastCopyList(list[Any]):
    """A list of messages, or the content of one, that deep-copies by a JSON round trip."""

    def __deepcopy__(self, memo: dict[int, Any]) -> FastCopyList:
        try:
            copied = orjson.loads(orjson.dumps(self))
        except (TypeError, ValueError):  # bytes, an int of more than 64 bits, a lone surrogate
            copied = None
        if copied != self:
            copied = [copy.deepcopy(item, memo) for item in self]
        for item in copied:
            # The SDK takes the content out of a message and copies it again.
            if type(item) is dict and type(item.get("content")) is list:
                item["content"] = FastCopyList(item["content"])
        return FastCopyList(copied)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)  # pickles as a plain list


def use_fast_copies(agent: Any) -> None:
    """Make the messages of an agent cheap to copy, if it keeps them in a plain list and its loop is not flat."""
    if type(getattr(agent, "messages", None)) is not list or is_flat(agent):
        return
    try:
        agent.messages = FastCopyList(agent.messages)
    except (AttributeError, TypeError):
        report_unrecognised("fast message copies", "turns of long conversations take more CPU time")
