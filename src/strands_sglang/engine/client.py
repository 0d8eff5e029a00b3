"""`SGLangClient`: the token engine for SGLang's native `/generate`.

The client retries by itself: the errors it raises are final, and the agent loop does not retry them. A call returns a
complete `Generation` or raises a typed error, within its deadline; a call that ends early is aborted on the engine too.

Invariant: sampled tokens are returned once, counted as discarded, or were never received.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any, TypeVar

from yarl import URL

from strands_sglang._checks import check_int, check_number
from strands_sglang._slime_args import settings_from_slime_args
from strands_sglang.engine.adapters import FRESH_SECONDS, FRESH_SECONDS_ELSEWHERE, adapter_names, check_name
from strands_sglang.engine.call import Call, WorkerPin, check_header
from strands_sglang.engine.cancellation import CancelScope
from strands_sglang.engine.connections import LoopPool, Pools, attempt_timeout
from strands_sglang.engine.control import Aborter, EngineControl, WorkerDirectory
from strands_sglang.engine.prefill import prefill
from strands_sglang.engine.probe import Probe
from strands_sglang.engine.protocol import (
    AbortPolicy,
    CancelSignal,
    Capability,
    Generation,
    GenerationChunk,
    Prefill,
    PromptImage,
    TokenIds,
)
from strands_sglang.engine.redaction import Redactor
from strands_sglang.engine.request import KNOWN, GenerateRequest, check_sampling_names, request_fields
from strands_sglang.engine.retry import MAX_RETRIES, PATIENCE, Backoff, RetryPolicy, server_history
from strands_sglang.engine.streaming import StreamingCall
from strands_sglang.engine.worker_hosts import WorkerHosts
from strands_sglang.errors import ConfigurationError, EngineError

C = TypeVar("C", bound=Call)


class SGLangClient:
    """Client of an SGLang server or router: takes token ids, returns sampled ids and logprobs.

    One client serves any number of event loops and threads, before and after a fork, and can be pickled. It opens
    connections on first use; they close with the event loop that uses them, or with `close()`.

    Example:
        ```python
        async with SGLangClient("http://localhost:30000") as client:
            turn = await client.generate([1, 5, 7], {"max_new_tokens": 16})
            print(list(turn.token_ids), list(turn.logprobs), turn.versions)
        ```
    """

    capabilities = frozenset(Capability) - {Capability.SESSIONS}

    def __init__(
        self,
        base_url: str = "http://localhost:30000",
        *,
        max_connections: int = 1000,
        timeout: float | None = None,
        max_retries: int | None = None,
        retry_delay: float = 1.0,
        max_retry_delay: float = 30.0,
        deadline: float | None = None,
        connect_timeout: float = 10.0,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        first_contact: float | None = 4.0,
        sampling_names: Collection[str] = (),
        worker_hosts: Collection[str] | None = None,
        session_cache: bool = False,
    ) -> None:
        """Create the client; nothing is sent yet.

        Args:
            base_url: Address of the server or router; may include a path. A user and a password in it are sent as a
                header and never shown.
            max_connections: Maximum concurrent requests per event loop; further calls wait.
            timeout: Seconds one attempt may take, not counting the wait for a free connection; None: no limit.
            max_retries: Failures in a row that are followed by another attempt. None: 60 (about 15 minutes); but a call
                outside a run fails within a minute, because a person may be waiting for it.
            retry_delay: Ceiling of the delay before the first retry, in seconds; it doubles with each failure.
            max_retry_delay: Ceiling of every delay, in seconds; only a server's Retry-After can exceed it.
            deadline: Seconds a whole call may take, including all waits and retries; None: no limit.
            connect_timeout: Seconds for establishing one connection.
            api_key: Sent as a bearer token.
            first_contact: Seconds a call waits for a server that has never answered this process, because the address
                may be wrong; None: until `max_retries`.
            sampling_names: Sampling parameters that this server supports in addition to SGLang's; others are refused.
            worker_hosts: Hosts (or patterns like "10.0.0.*") of the router's workers, besides the host of `base_url`.
                Workers there receive prompts, the API key and headers, and nothing is sent to others. None: workers on
                other hosts receive control requests without the API key and headers.
            session_cache: Whether every episode is a session of the engine's prefix cache, which then drops the prompts
                of finished episodes before those of running ones. The server needs `--enable-session-radix-cache`.
        """
        self._settings = {key: value for key, value in locals().items() if key != "self"}
        check_int("max_connections", max_connections, optional=False)
        check_int("max_retries", max_retries, minimum=0)
        check_number("connect_timeout", connect_timeout)
        for name in ("timeout", "deadline", "first_contact"):
            check_number(name, self._settings[name])
        for name in ("retry_delay", "max_retry_delay"):
            check_number(name, self._settings[name], above=None, minimum=0, optional=False)
        self._url, credentials = _checked_url(base_url)
        self._generate_url = self._url / "generate"
        self._timeout = timeout
        self._limits = attempt_timeout(None, connect_timeout)
        backoff = Backoff(retry_delay, max(retry_delay, max_retry_delay))
        retries, patience = (MAX_RETRIES, PATIENCE) if max_retries is None else (max_retries, None)
        self._policy = RetryPolicy(retries, backoff, first_contact, patience)
        if session_cache:
            self.capabilities = frozenset(Capability)
        self._sessions: dict[str, set[URL]] = {}
        """The open sessions, each with the addresses that its requests were sent to."""
        self._adapters = adapter_names(self._url)
        self._adapter_seconds = FRESH_SECONDS
        self._server_history = server_history(self._url)
        self._deadline = deadline
        self._headers = dict(headers or {})
        if credentials and (api_key is not None or "authorization" in map(str.lower, self._headers)):
            raise ConfigurationError(
                "base_url must not contain a user if an api_key or Authorization header is given: pass only one of them"
            )
        if api_key is not None or credentials:
            self._headers["Authorization"] = credentials or f"Bearer {api_key}"
        for name, text in self._headers.items():
            check_header(name, text)
        if isinstance(sampling_names, str):
            raise ConfigurationError(f"sampling_names must be a list of names, got {sampling_names!r}")
        self.sampling_names = KNOWN.union(sampling_names)
        self._hosts = WorkerHosts(self._url, worker_hosts, self._headers)
        self._directory = WorkerDirectory(self._url, self._hosts)
        self._pin = WorkerPin(self._url, self._directory, self._hosts)
        self._pools = Pools(self._make_pool)

    @classmethod
    def from_slime_args(cls, args: Any, **settings: Any) -> SGLangClient:
        """Create a client for the router and the concurrency given by slime's parsed arguments.

        slime starts the engines and registers them with its router, so they count as listed, on whichever hosts.
        """
        usual: dict[str, Any] = {"max_retries": MAX_RETRIES, "worker_hosts": ["*"]}
        return cls(**{**usual, **settings_from_slime_args(args), **settings})

    def at(self, base_url: str, **settings: Any) -> SGLangClient:
        """Return a client of one worker of a router, with the settings of this one and the headers it may receive."""
        headers = self._hosts.headers_for(URL(base_url))
        own = {**self._settings, "headers": headers, "api_key": None, "base_url": base_url}
        return type(self)(**{**own, **settings})

    def redacted(self, text: str) -> str:
        """Return a text with `***` in place of the API key and the values of other headers."""
        return Redactor(self._headers).text(text)

    @property
    def base_url(self) -> str:
        """Address of the server or router, without a trailing slash."""
        return str(self._url).rstrip("/")

    def unreachable_seconds(self) -> float:
        """Return how long the server has left this process's requests unanswered; 0 if it answers."""
        return self._server_history.unreachable_seconds()

    @property
    def control(self) -> EngineControl:
        """Health, information, pausing and weight updates, on every worker."""
        return EngineControl(self._url, self._directory, self._pools)

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
        adapter: str | None = None,
        session: str | None = None,
        **fields: Any,
    ) -> Generation:
        """Sample a continuation of `input_ids`; `TokenEngine.generate` explains the arguments.

        `fields` are fields of SGLang's own request, as the published package accepts them: `return_routed_experts=True`
        requests the experts of every token, `return_logprob` has no effect, `stream` must not be set, and all others
        are treated like `extra`. `kept_sets` requests the tokens that were left to choose from
        (`Generation.kept`); `top_k` must then be 1 to 4096. `adapter` is the name of a LoRA adapter that is loaded on
        every worker (`EngineControl.load_adapter`). `session` is a session of the prefix cache (`close_session`).

        Raises:
            ConfigurationError: A sampling parameter is unknown, or another argument is invalid.
            RequestRejectedError: The engine refused the request; `ContextOverflowError` if it is too long.
            EngineUnavailableError: Every retry failed.
            DeadlineExceededError: The deadline passed.
            CallCancelledError: The cancel signal was set.
            MalformedResponseError: The answer is invalid.
        """
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop) or await self._pools.open()
        self.check_sampling(sampling_params)
        if fields:
            routed_experts_start, extra = request_fields(fields, routed_experts_start, extra)
        extra = await self._with_adapter(extra, adapter)
        request = GenerateRequest(
            input_ids,
            sampling_params,
            routed_experts_start=routed_experts_start,
            extra=extra,
            images=images,
            kept_sets=kept_sets,
            session=session,
        )
        call = self._call(Call, pool, request, routing_key, on_abort)
        seconds = self._deadline if deadline is None else deadline
        if seconds is None and cancel_signal is None:
            return await call.run()
        expires_at = None if seconds is None else loop.time() + seconds
        with CancelScope(loop, pool.cancel_poller, expires_at, seconds, cancel_signal):
            return await call.run()

    async def stream(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        routing_key: str | None = None,
        deadline: float | None = None,
        cancel_signal: CancelSignal | None = None,
        on_abort: AbortPolicy = AbortPolicy.CONTINUE,
        extra: Mapping[str, Any] | None = None,
        images: Sequence[PromptImage] = (),
        kept_sets: bool = False,
        adapter: str | None = None,
        session: str | None = None,
    ) -> AsyncGenerator[GenerationChunk, None]:
        """Sample a continuation and yield tokens as they are sampled; the last chunk carries the whole `Generation`.

        Intended for serving: it costs more than `generate`, because the engine repeats the turn so far with every
        token. Closing the generator early aborts the request. A broken stream is continued after the tokens delivered.

        Raises:
            StreamInterruptedError: It broke and cannot be continued exactly (see `AbortPolicy.CONTINUE`).
            EngineError: As for `generate`.
        """
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop) or await self._pools.open()
        self.check_sampling(sampling_params)
        extra = await self._with_adapter(extra, adapter)
        request = GenerateRequest(
            input_ids, sampling_params, stream=True, extra=extra, images=images, kept_sets=kept_sets, session=session
        )
        call = self._call(StreamingCall, pool, request, routing_key, on_abort)
        seconds = self._deadline if deadline is None else deadline
        expires_at = None if seconds is None else loop.time() + seconds
        chunks = call.chunks(lambda: CancelScope(loop, pool.cancel_poller, expires_at, seconds, cancel_signal))
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    async def score(
        self,
        input_ids: TokenIds,
        start: int,
        *,
        images: Sequence[PromptImage] = (),
        top: int = 0,
        adapter: str | None = None,
    ) -> Prefill:
        """Return the engine's logprobs of `input_ids[start:]`; `ScoringEngine.score` explains the arguments.

        `adapter` is the name of a loaded LoRA adapter; None: the base weights.
        """
        if adapter is not None:
            await self._check_adapter(adapter)
        return await prefill(self.control, input_ids, start, images=images, top=top, adapter=adapter)

    async def close_session(self, session: str) -> None:
        """End a session of the prefix cache on the servers it was used on. A later call would open it again.

        Aborts that are under way are sent first. It is not retried: a session that stays open only keeps its prompts
        in the cache for longer.
        """
        urls = self._sessions.pop(session, None)
        pool = self._pools.get(asyncio.get_running_loop())
        if urls and pool is not None:
            await pool.aborts_sent()
            await self.control.close_session(session, urls)

    async def _with_adapter(self, extra: Mapping[str, Any] | None, adapter: str | None) -> Mapping[str, Any] | None:
        """Return the further fields of a request, with its adapter, which may be among them; raise if it is gone."""
        named = (extra or {}).get("lora_path") or None
        if named is not None:
            check_name(named)
            self._adapters.check_kept(named)  # a field of the server's own request: it says itself what it has
        if adapter is None:
            return extra
        if named not in (None, adapter):
            raise ConfigurationError(f"adapter and extra['lora_path'] must not differ, got {adapter!r} and {named!r}")
        await self._check_adapter(adapter)
        return {**(extra or {}), "lora_path": adapter}

    async def _check_adapter(self, adapter: str) -> None:
        await self._adapters.check(adapter, self.control.adapters, fresh_seconds=self._adapter_seconds)

    @property
    def first_contact(self) -> float | None:
        """Seconds a call waits for a server that never answered this process; None: as long as for any other."""
        return self._policy.first_contact

    def probe(self, seconds: float) -> Probe:
        """Return a `Probe` of the server that takes at most `seconds` in total."""
        keyed = "authorization" in map(str.lower, self._headers)
        return Probe(self._url, self._directory, self._pools, keyed=keyed, seconds=seconds)

    async def health(self) -> bool:
        """Return whether the server or router reports that it is healthy."""
        return await self.control.health()

    async def model_info(self) -> dict[str, Any] | None:
        """Return the model information of the server; None if it does not answer."""
        try:
            info = await self.control.model_info()
        except EngineError:
            return None
        return {"model_path": info.model_path, "weight_version": info.weight_version, **info.rest}

    async def is_multimodal(self) -> bool:
        """Return whether the server reports that its model takes images or audio."""
        info = await self.model_info() or {}
        return bool(info.get("has_image_understanding") or info.get("has_audio_understanding"))

    async def max_model_len(self) -> int | None:
        """Return the maximum tokens of prompt plus turn; None if the server does not report it."""
        try:
            return await self.control.context_length()
        except EngineError:
            return None

    async def close(self) -> None:
        """Close the running loop's connections. The client can be used again afterwards."""
        await self._pools.close()

    async def __aenter__(self) -> SGLangClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._settings, self._server_history.answered)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={self.base_url!r})"

    def check_sampling(self, sampling_params: Mapping[str, Any] | None) -> None:
        """Raise ConfigurationError for a sampling parameter that the server does not support."""
        if sampling_params and not self.sampling_names.issuperset(sampling_params):
            check_sampling_names(sampling_params, self.sampling_names)

    def _call(
        self, kind: type[C], pool: LoopPool, request: GenerateRequest, routing_key: str | None, on_abort: AbortPolicy
    ) -> C:
        pin = self._pin if request.asks_for_more else None
        used = None if request.session is None else self._sessions.setdefault(request.session, set())
        return kind(pool, self._generate_url, request, routing_key, self._policy, self._timeout, on_abort, pin, used)

    def _make_pool(self) -> LoopPool:
        pool = LoopPool(self._hosts, self._settings["max_connections"], self._limits, self._server_history)
        Aborter(pool, self._directory)
        return pool


