"""Episodes that all fail alike from the very first: `Alike`. Such a run has a mistake in it, and more of it is no use.

Invariant: one episode that does not fail in that way, and the run is never stopped. What an engine does not answer is
no mistake of the run's.
"""

from __future__ import annotations

import logging

from strands_sglang.errors import RequestRejectedError, RunStoppedError
from strands_sglang.ledger.shown import counted
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode, Failure

logger = logging.getLogger(__name__)


class Alike:
    """Counts the episodes of a run that failed alike before any other came."""

    def __init__(self, most: int | None) -> None:
        """Take how many may; None: any number."""
        self._most = most
        self._count, self._others = 0, 0
        self._first: Failure | None = None

    def add(self, episode: Episode) -> None:
        """Take an episode that was run now.

        Raises:
            RunStoppedError: It is the last of so many that failed alike.
        """
        failure = episode.failure
        known = failure is not None and _mistaken(episode.ended, failure)
        if failure is None or not known or (self._first is not None and self._first.kind != failure.kind):
            self._others += 1
            return
        self._first = self._first or failure
        self._count += 1
        if self._count == self._most and not self._others:
            raise RunStoppedError(
                f"the first {counted(self._count, 'episode')} all failed alike, and the run was stopped: "
                f"{said(self._first)}\n"
                "What was sampled is on disk if a directory was given, and the same call goes on from there; "
                "rollout(stop_after_failures=None) lets a run go on whatever fails"
            )

    def told(self) -> None:
        """Say it where all there were have failed alike, and they were too few to stop anything."""
        if self._first is not None and not self._others:
            logger.error("episodes=<%d> | all failed alike: %s", self._count, said(self._first))


def said(failure: Failure) -> str:
    """Return what broke in one line, with the place in the code."""
    places = [line.strip() for line in failure.where.splitlines() if line.strip().startswith('File "')]
    return f"{failure.kind}: {failure.message}" + (f" ({places[-1]})" if places else "")


def _mistaken(ended: Ended, failure: Failure) -> bool:
    return ended is Ended.AGENT or (ended is Ended.ENGINE and failure.kind == RequestRejectedError.__name__)
