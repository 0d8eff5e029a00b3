"""What the framework logs as errors while an episode ends as it should: `quiet_logs`.

A limit is reached, an episode is cut short, a budget is used up: the framework sees an exception come by, and logs it
with its traceback. The episode's own `ended` says it; of thousands of episodes nobody wants to read it.

Invariant: only records of the framework, made inside of an episode, about an exception that is an end and not a
mistake, are left out; with the framework's logger at DEBUG none is.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator

from strands.types.exceptions import ContextWindowOverflowException, MaxTokensReachedException

from strands_sglang.errors import CallCancelledError, DivergedError, FailedCallError, TokenBudgetError
from strands_sglang.rollout.ended import LimitReachedError
from strands_sglang.rollout.recorded import RecordEndedError
from strands_sglang.rollout.tool_watch import watch_of

_LOGGERS = (
    "strands.event_loop.event_loop",
    "strands.tools.executors._executor",
    "strands.agent._agent_as_tool",
    "strands.multiagent.graph",
    "strands.multiagent.swarm",
)
_ENDS = (
    *(LimitReachedError, TokenBudgetError, FailedCallError, CallCancelledError, DivergedError, RecordEndedError),
    *(MaxTokensReachedException, ContextWindowOverflowException, asyncio.CancelledError, GeneratorExit),
)


def quiet_logs() -> None:
    """Leave such records out from now on; once a process, however often it is asked for."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if _wanted not in logger.filters:
            logger.addFilter(_wanted)


def _wanted(record: logging.LogRecord) -> bool:
    """Return whether a record is to be seen."""
    if watch_of.get() is None or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
        return True
    error = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
    return not any(isinstance(one, _ENDS) for one in _behind(error))


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from, first to last."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "original_exception", None) or error.__cause__ or error.__context__
