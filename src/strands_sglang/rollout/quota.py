"""How much an episode of several agents may do: `Quota`.

One agent is bounded in its own loop. Where a function, a graph or a swarm runs several, nobody's loop is the
episode's: they are stopped at the next engine call.
"""

from __future__ import annotations

from dataclasses import dataclass

from strands_sglang.rollout.ended import Ended, LimitReachedError


@dataclass(frozen=True, slots=True)
class Quota:
    """Bounds of all agents of an episode together."""

    turns: int | None = None
    """Turns they may make; None: any number."""
    tool_calls: int | None = None
    """Tools they may run; None: any number."""

    def check(self, turns: int, tool_calls: int) -> None:
        """Raise LimitReachedError if nothing more may be asked of the engine.

        Args:
            turns: Turns made.
            tool_calls: Tools run.
        """
        if self.turns is not None and turns >= self.turns:
            raise LimitReachedError(f"the episode has made its {self.turns} turns", Ended.TURN_LIMIT)
        if self.tool_calls is not None and tool_calls >= self.tool_calls:
            raise LimitReachedError(f"the episode has run its {self.tool_calls} tools", Ended.TOOL_LIMIT)
