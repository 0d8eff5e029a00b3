"""One call: attempts, retries and continuations until there is a whole turn.

Invariant: an attempt that ends without an answer is aborted on the engine; tokens of an attempt that was cut are
kept and gone on from, or discarded and counted.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson
from yarl import URL

from strands_sglang.engine import faults, response
from strands_sglang.engine.assembly import Assembly
from strands_sglang.engine.faults import TransientFault
from strands_sglang.engine.generation import FinishReason, Generation
from strands_sglang.engine.pool import LoopPool
from strands_sglang.engine.protocol import AbortPolicy
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.engine.response import Leg
from strands_sglang.engine.retry import Retries, RetryPolicy
from strands_sglang.engine.transport import exchange
from strands_sglang.errors import EngineUnavailableError, MalformedResponseError

ROUTING_HEADER = "X-SMG-Routing-Key"


class Call:
    """A call on its way.

    Args:
        pool: The running loop's connections.
        url: Where `/generate` is.
        request: What to send.
        routing_key: Keeps an episode on one worker; None: the call's own id, so that the router spreads calls.
        limits: Time limits of one attempt.
        policy: When to try again.
        on_abort: What to do when the engine cuts the turn.
    """

    __slots__ = ("_assembly", "_headers", "_limits", "_on_abort", "_pool", "_request", "_retries", "_url")

    def __init__(
        self,
        pool: LoopPool,
        url: URL,
        request: GenerateRequest,
        routing_key: str | None,
        limits: aiohttp.ClientTimeout,
        policy: RetryPolicy,
        on_abort: AbortPolicy,
    ) -> None:
        self._pool = pool
        self._url = url
        self._request = request
        self._limits = limits
        self._on_abort = on_abort
        self._headers = {"Content-Type": "application/json", ROUTING_HEADER: routing_key or request.call_id}
        self._assembly = Assembly(request)
        self._retries = Retries(policy, url)

    async def run(self) -> Generation:
        """Return the whole turn."""
        assembly = self._assembly
        while True:
            rid, body = self._next_attempt()
            try:
                leg = await self._attempt(rid, body)
            except TransientFault as fault:
                await self._retries.after(fault)
                continue
            if leg.finish_reason is not FinishReason.ABORT or self._on_abort is AbortPolicy.RETURN:
                return assembly.finish(leg, rid)
            if not assembly.interrupt(leg):
                await self._retries.after(no_progress(leg))
            elif assembly.spent:
                return assembly.finish_spent(leg, rid)
            else:
                self._retries.progressed()

    def _next_attempt(self) -> tuple[str, bytes]:
        number = self._assembly.requests
        self._assembly.requests += 1
        return self._request.rid(number), self._request.body(number)

    async def _attempt(self, rid: str, body: bytes) -> Leg:
        async with self._pool.slots:
            try:
                content = await exchange(self._pool, "POST", self._url, body, self._headers, self._limits)
            except TransientFault as fault:
                if fault.in_flight:
                    self._pool.abort(rid)
                raise
            except asyncio.CancelledError:
                self._pool.abort(rid)
                raise
        try:
            answer = response.loads(content)
        except orjson.JSONDecodeError as error:
            raise TransientFault(not_json(self._url, error)) from error
        leg = checked(answer, self._request.prompt_tokens, self._url)
        if leg.finish_reason is None:
            raise MalformedResponseError("the answer has no finish_reason: it cannot be told whether the turn is whole")
        return leg


def checked(answer: Any, prompt_tokens: int, url: URL) -> Leg:
    """Check an answer; an abort that is really a refusal or a server fault is raised as such."""
    leg = response.parse(answer, prompt_tokens)
    if leg.abort_status is not None:
        raise faults.from_words(leg.abort_status, str(leg.finish_detail), str(url))
    return leg


def not_json(url: URL, error: Exception) -> MalformedResponseError:
    """Return the error for a body that is cut off or garbled."""
    return MalformedResponseError(f"{url} sent a body that is not JSON: {error}")


def no_progress(leg: Leg | None) -> TransientFault:
    """Return the fault of an abort that left nothing to go on from: an engine that keeps doing this is failing."""
    words = None if leg is None else leg.finish_detail
    return TransientFault(EngineUnavailableError(f"the engine aborted the request: {words}", attempts=1))
