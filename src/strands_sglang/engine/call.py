"""One call (`Call`): attempts, retries and continuations until the turn is complete.

`WorkerPin` chooses the worker of a call if the router would drop what the call asks for: sglang-router 0.3.2 forwards
only the fields it knows, and drops the requests for computed ids, kept sets and routed experts. Such a call is sent to
a worker itself, the same one for the same routing key while it is healthy, if the worker's host is the user's.

Invariants: an attempt that ends without an answer is aborted on the engine. Calls that need nothing special, and calls
to a server or to a router that forwards everything, are never redirected; only workers that the router lists are used.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import aiohttp
import orjson
from yarl import URL

from strands_sglang.engine import response
from strands_sglang.engine.adapters import spans_with
from strands_sglang.engine.cancellation import CancelScope
from strands_sglang.engine.connections import (
    MAX_BODY_BYTES,
    LoopPool,
    attempt_timeout,
    exchange,
    exchange_json,
    not_json,
)
from strands_sglang.engine.continuation import Continuation, NextStep, is_interrupted, no_progress
from strands_sglang.engine.control import Worker, WorkerDirectory
from strands_sglang.engine.kept_sets import loads_with_sets, with_sets
from strands_sglang.engine.protocol import AbortPolicy, FinishReason, Generation, pause_requested
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.engine.response import TransientFault
from strands_sglang.engine.retry import RetryPolicy, ServerRetries
from strands_sglang.engine.worker_hosts import WorkerHosts
from strands_sglang.errors import (
    AttemptTimeoutError,
    CallCancelledError,
    ConfigurationError,
    EngineError,
    RequestRejectedError,
)

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

    def __init__(self, base: URL, directory: WorkerDirectory, hosts: WorkerHosts) -> None:
        self._base, self._directory, self._hosts = base, directory, hosts
        self._generate = base / "generate"
        self._drops: bool | None = None
        self._warned = False
        self._probes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[bool | None]] = (
            weakref.WeakKeyDictionary()
        )

    async def url(self, pool: LoopPool, key: str, *, needed: bool, again: bool) -> URL:
        """Return the address to send a call to.

        Args:
            pool: Connections of this event loop.
            key: Routing key of the call.
            needed: Whether its answer is of no use without the fields that a router may drop.
            again: Whether to list the workers once more, because one may be gone.

        Raises:
            RequestRejectedError: The call must go to a worker, and none is on a host of the user.
        """
        if self._drops is None:
            self._drops = await self._probe_once(pool)
        if not self._drops:
            return self._generate
        workers = await self._directory.workers(pool, fresh=again)
        ours = [worker for worker in workers if self._hosts.owns(URL(worker.url))]
        if len(ours) < len(workers):
            self._tell(workers, left=len(ours), needed=needed)
        healthy = [worker for worker in ours if worker.healthy] or ours
        if not healthy:
            return self._generate
        return URL(max(healthy, key=lambda worker: _rank(key, worker)).url) / "generate"

    def _tell(self, workers: Sequence[Worker], *, left: int, needed: bool) -> None:
        """Log once that some workers receive no prompts; raise if `needed` and none does."""
        option = self._hosts.option(url for worker in workers if not self._hosts.owns(url := URL(worker.url)))
        if needed and not left:
            raise RequestRejectedError(
                f"the router {self._base} drops what the call asks for (kept sets, routed experts, or the ids computed "
                f"for images), and no prompts are sent to its workers, whose hosts are not listed | if they are yours, "
                f"pass {option}"
            )
        if not self._warned:
            self._warned = True
            logger.warning(
                "base_url=<%s>, workers=<%d>, listed=<%d> | the router drops fields of some calls, and no prompts are "
                "sent to workers whose hosts are not listed: these calls go to the listed ones, or, if there are none, "
                "go through the router without a session of the prefix cache; pass %s if the others are yours",
                self._base,
                len(workers),
                left,
                option,
            )

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


ROUTING_HEADER = "X-SMG-Routing-Key"
_NO_LIMIT = nullcontext()
_MIN_CONNECT_SECONDS = 0.5  # of an attempt that starts when the time is nearly over


class Call:
    """A call in progress.

    Without a `routing_key` the call's own id is used, so that the router spreads calls. `timeout` is in seconds for
    one attempt. `pin` chooses the address of each attempt; None: always `url`. The addresses are added to `used`.
    """

    def __init__(
        self,
        pool: LoopPool,
        url: URL,
        request: GenerateRequest,
        routing_key: str | None,
        policy: RetryPolicy,
        timeout: float | None,
        on_abort: AbortPolicy,
        pin: WorkerPin | None = None,
        used: set[URL] | None = None,
    ) -> None:
        self._pool = pool
        self._pin = pin
        self._used = used
        self._url = url
        self._request = request
        self._on_abort = on_abort
        if routing_key is not None:
            check_header(ROUTING_HEADER, routing_key)
        self._headers = {"Content-Type": "application/json", ROUTING_HEADER: routing_key or request.call_id}
        self._requests = 0
        self._requests_counted = 0
        self._policy = policy
        self._timeout = timeout
        self._began = 0.0 if pool.server_history.answered else time.monotonic()
        # Created when something goes wrong: nearly every call is one successful request.
        self._continuation: Continuation | None = None
        self._retries: ServerRetries | None = None

    @property
    def retries(self) -> ServerRetries:
        """The failures so far."""
        if self._retries is None:
            self._retries = ServerRetries(self._policy, self._url, self._pool.server_history, self._began or None)
        return self._retries

    async def run(self) -> Generation:
        """Return the complete turn."""
        while True:
            since = time.monotonic()
            try:
                part = await self._attempt()
            except TransientFault as fault:
                await self.retries.after(fault, since)
                continue
            outcome = self._advance(part, since)
            if isinstance(outcome, Generation):
                return outcome
            if outcome is not None:
                await self.retries.after(outcome, since)

    def _advance(
        self, part: Generation, since: float | None = None, fault: TransientFault | None = None, *, ended: bool = True
    ) -> Generation | TransientFault | None:
        """Take the part of the turn that an attempt returned; `ended` is False if its stream broke.

        Returns the complete turn, the fault to wait for before the next attempt, or None to send that at once.
        """
        interrupted = not ended or is_interrupted(part, self._on_abort)
        if self._continuation is None:
            if not interrupted:
                if self._retries is not None:
                    self._retries.progressed(since)
                return part
            request = self._request
            self._continuation = Continuation(
                request.sampling, request.extra, on_abort=self._on_abort, kept_sets=request.kept_sets
            )
        step = self._continuation.add(part, interrupted=interrupted)
        self._requests_counted = self._requests
        if step is NextStep.RESTART:
            self._before_restart(part, fault)
        if step is NextStep.RESTART or step is NextStep.NO_PROGRESS:
            return fault or no_progress(part)
        if self._retries is not None:
            self._retries.progressed(since)
        if step is NextStep.CONTINUE:
            self._request.extend(part.token_ids, self._continuation.experts_end)
            return fault
        return self._continuation.turn()

    def _before_restart(self, part: Generation, fault: TransientFault | None) -> None:
        """Called before a turn whose sampled tokens were discarded starts over."""

    def _next(self) -> tuple[str, bytes]:
        number = self._requests
        self._requests += 1
        return self._request.rid(number), self._request.body(number)

    async def _choose_worker(self) -> None:
        if self._pin is not None:
            key, again = self._headers[ROUTING_HEADER], self._requests > 0
            self._url = await self._pin.url(self._pool, key, needed=self._request.needs_more, again=again)
        if self._used is not None:
            self._used.add(self._url.parent)

    async def _attempt(self) -> Generation:
        pool = self._pool
        await self._choose_worker()
        rid, body = self._next()
        if not pool.slots.take():
            await pool.slots.wait()
        if (paused := pause_requested.get()) is not None and paused():
            pool.slots.release()
            raise CallCancelledError("the request was not sent: its episode is paused")
        pool.in_flight.add(rid)
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
            pool.server_history.record_answer(served=False)
            raise
        except asyncio.CancelledError:
            pool.abort(rid)
            raise
        finally:
            pool.in_flight.discard(rid)
            pool.slots.release()
        pool.server_history.record_answer()
        try:
            return await self._decoded(content, rid)
        except orjson.JSONDecodeError as error:
            raise TransientFault(not_json(self._url, error)) from error

    async def _decoded(self, content: bytes, rid: str) -> Generation:
        if not self._request.kept_sets:
            return self._parsed(response.loads(content), rid)
        answer, sets = loads_with_sets(content)
        return await with_sets(self._parsed(answer, rid), [] if sets is None else [sets])

    def _limits(self) -> aiohttp.ClientTimeout | None:
        """Limits of an attempt for which little time is left; None for those of the pool."""
        usual = self._pool.session.timeout.sock_connect
        if usual is None or (self._retries is None and self._pool.server_history.answered):
            return None
        left = self.retries.seconds_left
        return None if left is None else attempt_timeout(None, min(usual, max(left, _MIN_CONNECT_SECONDS)))

    def _expiry(self) -> float | None:
        """Return the loop time at which an attempt that starts now times out."""
        return None if self._timeout is None else self._pool.loop.time() + self._timeout

    def _within(self, expires_at: float | None) -> AbstractContextManager[object]:
        """Return the time limit of one attempt.

        The HTTP library's total timeout is not used: some versions leave the task marked as cancelled if the call's
        deadline passes at the same moment.
        """
        if expires_at is None:
            return _NO_LIMIT
        pool = self._pool
        return CancelScope(pool.loop, pool.cancel_poller, expires_at, self._timeout, None, AttemptTimeoutError)

    def _parsed(self, answer: Any, rid: str, *, partial: bool = False, ended: bool = True) -> Generation:
        """Check an answer; raise the error for an abort that is a refusal or a server fault."""
        request, redactor = self._request, self._pool.redactor
        try:
            part = response.parse(
                answer,
                request.prompt_tokens,
                rid=rid,
                requests=self._requests - self._requests_counted,
                experts_start=request.experts_start,
                partial=partial,
                computed_ids=request.computed_ids if ended else None,
                counts_images="image_data" not in (request.extra or ()),
            )
        except response.RefusedInside as refusal:
            raise redactor.error(response.from_message(refusal.status, refusal.message, str(self._url))) from None
        except EngineError as error:
            redactor.error(error)
            raise
        if request.adapter is not None:
            part = replace(part, adapter=request.adapter, versions=spans_with(part.versions, request.adapter))
        detail = part.finish_detail
        if isinstance(detail, str) and part.finish_reason is not FinishReason.STOP:  # then it is the engine's own words
            return replace(part, finish_detail=redactor.text(detail))
        return part


def check_header(name: str, value: Any) -> None:
    """Raise ConfigurationError for a value that cannot be sent as a header; it may be a key and is not shown."""
    if not isinstance(value, str) or not value.isprintable():
        raise ConfigurationError(
            f"the header {name} must be one line of text, got a {type(value).__name__}: remove line breaks, and convert"
            " it to str if it is not one"
        )
