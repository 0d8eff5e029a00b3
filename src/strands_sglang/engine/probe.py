"""Server information, requested before anything depends on it: `Probe`.

Each request is sent once, within one time limit for all of them, and is not retried; only `Probe.reach` polls a server
that is still starting. Information that a server does not provide (an older server, one without a tokenizer, a router)
is reported as unknown and is not an error.

Invariant: apart from one id at the start of every vocabulary, only token ids that the server itself returned are sent:
an id outside the vocabulary can crash a server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, TypeGuard

import aiohttp
import orjson
from yarl import URL

from strands_sglang.engine import response
from strands_sglang.engine.connections import JSON_HEADERS, LoopPool, Pools, attempt_timeout, exchange, exchange_json
from strands_sglang.engine.control import EngineControl, WorkerDirectory, requests_in
from strands_sglang.engine.protocol import (
    AbortPolicy,
    CancelSignal,
    Capability,
    Generation,
    PromptImage,
    ScoringEngine,
    TokenEngine,
    TokenIds,
    can,
)
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.engine.response import TransientFault, from_message
from strands_sglang.engine.retry import never_answered
from strands_sglang.errors import (
    AttemptTimeoutError,
    ConfigurationError,
    ConnectionLostError,
    EngineBusyError,
    EngineError,
    EngineUnavailableError,
    EngineUnreachableError,
    MalformedResponseError,
    RequestRejectedError,
)

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2  # between two attempts to reach a server
_ROUTE_SECONDS = 1.5  # for one answer about the server
_REPORT_SECONDS = 5.0  # for a full report, which a busy server takes longer to give


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Information reported by a server; a field is None if it is not reported."""

    url: str
    known: bool = False
    model_path: str | None = None
    tokenizer_path: str | None = None
    context: int | None = None
    """Maximum tokens of prompt plus turn."""
    version: str | None = None
    dead: tuple[str, ...] = ()
    """Workers of a router that do not answer."""
    workers: int = 1
    deterministic: bool = False
    """Whether inference is deterministic, so that seeds have an effect."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one server reports about itself."""

    url: str
    healthy: bool
    alive: bool
    model: Mapping[str, Any]
    """/model_info; empty if it has none."""
    server: Mapping[str, Any]
    """/server_info; empty if it has none."""


