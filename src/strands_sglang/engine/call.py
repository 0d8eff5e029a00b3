"""One call: attempts, retries and continuations until there is a whole turn.

Invariant: an attempt that ends without an answer is aborted on the engine; tokens of an attempt that was cut are
kept and gone on from, or discarded and counted.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import aiohttp
import orjson
from yarl import URL

from strands_sglang.engine import faults, response
from strands_sglang.engine.assembly import Assembly
from strands_sglang.engine.faults import TransientFault
from strands_sglang.engine.generation import FinishReason, Generation
from strands_sglang.engine.guard import CallGuard
from strands_sglang.engine.pool import LoopPool
from strands_sglang.engine.protocol import AbortPolicy, halting
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.engine.retry import Retries, RetryPolicy
from strands_sglang.engine.transport import MAX_BODY_BYTES, attempt_timeout, exchange
from strands_sglang.errors import (
    AttemptTimeoutError,
    CallCancelledError,
    ConfigurationError,
    EngineUnavailableError,
    MalformedResponseError,
    RequestRejectedError,
)

ROUTING_HEADER = "X-SMG-Routing-Key"
_UNBOUNDED = nullcontext()
_SHORTEST_LOOK = 0.5  # seconds to connect, when the time for a first contact is nearly over


class Call:
    """A call on its way.

    Args:
        pool: The running loop's connections.
        url: Where `/generate` is.
        request: What to send.
        routing_key: Keeps an episode on one worker; None: the call's own id, so that the router spreads calls.
        policy: When to try again.
        timeout: Seconds one attempt may take; None: no limit.
        on_abort: What to do when the engine cuts the turn.
    """

    __slots__ = (
        "_assembly",
        "_began",
        "_headers",
        "_on_abort",
        "_policy",
        "_pool",
        "_request",
        "_requests",
        "_retries",
        "_timeout",
        "_url",
    )

    def __init__(
        self,
        pool: LoopPool,
        url: URL,
        request: GenerateRequest,
        routing_key: str | None,
        policy: RetryPolicy,
        timeout: float | None,
        on_abort: AbortPolicy,
    ) -> None:
        self._pool = pool
        self._url = url
        self._request = request
        self._on_abort = on_abort
        if routing_key is not None:
            check_header(ROUTING_HEADER, routing_key)
        self._headers = {"Content-Type": "application/json", ROUTING_HEADER: routing_key or request.call_id}
        self._requests = 0
        self._policy = policy
        self._timeout = timeout
        self._began = 0.0 if pool.contact.answered else time.monotonic()
        # Made when something goes wrong: nearly all calls are one good request.
        self._assembly: Assembly | None = None
        self._retries: Retries | None = None

    @property
    def assembly(self) -> Assembly:
        """The parts of the turn so far."""
        if self._assembly is None:
            self._assembly = Assembly(self._request)
        return self._assembly

    @property
    def retries(self) -> Retries:
        """The failures so far."""
        if self._retries is None:
            self._retries = Retries(self._policy, self._url, self._pool.contact, self._began or None)
        return self._retries

    async def run(self) -> Generation:
        """Return the whole turn."""
        while True:
            since = time.monotonic()
            try:
                part = await self._attempt()
            except TransientFault as fault:
                await self.retries.after(fault, since)
                continue
            if self._whole(part):
                if self._retries is not None:
                    self._retries.progressed(since)
                return part if self._assembly is None else self._assembly.finish(part)
            if not self.assembly.interrupt(part):
                await self.retries.after(no_progress(part), since)
            elif self.assembly.spent:
                return self.assembly.finish_spent()
            else:
                self.retries.progressed(since)

    def _whole(self, part: Generation) -> bool:
        """Return whether the call ends with this part: the engine did not cut it, or the caller wants it as it is."""
        return part.finish_reason is not FinishReason.ABORT or self._on_abort is AbortPolicy.RETURN

    def _next(self) -> tuple[str, bytes]:
        """Return the request id and the body of the next attempt."""
        number = self._requests
        self._requests += 1
        return self._request.rid(number), self._request.body(number)

    async def _attempt(self) -> Generation:
        pool = self._pool
        rid, body = self._next()
        if not pool.slots.take():
            await pool.slots.wait()
        if (halted := halting.get()) is not None and halted():
            pool.slots.release()
            raise CallCancelledError("no request may begin any more: the episode is halted")
        pool.live.add(rid)
        try:
            with self._within(self._expiry()):
                content = await exchange(
                    pool, "POST", self._url, body, self._headers, self._limits(), most=MAX_BODY_BYTES
                )
        except AttemptTimeoutError as error:
            pool.abort(rid)
            raise TransientFault(error, in_flight=True) from error
        except TransientFault as fault:
            if fault.in_flight:
                pool.abort(rid)
            raise
        except RequestRejectedError:
            pool.contact.heard(served=False)
            raise
        except asyncio.CancelledError:
            pool.abort(rid)
            raise
        finally:
            pool.live.discard(rid)
            pool.slots.release()
        pool.contact.heard()
        try:
            return self._parsed(response.loads(content), rid)
        except orjson.JSONDecodeError as error:
            raise TransientFault(not_json(self._url, error)) from error

    def _limits(self) -> aiohttp.ClientTimeout | None:
        """Return the limits of an attempt to reach a server that never answered; None: those of the pool."""
        first, usual = self._policy.first_contact, self._pool.session.timeout.sock_connect
        if self._pool.contact.answered or first is None or usual is None:
            return None
        left = self._began + first - time.monotonic()
        return attempt_timeout(None, min(usual, max(left, _SHORTEST_LOOK)))

    def _expiry(self) -> float | None:
        """Return the loop time at which an attempt that begins now runs out of time; None: never."""
        return None if self._timeout is None else self._pool.loop.time() + self._timeout

    def _within(self, expires_at: float | None) -> AbstractContextManager[object]:
        """Return the guard of one attempt.

        The HTTP library's own total timeout is not used: in some versions it leaves the task marked as cancelled when
        the call's deadline passes at the same moment.
        """
        if expires_at is None:
            return _UNBOUNDED
        pool = self._pool
        return CallGuard(pool.loop, pool.watch, expires_at, self._timeout, None, AttemptTimeoutError)

    def _parsed(self, answer: Any, rid: str, *, partial: bool = False) -> Generation:
        """Check an answer; an abort that is really a refusal or a server fault is raised as such."""
        request = self._request
        try:
            return response.parse(
                answer,
                request.prompt_tokens,
                rid=rid,
                requests=self._requests,
                experts_start=request.experts_start,
                partial=partial,
            )
        except response.RefusedInside as refusal:
            raise faults.from_words(refusal.status, refusal.words, str(self._url)) from None


def check_header(name: str, value: Any) -> None:
    """Refuse what cannot be sent as a header. Its value is not shown: it may be a key."""
    if not isinstance(value, str) or not value.isprintable():
        raise ConfigurationError(
            f"the header {name} must be one line of text: is there a line break in it, or is it not a str?"
        )


def not_json(url: URL, error: Exception) -> MalformedResponseError:
    """Return the error for a body that is cut off or garbled."""
    return MalformedResponseError(f"{url} sent a body that is not JSON: {error}")


def no_progress(part: Generation | None) -> TransientFault:
    """Return the fault of an abort that left nothing to go on from: an engine that keeps doing this is failing."""
    words = None if part is None else part.finish_detail
    return TransientFault(EngineUnavailableError(f"the engine aborted the request: {words}", attempts=1))
