"""How far an episode may go: `Limits`.

Invariant: a limit ends an episode with a reason and the tokens it has; none of them raises into the run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from strands_sglang.errors import ConfigurationError


def check_above_zero(name: str, value: Any, what: str, *, whole: bool) -> None:
    """Raise ConfigurationError unless a number is above 0; None passes.

    Args:
        name: What it is called.
        value: The number.
        what: What it must be, in words.
        whole: Whether it must be a whole number.
    """
    kinds = (int,) if whole else (int, float)
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or not value > 0):
        raise ConfigurationError(f"{name} must be a {what}, not {value!r}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one episode; None: no bound."""

    turns: int | None = None
    """Turns of the agent: engine calls of its loop."""
    tool_calls: int | None = None
    """Tool calls in all."""
    tokens_per_turn: int | None = None
    """Tokens one turn may sample: `max_new_tokens`."""
    tokens_per_episode: int | None = None
    """Tokens an episode may sample in all, those of sub-agents included."""
    response: int | None = None
    """Tokens of a branch behind its first prompt: sampled ones and tool results, all turns together."""
    context: int | None = None
    """Tokens of prompt and turn together; None: what the engine can take."""
    seconds_per_tool: float | None = None
    """Seconds one tool call may take; the model is told that it timed out. Turns inside of it count; an engine
    that fails them does not."""
    seconds_per_episode: float | None = None
    """Seconds an episode may take, from its beginning on. Waiting for an engine that fails, or gives no sign of
    life, is not counted."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            whole = not limit.name.startswith("seconds")
            check_above_zero(f"Limits.{limit.name}", getattr(self, limit.name), "number above 0 or None", whole=whole)
