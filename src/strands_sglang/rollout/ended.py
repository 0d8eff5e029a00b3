"""Why an episode ended: `Ended`."""

from __future__ import annotations

from enum import Enum

from strands_sglang.errors import StrandsSGLangError


class Ended(str, Enum):
    """Why an episode ended. None of these is an error of the run: a bad episode is data."""

    ANSWERED = "answered"
    """The agent ended its last turn itself."""
    STOPPED = "stopped"
    """The agent's own code stopped it: a hook, `cancel()`, an interrupt."""
    TURN_LIMIT = "turn_limit"
    """`Limits.turns` was reached."""
    TOOL_LIMIT = "tool_limit"
    """`Limits.tool_calls`, or a `ToolLimiter` of the agent's, was reached."""
    TOKEN_LIMIT = "token_limit"
    """`Limits.tokens_per_episode`, or `Limits.response`, was used up."""
    TURN_CUT = "turn_cut"
    """A turn reached `Limits.tokens_per_turn` (`max_new_tokens`) before it ended."""
    CONTEXT = "context"
    """The conversation no longer fits the context."""
    FAILED_CALL = "failed_call"
    """A malformed tool call, where `on_failed_call` is "end"."""
    TIMEOUT = "timeout"
    """`Limits.seconds_per_episode` passed."""
    CUT_SHORT = "cut_short"
    """The run had enough episodes and aborted this one."""
    SUSPENDED = "suspended"
    """It was set aside before its end, and can go on from there: see `Episode.record`."""
    ENGINE = "engine"
    """The engine failed for good."""
    AGENT = "agent"
    """The agent's code, or `build`, raised an error."""

    @property
    def complete(self) -> bool:
        """Whether the agent came to an end of its own; else the episode was cut from outside or failed."""
        return self in (Ended.ANSWERED, Ended.STOPPED)

    @property
    def again(self) -> bool:
        """Whether it is taken up again when the run is resumed, if its group is not complete without it."""
        return self.failed or self in (Ended.CUT_SHORT, Ended.SUSPENDED)

    @property
    def failed(self) -> bool:
        """Whether something broke; such an episode has whatever tokens it had until then."""
        return self in (Ended.ENGINE, Ended.AGENT)


class LimitReachedError(StrandsSGLangError):
    """Stops an episode of several agents that has reached one of its limits."""

    def __init__(self, message: str, ended: Ended = Ended.STOPPED) -> None:
        super().__init__(message)
        self.ended = ended
        """Why the episode ends."""
