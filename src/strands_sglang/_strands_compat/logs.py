"""Drops what the SDK logs as errors when an episode ends as intended: `drop_expected_errors`.

A limit is reached, an episode is cancelled, a budget is used up: the SDK sees an exception pass and logs it with its
traceback. The episode's end reason has the same information; with thousands of episodes these records hide real errors.

Invariant: only records of the SDK's own loggers, made inside an episode, about an exception that is an expected end,
are dropped; with the SDK's logger at DEBUG nothing is.

Tested with strands-agents 1.62. A module of the SDK that is renamed gets no filter, and its records are seen.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator

LOGGERS = (
    "strands.event_loop.event_loop",
    "strands.tools.executors._executor",
    "strands.agent._agent_as_tool",
    "strands.multiagent.graph",
    "strands.multiagent.swarm",
)
"""Loggers of the SDK that log exceptions passing by; each has the name of a module."""


def drop_expected_errors(in_episode: Callable[[], bool], expected: tuple[type[BaseException], ...]) -> None:
    """Filter the SDK's log records from now on. Further calls with the same `in_episode` do nothing.

    Args:
        in_episode: Returns whether the current context belongs to an episode.
        expected: Exceptions that end an episode as intended.
    """
    added = _ExpectedErrors(in_episode, expected)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if added not in logger.filters:
            logger.addFilter(added)


class _ExpectedErrors(logging.Filter):
    """Lets records pass unless they are about an expected exception."""

    def __init__(self, in_episode: Callable[[], bool], expected: tuple[type[BaseException], ...]) -> None:
        super().__init__()
        self._in_episode, self._expected = in_episode, expected

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ExpectedErrors) and other._in_episode is self._in_episode

    def __hash__(self) -> int:
        return hash(self._in_episode)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        if not self._in_episode() or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        error = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
        return not any(isinstance(one, self._expected) for one in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and the exceptions it was raised from, outermost first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "original_exception", None) or error.__cause__ or error.__context__
