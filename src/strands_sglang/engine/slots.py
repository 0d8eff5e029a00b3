"""Free connections of a pool.

Taking a free one costs nothing and waits for nothing; only when all are taken does a call queue up, and they are then
handed on in order. (`asyncio.Semaphore` would do, at the price of two coroutines a request even when all are free.)

Invariant: taken plus free is always the count it was made with; a waiter that is cancelled loses no slot.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """A number of slots, each held by at most one request."""

    __slots__ = ("_free", "_waiters")

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a slot if one is free; return whether it was."""
        if self._free:
            self._free -= 1
            return True
        return False

    async def wait(self) -> None:
        """Wait until a slot is handed over."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()  # it was handed over at the very moment we were cancelled
            raise

    def release(self) -> None:
        """Give a slot back: to whoever waits longest, else to the free ones."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1