class Probe:
    """Requests information from one server or router, within `seconds` for all requests together."""

    def __init__(self, base: URL, directory: WorkerDirectory, pools: Pools, *, keyed: bool, seconds: float) -> None:
        self._base, self._directory, self._pools, self._keyed = base, directory, pools, keyed
        self._url = str(base).rstrip("/")
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left; at least 0.1, so that one last request can be sent."""
        return max(self._until - time.monotonic(), 0.1)

    async def reach(self, patience: float) -> bool:
        """Return whether a server answers, polling it for `patience` seconds.

        False: it is busy, or it has answered this process before and this is an outage.
        """
        pool = await self._pools.open()
        until = time.monotonic() + patience
        while True:
            try:
                await self._get(pool, self._base / "workers", until - time.monotonic())
            except TransientFault as fault:
                if isinstance(fault.error, AttemptTimeoutError):
                    logger.warning(
                        "server=<%s> | accepts connections but does not answer: it is busy, or not an SGLang server",
                        self._url,
                    )
                    return False
                if pool.server_history.answered and isinstance(fault.error, ConnectionLostError):
                    return False
                if time.monotonic() + _POLL_SECONDS < until:
                    await asyncio.sleep(_POLL_SECONDS)
                    continue
                raise self._unreachable_error(fault) from fault.error
            except RequestRejectedError as error:
                if error.status in (401, 403):
                    problem = "does not accept the api_key" if self._keyed else "requires an API key"
                    raise ConfigurationError(
                        f"{self._url} {problem} ({error.status}): pass SGLangClient(base_url, api_key=...) with the "
                        "key that the server was started with (--api-key)"
                    ) from error
                if error.status is not None and error.status < 400:
                    raise
            except MalformedResponseError:
                pass
            pool.server_history.record_answer(served=False)
            return True

    def _unreachable_error(self, fault: TransientFault) -> EngineError:
        status = getattr(fault.error, "status", None)
        if status is not None:
            return EngineUnavailableError(
                f"{fault} | {self._url} is not an engine, or a router or proxy whose engine does not answer: check "
                "the router or proxy, and the engine's log",
                attempts=1,
                status=status,
            )
        return EngineUnreachableError(f"{fault} | {never_answered(self._url)}")

    async def facts(self) -> ServerFacts:
        """Return the information that the server reports about itself."""
        pool = await self._pools.open()
        workers = await self._directory.workers(pool)
        reports = await asyncio.gather(*(self._about(pool, URL(one.url)) for one in workers if one.healthy))
        alive = [url for url, about in reports if about is not None]
        dead = tuple(one.url for one in workers if one.url not in alive)
        if workers and not alive and [self._url] != [one.url for one in workers]:
            raise EngineUnavailableError(
                f"none of the {len(workers)} workers of the router {self._url} answers ({', '.join(dead)}): check "
                "their logs and restart them"
            )
        if not workers:
            raise EngineUnavailableError(
                f"the router {self._url} has no workers: start servers and pass their addresses to it (--worker-urls)"
            )
        url, about = next(one for one in reports if one[1] is not None) if alive else (self._url, {})
        if not about:
            self._refuse_openai()
            return ServerFacts(url, dead=dead if alive else (), workers=len(workers))
        listed, server = await asyncio.gather(
            self._first(pool, URL(url), "v1/models"), self._first(pool, URL(url), "server_info", "get_server_info")
        )
        models = listed.get("data")
        length = models[0].get("max_model_len") if isinstance(models, list) and models else server.get("context_length")
        return ServerFacts(
            url,
            known=True,
            model_path=_text(about.get("model_path")),
            tokenizer_path=_text(about.get("tokenizer_path")),
            context=length if isinstance(length, int) else None,
            version=_text(server.get("version")),
            dead=dead,
            workers=len(workers),
            deterministic=server.get("enable_deterministic_inference") is True,
        )

    async def reports(self) -> list[WorkerReport]:
        """Return what each worker reports about itself; those that do not answer are included."""
        pool = await self._pools.open()

        async def report(url: str, healthy: bool) -> WorkerReport:
            (_, model), server = await asyncio.gather(
                self._about(pool, URL(url)),
                self._first(pool, URL(url), "server_info", "get_server_info", seconds=_REPORT_SECONDS),
            )
            return WorkerReport(url, healthy, model is not None, model or {}, server)

        workers = await self._directory.workers(pool)
        return list(await asyncio.gather(*(report(worker.url, worker.healthy) for worker in workers)))

    async def clock_offset(self, worker: str) -> tuple[float, float] | None:
        """Return how many seconds the clock of a server is ahead of ours, and the uncertainty of that in seconds.

        The Date header of an answer has whole seconds. None: the server sends none.
        """
        pool = await self._pools.open()
        before = time.time()
        try:
            url = URL(worker) / "model_info"
            async with pool.session_for(url).get(
                url, allow_redirects=False, timeout=self._limits(_ROUTE_SECONDS)
            ) as response:
                sent = parsedate_to_datetime(response.headers["Date"]).timestamp()
        except (
            aiohttp.ClientError,
            asyncio.TimeoutError,
            OSError,
            ValueError,
            TypeError,
            KeyError,
            EngineError,
        ) as error:
            logger.debug("server=<%s>, error=<%s> | server sends no date", worker, pool.redactor.text(repr(error)))
            return None
        after = time.time()
        return sent + 0.5 - (before + after) / 2, 0.5 + (after - before) / 2

    def _refuse_openai(self) -> None:
        if self._base.path.rstrip("/").endswith("/v1"):
            raise ConfigurationError(
                f"base_url must not end in /v1, got {self._url}: /v1 is the OpenAI interface, but this package uses "
                f"SGLang's own /generate. Pass base_url={self._url[: -len('/v1')]!r}"
            )

    async def tokenize(self, worker: str, body: Mapping[str, Any]) -> Any:
        """Return the ids that the server's tokenizer produces for text or messages; None if it has none."""
        pool = await self._pools.open()
        try:
            answer = await exchange_json(pool, "POST", URL(worker) / "tokenize", body, self._limits(_ROUTE_SECONDS))
            tokens = answer.get("tokens")
        except (TransientFault, EngineError, AttributeError) as error:
            logger.debug("server=<%s>, error=<%s> | server does not provide tokenization", worker, error)
            return None
        return tokens if isinstance(tokens, list) else None

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any], extra: Mapping[str, Any] | None) -> None:
        """Sample one token in the same way as a run, without a time limit. If cancelled, abort it on the engine too."""
        pool = await self._pools.open()
        one = {**sampling, "max_new_tokens": 1, **({"min_new_tokens": 0} if "min_new_tokens" in sampling else {})}
        request = GenerateRequest(list(ids), one, extra=extra)
        url, rid = self._base / "generate", request.rid(0)
        try:
            raw = await exchange(pool, "POST", url, request.body(0), JSON_HEADERS)
            response.parse(response.loads(raw), request.prompt_tokens, rid=rid)
        except asyncio.CancelledError:
            pool.abort(rid)
            raise
        except TransientFault as fault:
            raise self._sample_error(fault.error, one) from fault.error
        except RequestRejectedError as error:
            self._refuse_openai()
            if error.status in (404, 405):
                raise ConfigurationError(
                    f"{error} | the server has no /generate: this package requires an SGLang server"
                ) from error
            raise ConfigurationError(f"{error} | one token was requested with sampling_params={one}") from error
        except response.RefusedInside as refusal:
            raise ConfigurationError(
                pool.redactor.text(f"{from_message(refusal.status, refusal.message, str(url))} | sampling_params={one}")
            ) from None
        except (MalformedResponseError, orjson.JSONDecodeError) as error:
            pool.redactor.error(error)
            raise MalformedResponseError(
                f"{url} does not answer like SGLang: {error} | is it SGLang 0.5 or newer? older versions do not return "
                "all that is needed for each token: pip install -U sglang"
            ) from error
        pool.server_history.record_answer()

    def _sample_error(self, error: EngineError, sampling: Mapping[str, Any]) -> EngineError:
        status = getattr(error, "status", None)
        advice = f"the server fails to sample one token with sampling_params={dict(sampling)}: check them, and its log"
        if isinstance(error, ConnectionLostError):
            advice = "the connection was lost while sampling one token: check whether the server crashed, and its log"
        elif status in (502, 504):
            advice = "no server at this address accepts requests: check the router's workers and their logs"
        elif status in (429, 503):
            return EngineBusyError(f"{error} | the server accepts no requests at the moment", attempts=1, status=status)
        return EngineUnavailableError(f"{error} | {advice}", attempts=1, status=status)

    async def idle(self, worker: str) -> bool:
        """Return whether a server reports that it has no running or waiting requests."""
        try:
            return requests_in(await self._first(await self._pools.open(), URL(worker), "v1/loads")) == 0
        except (KeyError, TypeError):
            return False

    async def _about(self, pool: LoopPool, worker: URL) -> tuple[str, dict[str, Any] | None]:
        """Model information is empty if the worker reports none, None if it does not answer."""
        url = str(worker).rstrip("/")
        try:
            return url, await self._first(pool, worker, "model_info", "get_model_info", alive=True)
        except TransientFault:
            return url, None

    async def _first(
        self, pool: LoopPool, worker: URL, *paths: str, alive: bool = False, seconds: float = 0.0
    ) -> dict[str, Any]:
        for path in paths:
            try:
                answer = await self._get(pool, worker / path, seconds)
            except TransientFault as fault:
                if alive and isinstance(fault.error, ConnectionLostError):
                    raise
                continue
            except EngineError:
                continue
            if isinstance(answer, dict):
                return answer
        return {}

    async def _get(self, pool: LoopPool, url: URL, seconds: float = 0.0) -> Any:
        return await exchange_json(pool, "GET", url, timeout=self._limits(max(seconds, _ROUTE_SECONDS)))

    def _limits(self, most: float) -> aiohttp.ClientTimeout:
        seconds = min(most, self.left)
        return attempt_timeout(seconds, 0.75 * seconds)  # so that a failure to connect differs from a missing answer


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


