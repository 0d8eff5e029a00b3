"""Limits of an episode: `Limits`, and `MultiAgentLimits` for an episode with several agents.

A single agent is limited in its own loop. If a function, a graph or a swarm runs several agents, no single loop covers
the whole episode: the agents are stopped at their next engine call, and a tool call beyond the limit is answered with
an error instead of being run.

Invariant: an episode that reaches a limit stops with an end reason and keeps its tokens; a limit never raises into the
run. Concurrent turns are counted before they start, so that no limit is exceeded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from strands_sglang._checks import check_int, check_number
from strands_sglang._terminal import counted
from strands_sglang.provider.token_budget import Reservation, SharedLimit
from strands_sglang.runs.end_reason import EndReason, LimitReachedError


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one episode; None: no limit.

    Example:
        >>> limits = Limits(max_turns=10, max_new_tokens=1024, tool_timeout=30, episode_timeout=600)
    """

    max_turns: int | None = None
    """Maximum number of turns of the agent: engine calls of its loop."""
    max_tool_calls: int | None = None
    """Maximum number of tool calls in the episode."""
    max_new_tokens: int | None = None
    """Maximum number of tokens sampled in one turn."""
    max_episode_tokens: int | None = None
    """Maximum number of tokens sampled in the episode, including those of sub-agents."""
    max_response_tokens: int | None = None
    """Maximum number of tokens of a branch after its first prompt: sampled tokens and tool results of all turns."""
    max_context_tokens: int | None = None
    """Maximum number of tokens of prompt and turn together; None: the engine's context length."""
    tool_timeout: float | None = None
    """Maximum duration of one tool call in seconds, turns inside the tool included and engine failures excluded; a call
    that exceeds it is answered with a timeout message, which the model sees."""
    episode_timeout: float | None = None
    """Maximum duration of the episode in seconds, without time in which the engine fails or does not respond."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            name, value = f"Limits.{limit.name}", getattr(self, limit.name)
            if limit.name.endswith("timeout"):
                check_number(name, value)
            else:
                check_int(name, value)

    @classmethod
    def from_recorded(cls, values: Mapping[str, Any]) -> Limits:
        """Return the limits stored in the run.json of a ledger, by name; unknown names are ignored."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


@dataclass(frozen=True, slots=True)
class MultiAgentLimits:
    """Limits of all agents of an episode together; None: no limit."""

    max_turns: int | None = None
    max_tool_calls: int | None = None
    _running_turns: SharedLimit = field(default_factory=SharedLimit, repr=False, compare=False)

    def check(self, turns: int, tool_calls: int) -> None:
        """Raise LimitReachedError if the engine must not be called after this many turns and tool calls."""
        if self.max_turns is not None and turns >= self.max_turns:
            raise LimitReachedError(
                f"the episode has reached its limit of {counted(self.max_turns, 'turn')}", EndReason.TURN_LIMIT
            )
        if self.max_tool_calls is not None and tool_calls >= self.max_tool_calls:
            raise LimitReachedError(
                f"the episode has reached its limit of {counted(self.max_tool_calls, 'tool call')}",
                EndReason.TOOL_LIMIT,
            )

    async def begin_turn(self, hold: Reservation, done: Callable[[], tuple[int, int]]) -> None:
        """Reserve a turn until it is made or fails; wait while others may use up the limit, then LimitReachedError."""
        bound = self.max_turns
        self.check(*done())
        if bound is None:
            return

        def left() -> int:
            self.check(*done())
            return bound - done()[0]

        await hold.reserve(self._running_turns, 1, left)

    def refusal(self, tool_calls: int) -> str | None:
        """Return the error message for a tool call beyond the limit, after `tool_calls` others; None: it may run."""
        if self.max_tool_calls is None or tool_calls < self.max_tool_calls:
            return None
        return f"not executed: the limit of {self.max_tool_calls} tool calls is reached"
