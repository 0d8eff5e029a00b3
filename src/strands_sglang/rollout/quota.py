"""How much an episode of several agents may do: `Quota`.

One agent is bounded in its own loop. Where a function, a graph or a swarm runs several, nobody's loop is the
episode's: they are stopped at the next engine call, and a tool beyond the bound is answered, not run.

Invariant: what agents do at the same time is counted before it is begun, so that no bound is exceeded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from strands_sglang.ledger.shown import counted
from strands_sglang.provider.reserve import Hold, Reserve
from strands_sglang.rollout.ended import Ended, LimitReachedError


@dataclass(frozen=True, slots=True)
class Quota:
    """Bounds of all agents of an episode together."""

    turns: int | None = None
    """Turns they may make; None: any number."""
    tool_calls: int | None = None
    """Tools they may run; None: any number."""
    _under_way: Reserve = field(default_factory=Reserve, repr=False, compare=False)

    def check(self, turns: int, tool_calls: int) -> None:
        """Raise LimitReachedError if nothing more may be asked of the engine.

        Args:
            turns: Turns made.
            tool_calls: Tools run.
        """
        if self.turns is not None and turns >= self.turns:
            raise LimitReachedError(f"the episode has made its {counted(self.turns, 'turn')}", Ended.TURN_LIMIT)
        if self.tool_calls is not None and tool_calls >= self.tool_calls:
            raise LimitReachedError(f"the episode has run its {counted(self.tool_calls, 'tool')}", Ended.TOOL_LIMIT)

    async def begin_turn(self, hold: Hold, done: Callable[[], tuple[int, int]]) -> None:
        """Take a turn, until it is made or has failed; wait while those under way may be the last.

        Args:
            hold: Of the call that makes it.
            done: Returns how many turns were made and tools run by now.

        Raises:
            LimitReachedError: None is left.
        """
        bound = self.turns
        self.check(*done())
        if bound is None:
            return

        def left() -> int:
            self.check(*done())
            return bound - done()[0]

        await hold.take(self._under_way, 1, left)

    def refusal(self, tool_calls: int) -> str | None:
        """Return why one more tool is not run, when so many were; None when it may be."""
        if self.tool_calls is None or tool_calls < self.tool_calls:
            return None
        return f"not executed: the limit of {self.tool_calls} tool calls is reached"
