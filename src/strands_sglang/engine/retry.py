"""The one owner of retries.

Invariant: a call to a server that is known to work fails after `max_retries` failures in a row and no sooner; progress
sets the count back. One that never answered this process, or answers its very first requests with the same error again
and again, is probably not what the user meant: a call to it fails early, and the message says what to look at.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass

from yarl import URL

from strands_sglang.engine.backoff import Backoff
from strands_sglang.engine.contact import Contact, contact
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

_BUSY = frozenset({429, 503})
_SAME_ERRORS = 5
"""Times that a server which never served anything may answer 500 in the same words."""
_LOOK = 0.05  # seconds between two looks at whether another attempt is still wanted


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to try again, and how long to wait before."""

    max_retries: int
    """Failures in a row that are followed by another attempt."""
    backoff: Backoff
    """Waiting times."""
    first_contact: float | None = None
    """Seconds a call waits for a server that never answered this process; None: as long as for any other."""


class Retries:
    """The failures of one call.

    Args:
        policy: When to try again.
        url: Where the call goes.
        known: What the process knows about the server; None: looked up.
        began: When the call began, by the monotonic clock; None: now.
    """

    _failures = 0
    _in_flight_losses = 0
    _same_errors = 0
    _last_error = ""

    def __init__(self, policy: RetryPolicy, url: URL, known: Contact | None = None, began: float | None = None) -> None:
        self._policy = policy
        self._url = url
        self._known = contact(url.parent) if known is None else known
        first, began = policy.first_contact, time.monotonic() if began is None else began
        self._patient_until = None if first is None else began + first

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
        self._known.failed(fault)
        left = self._patience()
        if self._failures > self._policy.max_retries or (left is not None and left <= 0) or self._says_the_same(fault):
            status, body = getattr(fault.error, "status", None), getattr(fault.error, "body", "")
            raise _kind_of(fault.error, status)(
                self._last_words(fault), attempts=self._failures, status=status, body=body
            ) from fault.error
        delay = self._policy.backoff.delay(self._failures, fault.retry_after)
        if left is not None:
            delay = min(delay, left)  # a last look when the time is up
        self._known.say(fault, delay)
        await _pause(delay)

    def _patience(self) -> float | None:
        """Return the seconds left to wait for a first answer; None: the server is known, or waited for anyway."""
        if self._patient_until is None or self._known.answered:
            return None
        return self._patient_until - time.monotonic()

    def _says_the_same(self, fault: TransientFault) -> bool:
        """Return whether a server that never served anything has said nothing but the same error for long enough."""
        body = getattr(fault.error, "body", "")
        if self._known.served or getattr(fault.error, "status", None) != 500 or body != self._last_error:
            self._same_errors = 0
        self._last_error = body
        self._same_errors += 1
        return not self._known.served and self._same_errors >= _SAME_ERRORS

    def _last_words(self, fault: TransientFault) -> str:
        times = "once" if self._failures == 1 else f"{self._failures} times in a row"
        message = f"{self._url} failed {times}, last: {fault}"
        if self._failures <= self._policy.max_retries and self._known.answered:
            return (
                f"{message} | it has served nothing to this process yet and says the same each time: look at what is "
                "sent (sampling parameters, token ids) and at the server's own log"
            )
        if isinstance(fault.error, ConnectionLostError):
            if not fault.in_flight and not self._known.answered:
                return f"{message} | {never_answered(self._known.url)}"
            if not fault.in_flight:
                return f"{message} | is the server running, and is base_url right? it should answer GET /health"
            if self._in_flight_losses > 1:
                message += (
                    f" | the connection was lost {self._in_flight_losses} times while the engine worked on this very"
                    " request: a prompt that crashes its worker looks like this (a token id outside the vocabulary?)"
                )
        return message


def never_answered(url: str) -> str:
    """Return what to look at when an address never answered."""
    plain = ""
    if url.startswith("https://"):
        plain = f"; does the server speak plain http, as SGLang does? then base_url is {'http' + url[5:]}"
    return (
        f"nothing ever answered at {url}: is the server running there, and is base_url right (host, port, http or "
        f"https)? it should answer GET /health{plain}; a server that is still starting is waited for with "
        "SGLangClient(first_contact=600)"
    )


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
