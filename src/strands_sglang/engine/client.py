"""`SGLangClient`: the token engine behind SGLang's native `/generate`.

It owns retries, alone: what it raises is final, and none of it is an error that the agent loop tries again. A call
ends in a whole `Generation` or in a typed error, within its deadline; a call that ends early ends on the engine too.

Invariant: tokens the engine sampled for a call are returned once, counted as discarded, or never reached us.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Any

from yarl import URL

from strands_sglang.engine.abort import Aborter
from strands_sglang.engine.backoff import Backoff
from strands_sglang.engine.call import Call, check_header
from strands_sglang.engine.contact import contact
from strands_sglang.engine.control import EngineControl
from strands_sglang.engine.fleet import Fleet
from strands_sglang.engine.generation import Generation
from strands_sglang.engine.guard import CallGuard
from strands_sglang.engine.pool import LoopPool, Pools
from strands_sglang.engine.probe import Probe
from strands_sglang.engine.protocol import AbortPolicy, CancelSignal, TokenIds
from strands_sglang.engine.request import GenerateRequest, request_fields
from strands_sglang.engine.retry import RetryPolicy
from strands_sglang.engine.sampling import KNOWN, check_sampling_names
from strands_sglang.engine.slime_args import settings_of
from strands_sglang.engine.stream import GenerationChunk, StreamingCall
from strands_sglang.engine.transport import attempt_timeout
from strands_sglang.errors import ConfigurationError, EngineError


class SGLangClient:
    """Talks to an SGLang server or router: token ids in, sampled ids and logprobs out.

    One client serves any number of event loops and threads, before and after a fork, and can be pickled. It holds
    no connection until it is used; connections close with the loop that uses them, or by `close()`.
    """

    def __init__(
        self,
        base_url: str = "http://localhost:30000",
        *,
        max_connections: int = 1000,
        timeout: float | None = None,
        max_retries: int = 60,
        retry_delay: float = 1.0,
        max_retry_delay: float = 30.0,
        deadline: float | None = None,
        connect_timeout: float = 10.0,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        first_contact: float | None = 4.0,
        sampling_names: Collection[str] = (),
    ) -> None:
        """Set up the client; nothing is sent yet.

        Args:
            base_url: Where the server or router is; a path in it is kept. A user and a password in it are sent as a
                header and shown nowhere.
            max_connections: Requests under way at once, per event loop; further calls wait for a free one.
            timeout: Seconds one attempt may take, waiting for a free connection not counted; None: no limit.
            max_retries: Failures in a row that are followed by another attempt.
            retry_delay: Ceiling of the first wait before a retry, in seconds; it doubles with each failure.
            max_retry_delay: Ceiling of every wait, in seconds; only a server's Retry-After may ask for more.
            deadline: Seconds a whole call may take, all waits and retries included; None: no limit.
            connect_timeout: Seconds for making one connection.
            api_key: Sent as a bearer token.
            headers: Further headers for every request.
            first_contact: Seconds a call waits for a server that has never answered this process: the address may be
                wrong. One that has answered before is waited for by the other rules; None: so is this one.
            sampling_names: Sampling parameters that this server knows beside those of SGLang; any other is refused.

        Raises:
            ConfigurationError: A value cannot work.
        """
        self._settings = {key: value for key, value in locals().items() if key != "self"}
        for name in ("max_connections", "connect_timeout", "timeout", "deadline", "first_contact"):
            if (value := self._settings[name]) is not None and value <= 0:
                raise ConfigurationError(f"{name} must be above 0, not {value}")
        for name in ("max_retries", "retry_delay", "max_retry_delay"):
            if (value := self._settings[name]) < 0:
                raise ConfigurationError(f"{name} must be 0 or above, not {value}")
        self._url, credentials = _checked_url(base_url)
        self._generate_url = self._url / "generate"
        self._timeout = timeout
        self._limits = attempt_timeout(None, connect_timeout)
        self._policy = RetryPolicy(max_retries, Backoff(retry_delay, max(retry_delay, max_retry_delay)), first_contact)
        self._contact = contact(self._url)
        self._deadline = deadline
        self._headers = dict(headers or {})
        if credentials and (api_key is not None or "authorization" in map(str.lower, self._headers)):
            raise ConfigurationError("a user in base_url and a key are two answers to one question: give one of them")
        if api_key is not None or credentials:
            self._headers["Authorization"] = credentials or f"Bearer {api_key}"
        for name, text in self._headers.items():
            check_header(name, text)
        if isinstance(sampling_names, str):
            raise ConfigurationError(f"sampling_names is a list of names, not {sampling_names!r}")
        self.sampling_names = KNOWN.union(sampling_names)
        """Sampling parameters that may be sent."""
        self._fleet = Fleet(self._url)
        self._pools = Pools(self._make_pool)

    @classmethod
    def from_slime_args(cls, args: Any, **settings: Any) -> SGLangClient:
        """Make a client for the router and the concurrency that slime's parsed arguments name.

        Args:
            args: slime's `args`.
            **settings: Anything `SGLangClient` takes; wins over what `args` implies.
        """
        return cls(**{**settings_of(args), **settings})

    @property
    def base_url(self) -> str:
        """Where the server or router is, without a slash at the end."""
        return str(self._url).rstrip("/")

    def unreachable_seconds(self) -> float:
        """Return for how long this process has had no answer from the server while asking for one; 0: it answers."""
        return self._contact.unreachable_seconds()

    @property
    def control(self) -> EngineControl:
        """Health, information, pausing and weight updates, on every worker."""
        return EngineControl(self._url, self._fleet, self._pools)

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
        **fields: Any,
    ) -> Generation:
        """Sample a continuation of `input_ids`; `TokenEngine.generate` explains the arguments.

        `fields` are those of SGLang's own request, as the published package takes them: `return_routed_experts=True`
        asks for the experts of every token, `return_logprob` and `stream` say what is done anyway, and the rest goes
        the way of `extra`.

        Raises:
            ConfigurationError: A sampling parameter is unknown, or something else cannot be sent.
            RequestRejectedError: The engine refuses the request; `ContextOverflowError` if it is too long.
            EngineUnavailableError: Every retry failed.
            DeadlineExceededError: The deadline passed.
            CallCancelledError: The cancel signal was set.
            MalformedResponseError: The answer cannot be trusted.
        """
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop) or await self._pools.open()
        self.check_sampling(sampling_params)
        if fields:
            routed_experts_start, extra = request_fields(fields, routed_experts_start, extra)
        request = GenerateRequest(input_ids, sampling_params, routed_experts_start=routed_experts_start, extra=extra)
        call = Call(pool, self._generate_url, request, routing_key, self._policy, self._timeout, on_abort)
        seconds = self._deadline if deadline is None else deadline
        if seconds is None and cancel_signal is None:
            return await call.run()
        expires_at = None if seconds is None else loop.time() + seconds
        with CallGuard(loop, pool.watch, expires_at, seconds, cancel_signal):
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
    ) -> AsyncGenerator[GenerationChunk, None]:
        """Sample a continuation and yield tokens as they come; the last chunk carries the whole `Generation`.

        For serving: it costs more than `generate`, because the engine repeats the turn so far with every token.
        Closing the generator early aborts the request. A stream that breaks goes on behind the tokens delivered.

        Raises:
            StreamInterruptedError: It broke, and going on would not be exact (see `AbortPolicy.CONTINUE`).
            EngineError: As for `generate`.
        """
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop) or await self._pools.open()
        self.check_sampling(sampling_params)
        request = GenerateRequest(input_ids, sampling_params, stream=True, extra=extra)
        call = StreamingCall(pool, self._generate_url, request, routing_key, self._policy, self._timeout, on_abort)
        seconds = self._deadline if deadline is None else deadline
        expires_at = None if seconds is None else loop.time() + seconds
        chunks = call.chunks(lambda: CallGuard(loop, pool.watch, expires_at, seconds, cancel_signal))
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    @property
    def first_contact(self) -> float | None:
        """Seconds that a server which never answered this process is waited for; None: as long as any other."""
        return self._policy.first_contact

    def probe(self, seconds: float) -> Probe:
        """Return what asks the server who it is, for so many seconds."""
        keyed = "authorization" in map(str.lower, self._headers)
        return Probe(self._url, self._fleet, self._pools, keyed=keyed, seconds=seconds)

    async def health(self) -> bool:
        """Return whether the server or router answers that it is healthy."""
        return await self.control.health()

    async def model_info(self) -> dict[str, Any] | None:
        """Return what the server says about its model, as it says it; None when it does not answer."""
        try:
            info = await self.control.model_info()
        except EngineError:
            return None
        return {"model_path": info.model_path, "weight_version": info.weight_version, **info.rest}

    async def is_multimodal(self) -> bool:
        """Return whether the server says that its model takes images or sound."""
        info = await self.model_info() or {}
        return bool(info.get("has_image_understanding") or info.get("has_audio_understanding"))

    async def max_model_len(self) -> int | None:
        """Return the tokens that prompt and turn may have together; None when the server does not say."""
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
        return _rebuild, (type(self), self._settings, self._contact.answered)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={self.base_url!r})"

    def check_sampling(self, sampling_params: Mapping[str, Any] | None) -> None:
        """Raise ConfigurationError for a sampling parameter that the server does not know."""
        if sampling_params and not self.sampling_names.issuperset(sampling_params):
            check_sampling_names(sampling_params, self.sampling_names)

    def _make_pool(self) -> LoopPool:
        pool = LoopPool(self._headers, self._settings["max_connections"], self._limits, self._contact)
        Aborter(pool, self._fleet)
        return pool


def _rebuild(kind: type[SGLangClient], settings: dict[str, Any], answered: bool = False) -> SGLangClient:
    made = kind(**settings)
    if answered:  # where it comes from: its address is right, and an outage is waited for here as well
        contact(made.base_url).answered = True
    return made


def _checked_url(base_url: str) -> tuple[URL, str]:
    """Return an address that may be shown, and the header that the user and password in it become ("": none)."""
    shown = re.sub(r"^(\w+://)?.*@", r"\1***@", base_url, flags=re.DOTALL)
    try:
        url = URL(base_url)
        user, password = url.user, url.password
    except ValueError as error:
        words = "" if "@" in base_url else f": {error}"
        raise ConfigurationError(f"base_url {shown!r} is not a URL{words}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(f"base_url {shown!r} must look like http://localhost:30000 (with http://)")
    credentials = ""
    if user is not None or password is not None:
        pair = f"{user or ''}:{password or ''}".encode()
        credentials = f"Basic {base64.b64encode(pair).decode()}"
    url = url.with_user(None).with_query(None).with_fragment(None)
    return url.with_path(url.path.rstrip("/") or "/"), credentials
