"""Python's garbage collector while many agents run.

Left alone, it looks through all live objects again and again, and holds up everything for as long as there are agents:
seconds, with ten thousand. It finds next to nothing: agents end by being let go of.

Invariant: young objects are looked at all the time, in short strokes; all of them rarely. How the collector was set
before comes back with the last run that ends.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG_SECONDS = 0.05  # between two looks at what is new
_FIRST_SECONDS = 300.0  # before the first look at everything
_SHARE = 200  # one that took t seconds is followed by none for 200 t: half a percent of the time

_lock = threading.Lock()
_runs = 0
_was_on = False


@contextmanager
def calm_collector() -> Iterator[None]:
    """Take the collector over from Python, unless it is off already. Belongs to a running event loop."""
    global _runs, _was_on
    with _lock:
        _runs += 1
        if _runs == 1:
            _was_on = gc.isenabled()
            gc.disable()
        timer = _Timer(asyncio.get_running_loop()) if _was_on else None
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        with _lock:
            _runs -= 1
            if _runs == 0 and _was_on:
                gc.enable()


class _Timer:
    """Collects now and then on an event loop, until it is cancelled."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._everything_at = time.monotonic() + _FIRST_SECONDS
        self._handle = loop.call_later(_YOUNG_SECONDS, self._collect)

    def cancel(self) -> None:
        """Collect no more."""
        self._handle.cancel()

    def _collect(self) -> None:
        gc.collect(0)  # what survives is not looked at again before everything is
        now = time.monotonic()
        if now >= self._everything_at:
            gc.collect()
            took = time.monotonic() - now
            self._everything_at = time.monotonic() + max(_FIRST_SECONDS, _SHARE * took)
        self._handle = self._loop.call_later(_YOUNG_SECONDS, self._collect)
