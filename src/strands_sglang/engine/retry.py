"""Retries: when a call is attempted again, after which delay, and when it fails.

`Retries` counts the failures in a row of one call; `ServerRetries` also uses what this process knows about the server
(`ServerHistory`): an address that never answered is probably wrong, so a call to it fails early; a server that did
answer is down, and the call waits for it: for minutes in a run (`in_run`), for less elsewhere, where a person waits.

The settings are arguments of `SGLangClient`, which `published/clients.py` repeats. Control requests (`control.py`),
calls of paused episodes (`runs/recording/pausable_engine.py`) and other engines (`base.py`) have their own.

Invariant: in a run, or with `max_retries` from the user, a call to a server that is known to work fails after so many
failures in a row and no sooner; progress resets the count.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from dataclasses import dataclass, field

from yarl import URL

from strands_sglang.engine.protocol import in_run, outages, pause_requested
from strands_sglang.engine.response import TransientFault
from strands_sglang.errors import (
    ConnectionLostError,
    EngineBusyError,
    EngineError,
    EngineFailingError,
    EngineGarbledError,
    EngineUnavailableError,
    EngineUnreachableError,
    MalformedResponseError,
    SGLangConnectionError,
)

logger = logging.getLogger(__name__)

_BUSY = frozenset({429, 503})
# Statuses of a router or proxy whose server does not answer.
_NO_UPSTREAM = frozenset({502, 503, 504})
# How often a server that never served a request may answer 500 with the same body before a call fails.
_SAME_ERRORS = 5
MAX_RETRIES = 60  # about 15 minutes with the default delays
# With one last connect timeout, less than a minute.
PATIENCE = 45.0
_POLL_SECONDS = 0.05  # between two checks of `pause_requested` during a delay
_LOG_SECONDS = 30.0  # between two warnings about one outage


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays before retries: exponential, capped, with full jitter.

    Full jitter (uniform between zero and the ceiling) spreads the retries of thousands of episodes that lost the same
    worker at the same moment.
    """

    base: float
    """Ceiling of the first delay, in seconds."""
    cap: float
    """Ceiling of every delay that the server does not set itself, in seconds."""
    rng: random.Random = field(default_factory=random.SystemRandom, repr=False, compare=False)
    """Source of jitter. The default is the system's, so that forked workers do not draw the same delays."""

    def delay(self, failures: int, retry_after: float | None = None) -> float:
        """Return the seconds to wait after `failures` failures in a row (counted from 1).

        If the server sent `retry_after`, the delay is at least that long, plus jitter.
        """
        if retry_after is not None:
            return retry_after + self.rng.uniform(0, self.base)
        # The exponent is bounded so that a long outage cannot overflow the float.
        return self.rng.uniform(0, min(self.cap, self.base * 2.0 ** min(failures - 1, 60)))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a call is retried, and after which delays."""

    max_retries: int
    backoff: Backoff
    first_contact: float | None = None
    """Seconds a call waits for a server that never answered this process; None: no limit of its own."""
    patience: float | None = None
    """Seconds of failures in a row after which a call outside a run fails; None: no limit of its own."""


class ServerHistory:
    """Observations of this process about reaching one address.

    One instance per address, shared by all clients, loops and threads of the process. Attributes are written one at a
    time and none depends on another, so there is no lock. An outage is logged once for all calls, not once per call.
    """

    __slots__ = ("_next_warning", "_unlogged", "answered", "served", "unreachable_since", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.answered = False
        self.served = False
        self.unreachable_since: float | None = None
        """By `time.monotonic`; None if there is no outage."""
        self._next_warning = 0.0
        self._unlogged = 0

    def unreachable_seconds(self) -> float:
        """Return how long the current outage has lasted; 0 if there is none."""
        since = self.unreachable_since
        return 0.0 if since is None else time.monotonic() - since

    def record_answer(self, *, served: bool = True) -> None:
        """Record an answer, which ends an outage; `served` is False if the request was refused."""
        self.answered = True
        if served:
            self.served = True
        since, self.unreachable_since = self.unreachable_since, None
        if since is not None:
            if self._next_warning:
                seconds = time.monotonic() - since
                logger.warning("server=<%s>, down_seconds=<%.0f> | the engine answers again", self.url, seconds)
            self._next_warning, self._unlogged = 0.0, 0

    def record_failure(self, fault: TransientFault) -> None:
        """Record a failed attempt: the start or continuation of an outage, or an answer with an error status."""
        status = getattr(fault.error, "status", None)
        if isinstance(fault.error, SGLangConnectionError) or status in _NO_UPSTREAM:
            if self.unreachable_since is None:
                self.unreachable_since = time.monotonic()
            self.answered = self.answered or status is not None
        elif status is not None:
            self.record_answer(served=False)

    def log_retry(self, fault: TransientFault, delay: float) -> None:
        """Log that an attempt failed and is retried: the first at once, then a summary every 30 seconds."""
        self._unlogged += 1
        now = time.monotonic()
        warn = now >= self._next_warning
        if warn:
            failures, self._unlogged, self._next_warning = self._unlogged, 0, now + _LOG_SECONDS
        else:
            failures = 1
        logger.log(
            logging.WARNING if warn else logging.DEBUG,
            "server=<%s>, failures=<%d>, down_seconds=<%.0f>, delay=<%.2f>, fault=<%s> | retrying",
            self.url,
            failures,
            self.unreachable_seconds(),
            delay,
            fault,
        )


_histories: dict[str, ServerHistory] = {}


def server_history(base_url: URL | str) -> ServerHistory:
    """Return the history of an address; it is created on first use."""
    address = str(base_url).rstrip("/")
    found = _histories.get(address)
    return found if found is not None else _histories.setdefault(address, ServerHistory(address))


class Retries:
    """The failures in a row of one call."""

    def __init__(self, policy: RetryPolicy, target: str) -> None:
        self._policy = policy
        self._target = target
        self._failures = 0

    def progressed(self, since: float | None = None) -> None:
        """Reset the count of failures; `since`, by `time.monotonic`, is reported to `outages`."""
        self._failures = 0
        if since is not None and (watch := outages.get()) is not None:
            watch.answered(since)

    async def after(self, fault: TransientFault, since: float | None = None) -> None:
        """Wait until the next attempt may start; raise `EngineUnavailableError` if there is none."""
        self._failures += 1
        if since is not None and (watch := outages.get()) is not None:
            watch.failed(since)
        self._record(fault)
        if self._exhausted(fault):
            status, body = getattr(fault.error, "status", None), getattr(fault.error, "body", "")
            kind = _final_error(fault.error, status)
            raise kind(self._message(fault), attempts=self._failures, status=status, body=body) from fault.error
        await _sleep(self._delay(fault))

    def _record(self, fault: TransientFault) -> None:
        """Record a fault; called before the decision to retry. Does nothing here."""

    def _exhausted(self, fault: TransientFault) -> bool:
        return self._failures > self._policy.max_retries

    def _message(self, fault: TransientFault) -> str:
        times = "once" if self._failures == 1 else f"{self._failures} times in a row"
        return f"{self._target} failed {times}, last: {fault}"

    def _delay(self, fault: TransientFault) -> float:
        return self._policy.backoff.delay(self._failures, fault.retry_after)


class ServerRetries(Retries):
    """The failures in a row of one call to an HTTP server; `began` is by `time.monotonic`."""

    def __init__(
        self, policy: RetryPolicy, url: URL, known: ServerHistory | None = None, began: float | None = None
    ) -> None:
        super().__init__(policy, str(url))
        self._known = server_history(url.parent) if known is None else known
        began = time.monotonic() if began is None else began
        self._first_contact_until = None if policy.first_contact is None else began + policy.first_contact
        self._patience = None if in_run.get() else policy.patience
        self._patience_until: float | None = None
        self._in_flight_losses = 0
        self._same_errors = 0
        self._last_body = ""

    def progressed(self, since: float | None = None) -> None:
        """Reset the count of failures; see `Retries.progressed`."""
        super().progressed(since)
        self._patience_until = None

    def _record(self, fault: TransientFault) -> None:
        self._in_flight_losses += fault.in_flight
        self._known.record_failure(fault)
        if self._known.answered and self._patience is not None and self._patience_until is None:
            self._patience_until = time.monotonic() + self._patience

    def _exhausted(self, fault: TransientFault) -> bool:
        left = self.seconds_left
        # A delay that the server requests is not shortened.
        spent = left is not None and left <= (fault.retry_after or 0.0)
        return super()._exhausted(fault) or spent or self._repeats_itself(fault)

    def _delay(self, fault: TransientFault) -> float:
        delay = super()._delay(fault)
        if (left := self.seconds_left) is not None:
            delay = max(0.0, min(delay, left))  # leaves one last attempt at the end of that time
        self._known.log_retry(fault, delay)
        return delay

    @property
    def seconds_left(self) -> float | None:
        """Seconds left to wait for the server, a first answer or the next one; None: no limit."""
        until = self._patience_until if self._known.answered else self._first_contact_until
        return None if until is None else until - time.monotonic()

    def _repeats_itself(self, fault: TransientFault) -> bool:
        """Return whether a server that never served a request keeps answering 500 with the same body."""
        body = getattr(fault.error, "body", "")
        if self._known.served or getattr(fault.error, "status", None) != 500 or body != self._last_body:
            self._same_errors = 0
        self._last_body = body
        self._same_errors += 1
        return not self._known.served and self._same_errors >= _SAME_ERRORS

    def _message(self, fault: TransientFault) -> str:
        message = super()._message(fault)
        if self._known.answered and not self._known.served and self._same_errors >= _SAME_ERRORS:
            return (
                f"{message} | the server has not served any request of this process and repeats the same error: check "
                "what is sent (sampling parameters, token ids) and the server's log"
            )
        if self._patience_until is not None and self._failures <= self._policy.max_retries:
            message += (
                f" (outside a run a call waits {self._patience:.0f} s; SGLangClient(max_retries=60) waits longer)"
            )
        if isinstance(fault.error, ConnectionLostError):
            if not fault.in_flight and not self._known.answered:
                return f"{message} | {never_answered(self._known.url)}"
            if not fault.in_flight:
                return f"{message} | is the server running, and is base_url right? it should answer GET /health"
            if self._in_flight_losses > 1:
                message += (
                    f" | the connection was lost {self._in_flight_losses} times while the engine processed this"
                    " request: does the prompt crash its worker (a token id outside the vocabulary)?"
                )
        return message


def never_answered(url: str) -> str:
    """Return what to check when an address never answered."""
    plain = ""
    if url.startswith("https://"):
        plain = f"; does the server speak plain http, as SGLang does? then base_url is {'http' + url[5:]}"
    return (
        f"nothing ever answered at {url}: is the server running there, and is base_url right (host, port, http or "
        f"https)? it should answer GET /health{plain}; to wait for a server that is still starting, pass "
        "SGLangClient(first_contact=600)"
    )


def _final_error(last: EngineError, status: int | None) -> type[EngineUnavailableError]:
    if isinstance(last, MalformedResponseError):
        return EngineGarbledError
    if isinstance(last, SGLangConnectionError):
        return EngineUnreachableError
    if status is None:
        return EngineUnavailableError
    return EngineBusyError if status in _BUSY else EngineFailingError


async def _sleep(seconds: float) -> None:
    """Wait; return early once `pause_requested` says so, because the next attempt is refused at once."""
    paused = pause_requested.get()
    if paused is None:
        await asyncio.sleep(seconds)
        return
    polls, rest = divmod(seconds, _POLL_SECONDS)
    for delay in itertools.chain(itertools.repeat(_POLL_SECONDS, int(polls)), (rest,)):
        if paused():
            return
        await asyncio.sleep(delay)
