"""The time of an episode or of a tool call, without what the engine failed to answer in: `Clock`, `in_time`.

An engine that cannot be reached is waited for, and that wait is nobody's slowness: an episode that ended as "out of
time" because of it would be scored and trained on.

Invariant: seconds in which a call's attempts failed, or in which an engine that was asked did not even say that it is
alive, are not counted. Sampling that merely takes long is.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from strands_sglang.engine.protocol import outages
from strands_sglang.errors import EngineUnreachableError

_WAITS = 64  # of the last, for silences that are told of late
_LOOK = 0.25  # seconds between two looks at a clock that stands still
LONGEST_SILENCE = 900.0
"""Seconds that an engine which says nothing at all is waited for behind the end of the time."""


class Clock:
    """Counts seconds from now on, from any thread."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._failing: set[int] = set()
        self._asked: dict[int, float] = {}
        self._waited: deque[tuple[float, float]] = deque(maxlen=_WAITS)
        self._waits_since = 0.0
        self._stopped = 0.0
        self._given_back = 0.0
        self._given_until = self._began

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        now = time.monotonic()
        with self._lock:
            standing = now - self._stopped if self._failing else 0.0
            return now - self._began - self._given_back - standing

    @property
    def stands(self) -> bool:
        """Whether it stands still now: some call has failed, and is tried again."""
        return bool(self._failing)

    @property
    def asked_at(self) -> float | None:
        """When the oldest call that is under way was begun, by `time.monotonic`; None: none is."""
        with self._lock:
            return min(self._asked.values(), default=None)

    def ask(self, call: int) -> None:
        """Hear that the engine is asked."""
        with self._lock:
            if not self._asked:
                self._waits_since = time.monotonic()
            self._asked[call] = time.monotonic()

    def fail(self, call: int, since: float) -> None:
        """Hear that an attempt failed, which began at `since`: the clock stands still until one does not."""
        with self._lock:
            if not self._failing:
                self._stopped = max(since, self._given_until)
            self._failing.add(call)

    def answer(self, call: int, since: float) -> None:
        """Hear of an attempt that was answered, or is the last; what it took since its beginning counts."""
        with self._lock:
            if call in self._failing:
                self._failing.discard(call)
                if not self._failing:
                    self._give_back(self._stopped, since)

    def over(self, call: int) -> None:
        """Hear that a call is over, however it ended."""
        self.answer(call, time.monotonic())
        with self._lock:
            if self._asked.pop(call, None) is not None and not self._asked:
                self._waited.append((self._waits_since, time.monotonic()))

    def silent(self, since: float) -> None:
        """Hear that the engine gave no sign of life from a moment until now: waiting for it then is not counted."""
        now = time.monotonic()
        with self._lock:
            if self._failing:
                return  # it stands still anyway
            for begun, ended in (*self._waited, *(((self._waits_since, now),) if self._asked else ())):
                self._give_back(max(since, begun), ended)

    def _give_back(self, since: float, until: float) -> None:
        since = max(since, self._given_until)
        if until > since:
            self._given_back += until - since
            self._given_until = until


class _Call:
    """One engine call, as several clocks hear of it."""

    _numbers = itertools.count()

    def __init__(self, clocks: Iterable[Clock]) -> None:
        self._clocks, self._number = tuple(clocks), next(_Call._numbers)
        for clock in self._clocks:
            clock.ask(self._number)

    def failed(self, since: float) -> None:
        for clock in self._clocks:
            clock.fail(self._number, since)

    def answered(self, since: float) -> None:
        for clock in self._clocks:
            clock.answer(self._number, since)

    def over(self) -> None:
        for clock in self._clocks:
            clock.over(self._number)


@contextmanager
def counted(clocks: Iterable[Clock]) -> Iterator[None]:
    """Have clocks hear of the engine call that is made in this block."""
    call = _Call(clocks)
    token = outages.set(call)
    try:
        yield
    finally:
        outages.reset(token)
        call.over()


async def in_time(
    waited_for: Iterable[asyncio.Future[Any]],
    clock: Clock,
    limit: float | None,
    alive: Callable[[], Awaitable[bool]],
) -> bool:
    """Wait until one of several is done, no longer than a clock counts to its limit.

    When the time is over and the engine has not answered, it is asked whether it is alive; where it does not say so,
    the wait goes on until it does.

    Args:
        waited_for: What is waited for.
        clock: Counts.
        limit: Seconds; None: no limit.
        alive: Asks the engine for a sign of life, and gives the clock back the time of its silence.

    Returns:
        Whether something was done in time.

    Raises:
        EngineUnreachableError: The engine has said nothing for a quarter of an hour.
    """
    futures = set(waited_for)
    silent_since: float | None = None
    while True:
        left = None if limit is None else limit - clock.seconds
        if left is None or left > 0 or clock.stands:
            pause = None if left is None else max(left, _LOOK if clock.stands else 0.0)
            await asyncio.wait(futures, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        elif clock.asked_at is None:
            return any(future.done() for future in futures)
        else:
            asked_at = time.monotonic()
            sign = asyncio.ensure_future(alive())
            await asyncio.wait({sign, *futures}, return_when=asyncio.FIRST_COMPLETED)
            if not sign.done():
                sign.cancel()
            elif sign.result():
                silent_since = None
                if limit is not None and clock.seconds >= limit and not clock.stands:
                    return any(future.done() for future in futures)
            else:
                silent_since = asked_at if silent_since is None else silent_since
                if time.monotonic() - silent_since > LONGEST_SILENCE:
                    raise _unreachable(time.monotonic() - silent_since)
                await asyncio.wait(futures, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
        if any(future.done() for future in futures):
            return True


def _unreachable(seconds: float) -> EngineUnreachableError:
    return EngineUnreachableError(
        f"the engine has not answered for {seconds:.0f} s, not even to GET /health | does the server hang? restart it, "
        "and start the same run again: it goes on from here",
        attempts=1,
    )
