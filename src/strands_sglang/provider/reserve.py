"""Bounds that calls under way share: reserved before, settled after. `Reserve`, `Hold`.

Agents of one episode ask at the same time. What each of them may use is set aside before it asks and given back when
its turn is recorded, or has failed: by then what it did use is counted. Who comes when too little is free waits until
others have settled, first come first served, rather than be cut short for what they may not even use.

Invariant: what is used and what is held together never exceed the bound; nothing is held by a call that is over. From
any thread and event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from strands_sglang.errors import ConfigurationError

_STANDS_STILL = 10.0  # seconds


class Reserve:
    """What calls under way hold of one bound."""

    def __init__(self) -> None:
        self.held = 0
        """How much they hold."""
        self._lock = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        self._loops: Counter[asyncio.AbstractEventLoop] = Counter()

    async def take(self, wanted: int, left: Callable[[], int]) -> int:
        """Hold as much as is wanted, or all there is when nobody else holds anything; wait until that can be.

        Args:
            wanted: How much, above 0.
            left: Returns what is not used up, whatever is held: above 0, else it raises, and so does this.

        Returns:
            How much is held now: at least 1.

        Raises:
            ConfigurationError: Calls that hold what is left are part of an event loop that stands still, perhaps until
                this one is over: an agent was called in it as a plain function.
        """
        mine = _Waiting()
        with self._lock:
            self._queue.append(mine)
        try:
            while True:
                with self._lock:
                    unused = left()
                    if self._queue[0] is mine and (unused - self.held >= wanted or not self.held):
                        granted = min(wanted, unused - self.held)
                        self.held += granted
                        self._loops[mine.loop] += 1
                        return granted
                    heard, others = mine.listen(), set(self._loops) - {mine.loop}
                await _told(heard, others)
        finally:
            with self._lock:
                self._queue.remove(mine)
            self._wake()

    def give_back(self, amount: int, loop: asyncio.AbstractEventLoop) -> None:
        """Hold so much less, of what was taken in an event loop."""
        with self._lock:
            self.held -= amount
            self._loops[loop] -= 1
            self._loops = +self._loops
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            for waiting in self._queue:
                waiting.wake()


class Hold:
    """What one call holds, of any number of bounds."""

    def __init__(self, reserve: Reserve | None = None, left: Callable[[], int] | None = None) -> None:
        """Hold nothing yet.

        Args:
            reserve: Of the tokens that its episode may sample; None: any number.
            left: How many of them were not sampled yet; see `Reserve.take`.
        """
        self._tokens = None if reserve is None or left is None else (reserve, left)
        self._held: list[tuple[Reserve, int, asyncio.AbstractEventLoop]] = []

    async def tokens(self, wanted: int) -> int:
        """Hold tokens to sample; return how many may be."""
        return wanted if self._tokens is None else await self.take(self._tokens[0], wanted, self._tokens[1])

    async def take(self, reserve: Reserve, wanted: int, left: Callable[[], int]) -> int:
        """Hold something of a bound; see `Reserve.take`."""
        granted = await reserve.take(wanted, left)
        self._held.append((reserve, granted, asyncio.get_running_loop()))
        return granted

    def release(self) -> None:
        """Hold nothing any more."""
        while self._held:
            reserve, amount, loop = self._held.pop()
            reserve.give_back(amount, loop)

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Waiting:
    """Somebody who waits, in an event loop of their own."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._heard: asyncio.Future[None] | None = None

    def listen(self) -> asyncio.Future[None]:
        self._heard = self.loop.create_future()
        return self._heard

    def wake(self) -> None:
        if self._heard is not None:
            with suppress(RuntimeError):  # its loop is closed
                self.loop.call_soon_threadsafe(_tell, self._heard)


def _tell(heard: asyncio.Future[None]) -> None:
    if not heard.done():
        heard.set_result(None)


async def _told(heard: asyncio.Future[None], others: Iterable[asyncio.AbstractEventLoop]) -> None:
    """Wait to be told, as long as the event loops of the others go on."""
    while not heard.done():
        alive = []
        for loop in others:
            with suppress(RuntimeError):  # it is closed
                alive.append(threading.Event())
                loop.call_soon_threadsafe(alive[-1].set)
        await asyncio.wait({heard}, timeout=_STANDS_STILL)
        if not heard.done() and not all(
            one.is_set() or loop.is_closed() for one, loop in zip(alive, others, strict=True)
        ):
            raise ConfigurationError(
                "what is left of a bound is held by calls of an event loop that stands still: in async code, await "
                "agent.invoke_async(...) instead of calling agent(...)"
            )
