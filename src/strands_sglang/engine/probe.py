"""Asking a server who it is, before anything depends on it: `Probe`.

Everything is asked once, within one time for all of it, and nothing is retried behind it. What a server does not answer
(an older one, one without a tokenizer of its own, a router) is not known, and is no error.

Invariant: no token id is sent that the server has not shown to be in its vocabulary, but for one at its very beginning:
an id outside the vocabulary can take a server down.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from yarl import URL

from strands_sglang.engine import response
from strands_sglang.engine.faults import TransientFault, from_words
from strands_sglang.engine.fleet import Fleet
from strands_sglang.engine.pool import LoopPool, Pools
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.engine.retry import never_answered
from strands_sglang.engine.transport import JSON_HEADERS, attempt_timeout, exchange
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

_LOOK = 0.2  # seconds between two attempts to reach a server
_ROUTE_SECONDS = 1.5
"""Seconds for one answer about the server; a token may take whatever is left."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says about itself; None: it does not say."""

    url: str
    """The server itself, behind a router one of its workers."""
    known: bool = False
    """Whether it says anything about its model."""
    model_path: str | None = None
    """Folder or hub name of its weights."""
    tokenizer_path: str | None = None
    """Folder or hub name of its tokenizer."""
    context: int | None = None
    """Tokens that prompt and turn may have together."""
    version: str | None = None
    """Version of SGLang."""
    dead: tuple[str, ...] = ()
    """Workers of a router that do not answer."""
    workers: int = 1
    """Workers in all."""