class ServerEngine(ScoringEngine, Protocol):
    """An engine with `Capability.CONTROL`: an SGLang server or router. It has all other capabilities too."""

    async def generate(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        routing_key: str | None = None,
        deadline: float | None = None,
        cancel_signal: CancelSignal | None = None,
        on_abort: AbortPolicy = AbortPolicy.CONTINUE,
        routed_experts_start: int | None = None,
        extra: Mapping[str, Any] | None = None,
        images: Sequence[PromptImage] = (),
        kept_sets: bool = False,
    ) -> Generation:
        """Sample a continuation of `input_ids`, as `TokenEngine.generate`; also with images and kept sets."""
        ...

    def at(self, base_url: str, **settings: Any) -> ServerEngine:
        """Return an engine at another address, such as one worker of a router, with the settings of this one."""
        ...

    @property
    def base_url(self) -> str:
        """Its address, without a trailing slash."""
        ...

    @property
    def first_contact(self) -> float | None:
        """Seconds a call waits for a server that never answered this process; None: as long as for any other."""
        ...

    @property
    def control(self) -> EngineControl:
        """Health, information, pausing and weight updates, on every worker."""
        ...

    def probe(self, seconds: float) -> Probe:
        """Return a `Probe` of the server that takes at most `seconds` in total."""
        ...

    def redacted(self, text: str) -> str:
        """Return a text with `***` in place of the API key and the values of other headers."""
        ...

    def check_sampling(self, sampling_params: Mapping[str, Any] | None) -> None:
        """Raise ConfigurationError for a sampling parameter that the server does not support."""
        ...

    def unreachable_seconds(self) -> float:
        """Return how long the server has left this process's requests unanswered; 0 if it answers."""
        ...

    async def close(self) -> None:
        """Close the running loop's connections."""
        ...


def is_server(engine: TokenEngine) -> TypeGuard[ServerEngine]:
    """Return whether an engine is an SGLang server or router (`Capability.CONTROL`)."""
    return can(engine, Capability.CONTROL)
