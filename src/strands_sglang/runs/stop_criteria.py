"""When a run ends early: `StopCriteria` (it has enough groups) and `FirstFailures` (it cannot succeed).

`RunOptions.stop_if_first_fail` (`runner.py`, `cli/_run_options.py`) sets the limit of `FirstFailures`; TRL's adapter
turns it off after its first successful step. `RunController` (`controller.py`) tells it how each episode ended.

Invariant: whether a group is complete and whether a run has enough groups depends only on counts, never on time; more
episodes never make a complete group incomplete. Once an episode ends in another way, identical failures no longer stop
the run; engine outages never do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from strands_sglang._terminal import counted
from strands_sglang.errors import RequestRejectedError, RunStoppedError
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode, Failure

logger = logging.getLogger(__name__)

_CONTINUE = "Fix the error and make the same call again: with a directory, it continues from the recorded turns"
_SCORE_AGAIN = (
    "Fix the reward and make the same call again: with a directory, the recorded episodes are scored without sampling, "
    "as `strands-sglang score DIRECTORY --reward MODULE:FUNCTION --unscored` does"
)


@dataclass(frozen=True, slots=True)
class StopCriteria:
    """The stop criteria of a run; episodes still running then are aborted. A criterion of None does not apply."""

    groups: int | None = None
    """Number of kept groups after which the run ends; the episodes still running are then stopped and aborted."""
    samples: int | None = None
    """Number of episodes that complete the group of a task; the task's other episodes are then stopped and aborted."""

    def needed(self, samples_per_task: int) -> int:
        """Return how many episodes complete a group; at most `samples_per_task`."""
        return samples_per_task if self.samples is None else min(self.samples, samples_per_task)

    def enough(self, kept: int) -> bool:
        """Return whether `kept` groups are enough to end the run; always False if `groups` is None."""
        return self.groups is not None and kept >= self.groups


class FirstFailures:
    """Counts the first episodes of a run that failed, or whose rewards failed, with the same error class."""

    def __init__(self, limit: int | None) -> None:
        """Set the number of identical failures that stops the run; None: the run is never stopped."""
        self._limit = limit
        self._count, self._others = 0, 0
        self._first: Failure | None = None
        self._is_reward = False

    def add(self, episode: Episode) -> None:
        """Count an episode that ended in this process; RunStoppedError once all the first ones failed alike."""
        failure, is_reward = _run_error(episode), episode.reward_detail.error is not None
        known = self._first
        if failure is None or (known is not None and (known.kind, self._is_reward) != (failure.kind, is_reward)):
            self._others += 1
            return
        self._first, self._is_reward = known or failure, is_reward
        self._count += 1
        if self._count == self._limit and not self._others:
            rewards = f"the rewards of the first {counted(self._count, 'episode')}"
            failed = rewards if is_reward else f"the first {counted(self._count, 'episode')}"
            raise RunStoppedError(
                f"{failed} all failed with the same error, and the run was stopped: {failure_line(self._first)}\n"
                f"{_SCORE_AGAIN if is_reward else _CONTINUE}. "
                "RunOptions(stop_if_first_fail=None) never stops a run for failures"
            )

    def log_if_all_failed(self) -> None:
        """Log an error if all episodes of the run failed with the same error class but were too few to stop it."""
        if self._first is not None and not self._others:
            logger.error(
                "episodes=<%d>, error=<%s> | all %s failed with the same error",
                self._count,
                failure_line(self._first),
                "rewards" if self._is_reward else "episodes",
            )


def failure_line(failure: Failure) -> str:
    """Return a failure in one line: error class, message, and the innermost file and line of the traceback."""
    places = [line.strip() for line in failure.where.splitlines() if line.strip().startswith('File "')]
    return f"{failure.kind}: {failure.message}" + (f" ({places[-1]})" if places else "")


def _run_error(episode: Episode) -> Failure | None:
    """Return the error of agent, tool, other model, rejected request or reward; None: none, or an engine's outage."""
    if (error := episode.reward_detail.error) is not None:
        kind, _, message = error.partition(": ")
        return Failure(kind, message)
    failure, end_reason = episode.failure, episode.end_reason
    if failure is None or end_reason is not EndReason.ENGINE_ERROR:
        return failure
    return failure if failure.kind == RequestRejectedError.__name__ else None
