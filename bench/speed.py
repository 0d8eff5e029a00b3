"""How much slower this machine is while it is busy: `Speed` times a fixed loop during a measurement.

Two virtual cores are often two threads of one real core: while the other one works, everything takes up to twice the
CPU time. A measurement therefore runs a short loop again and again, and divides its CPU time by how much longer the
loop took than when it was fastest.
"""

from __future__ import annotations

import asyncio
import time

_BEST = [float("inf")]  # the fastest loop of this process, in seconds


def _loop() -> float:
    """Run the loop and return its CPU seconds."""
    began = time.thread_time()
    table: dict[int, str] = {}
    for number in range(4000):
        table[number % 997] = str(number)
    took = time.thread_time() - began
    _BEST[0] = min(_BEST[0], took)
    return took


class Speed:
    """The speed of this machine during a measurement."""

    def __init__(self) -> None:
        if _BEST[0] == float("inf"):
            end = time.monotonic() + 3
            while time.monotonic() < end:  # long enough to find a moment in which nothing else runs
                _loop()
        self.used = 0.0
        """CPU seconds that the loops took, to be subtracted from the measurement."""
        self._took, self._count = 0.0, 0

    def sample(self) -> None:
        """Run the loop twice and time the second one: the first brings it back into the caches of the core."""
        self.used += _loop()
        took = _loop()
        self.used += took
        self._took += took
        self._count += 1

    async def watch(self, interval: float = 0.1) -> None:
        """Run the loop every `interval` seconds, until cancelled."""
        while True:
            await asyncio.sleep(interval)
            self.sample()

    @property
    def slowdown(self) -> float:
        """How many times slower than its best the machine was; 1.0 if nothing was sampled."""
        return self._took / self._count / _BEST[0] if self._count else 1.0
