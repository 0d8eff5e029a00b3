"""One invocation of an agent in pieces: `Pieces`.

The framework's loop calls itself for every turn and ends, on Python 3.11, behind 320 of them; so an agent is invoked
for a few turns at a time, and goes on where it stopped.

Invariant: the agent's own code cannot tell: its hooks hear of one invocation, and `invocation_state` is one dict.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strands.hooks import AfterInvocationEvent, BeforeInvocationEvent

_TURNS_AT_ONCE = 8  # the cost of a turn grows with the depth of the loop; this is where it is lowest
_LIMIT = "limit_turns"


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
        self._callbacks = agent.hooks.get_callbacks_for

    async def invoke(self, prompt: Any) -> Any:
        """Return the agent's result; its stop reason is that of the framework, "limit_turns" when no turn is left."""
        hooks, state = self._agent.hooks, {}  # type: ignore[var-annotated]
        hooks.get_callbacks_for = self._wanted
        try:
            while True:
                self._piece = _TURNS_AT_ONCE if self._left is None else min(self._left, _TURNS_AT_ONCE)
                result = await self._agent.invoke_async(prompt, invocation_state=state, limits={"turns": self._piece})
                self._left = None if self._left is None else self._left - self._piece
                if result.stop_reason != _LIMIT or self._left == 0:
                    return result
                prompt, self._goes_on = None, True
        finally:
            del hooks.get_callbacks_for

    def _wanted(self, event: Any) -> Iterator[Any]:
        """Return the callbacks of an event, but for those of an end, or a beginning, between two pieces."""
        if event.agent is self._agent:
            if type(event) is BeforeInvocationEvent and self._goes_on:
                return iter(())
            stopped = getattr(getattr(event, "result", None), "stop_reason", None)
            if type(event) is AfterInvocationEvent and stopped == _LIMIT and self._left != self._piece:
                return iter(())
        callbacks: Iterator[Any] = self._callbacks(event)
        return callbacks
