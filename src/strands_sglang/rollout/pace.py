"""Letting episodes go on one after the other: `Pace`.

Between two engine calls an agent computes for a millisecond or more. When thousands of answers come at once, the event
loop would work through all of them before it looks at anything else: timers, other answers, the trainer's own tasks.

Invariant: in one round of the event loop at most one episode is let go on; those that wait go in the order they came.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Pace:
    """Hands out turns on one event loop. Without anyone else waiting, a turn costs one round of the loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pump: asyncio.Task[None] | None = None

    async def turn(self) -> None:
        """Wait until it is this caller's turn to compute."""
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop  # the first is the one that episodes begin on
        if self._loop is not loop:
            return  # a sub-agent on a loop of its own, in a thread: that loop has nobody else to wait for
        mine = loop.create_future()
        self._waiting.append(mine)
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._hand_out())
        await mine

    async def _hand_out(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # else: cancelled while it waited
                first.set_result(None)
            await asyncio.sleep(0)
