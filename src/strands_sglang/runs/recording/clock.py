"""Measures the time of an episode or tool call without engine outages: `EpisodeClock`, `EngineMonitor`, `wait_in_time`.

A call waits for an engine that cannot be reached. If that wait counted, an episode could end as `timeout` because of an
outage, and would be scored and trained on.

If the engine hangs, no attempt fails: it looks like an engine that samples for a long time. Therefore `EngineMonitor`
sends the engine a health request whenever calls are outstanding and it has not answered any call for some time, and
reports a silence to every clock with an outstanding call, since its last response. An engine that keeps answering
gets a health request at the start, and at most one a minute later. If one of several engine workers is silent, the
engine counts as silent, because that worker may have the outstanding calls.

Invariant: seconds in which the attempts of a call failed, or in which an engine with an outstanding call was silent,
are not counted. Sampling that only takes long is counted.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from strands_sglang.engine import TokenEngine, is_server
from strands_sglang.engine.protocol import outages
from strands_sglang.errors import EngineUnreachableError

_KEPT_WAITS = 64  # finished waits to keep, for silences that are reported later
_POLL_SECONDS = 0.25  # seconds between two checks of a stopped clock
LONGEST_SILENCE = 900.0
"""Seconds to wait, after the time limit, for an engine that is unresponsive."""


class EpisodeClock:
    """Counts seconds from its creation; thread-safe."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._failing: set[object] = set()
        self._outstanding: dict[object, float] = {}
        self._finished_waits: deque[tuple[float, float]] = deque(maxlen=_KEPT_WAITS)
        self._waiting_since = 0.0
        self._stopped_at = 0.0
        self._excluded = 0.0
        self._excluded_until = self._started

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        now = time.monotonic()
        with self._lock:
            stopped_for = now - self._stopped_at if self._failing else 0.0
            return now - self._started - self._excluded - stopped_for

    @property
    def stopped(self) -> bool:
        """Whether the clock is stopped: the last attempt of some call failed, and the call is being retried."""
        return bool(self._failing)

    @property
    def outstanding_since(self) -> float | None:
        """Start time of the oldest outstanding call, by `time.monotonic`; None if no call is outstanding."""
        with self._lock:
            return min(self._outstanding.values(), default=None)

    def start_call(self, call: object) -> None:
        """Register the start of an engine call."""
        with self._lock:
            if not self._outstanding:
                self._waiting_since = time.monotonic()
            self._outstanding[call] = time.monotonic()

    def attempt_failed(self, call: object, since: float) -> None:
        """Register a failed attempt: the clock is stopped from `since` until an attempt of the call succeeds.

        Args:
            call: The call.
            since: Start time of the attempt, by `time.monotonic`.
        """
        with self._lock:
            if not self._failing:
                self._stopped_at = max(since, self._excluded_until)
            self._failing.add(call)

    def attempt_answered(self, call: object, since: float) -> None:
        """Register an attempt that succeeded, or the last one: the clock runs again, from the start of this attempt.

        Args:
            call: The call.
            since: Start time of the attempt, by `time.monotonic`.
        """
        with self._lock:
            if call in self._failing:
                self._failing.discard(call)
                if not self._failing:
                    self._exclude(self._stopped_at, since)

    def end_call(self, call: object) -> None:
        """Register the end of a call, whatever its outcome."""
        self.attempt_answered(call, time.monotonic())
        with self._lock:
            if self._outstanding.pop(call, None) is not None and not self._outstanding:
                self._finished_waits.append((self._waiting_since, time.monotonic()))

    def exclude_silence(self, since: float) -> None:
        """Exclude the time since `since` in which a call was outstanding: the engine was unresponsive."""
        now = time.monotonic()
        with self._lock:
            if self._failing:
                return  # the clock is stopped already
            for start, end in (*self._finished_waits, *(((self._waiting_since, now),) if self._outstanding else ())):
                self._exclude(max(since, start), end)

    def _exclude(self, since: float, until: float) -> None:
        since = max(since, self._excluded_until)
        if until > since:
            self._excluded += until - since
            self._excluded_until = until


class _Call:
    """Reports the attempts of one engine call to several clocks."""

    def __init__(self, clocks: Sequence[EpisodeClock]) -> None:
        self._clocks = clocks

    def failed(self, since: float) -> None:
        for clock in self._clocks:
            clock.attempt_failed(self, since)

    def answered(self, since: float) -> None:
        for clock in self._clocks:
            clock.attempt_answered(self, since)


@contextmanager
def report_call(clocks: Sequence[EpisodeClock], *, stopped: bool = False) -> Iterator[None]:
    """Report the call made in this `with` block to all clocks; `stopped`: none of it is counted."""
    call = _Call(clocks)
    for clock in clocks:
        clock.start_call(call)
    if stopped:
        call.failed(time.monotonic())
    token = outages.set(call)
    try:
        yield
    finally:
        outages.reset(token)
        for clock in clocks:
            clock.end_call(call)


