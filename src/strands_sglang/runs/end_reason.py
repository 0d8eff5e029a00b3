"""The end reason of an episode: `EndReason`.

Invariant: every episode has exactly one end reason, also one that failed or was stopped by the run.
"""

from __future__ import annotations

from enum import Enum

from strands_sglang.errors import StrandsSGLangError


class EndReason(str, Enum):
    """Why an episode ended. None of these is an error of the run: a failed episode is data.

    Example:
        >>> failed = [episode for episode in run if episode.end_reason.failed]
    """

    ANSWERED = "answered"
    """The agent finished by itself, with the end of its last turn."""
    STOPPED = "stopped"
    """The agent's own code stopped it: a hook, `cancel()`, an interrupt."""
    TURN_LIMIT = "turn_limit"
    """`Limits.max_turns` was reached."""
    TOOL_LIMIT = "tool_limit"
    """`Limits.max_tool_calls`, or a `ToolLimiter` of the agent, was reached."""
    TOKEN_LIMIT = "token_limit"
    """`Limits.max_episode_tokens` or `Limits.max_response_tokens` was reached."""
    TURN_TRUNCATED = "turn_truncated"
    """A turn reached `Limits.max_new_tokens` before it ended."""
    CONTEXT_LENGTH = "context_length"
    """The conversation no longer fits into the context."""
    FAILED_CALL = "failed_call"
    """A tool call was malformed, and `on_failed_call` is "end"."""
    TIMEOUT = "timeout"
    """`Limits.episode_timeout` was reached."""
    NOT_NEEDED = "not_needed"
    """The run stopped it, because it had enough episodes, or because its group became too old to be trained; its
    requests were aborted on the engine."""
    PAUSED = "paused"
    """The episode was paused before its end and can be resumed: see `Episode.record`."""
    ENGINE_ERROR = "engine_error"
    """The engine failed permanently."""
    TOOL_UNAVAILABLE = "tool_unavailable"
    """A tool raised `ToolUnavailableError`, for example because no sandbox can be started."""
    OTHER_MODEL_ERROR = "other_model_error"
    """Another model of the episode (a simulated user, say) failed permanently, or was truncated when an agent asked."""
    AGENT_ERROR = "agent_error"
    """The agent's code, or `build`, raised an error."""

    @property
    def complete(self) -> bool:
        """Whether the agent itself ended the episode; False if a limit or the run stopped it, or if it failed."""
        return self in (EndReason.ANSWERED, EndReason.STOPPED)

    @property
    def resumable(self) -> bool:
        """Whether a resumed run continues this episode, unless its group is complete without it."""
        return self.failed or self in (EndReason.NOT_NEEDED, EndReason.PAUSED)

    @property
    def failed(self) -> bool:
        """Whether the engine, a tool, another model or the agent's code failed; the episode keeps the tokens it has."""
        return self in _FAILED


_FAILED = frozenset(
    (EndReason.ENGINE_ERROR, EndReason.TOOL_UNAVAILABLE, EndReason.OTHER_MODEL_ERROR, EndReason.AGENT_ERROR)
)


class LimitReachedError(StrandsSGLangError):
    """Stops an episode with several agents when it reaches one of its limits."""

    def __init__(self, message: str, end_reason: EndReason = EndReason.STOPPED) -> None:
        super().__init__(message)
        self.end_reason = end_reason
