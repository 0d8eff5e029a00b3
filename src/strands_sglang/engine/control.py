"""Control calls (health, information, pausing, weight updates), and the workers that they are sent to.

The router forwards `/generate` but answers 404 to aborts, pauses and weight updates, so those are sent to each worker.
The failure of a worker is returned, not raised (`ControlResult.ok` is False): if one worker is lost, the others can
still be updated.

Invariant: listing never fails a call. If the router does not answer, or with a list that cannot be used, the last known
list is used; without such a list, the base URL itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import orjson
from yarl import URL

from strands_sglang.engine.adapters import AdapterLists, adapter_names, content_of
from strands_sglang.engine.connections import JSON_HEADERS, LoopPool, Pools, attempt_timeout, exchange, exchange_json
from strands_sglang.engine.response import TransientFault
from strands_sglang.engine.retry import Backoff, Retries, RetryPolicy
from strands_sglang.engine.worker_hosts import WorkerHosts, checked_address
from strands_sglang.errors import EngineError, EngineUnavailableError, MalformedResponseError, RequestRejectedError

logger = logging.getLogger(__name__)

_FRESH_SECONDS = 5.0
_WORKERS_SECONDS = 5.0
# A router that lists more is faulty: each control call is one request to every server.
_MOST_WORKERS = 4096
# The end of a batch can cancel thousands of calls at once; at most this many aborts are sent concurrently.
_CONCURRENT_ABORTS = 64


@dataclass(frozen=True, slots=True)
class Worker:
    """One SGLang server."""

    url: str
    healthy: bool = True
    regular: bool = True
    """Whether it takes whole calls: neither a prefill nor a decode server."""


class WorkerDirectory:
    """The servers at a base URL."""

    def __init__(self, base: URL, hosts: WorkerHosts) -> None:
        self._base = base
        self._hosts = hosts
        self._advised = ""
        self._base_only = (Worker(str(base).rstrip("/")),)
        self._known: tuple[Worker, ...] | None = None
        self._known_at = float("-inf")
        self._failing = False

    @property
    def known(self) -> bool:
        """Whether the servers were listed at least once; otherwise the base URL is assumed to be one."""
        return self._known is not None

    async def workers(self, pool: LoopPool, *, fresh: bool = True) -> tuple[Worker, ...]:
        """Return the servers that take control calls; unless `fresh`, a list that is only seconds old is used."""
        now = pool.loop.time()
        if not fresh and self._known and now - self._known_at < _FRESH_SECONDS:
            return self._known
        try:
            self._known = await self._list(pool)
            self._known_at, self._failing = now, False
            self._advise(self._known)
        except (TransientFault, EngineError, KeyError, TypeError, AttributeError) as error:
            # A warning once per outage is enough: the calls that fail meanwhile log the rest.
            level = logging.DEBUG if self._failing else logging.WARNING
            logger.log(level, "base_url=<%s>, error=<%s> | could not list the workers", self._base, error)
            self._failing = True
        return self._base_only if self._known is None else self._known

    async def _list(self, pool: LoopPool) -> tuple[Worker, ...]:
        try:
            limits = attempt_timeout(_WORKERS_SECONDS, _REQUEST_SECONDS)
            answer = await exchange_json(pool, "GET", self._base / "workers", timeout=limits)
        except RequestRejectedError as error:
            if error.status not in (404, 405):
                raise
            return self._base_only  # not a router
        # The ranks of a data-parallel server are listed one by one, but the server takes a control call once for all.
        listed = {checked_address(entry["url"]): entry for entry in answer["workers"]}
        if len(listed) > _MOST_WORKERS:
            raise MalformedResponseError(f"the router must list at most {_MOST_WORKERS} workers, got {len(listed)}")
        return tuple(
            Worker(url, bool(entry.get("is_healthy", True)), entry.get("worker_type", "regular") == "regular")
            for url, entry in listed.items()
        )

    def _advise(self, workers: Iterable[Worker]) -> None:
        """Log once if workers do not receive the headers of the client."""
        advice = self._hosts.advice(URL(worker.url) for worker in workers)
        if advice and not self._advised:
            logger.warning(
                "base_url=<%s> | the API key and headers are not sent to some of the router's workers; pass %s if they "
                "are yours",
                self._base,
                advice,
            )
        self._advised = self._advised or advice


class Aborter:
    """Aborts requests that no caller waits for any more, for one event loop.

    Closing the connection is not enough: the engine checks for that only every few seconds, and a router may not pass
    it on. So a request is aborted by its id, on every worker that could have it.

    Aborts never delay the caller. Those still unsent when the pool closes, and those of calls still in flight, are sent
    at that point, for at most a second.
    """

    def __init__(self, pool: LoopPool, directory: WorkerDirectory) -> None:
        self._pool = pool
        self._directory = directory
        self._unsent: set[str] = set()
        self._limit = asyncio.Semaphore(_CONCURRENT_ABORTS)
        pool.abort = self.abort
        pool.before_close = self._send_rest

    def abort(self, rid: str) -> None:
        """Abort a request in the background."""
        self._unsent.add(rid)
        self._pool.spawn(self._send(rid))

    async def _send(self, rid: str) -> None:
        workers = await self._directory.workers(self._pool, fresh=False)
        await asyncio.gather(*(self._send_to(URL(worker.url), rid) for worker in workers))
        self._unsent.discard(rid)

    async def _send_to(self, worker: URL, rid: str) -> None:
        body = orjson.dumps({"rid": rid})
        limits = attempt_timeout(_WORKERS_SECONDS, _REQUEST_SECONDS)
        try:
            # The semaphore is held per worker, so that a worker that hangs does not delay aborts on the others.
            async with self._limit:
                await exchange(self._pool, "POST", worker / "abort_request", body, JSON_HEADERS, limits)
        except (TransientFault, EngineError) as error:
            logger.debug("rid=<%s>, worker=<%s>, error=<%s> | abort failed", rid, worker, error)

    async def _send_rest(self) -> None:
        await asyncio.gather(*(self._send(rid) for rid in self._unsent | self._pool.in_flight))


_REQUEST_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_SESSION_SECONDS = 2.0  # an episode waits for it
_LIMITS = attempt_timeout(_REQUEST_SECONDS, _CONNECT_SECONDS)
_FLUSH_POLL_SECONDS = 0.1
_MODEL_INFO = ("model_info", "get_model_info")  # newer name first
_BACKOFF = Backoff(base=0.5, cap=15.0)


class PauseMode(str, Enum):
    """What happens to requests in flight when generation is paused."""

    ABORT = "abort"
    """They end with `abort` and their partial tokens; `AbortPolicy` decides whether they are continued."""
    RETRACT = "retract"
    """They return to the queue and are recomputed with the new weights when generation resumes."""
    IN_PLACE = "in_place"
    """They stay in place and continue with the old cache."""


@dataclass(frozen=True, slots=True)
class ControlResult:
    """The answer of one worker to a control call."""

    worker: str
    ok: bool
    message: str
    """The worker's answer, or why the call failed."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Model information reported by a server."""

    model_path: str
    weight_version: str | None
    """Version of the weights it samples from; None if it does not report it."""
    rest: Mapping[str, Any]


