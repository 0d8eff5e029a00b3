"""Who stands behind the base URL: one server, or a router and its workers.

The router passes `/generate` on but answers 404 to aborts, pauses and weight updates: those go to each worker.

Invariant: asking never fails a call; without an answer the last one known holds, and without any the base itself.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import orjson
from yarl import URL

from strands_sglang.engine.faults import TransientFault
from strands_sglang.engine.pool import LoopPool
from strands_sglang.engine.transport import attempt_timeout, exchange
from strands_sglang.errors import EngineError, RequestRejectedError

logger = logging.getLogger(__name__)

_FRESH_SECONDS = 5.0
_ASK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Worker:
    """One SGLang server."""

    url: str
    """Its own base URL."""
    healthy: bool = True
    """What the router thinks of it; True for a server without a router."""


class Fleet:
    """The servers behind a base URL."""

    def __init__(self, base: URL) -> None:
        self._base = base
        self._alone = (Worker(str(base).rstrip("/")),)
        self._known: tuple[Worker, ...] | None = None
        self._known_at = float("-inf")
        self._silent = False

    async def workers(self, pool: LoopPool, *, fresh: bool = True) -> tuple[Worker, ...]:
        """Return the servers that take control calls.

        Args:
            pool: The running loop's connections.
            fresh: Ask again even if the answer is only seconds old.
        """
        now = pool.loop.time()
        if not fresh and self._known and now - self._known_at < _FRESH_SECONDS:
            return self._known
        try:
            self._known = await self._ask(pool)
            self._known_at, self._silent = now, False
        except (TransientFault, EngineError, orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            # Said once: the calls that fail meanwhile say the rest.
            level = logging.DEBUG if self._silent else logging.WARNING
            logger.log(level, "base_url=<%s>, error=<%s> | could not list the workers", self._base, error)
            self._silent = True
        return self._alone if self._known is None else self._known

    async def _ask(self, pool: LoopPool) -> tuple[Worker, ...]:
        try:
            answer = await _get(pool, self._base / "workers")
        except RequestRejectedError as error:
            if error.status not in (404, 405):
                raise
            return self._alone  # a server answers 404 here: it is its own fleet
        # The ranks of a data-parallel server are listed one by one; the server takes a control call once for all.
        listed = ((_plain(entry["url"]), bool(entry.get("is_healthy", True))) for entry in answer["workers"])
        return tuple(Worker(url, healthy) for url, healthy in dict(listed).items())


async def _get(pool: LoopPool, url: URL) -> Any:
    return orjson.loads(await exchange(pool, "GET", url, None, timeout=attempt_timeout(_ASK_SECONDS, _ASK_SECONDS)))


def _plain(url: str) -> str:
    """Drop the rank that a data-parallel router writes behind a worker's URL (`http://host:1@0`)."""
    head, at, rank = url.rpartition("@")
    return head if at and rank.isdigit() else url
