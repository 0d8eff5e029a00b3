"""What an end reason means to a trainer: one table from `EndReason` to `TrainerStatus`.

Every adapter reads this table, so that an end reason means the same to all trainers; what is meant for slime alone
belongs into `samples_of` (`slime/samples.py`). The status decides three things:

=============  =======  ===================  ===============  ====================================================
status         trained  slime, Miles         stop reason      meaning
=============  =======  ===================  ===============  ====================================================
COMPLETED      yes      `Status.COMPLETED`   "stop"           the agent ended the episode
LIMIT_REACHED  yes      `Status.TRUNCATED`   "length"         a limit ended the episode
ABORTED        no       `Status.ABORTED`     "abort"          the run ended the episode; it may continue later
FAILED         no       `Status.FAILED`      "abort"          the engine, a tool or the agent's code failed
=============  =======  ===================  ===============  ====================================================

SkyRL gets the stop reason, which its `zero_reward_on_non_stop` and `apply_overlong_filtering` act on.
verl, AReaL and TRL have no status field: an episode that is not trained gets loss mask 0 (verl, AReaL: and reward 0;
TRL: and no reward). `padded_batch` does the same.

Invariant: every `EndReason` has exactly one status, and effects of the infrastructure are never trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode


class TrainerStatus(str, Enum):
    """Status of an episode, as trainers distinguish it.

    Example:
        >>> TrainerStatus.LIMIT_REACHED.trained, TrainerStatus.LIMIT_REACHED.stop_reason
        (True, 'length')
    """

    COMPLETED = "completed"
    LIMIT_REACHED = "limit_reached"
    ABORTED = "aborted"
    FAILED = "failed"

    @property
    def trained(self) -> bool:
        """Whether the tokens of the episode may be trained."""
        return self in (TrainerStatus.COMPLETED, TrainerStatus.LIMIT_REACHED)

    @property
    def slime_name(self) -> str:
        """Name of the status in slime and Miles."""
        return "TRUNCATED" if self is TrainerStatus.LIMIT_REACHED else self.name

    @property
    def stop_reason(self) -> str:
        """The stop reason in an engine's vocabulary: "stop", "length" or "abort"."""
        return _STOP_REASONS[self]


_STOP_REASONS: Mapping[TrainerStatus, str] = {
    TrainerStatus.COMPLETED: "stop",
    TrainerStatus.LIMIT_REACHED: "length",
    TrainerStatus.ABORTED: "abort",
    TrainerStatus.FAILED: "abort",
}

STATUS_BY_END: Mapping[EndReason, TrainerStatus] = {
    EndReason.ANSWERED: TrainerStatus.COMPLETED,
    EndReason.STOPPED: TrainerStatus.COMPLETED,
    EndReason.FAILED_CALL: TrainerStatus.COMPLETED,
    EndReason.TURN_LIMIT: TrainerStatus.LIMIT_REACHED,
    EndReason.TOOL_LIMIT: TrainerStatus.LIMIT_REACHED,
    EndReason.TOKEN_LIMIT: TrainerStatus.LIMIT_REACHED,
    EndReason.TURN_TRUNCATED: TrainerStatus.LIMIT_REACHED,
    EndReason.CONTEXT_LENGTH: TrainerStatus.LIMIT_REACHED,
    EndReason.TIMEOUT: TrainerStatus.LIMIT_REACHED,
    EndReason.NOT_NEEDED: TrainerStatus.ABORTED,
    EndReason.PAUSED: TrainerStatus.ABORTED,
    EndReason.ENGINE_ERROR: TrainerStatus.FAILED,
    EndReason.TOOL_UNAVAILABLE: TrainerStatus.FAILED,
    EndReason.OTHER_MODEL_ERROR: TrainerStatus.FAILED,
    EndReason.AGENT_ERROR: TrainerStatus.FAILED,
}


def status_of(episode: Episode | None) -> TrainerStatus:
    """Return the status of an episode; None (no task could be made of the dataset's row) is a failure.

    An episode that was dropped because its group became too old is one as well: no trainer may train or resume it.
    """
    if episode is None or (episode.staleness is not None and episode.staleness.dropped):
        return TrainerStatus.FAILED
    return STATUS_BY_END[episode.end_reason]


def is_trainable(episode: Episode | None, *, scored: bool) -> bool:
    """Return whether an episode may be trained; if `scored`, only with a reward."""
    if episode is None or not status_of(episode).trained:
        return False
    return not scored or episode.reward is not None