def _rebuild(kind: type[SGLangClient], settings: dict[str, Any], answered: bool = False) -> SGLangClient:
    made = kind(**settings)
    made._adapter_seconds = FRESH_SECONDS_ELSEWHERE  # the process that pickled it may unload one at any time
    if answered:  # in the process that pickled it: the address is right, so calls here wait for an outage too
        server_history(made.base_url).answered = True
    return made


def _checked_url(base_url: str) -> tuple[URL, str]:
    """Return the address without credentials, and the Authorization header for those in it ("" if there are none)."""
    shown = re.sub(r"^(\w+://)?.*@", r"\1***@", base_url, flags=re.DOTALL)
    try:
        url = URL(base_url)
        user, password = url.user, url.password
    except ValueError as error:
        detail = "" if "@" in base_url else f": {error}"
        raise ConfigurationError(f"base_url must be a URL, got {shown!r}{detail}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(f"base_url must look like http://localhost:30000 (with http://), got {shown!r}")
    credentials = ""
    if user is not None or password is not None:
        pair = f"{user or ''}:{password or ''}".encode()
        credentials = f"Basic {base64.b64encode(pair).decode()}"
    url = url.with_user(None).with_query(None).with_fragment(None)
    return url.with_path(url.path.rstrip("/") or "/"), credentials
