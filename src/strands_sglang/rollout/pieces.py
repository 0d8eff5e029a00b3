"""One invocation of an agent in pieces: `Pieces`.

The framework's loop calls itself for every turn and ends, on Python 3.11, behind 320 of them; so an agent is invoked
for a few turns at a time, and goes on where it stopped.

Invariant: the agent's own code cannot tell: its hooks hear of one invocation, and `invocation_state` is one dict. Where
an agent is invoked several times at once, none of them sees anything of the others.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from strands.hooks import AfterInvocationEvent, BeforeInvocationEvent

_TURNS_AT_ONCE = 8  # the cost of a turn grows with the depth of the loop; this is where it is lowest
_LIMIT = "limit_turns"

_invoking: ContextVar[Pieces | None] = ContextVar("strands_sglang_pieces", default=None)
"""The invocation that this context is part of."""
_quieted: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class Pieces:
    """Invokes one agent on one question."""

    def __init__(self, agent: Any, turns: int | None) -> None:
        """Take the agent.

        Args:
            agent: A Strands agent.
            turns: Turns it may make; None: any number.
        """
        self._agent, self._left = agent, turns
        self._piece = 0
        self._goes_on = False

    async def invoke(self, prompt: Any) -> Any:
        """Return the agent's result; its stop reason is that of the framework, "limit_turns" when no turn is left."""
        hooks, state = self._agent.hooks, {}  # type: ignore[var-annotated]
        _quiet(hooks)
        token = _invoking.set(self)
        try:
            while True:
                self._piece = _TURNS_AT_ONCE if self._left is None else min(self._left, _TURNS_AT_ONCE)
                result = await self._agent.invoke_async(prompt, invocation_state=state, limits={"turns": self._piece})
                self._left = None if self._left is None else self._left - self._piece
                if result.stop_reason != _LIMIT or self._left == 0:
                    return result
                prompt, self._goes_on = None, True
        finally:
            _invoking.reset(token)
            _as_before(hooks)

    def between(self, event: Any) -> bool:
        """Return whether an event is of an end, or a beginning, between two pieces."""
        if event.agent is not self._agent:
            return False
        if type(event) is BeforeInvocationEvent:
            return self._goes_on
        stopped = getattr(getattr(event, "result", None), "stop_reason", None)
        return type(event) is AfterInvocationEvent and stopped == _LIMIT and self._left != self._piece


def _quiet(hooks: Any) -> None:
    """Have an agent's hooks hear nothing of what is between two pieces."""
    with _lock:
        _quieted[hooks] = _quieted.get(hooks, 0) + 1
        if _quieted[hooks] > 1:
            return
        callbacks = hooks.get_callbacks_for

        def wanted(event: Any) -> Iterator[Any]:
            pieces = _invoking.get()
            found: Iterator[Any] = iter(()) if pieces is not None and pieces.between(event) else callbacks(event)
            return found

        hooks.get_callbacks_for = wanted


def _as_before(hooks: Any) -> None:
    """Leave an agent's hooks as they were, when nobody invokes it any more."""
    with _lock:
        _quieted[hooks] -= 1
        if not _quieted[hooks]:
            del _quieted[hooks], hooks.get_callbacks_for
