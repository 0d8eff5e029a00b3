"""Telling the engine that nobody waits for a request any more.

A call that is cancelled, runs out of time or loses its connection may still be decoding on the engine, taking
room from others. Closing the connection is not enough: the engine looks for that only every few seconds, and a
router in between may not pass it on. So the request is aborted by its id, at every worker that could have it.

Aborts never delay the caller. Those still unsent when the pool closes, and those of calls still under way, are sent
then, for as long as a second.
"""

from __future__ import annotations

import asyncio
import logging

import orjson
from yarl import URL

from strands_sglang.engine.faults import TransientFault
from strands_sglang.engine.fleet import Fleet
from strands_sglang.engine.pool import LoopPool
from strands_sglang.engine.transport import JSON_HEADERS, attempt_timeout, exchange
from strands_sglang.errors import EngineError

logger = logging.getLogger(__name__)

_SECONDS = 5.0
# The end of a batch can cancel thousands of calls at once; this many aborts at a time are sent.
_AT_ONCE = 64


class Aborter:
    """Sends aborts for one event loop."""

    def __init__(self, pool: LoopPool, fleet: Fleet) -> None:
        self._pool = pool
        self._fleet = fleet
        self._unsent: set[str] = set()
        self._room = asyncio.Semaphore(_AT_ONCE)
        pool.abort = self.abort
        pool.last_words = self._send_rest

    def abort(self, rid: str) -> None:
        """Abort a request, beside the caller."""
        self._unsent.add(rid)
        self._pool.spawn(self._send(rid))

    async def _send(self, rid: str) -> None:
        workers = await self._fleet.workers(self._pool, fresh=False)
        await asyncio.gather(*(self._send_to(URL(worker.url), rid) for worker in workers))
        self._unsent.discard(rid)

    async def _send_to(self, worker: URL, rid: str) -> None:
        body = orjson.dumps({"rid": rid})
        limits = attempt_timeout(_SECONDS, _SECONDS)
        try:
            # A place is held for one worker only, so that a worker that hangs does not hold up the others' aborts.
            async with self._room:
                await exchange(self._pool, "POST", worker / "abort_request", body, JSON_HEADERS, limits)
        except (TransientFault, EngineError) as error:
            logger.debug("rid=<%s>, worker=<%s>, error=<%s> | abort was not taken", rid, worker, error)

    async def _send_rest(self) -> None:
        await asyncio.gather(*(self._send(rid) for rid in self._unsent | self._pool.live))
