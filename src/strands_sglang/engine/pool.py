"""Connections, one pool per running event loop.

An HTTP session belongs to the loop it was made in. Strands opens a new loop for every synchronous agent call, slime
runs rollouts on a loop of its own thread, and a forked child inherits a loop it must not touch. So a client owns no
session: it asks for the pool of the loop that is running now, and gets a new one where there is none.

Invariant: a pool is used only by the loop and the process that made it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any

import aiohttp

from strands_sglang.engine.contact import Contact
from strands_sglang.engine.guard import CancelWatch
from strands_sglang.engine.slots import Slots

logger = logging.getLogger(__name__)

# SGLang's HTTP server drops idle connections after 5 s. Dropping them a little sooner on our side avoids sending a
# request into a connection that is just being closed.
_KEEPALIVE_SECONDS = 4.0
_READ_BUFFER_BYTES = 2**20
_LAST_WORDS_SECONDS = 1.0


class LoopPool:
    """The HTTP session of one event loop, its slots, and the work left behind by finished calls."""

    def __init__(
        self,
        headers: Mapping[str, str],
        max_connections: int,
        limits: aiohttp.ClientTimeout,
        contact: Contact | None = None,
    ) -> None:
        self.contact = Contact("") if contact is None else contact
        """What is known about the server that calls go to."""
        self.loop = asyncio.get_running_loop()
        """The loop this pool belongs to."""
        self.pid = os.getpid()
        """The process this pool belongs to."""
        # The connector's own limit is off: it would count waiting for a free slot as connecting.
        self.slots = Slots(max_connections)
        """Free connections."""
        self.watch = CancelWatch(self.loop)
        """Looks at the cancel signals of this loop's calls."""
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
            timeout=limits,
            headers={"Accept-Encoding": "identity", **headers},
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER_BYTES,
            trust_env=False,
        )
        """The HTTP session."""
        self.live: set[str] = set()
        """Ids of the requests that are with the engine now."""
        self.closing = False
        """Whether the pool is closed or about to be: nothing more is sent through it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.abort: Callable[[str], None] = lambda rid: None
        """Aborts a request by its id without waiting; set by the `Aborter`."""
        self.last_words: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Awaited once before the pool closes; set by the `Aborter`, for aborts still to be sent."""
        self._keeper = self._keep()

    async def open(self) -> None:
        """Tie the pool to its loop, so that it is closed when the loop shuts down."""
        await self._keeper.__anext__()

    async def _keep(self) -> AsyncGenerator[None, None]:
        # asyncio closes the async generators of a loop before it closes the loop itself: the only hook there is
        # for a library to end its connections in time, with no word from the caller.
        try:
            yield
        finally:
            await self._shutdown()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside the calls; failures are its own business."""
        if self.closing:
            work.close()
            return
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Close the connections."""
        await self._keeper.aclose()

    async def _shutdown(self) -> None:
        try:
            for task in list(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.gather(*self._tasks, return_exceptions=True)
            if self.last_words is not None:
                await asyncio.wait_for(self.last_words(), timeout=_LAST_WORDS_SECONDS)
        except Exception as error:
            logger.debug("error=<%s> | last words of a pool were not heard", error)
        finally:
            self.closing = True
            await self.session.close()


class Pools:
    """The pools of one client.

    Args:
        make: Makes the pool of the running loop.
    """

    def __init__(self, make: Callable[[], LoopPool]) -> None:
        self._make = make
        self._pools: dict[int, LoopPool] = {}
        self._abandoned: list[LoopPool] = []

    def get(self, loop: asyncio.AbstractEventLoop) -> LoopPool | None:
        """Return the pool of the running loop; None when it has none yet."""
        pool = self._pools.get(id(loop))
        if pool is None or pool.loop is not loop or pool.pid != os.getpid() or pool.closing:
            return None
        return pool

    async def open(self) -> LoopPool:
        """Return the pool of the running loop, made if there is none."""
        loop = asyncio.get_running_loop()
        if (pool := self.get(loop)) is not None:
            return pool
        # No lock, here or below: single dict operations are atomic, each loop touches only its own entry, and a
        # lock held by another thread at the moment of a fork would never be released in the child.
        self._drop_dead()
        pool = self._pools[id(loop)] = self._make()
        await pool.open()
        return pool

    def _drop_dead(self) -> None:
        for key, pool in list(self._pools.items()):
            if pool.pid != os.getpid():
                # A parent's pool: its sockets are shared with the parent and its loop must not run here. Holding
                # on to it is what keeps it from being finalised, which would touch both.
                self._abandoned.append(pool)
            elif not pool.loop.is_closed():
                continue
            self._pools.pop(key, None)

    async def close(self) -> None:
        """Close the pool of the running loop. Pools of other loops close with their loops."""
        pool = self.get(asyncio.get_running_loop())
        if pool is not None:
            self._pools.pop(id(pool.loop), None)
            await pool.close()
