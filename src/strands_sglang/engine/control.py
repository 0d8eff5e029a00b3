"""Control calls that rollouts and trainers need: health, information, pausing, weight updates.

Through a router they go to every worker behind it. A worker that fails is data (`ControlResult.ok` is False, with
its words): a fleet that lost one worker must still be able to update the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson
from yarl import URL

from strands_sglang.engine.faults import TransientFault
from strands_sglang.engine.fleet import Fleet, Worker
from strands_sglang.engine.pool import LoopPool, Pools
from strands_sglang.engine.transport import JSON_HEADERS, attempt_timeout, exchange
from strands_sglang.errors import EngineError, EngineUnavailableError, MalformedResponseError, RequestRejectedError

_ASK_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_FLUSH_POLL_SECONDS = 0.1


class PauseMode(str, Enum):
    """What happens to requests under way when generation is paused."""

    ABORT = "abort"
    """They end with `abort` and their partial tokens; `AbortPolicy` decides what becomes of them."""
    RETRACT = "retract"
    """They go back to the queue and are computed again by the new weights when generation continues."""
    IN_PLACE = "in_place"
    """They stay where they are and go on with the old cache."""


@dataclass(frozen=True, slots=True)
class ControlResult:
    """What one worker said to a control call."""

    worker: str
    """Base URL of the worker."""
    ok: bool
    """Whether it did as told."""
    message: str
    """Its words; why not, if it did not."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server says about its model."""

    model_path: str
    """Folder or hub name of the weights."""
    weight_version: str | None
    """Version of the weights it now samples from; None when it does not say."""
    rest: Mapping[str, Any]
    """Everything else."""


