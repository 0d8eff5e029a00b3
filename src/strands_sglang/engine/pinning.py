"""Which worker a call is sent to, if the router would drop what the call asks for: `WorkerPin`.

sglang-router 0.3.2 forwards only the fields it knows: it drops the requests for computed ids, kept sets and routed
experts. Such a call is sent to a worker itself, the same one for the same routing key while it is healthy.

Invariant: calls that need nothing special, and calls to a server or to a router that forwards everything, are never
redirected. Only workers that the router lists are used.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import weakref

from yarl import URL

from strands_sglang.engine.connections import LoopPool, attempt_timeout, exchange_json
from strands_sglang.engine.control import Worker, WorkerDirectory
from strands_sglang.engine.response import TransientFault
from strands_sglang.errors import EngineError

logger = logging.getLogger(__name__)

_PROBE_SECONDS = 30.0
_PROBE = {
    "input_ids": [1],
    "sampling_params": {"max_new_tokens": 1, "temperature": 0},
    "return_prompt_token_ids": True,
    "stream": False,
}


class WorkerPin:
    """Chooses the address of calls that a router might not forward completely."""

    def __init__(self, base: URL, directory: WorkerDirectory) -> None:
        self._base, self._directory = base, directory
        self._generate = base / "generate"
        self._drops: bool | None = None
        self._probes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[bool | None]] = (
            weakref.WeakKeyDictionary()
        )

    async def url(self, pool: LoopPool, key: str, *, again: bool) -> URL:
        """Return the address to send a call to; `again` requests the workers anew, because one may be gone."""
        if self._drops is None:
            self._drops = await self._probe_once(pool)
        if not self._drops:
            return self._generate
        workers = await self._directory.workers(pool, fresh=again)
        healthy = [worker for worker in workers if worker.healthy] or list(workers)
        if not healthy:
            return self._generate
        return URL(max(healthy, key=lambda worker: _rank(key, worker)).url) / "generate"

    async def _probe_once(self, pool: LoopPool) -> bool | None:
        running = self._probes.get(pool.loop)
        if running is None or running.done():
            running = self._probes[pool.loop] = asyncio.ensure_future(self._probe(pool))
        return await asyncio.shield(running)

    async def _probe(self, pool: LoopPool) -> bool | None:
        """Return whether there is a router that drops fields; None if that is unknown now."""
        workers = await self._directory.workers(pool)
        if not self._directory.known or not workers:
            return None
        if [worker.url for worker in workers] == [str(self._base).rstrip("/")]:
            return False  # a server
        if not all(worker.regular for worker in workers):
            return False  # prefill and decode servers take no calls of their own
        limits = attempt_timeout(_PROBE_SECONDS, _PROBE_SECONDS)
        try:
            answer = await exchange_json(pool, "POST", self._generate, _PROBE, limits)
        except (TransientFault, EngineError) as error:
            logger.debug("base_url=<%s>, error=<%s> | router could not be probed", self._base, error)
            return None
        drops = not isinstance(answer, dict) or answer.get("prompt_token_ids") != _PROBE["input_ids"]
        if drops:
            logger.info(
                "base_url=<%s>, workers=<%d> | router drops fields of the request (sglang-router 0.3.2 does): calls "
                "that need them are sent to the workers themselves, an episode to one worker",
                self._base,
                len(workers),
            )
        return drops


def _rank(key: str, worker: Worker) -> bytes:
    """Rendezvous hashing: the highest number wins, whichever workers there are."""
    return hashlib.blake2b(f"{key}\0{worker.url}".encode(), digest_size=8).digest()