class Probe:
    """Asks one server or router, for so many seconds in all.

    Args:
        base: Its address.
        fleet: The workers behind it.
        pools: The client's connections.
        keyed: Whether a key is sent.
        seconds: For everything together.
    """

    def __init__(self, base: URL, fleet: Fleet, pools: Pools, *, keyed: bool, seconds: float) -> None:
        self._base, self._fleet, self._pools, self._keyed = base, fleet, pools, keyed
        self._url = str(base).rstrip("/")
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; never nothing, so that a last question can be asked."""
        return max(self._until - time.monotonic(), 0.1)

    async def reach(self, patience: float) -> bool:
        """See that there is a server.

        Args:
            patience: Seconds for which one that does not answer is asked again.

        Returns:
            Whether it answers. False: it is busy; or it has answered this process before, and this is an outage.

        Raises:
            EngineUnreachableError: Nothing answers there.
            EngineUnavailableError: What answers there is no engine, or has none behind it.
            ConfigurationError: It wants a key, or another one.
        """
        pool = await self._pools.open()
        until = time.monotonic() + patience
        while True:
            try:
                await self._get(pool, self._base / "workers", until - time.monotonic())
            except TransientFault as fault:
                if isinstance(fault.error, AttemptTimeoutError):
                    logger.warning(
                        "server=<%s> | takes connections and says nothing: is it busy, or no SGLang?", self._url
                    )
                    return False
                if pool.contact.answered and isinstance(fault.error, ConnectionLostError):
                    return False
                if time.monotonic() + _LOOK < until:
                    await asyncio.sleep(_LOOK)
                    continue
                raise self._unreached(fault) from fault.error
            except RequestRejectedError as error:
                if error.status in (401, 403):
                    given = "does not take the api_key that was given" if self._keyed else "wants a key"
                    raise ConfigurationError(
                        f"{self._url} {given} ({error.status}): SGLangClient(base_url, api_key=...), with the key that "
                        "the server was started with (--api-key)"
                    ) from error
                if error.status is not None and error.status < 400:
                    raise
            except MalformedResponseError:
                pass
            pool.contact.heard(served=False)
            return True

    def _unreached(self, fault: TransientFault) -> EngineError:
        status = getattr(fault.error, "status", None)
        if status is not None:
            return EngineUnavailableError(
                f"{fault} | what answers at {self._url} is no engine, or has none behind it: look at the router or "
                "proxy there, and at the log of the server behind it",
                attempts=1,
                status=status,
            )
        return EngineUnreachableError(f"{fault} | {never_answered(self._url)}")

    async def facts(self) -> ServerFacts:
        """Return what the server says about itself.

        Raises:
            ConfigurationError: It is no SGLang server.
            EngineUnavailableError: It is a router without a worker that works.
        """
        pool = await self._pools.open()
        workers = await self._fleet.workers(pool)
        asked = await asyncio.gather(*(self._about(pool, URL(one.url)) for one in workers if one.healthy))
        alive = [url for url, about in asked if about is not None]
        dead = tuple(one.url for one in workers if one.url not in alive)
        if workers and not alive and [self._url] != [one.url for one in workers]:
            raise EngineUnavailableError(
                f"none of the {len(workers)} workers behind the router {self._url} answers ({', '.join(dead)}): start "
                "them again, and look at their logs"
            )
        if not workers:
            raise EngineUnavailableError(
                f"the router {self._url} has no workers: start servers, and name them to it (--worker-urls)"
            )
        url, about = next(one for one in asked if one[1] is not None) if alive else (self._url, {})
        if not about:
            self._refuse_openai()
            return ServerFacts(url, dead=dead if alive else (), workers=len(workers))
        listed, server = await asyncio.gather(
            self._asked(pool, URL(url), "v1/models"), self._asked(pool, URL(url), "server_info", "get_server_info")
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
        )

    def _refuse_openai(self) -> None:
        if self._base.path.rstrip("/").endswith("/v1"):
            raise ConfigurationError(
                f"{self._url} ends in /v1, which is where the OpenAI interface is: tokens are asked for at SGLang's "
                f"own /generate. base_url is {self._url[: -len('/v1')]}"
            )

    async def tokenize(self, worker: str, body: Mapping[str, Any]) -> Any:
        """Return the ids that the server makes of a text, of each of several, or of messages; None: it does not say."""
        pool = await self._pools.open()
        try:
            raw = await exchange(
                pool, "POST", URL(worker) / "tokenize", orjson.dumps(body), JSON_HEADERS, self._limits(_ROUTE_SECONDS)
            )
            tokens = orjson.loads(raw).get("tokens")
        except (TransientFault, EngineError, orjson.JSONDecodeError, AttributeError) as error:
            logger.debug("server=<%s>, error=<%s> | does not tokenize for others", worker, error)
            return None
        return tokens if isinstance(tokens, list) else None

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any], extra: Mapping[str, Any] | None) -> None:
        """Sample one token, the way that a run will, however long it takes. Cancelled, it ends on the engine too.

        Raises:
            ConfigurationError: The server does not take these parameters.
            EngineBusyError: It has too much to do.
            EngineError: It fails.
        """
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
            raise self._failed(fault.error, one) from fault.error
        except RequestRejectedError as error:
            self._refuse_openai()
            if error.status in (404, 405):
                raise ConfigurationError(
                    f"{error} | it has no /generate: this package speaks to SGLang alone"
                ) from error
            raise ConfigurationError(f"{error} | it was asked for one token, with sampling_params={one}") from error
        except response.RefusedInside as refusal:
            raise ConfigurationError(
                str(from_words(refusal.status, refusal.words, str(url))) + f" | sampling_params={one}"
            ) from None
        except (MalformedResponseError, orjson.JSONDecodeError) as error:
            raise MalformedResponseError(
                f"{url} answers, but not as SGLang does: {error} | is it SGLang 0.5 or newer? an older one does not "
                "say what is needed of every token: pip install -U sglang"
            ) from error
        pool.contact.heard()

    def _failed(self, error: EngineError, sampling: Mapping[str, Any]) -> EngineError:
        status = getattr(error, "status", None)
        advice = f"the server fails at one token with sampling_params={dict(sampling)}: look at them, and at its log"
        if isinstance(error, ConnectionLostError):
            advice = "the server was lost over one token: has it just died? look at its log"
        elif status in (502, 504):
            advice = "no server behind this address takes requests: look at the router's workers, and at their logs"
        elif status in (429, 503):
            return EngineBusyError(f"{error} | no server takes requests now", attempts=1, status=status)
        return EngineUnavailableError(f"{error} | {advice}", attempts=1, status=status)

    async def idle(self, worker: str) -> bool:
        """Return whether a server says that it has nothing to do."""
        loads = (await self._asked(await self._pools.open(), URL(worker), "v1/loads")).get("loads")
        try:
            return isinstance(loads, list) and not sum(
                one["num_running_reqs"] + one["num_waiting_reqs"] for one in loads
            )
        except (KeyError, TypeError):
            return False

    async def _about(self, pool: LoopPool, worker: URL) -> tuple[str, dict[str, Any] | None]:
        """Return what a worker says about its model; empty: nothing; None: it does not answer."""
        url = str(worker).rstrip("/")
        try:
            return url, await self._asked(pool, worker, "model_info", "get_model_info", alive=True)
        except TransientFault:
            return url, None

    async def _asked(self, pool: LoopPool, worker: URL, *paths: str, alive: bool = False) -> dict[str, Any]:
        """Return the first JSON object at any of these paths; empty: there is none."""
        for path in paths:
            try:
                answer = await self._get(pool, worker / path)
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
        limits = self._limits(max(seconds, _ROUTE_SECONDS))
        try:
            return orjson.loads(await exchange(pool, "GET", url, None, timeout=limits))
        except orjson.JSONDecodeError as error:
            raise MalformedResponseError(f"{url} sent a body that is not JSON: {error}") from error

    def _limits(self, most: float) -> aiohttp.ClientTimeout:
        seconds = min(most, self.left)
        return attempt_timeout(seconds, 0.75 * seconds)  # nobody there, and nobody who answers, are told apart


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