async def wait_in_time(
    futures: Iterable[asyncio.Future[Any]],
    clock: EpisodeClock,
    limit: float | None,
    alive: Callable[[], Awaitable[bool]],
) -> bool:
    """Wait until one of several futures is done, or until a clock reaches its limit.

    If the limit is reached while an engine call is outstanding, the engine is checked with `alive`; while it is
    unresponsive, the wait continues.

    Args:
        futures: The futures.
        clock: Measures the time.
        limit: Limit of the clock in seconds; None: no limit.
        alive: Returns whether the engine responds, and excludes the time of its silence from the clock.

    Returns:
        Whether a future was done in time.

    Raises:
        EngineUnreachableError: The engine was unresponsive for 15 minutes (`LONGEST_SILENCE`).
    """
    pending = set(futures)
    silent_since: float | None = None
    while True:
        left = None if limit is None else limit - clock.seconds
        if left is None or left > 0 or clock.stopped:
            timeout = None if left is None else max(left, _POLL_SECONDS if clock.stopped else 0.0)
            await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        elif clock.outstanding_since is None:
            return any(future.done() for future in pending)
        else:
            checked_at = time.monotonic()
            health_check = asyncio.ensure_future(alive())
            await asyncio.wait({health_check, *pending}, return_when=asyncio.FIRST_COMPLETED)
            if not health_check.done():
                health_check.cancel()
            elif health_check.result():
                silent_since = None
                if limit is not None and clock.seconds >= limit and not clock.stopped:
                    return any(future.done() for future in pending)
            else:
                silent_since = checked_at if silent_since is None else silent_since
                if time.monotonic() - silent_since > LONGEST_SILENCE:
                    raise _unreachable(time.monotonic() - silent_since)
                await asyncio.wait(pending, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if any(future.done() for future in pending):
            return True


def _unreachable(seconds: float) -> EngineUnreachableError:
    return EngineUnreachableError(
        f"the engine has not answered for {seconds:.0f} s, not even GET /health. If the server hangs, restart it "
        "and start the same run again to resume it",
        attempts=1,
    )


_WORKERS_KNOWN_SECONDS = 60.0  # seconds for which the reachable workers are known
_CHECK_SECONDS = 5.0  # seconds between two checks
_QUIET_SECONDS = 10.0  # seconds without an answer after which a health request is sent
_BUSY_ANSWER_SECONDS = 3.0  # seconds within which an engine that is only busy answers it
_SIGN_TIMEOUT = 10.0  # seconds to wait for its answer


_SignsOfLife = Callable[[float], Awaitable[Mapping[str, bool]]]


class EngineMonitor:
    """Watches the engine of one worker, on the worker's event loop."""

    def __init__(
        self,
        engine: TokenEngine | None,
        *,
        check_seconds: float = _CHECK_SECONDS,
        quiet_seconds: float = _QUIET_SECONDS,
        sign_timeout: float = _SIGN_TIMEOUT,
    ) -> None:
        """Set the engine to watch; nothing is started.

        Args:
            engine: The engine; one that is not a server (`Capability.CONTROL`), or None, counts as alive.
            check_seconds: Seconds between two checks.
            quiet_seconds: Seconds without an answer after which a health request is sent.
            sign_timeout: Seconds to wait for the answer to a health request.
        """
        self._signs_of_life: _SignsOfLife | None = None
        if engine is not None and is_server(engine):
            self._signs_of_life = engine.control.signs_of_life
        self._reachable: set[str] = set()
        self._check_seconds, self._quiet_seconds, self._sign_timeout = check_seconds, quiet_seconds, sign_timeout
        self._clocks: set[EpisodeClock] = set()
        self._last_sign = time.monotonic()
        self._asked_at = -math.inf
        self._checks: asyncio.Task[None] | None = None

    def answered(self) -> None:
        """Register an answer of the engine, which ends a silence."""
        self._last_sign = time.monotonic()

    @contextmanager
    def watching(self, clock: EpisodeClock) -> Iterator[None]:
        """Report silences to a clock while this `with` block runs; call it on the worker's event loop."""
        if self._signs_of_life is None:
            yield
            return
        self._clocks.add(clock)
        if self._checks is None or self._checks.get_loop() is not asyncio.get_running_loop():
            self._last_sign = time.monotonic()
            self._checks = asyncio.ensure_future(self._check())
        try:
            yield
        finally:
            self._clocks.discard(clock)
            if not self._clocks and self._checks is not None:
                self._checks.cancel()
                self._checks = None

    async def alive(self) -> bool:
        """Send the engine a health request; if the answer is late or missing, report the silence to the clocks.

        Returns:
            Whether the engine is alive.
        """
        if self._signs_of_life is None:
            return True
        # Answers arrive together with the sign that ends a silence, so read the last response before the request.
        began, last_sign = time.monotonic(), self._last_sign
        try:
            signs = await self._signs_of_life(self._sign_timeout)
        except Exception:
            signs = {}
        # A worker that never answered may not be reachable from this machine, so its silence is ignored.
        alive = bool(signs) and all(health_check or url not in self._reachable for url, health_check in signs.items())
        self._reachable |= {url for url, health_check in signs.items() if health_check}
        self._asked_at = began if signs else self._asked_at
        if not alive or time.monotonic() - began > _BUSY_ANSWER_SECONDS:  # a late sign ends a silence
            for clock in tuple(self._clocks):
                clock.exclude_silence(last_sign)
        if alive:
            self._last_sign = time.monotonic()
        return alive

    async def _check(self) -> None:
        """Check the engine from time to time, as long as there are clocks."""
        if time.monotonic() - self._asked_at >= _WORKERS_KNOWN_SECONDS:
            await self.alive()  # finds which workers can be reached
        while True:
            await asyncio.sleep(self._check_seconds)
            outstanding = any(clock.outstanding_since is not None for clock in tuple(self._clocks))
            if outstanding and time.monotonic() - self._last_sign >= self._quiet_seconds:
                await self.alive()
