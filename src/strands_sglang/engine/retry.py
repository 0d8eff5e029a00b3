"""The one owner of retries.

Invariant: a call fails after `max_retries` failures in a row and no sooner; progress sets the count back.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass

from yarl import URL

from strands_sglang.engine.backoff import Backoff
from strands_sglang.engine.faults import TransientFault
from strands_sglang.engine.protocol import halting, outages
from strands_sglang.errors import (
    ConnectionLostError,
    EngineBusyError,
    EngineError,
    EngineFailingError,
    EngineGarbledError,
    EngineUnavailableError,
    EngineUnreachableError,
    MalformedResponseError,
)
from strands_sglang.published_errors import SGLangConnectionError

logger = logging.getLogger(__name__)

# Thousands of calls fail together when a worker dies: each says so a few times, not sixty.
_LOUD_FAILURES = frozenset({1, 5, 20, 60})
_BUSY = frozenset({429, 503})
_LOOK = 0.05  # seconds between two looks at whether another attempt is still wanted


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to try again, and how long to wait before."""

    max_retries: int
    """Failures in a row that are followed by another attempt."""
    backoff: Backoff
    """Waiting times."""


class Retries:
    """The failures of one call."""

    _failures = 0
    _in_flight_losses = 0

    def __init__(self, policy: RetryPolicy, url: URL) -> None:
        self._policy = policy
        self._url = url

    def progressed(self, since: float | None = None) -> None:
        """The call got somewhere, by an attempt that began at `since`: failures are counted from zero again."""
        self._failures = 0
        if since is not None and (watch := outages.get()) is not None:
            watch.answered(since)

    async def after(self, fault: TransientFault, since: float | None = None) -> None:
        """Wait until it is time for the next attempt.

        Args:
            fault: What became of the last one.
            since: When that began, by `time.monotonic`; None: nobody keeps its time.

        Raises:
            EngineUnavailableError: There is no next attempt.
        """
        self._failures += 1
        if since is not None and (watch := outages.get()) is not None:
            watch.failed(since)
        self._in_flight_losses += fault.in_flight
        if self._failures > self._policy.max_retries:
            status, body = getattr(fault.error, "status", None), getattr(fault.error, "body", "")
            raise _kind_of(fault.error, status)(
                self._last_words(fault), attempts=self._failures, status=status, body=body
            ) from fault.error
        delay = self._policy.backoff.delay(self._failures, fault.retry_after)
        level = logging.WARNING if self._failures in _LOUD_FAILURES else logging.DEBUG
        logger.log(level, "failures=<%d>, delay=<%.2f>, fault=<%s> | trying again", self._failures, delay, fault)
        await _pause(delay)

    def _last_words(self, fault: TransientFault) -> str:
        times = "once" if self._failures == 1 else f"{self._failures} times in a row"
        message = f"{self._url} failed {times}, last: {fault}"
        if isinstance(fault.error, ConnectionLostError):
            if not fault.in_flight:
                return f"{message} | is the server running, and is base_url right? it should answer GET /health"
            if self._in_flight_losses > 1:
                message += (
                    f" | the connection was lost {self._in_flight_losses} times while the engine worked on this very"
                    " request: a prompt that crashes its worker looks like this (a token id outside the vocabulary?)"
                )
        return message


def _kind_of(last: EngineError, status: int | None) -> type[EngineUnavailableError]:
    """Return which error says how an engine failed until the end."""
    if isinstance(last, MalformedResponseError):
        return EngineGarbledError
    if isinstance(last, SGLangConnectionError):
        return EngineUnreachableError
    if status is None:
        return EngineUnavailableError
    return EngineBusyError if status in _BUSY else EngineFailingError


async def _pause(seconds: float) -> None:
    """Wait, but not on when no request may begin any more: the attempt that would follow is refused at once."""
    halted = halting.get()
    if halted is None:
        await asyncio.sleep(seconds)
        return
    looks, rest = divmod(seconds, _LOOK)
    for pause in itertools.chain(itertools.repeat(_LOOK, int(looks)), (rest,)):
        if halted():
            return
        await asyncio.sleep(pause)