class EngineControl:
    """Control calls, each to every worker behind the client's base URL."""

    def __init__(self, base: URL, fleet: Fleet, pools: Pools) -> None:
        self._base = base
        self._fleet = fleet
        self._pools = pools

    async def workers(self) -> tuple[Worker, ...]:
        """Return the servers behind the base URL: those of a router, or the server itself."""
        return await self._fleet.workers(await self._pools.open())

    async def health(self, timeout: float = 5.0) -> bool:
        """Return whether the server or router answers that it is healthy."""
        try:
            await self._get(await self._pools.open(), self._base / "health", timeout)
        except (TransientFault, EngineError):
            return False
        return True

    async def signs_of_life(self, timeout: float = 5.0) -> dict[str, bool]:
        """Return, for the server or router and each worker behind it, whether it answers at all, by its base URL.

        A router that answers says nothing of a worker that hangs. What knows no /health is alive, too.
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

        urls = {str(self._base).rstrip("/"), *(worker.url for worker in await self._fleet.workers(pool))}
        return dict(await asyncio.gather(*map(alive, urls)))

    async def model_info(self) -> ModelInfo:
        """Return what the server (or, through a router, one of its workers) says about its model."""
        pool = await self._pools.open()
        info = await self._first(pool, ("model_info", "get_model_info"))
        version = info.get("weight_version")
        return ModelInfo(
            model_path=str(info.get("model_path", "")),
            weight_version=None if version is None else str(version),
            rest={key: value for key, value in info.items() if key not in ("model_path", "weight_version")},
        )

    async def server_info(self) -> Mapping[str, Any]:
        """Return the launch settings and state of the server (or of one worker), as it tells them."""
        return await self._first(await self._pools.open(), ("server_info", "get_server_info"))

    async def answer_to(self, body: Mapping[str, Any]) -> Any:
        """Send one `/generate` request as it stands and return what is answered, unchecked: for reading prompts.

        Raises:
            EngineError: There is no answer, or it is not JSON.
        """
        pool = await self._pools.open()
        try:
            return orjson.loads(await exchange(pool, "POST", self._base / "generate", orjson.dumps(body), JSON_HEADERS))
        except TransientFault as fault:
            raise fault.error from fault
        except orjson.JSONDecodeError as error:
            raise MalformedResponseError(f"{self._base} sent a body that is not JSON: {error}") from error

    async def context_length(self) -> int | None:
        """Return the tokens that prompt and turn may have together; None when the server does not say."""
        listed = (await self._first(await self._pools.open(), ("v1/models",))).get("data")
        told = listed[0].get("max_model_len") if isinstance(listed, list) and listed else None
        return told if isinstance(told, int) else None

    async def running_requests(self) -> dict[str, int]:
        """Return, for each worker that answers, how many requests it is running or has waiting."""
        pool = await self._pools.open()

        async def ask(worker: Worker) -> tuple[str, int] | None:
            try:
                answer = orjson.loads(await self._get(pool, URL(worker.url) / "v1" / "loads", _ASK_SECONDS))
                return worker.url, sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in answer["loads"])
            except (TransientFault, EngineError, orjson.JSONDecodeError, KeyError, TypeError):
                return None

        answers = await asyncio.gather(*(ask(worker) for worker in await self._fleet.workers(pool)))
        return dict(answer for answer in answers if answer is not None)

    async def pause(self, mode: PauseMode = PauseMode.ABORT) -> tuple[ControlResult, ...]:
        """Stop sampling until `resume`. New requests wait in the meantime."""
        return await self._tell("pause_generation", {"mode": mode.value})

    async def resume(self) -> tuple[ControlResult, ...]:
        """Go on sampling after `pause` (SGLang's `continue_generation`)."""
        return await self._tell("continue_generation", {})

    async def flush_cache(self, timeout: float = 30.0) -> tuple[ControlResult, ...]:
        """Empty the prefix cache, trying again until each worker is idle enough or `timeout` seconds are over."""
        pool = await self._pools.open()
        return await self._flush(pool, await self._workers(pool), timeout)

    async def _flush(self, pool: LoopPool, workers: Iterable[Worker], timeout: float) -> tuple[ControlResult, ...]:
        until = pool.loop.time() + timeout

        async def flush(worker: Worker) -> ControlResult:
            while True:
                result = await self._tell_one(pool, worker, "flush_cache", {})
                if result.ok or pool.loop.time() >= until:
                    return result
                await asyncio.sleep(_FLUSH_POLL_SECONDS)

        return tuple(await asyncio.gather(*(flush(worker) for worker in workers)))

    async def update_weights_from_disk(
        self, path: str, *, version: str | None = None, flush_cache: bool = True
    ) -> tuple[ControlResult, ...]:
        """Load weights from a folder the workers can read. Pause first: see `swap_weights`.

        Args:
            path: Folder with the checkpoint.
            version: Name of the new weights; what `Generation.versions` will say.
            flush_cache: Empty the prefix cache, which the old weights computed.
        """
        return await self._tell("update_weights_from_disk", _update(path, version, flush_cache), timeout=None)

    async def swap_weights(
        self, path: str, *, version: str | None = None, mode: PauseMode = PauseMode.ABORT
    ) -> tuple[ControlResult, ...]:
        """Pause, load weights from disk, and go on: the whole update in its safe order.

        All workers pause before any is updated, so that no turn goes on with older weights than it began with. Requests
        kept in place hold on to the cache, so with `PauseMode.IN_PLACE` it is not flushed.

        Returns:
            What each worker said to the update; of a worker that would not pause, what it said to that. It is then
            left as it is.
        """
        pool = await self._pools.open()
        paused = await self.pause(mode)
        try:
            willing = [Worker(result.worker) for result in paused if result.ok]
            flush = mode is not PauseMode.IN_PLACE
            if flush:
                # A flush that comes right behind the last answer has been seen to crash a server: ask until it
                # is idle, then update.
                await self._flush(pool, willing, _ASK_SECONDS)
            body = _update(path, version, flush)
            told = [self._tell_one(pool, worker, "update_weights_from_disk", body, None) for worker in willing]
            updated = {result.worker: result for result in await asyncio.gather(*told)}
            return tuple(updated.get(result.worker, result) for result in paused)
        finally:
            await asyncio.shield(self.resume())

    async def abort_all(self) -> tuple[ControlResult, ...]:
        """End every request on every worker, everybody's; each returns its partial tokens with `abort`."""
        return await self._tell("abort_request", {"abort_all": True})

    async def _tell(
        self, path: str, body: Mapping[str, Any], timeout: float | None = _ASK_SECONDS
    ) -> tuple[ControlResult, ...]:
        pool = await self._pools.open()
        workers = await self._workers(pool)
        return tuple(await asyncio.gather(*(self._tell_one(pool, worker, path, body, timeout) for worker in workers)))

    async def _workers(self, pool: LoopPool) -> tuple[Worker, ...]:
        workers = await self._fleet.workers(pool)
        if not workers:
            raise EngineUnavailableError(f"{self._base} is a router without workers yet: there is nobody to tell")
        return workers

    async def _tell_one(
        self, pool: LoopPool, worker: Worker, path: str, body: Mapping[str, Any], timeout: float | None = _ASK_SECONDS
    ) -> ControlResult:
        limits = attempt_timeout(timeout, _CONNECT_SECONDS)
        try:
            answer = await exchange(pool, "POST", URL(worker.url) / path, orjson.dumps(body), JSON_HEADERS, limits)
        except (TransientFault, EngineError) as error:
            return ControlResult(worker.url, ok=False, message=str(error))
        return ControlResult(worker.url, ok=True, message=answer.decode("utf-8", "replace").strip())

    async def _first(self, pool: LoopPool, paths: tuple[str, ...]) -> dict[str, Any]:
        """Return the first JSON object any worker gives at any of `paths` (newer name first)."""
        last: Exception | None = None
        for worker in await self._fleet.workers(pool):
            for path in paths:
                try:
                    answer = orjson.loads(await self._get(pool, URL(worker.url) / path, _ASK_SECONDS))
                except TransientFault as fault:
                    last = fault.error
                    continue
                except (RequestRejectedError, orjson.JSONDecodeError) as error:
                    last = error
                    continue
                if isinstance(answer, dict):
                    return answer
        if isinstance(last, EngineError):
            raise last
        raise MalformedResponseError(f"no worker behind {self._base} told anything at /{paths[0]}") from last

    async def _get(self, pool: LoopPool, url: URL, timeout: float) -> bytes:
        return await exchange(pool, "GET", url, None, timeout=attempt_timeout(timeout, _CONNECT_SECONDS))


def _update(path: str, version: str | None, flush: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"model_path": path, "flush_cache": flush}
    return body if version is None else {**body, "weight_version": version}