class EngineControl:
    """Control calls, each sent to every worker at the client's base URL."""

    def __init__(self, base: URL, directory: WorkerDirectory, pools: Pools) -> None:
        self._base = base
        self._directory = directory
        self._pools = pools

    async def workers(self) -> tuple[Worker, ...]:
        """Return the servers at the base URL: the workers of a router, or the server itself."""
        return await self._directory.workers(await self._pools.open())

    async def health(self, timeout: float = 5.0) -> bool:
        """Return whether the server or router reports that it is healthy."""
        try:
            await self._get(await self._pools.open(), self._base / "health", timeout)
        except (TransientFault, EngineError):
            return False
        return True

    async def signs_of_life(self, timeout: float = 5.0) -> dict[str, bool]:
        """Return whether the server or router, and each of its workers, answers at all; keyed by base URL.

        A router may answer while one of its workers hangs. A server without /health counts as alive.
        """
        pool = await self._pools.open()

        async def alive(url: str) -> tuple[str, bool]:
            try:
                await self._get(pool, URL(url) / "health", timeout)
            except RequestRejectedError:
                return url, True
            except (TransientFault, EngineError):
                return url, False
            return url, True

        urls = {str(self._base).rstrip("/"), *(worker.url for worker in await self._directory.workers(pool))}
        return dict(await asyncio.gather(*map(alive, urls)))

    async def model_info(self) -> ModelInfo:
        """Return what the server (with a router, one of its workers) reports about its model."""
        pool = await self._pools.open()
        info = await self._first(pool, _MODEL_INFO)
        return ModelInfo(
            model_path=str(info.get("model_path", "")),
            weight_version=_version_in(info),
            rest={key: value for key, value in info.items() if key not in ("model_path", "weight_version")},
        )

    async def weight_versions(self) -> dict[str, str | None]:
        """Return the weight version of each worker that answers; None if it does not report one."""
        pool = await self._pools.open()

        async def version_of(worker: Worker) -> tuple[str, str | None] | None:
            try:
                return worker.url, _version_in(await self._first(pool, _MODEL_INFO, [worker]))
            except EngineError:
                return None

        answers = await asyncio.gather(*(version_of(worker) for worker in await self._directory.workers(pool)))
        return dict(answer for answer in answers if answer is not None)

    async def server_info(self) -> Mapping[str, Any]:
        """Return the launch settings and state of the server (with a router, of one worker), as reported."""
        return await self._first(await self._pools.open(), ("server_info", "get_server_info"))

    async def answer_to(self, body: Mapping[str, Any], *, retries: int = 0) -> Any:
        """Send one `/generate` request without changes and return the decoded answer without checks."""
        return await self._answer(await self._pools.open(), self._base, body, retries)

    async def answer_of_worker(self, body: Mapping[str, Any]) -> Any:
        """Send one `/generate` request to one worker's own address, past a router that drops fields."""
        pool = await self._pools.open()
        workers = await self._workers(pool)
        worker = next((one for one in workers if one.healthy and one.regular), workers[0])
        return await self._answer(pool, URL(worker.url), body)

    async def _answer(self, pool: LoopPool, base: URL, body: Mapping[str, Any], retries: int = 0) -> Any:
        url, waiting = base / "generate", Retries(RetryPolicy(retries, _BACKOFF), str(base / "generate"))
        while True:
            try:
                return await exchange_json(pool, "POST", url, body)
            except TransientFault as fault:
                if not retries:
                    raise fault.error from fault
                await waiting.after(fault)

    async def context_length(self) -> int | None:
        """Return the maximum tokens of prompt plus turn; None if the server does not report it."""
        listed = (await self._first(await self._pools.open(), ("v1/models",))).get("data")
        length = listed[0].get("max_model_len") if isinstance(listed, list) and listed else None
        return length if isinstance(length, int) else None

    async def open_requests(self) -> dict[str, int]:
        """Return the number of running and waiting requests of each worker that answers."""
        pool = await self._pools.open()

        async def load_of(worker: Worker) -> tuple[str, int] | None:
            try:
                answer = await exchange_json(pool, "GET", URL(worker.url) / "v1" / "loads", timeout=_LIMITS)
                return worker.url, requests_in(answer)
            except (TransientFault, EngineError, KeyError, TypeError):
                return None

        answers = await asyncio.gather(*(load_of(worker) for worker in await self._directory.workers(pool)))
        return dict(answer for answer in answers if answer is not None)

    async def pause(self, mode: PauseMode = PauseMode.ABORT) -> tuple[ControlResult, ...]:
        """Pause sampling until `resume`. New requests wait meanwhile."""
        return await self._send("pause_generation", {"mode": mode.value})

    async def resume(self) -> tuple[ControlResult, ...]:
        """Resume sampling after `pause` (SGLang's `continue_generation`)."""
        return await self._send("continue_generation", {})

    async def flush_cache(self, timeout: float = 30.0) -> tuple[ControlResult, ...]:
        """Empty the prefix cache; a worker that is not idle is polled for up to `timeout` seconds."""
        pool = await self._pools.open()
        return await self._flush(pool, await self._workers(pool), timeout)

    async def _flush(self, pool: LoopPool, workers: Iterable[Worker], timeout: float) -> tuple[ControlResult, ...]:
        until = pool.loop.time() + timeout

        async def flush(worker: Worker) -> ControlResult:
            while True:
                result = await self._send_to(pool, worker, "flush_cache", {})
                if result.ok or pool.loop.time() >= until:
                    return result
                await asyncio.sleep(_FLUSH_POLL_SECONDS)

        return tuple(await asyncio.gather(*(flush(worker) for worker in workers)))

    async def update_weights_from_disk(
        self, path: str, *, version: str | None = None, flush_cache: bool = True
    ) -> tuple[ControlResult, ...]:
        """Load weights from a folder that the workers can read. Pause first, or use `swap_weights`.

        Args:
            path: Folder with the checkpoint.
            version: Name of the new weights, as it appears in `Generation.versions`.
            flush_cache: Whether to empty the prefix cache, which holds values of the old weights.
        """
        return await self._send("update_weights_from_disk", _update(path, version, flush_cache), timeout=None)

    async def swap_weights(
        self, path: str, *, version: str | None = None, mode: PauseMode = PauseMode.ABORT
    ) -> tuple[ControlResult, ...]:
        """Pause, load weights from disk, and resume: the whole update in a safe order.

        All workers are paused before any is updated, so that no turn continues with older weights than it started
        with. Requests paused in place use the cache, so with `PauseMode.IN_PLACE` it is not flushed.

        Returns:
            Each worker's answer to the update. A worker that could not be paused is not updated; its answer to the
            pause is returned instead.
        """
        pool = await self._pools.open()
        paused = await self.pause(mode)
        try:
            ready = [Worker(result.worker) for result in paused if result.ok]
            flush = mode is not PauseMode.IN_PLACE
            if flush:
                # A flush immediately after the last answer was seen to crash a server: poll until it is idle, then
                # update.
                await self._flush(pool, ready, _REQUEST_SECONDS)
            body = _update(path, version, flush)
            updates = [self._send_to(pool, worker, "update_weights_from_disk", body, None) for worker in ready]
            updated = {result.worker: result for result in await asyncio.gather(*updates)}
            return tuple(updated.get(result.worker, result) for result in paused)
        finally:
            await asyncio.shield(self.resume())

    async def adapters(self) -> AdapterLists:
        """Return the loaded LoRA adapters of each worker that answers."""
        pool = await self._pools.open()

        async def of(worker: Worker) -> tuple[str, dict[str, str]] | None:
            try:
                answer = await exchange_json(pool, "GET", URL(worker.url) / "v1" / "models", timeout=_LIMITS)
                models = [model for model in answer["data"] if model.get("parent") is not None]
                return worker.url, {str(model["id"]): str(model.get("root")) for model in models}
            except (TransientFault, EngineError, KeyError, TypeError, AttributeError) as error:
                logger.debug("worker=<%s>, error=<%s> | could not list its adapters", worker.url, error)
                return None

        lists = await asyncio.gather(*(of(worker) for worker in await self._directory.workers(pool) if worker.healthy))
        return dict(one for one in lists if one is not None)

    async def load_adapter(self, name: str, path: str) -> tuple[ControlResult, ...]:
        """Load a LoRA adapter on every worker.

        A worker that has it already, from this path, succeeds: a call that failed on some workers can be repeated.

        Args:
            name: Its name in requests, and in the versions on record: with the training step, and never used again.
            path: Folder with the adapter in PEFT's format, which the workers can read.

        Raises:
            ConfigurationError: The name was used before, or the files of this adapter have changed since.
        """
        names, content = adapter_names(self._base), await asyncio.to_thread(content_of, path)
        names.check_new(name, path, content)
        results = await self._send("load_lora_adapter", {"lora_name": name, "lora_path": path}, timeout=None)
        if not all(result.ok for result in results):
            lists = await self.adapters()
            results = tuple(
                replace(one, ok=True) if lists.get(one.worker, {}).get(name) == path else one for one in results
            )
        if any(result.ok for result in results):
            names.loaded(name, path, content)
        return results

    async def unload_adapter(self, name: str) -> tuple[ControlResult, ...]:
        """Unload a LoRA adapter on every worker, once its running requests have ended; no more are sent for it."""
        adapter_names(self._base).retire(name)
        return await self._send("unload_lora_adapter", {"lora_name": name}, timeout=None)

    async def close_session(self, session: str, used: Iterable[URL]) -> None:
        """Close a session of the prefix cache at the addresses it was used at; one that does not answer is left out.

        Behind an address that is no worker's, such as a router's, every worker may have it. A worker that does not
        know it accepts that.
        """
        pool = await self._pools.open()
        workers = {worker.url for worker in await self._directory.workers(pool, fresh=False)}
        servers = {str(url).rstrip("/") for url in used}
        if not servers <= workers:
            servers = workers | (servers - {str(self._base).rstrip("/")})
        body = {"session_id": session}
        closing = (self._send_to(pool, Worker(url), "close_session", body, _SESSION_SECONDS) for url in servers)
        for result in await asyncio.gather(*closing):
            if not result.ok:
                logger.debug("session=<%s>, worker=<%s> | not closed: %s", session, result.worker, result.message)

    async def abort(self, rid: str) -> tuple[ControlResult, ...]:
        """Abort the requests on all workers whose id starts with `rid`; each returns its partial tokens."""
        return await self._send("abort_request", {"rid": rid})

    async def abort_all(self) -> tuple[ControlResult, ...]:
        """Abort all requests on all workers, including those of other clients; each returns its partial tokens."""
        return await self._send("abort_request", {"abort_all": True})

    async def _send(
        self, path: str, body: Mapping[str, Any], timeout: float | None = _REQUEST_SECONDS
    ) -> tuple[ControlResult, ...]:
        pool = await self._pools.open()
        workers = await self._workers(pool)
        return tuple(await asyncio.gather(*(self._send_to(pool, worker, path, body, timeout) for worker in workers)))

    async def _workers(self, pool: LoopPool) -> tuple[Worker, ...]:
        workers = await self._directory.workers(pool)
        if not workers:
            raise EngineUnavailableError(
                f"the router {self._base} must have at least one worker, got none: wait until they have registered"
            )
        return workers

    async def _send_to(
        self,
        pool: LoopPool,
        worker: Worker,
        path: str,
        body: Mapping[str, Any],
        timeout: float | None = _REQUEST_SECONDS,
    ) -> ControlResult:
        limits = attempt_timeout(timeout, _CONNECT_SECONDS)
        try:
            answer = await exchange(pool, "POST", URL(worker.url) / path, orjson.dumps(body), JSON_HEADERS, limits)
        except (TransientFault, EngineError) as error:
            return ControlResult(worker.url, ok=False, message=str(error))
        message = pool.redactor.text(answer.decode("utf-8", "replace").strip())
        return ControlResult(worker.url, ok=True, message=message)

    async def _first(
        self, pool: LoopPool, paths: tuple[str, ...], workers: Sequence[Worker] | None = None
    ) -> dict[str, Any]:
        """Return the first JSON object that one of the workers (None: any) returns at any of `paths`, newer first."""
        last: Exception | None = None
        for worker in workers or await self._directory.workers(pool):
            for path in paths:
                try:
                    answer = await exchange_json(pool, "GET", URL(worker.url) / path, timeout=_LIMITS)
                except TransientFault as fault:
                    last = fault.error
                    continue
                except (RequestRejectedError, MalformedResponseError) as error:
                    last = error
                    continue
                if isinstance(answer, dict):
                    return answer
        if isinstance(last, EngineError):
            raise last
        raise MalformedResponseError(f"no worker at {self._base} returned a JSON object at /{paths[0]}") from last

    async def _get(self, pool: LoopPool, url: URL, timeout: float) -> bytes:
        return await exchange(pool, "GET", url, None, timeout=attempt_timeout(timeout, _CONNECT_SECONDS))


def _version_in(info: Mapping[str, Any]) -> str | None:
    version = info.get("weight_version")
    return None if version is None else str(version)


def requests_in(loads: Any) -> int:
    """Return the number of running and waiting requests in an answer of `/v1/loads`."""
    return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads["loads"])


def _update(path: str, version: str | None, flush: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"model_path": path, "flush_cache": flush}
    return body if version is None else {**body, "weight_version": version}
