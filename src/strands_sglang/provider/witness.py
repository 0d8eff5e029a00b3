"""Whoever watches an episode from outside: `Witness`. A runner that keeps a ledger is one.

Invariant: a witness sees every call of its episode, because calls go through its engine; and every turn, in the order
in which turns are committed.
"""

from __future__ import annotations

from typing import Any, Protocol

from strands_sglang.engine import Generation, TokenEngine
from strands_sglang.tokens import Turn


class Witness(Protocol):
    """Watches one episode, and stands between it and the engine."""

    @property
    def engine(self) -> TokenEngine:
        """What the episode's calls go to, instead of the model's own engine.

        Its `generate` takes `hold` besides: a `Hold`. Before anything new is sampled, `hold.tokens` says how much of
        the turn may be.
        """
        ...

    @property
    def routing_key(self) -> str | None:
        """What the engine's router keeps together; None: the episode alone."""
        ...

    def committed(self, turn: Turn, generation: Generation) -> None:
        """Hear of a turn that was committed, before the agent does; what this raises, the agent's loop raises."""
        ...

    def began_anew(self) -> None:
        """Hear that the episode was reset: its turns so far are no longer part of it."""
        ...

    def calls(self, agent: Any) -> None:
        """Hear of an agent that made a turn, before its tools are run; told at every turn."""
        ...
