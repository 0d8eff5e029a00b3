"""The HTTP server of the gateway: `Gateway`. It finds the session of a request and its protocol, and sends the answer.

    {base}/s/{token}/v1/chat/completions      OpenAI Chat Completions
    {base}/s/{token}/v1/responses             OpenAI Responses
    {base}/s/{token}/v1/messages              Anthropic Messages, and /count_tokens below it
    {base}/s/{token}/v1/models                the models of the session
    {base}/v1/...                             the same; the token is the API key (`Authorization` or `x-api-key`)
    {base}/sessions/...                       not answered here: see `admin` of `Gateway`

Invariants: only a token gives access to a session, and to nothing but that session. A request is bounded in size and
time before it is read, and every error has the form of its protocol. A request that a browser sends for another site is
refused, and so is one under a host name that is not this machine's.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from strands.models import Model

from strands_sglang._async import LoopThrottle
from strands_sglang._checks import chosen
from strands_sglang._json import check_json, loads_exactly
from strands_sglang.errors import ConfigurationError, StrandsSGLangError
from strands_sglang.gateway.anthropic_messages import AnthropicMessages
from strands_sglang.gateway.call import Call, Fault, Protocol, Refusal, dumped
from strands_sglang.gateway.chat_completions import ChatCompletions
from strands_sglang.gateway.responses import Responses
from strands_sglang.gateway.session import Exchange, IsSide, Session, refusal_of
from strands_sglang.model import SGLangModel
from strands_sglang.provider.config import RewritePolicy
from strands_sglang.provider.episode import EpisodeTokens

logger = logging.getLogger(__name__)

PROTOCOLS: tuple[Protocol, ...] = (ChatCompletions(), Responses(), AnthropicMessages())
MAX_BODY = 16 << 20
MAX_REQUESTS = 64
"""Requests of one session that are read or answered at once."""
MAX_BYTES = 4 * MAX_BODY
"""Size of their bodies together: it bounds the memory of a session."""
MAX_ALL_BYTES = 128 * MAX_BODY
"""Size of the bodies of all sessions together: it bounds the memory of the gateway."""
_MAX_VALUES = 1 << 19  # in the JSON of one body
_READ_SECONDS = 60.0  # for a body to arrive
_IDLE_SECONDS = 75.0  # for a request on an open connection to arrive
_KEEP_ALIVE_SECONDS = 10.0  # between two signs of life in a stream
_CLOSE_SECONDS = 5.0  # for open connections to end
_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
_SESSION = web.RequestKey("session", Session)
_SIZE = web.RequestKey("size", int)
_TOKEN_PATH = "/s/{token:[0-9a-f]{32}}"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gateway:
    """Serves sessions over HTTP, on a loopback port or a Unix socket.

    Example:
        async with Gateway() as gateway:
            async with gateway.session(model) as session:
                print(gateway.base_url(session))  # OPENAI_BASE_URL is this with /v1 appended
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        socket: str | Path | None = None,
        url: str | None = None,
        admin: Callable[[], web.Application] | None = None,
    ) -> None:
        """Create a gateway; it serves inside its `async with` block.

        Args:
            port: Port to listen on; 0: any free one.
            socket: Path of a Unix socket to listen on instead of a port; None: a port.
            url: Address under which agents reach it, such as that of a balancer, with the path by which the balancer
                knows this gateway; None: the address that it listens on.
            admin: Makes what answers requests below /sessions and checks who sends them; None: nobody does.
        """
        self.host, self.port, self.socket = host, port, None if socket is None else Path(socket)
        self._url = None if url is None else url.rstrip("/")
        given = urlsplit(self._url or "")
        if self._url is not None and (given.scheme not in ("http", "https") or not given.hostname):
            raise ConfigurationError(f"url must be an address such as https://gateway.example/a, got {url!r:.200}")
        self._prefix, self._admin = given.path, admin
        self._hosts = _HOSTS | {host, given.hostname or host}
        self._admin_apps: list[web.Application] = []
        self.bytes = 0
        """Size of the bodies of requests that are being read or answered."""
        self._sessions: dict[str, Session] = {}
        self._throttle = LoopThrottle()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Gateway:
        # Requests are not decompressed: a body's size is known before it is read.
        runner = web.AppRunner(
            self._app(),
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            keepalive_timeout=_IDLE_SECONDS,
            shutdown_timeout=_CLOSE_SECONDS,
        )
        await runner.setup()
        site: web.BaseSite
        if self.socket is not None:
            self.socket.unlink(missing_ok=True)
            site = web.UnixSite(runner, str(self.socket))
        else:
            site = web.TCPSite(runner, self.host, self.port)
        try:
            if self.socket is not None:
                mask = os.umask(0o177)  # the socket is its owner's alone from the start
                try:
                    await site.start()
                finally:
                    os.umask(mask)
            else:
                await site.start()
                self.port = runner.addresses[0][1]
        except OSError as error:
            await runner.cleanup()
            where = self.socket or f"{self.host}:{self.port}"
            raise ConfigurationError(
                f"the gateway cannot listen on {where}: {error}; choose another address"
            ) from error
        self._runner = runner
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in list(self._sessions.values()):
            await session.close()
        self._sessions.clear()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self.socket is not None:
            self.socket.unlink(missing_ok=True)

    @property
    def address(self) -> str:
        """Address of the server; over a Unix socket, the host name means nothing."""
        if self._url is not None:
            return self._url
        return "http://localhost" if self.socket is not None else f"http://{self.host}:{self.port}"

    def base_url(self, session: Session) -> str:
        """Return the address of a session: for Anthropic's protocol as it is, for OpenAI's with /v1 appended."""
        return f"{self.address}/s/{session.token}"

    @asynccontextmanager
    async def session(
        self,
        model: SGLangModel,
        episode: EpisodeTokens | None = None,
        *,
        name: str = "policy",
        models: Mapping[str, Model] | None = None,
        is_side: IsSide | None = None,
        on_changed_echo: RewritePolicy | str = RewritePolicy.KEEP,
    ) -> AsyncIterator[Session]:
        """Open a session while the `async with` block runs; afterwards its address is unknown.

        Args:
            model: Samples the turns.
            episode: The episode that the turns belong to; None: the model's current one.
            name: Name of the model that agents ask for. Calls of unknown names are recorded and not
                trained, and refused if they have tools.
            models: Dict of the other models that agents may ask, by name; None: none.
            is_side: Returns whether a call is not the agent's own work; such turns are not trained either. None: none.
            on_changed_echo: What to do if the agent's copy of a reply differs from it, but is still its echo.
        """
        policy = chosen("on_changed_echo", on_changed_echo, RewritePolicy)
        if models is not None and not isinstance(models, dict):
            # All models of a run would include a judge, which the policy must not be able to ask.
            raise ConfigurationError(
                "models must be a dict of those that the agent may ask, such as {'user': models['user']}, got "
                f"{models!r:.100}"
            )
        own = episode or model.current_episode
        session = Session(model, own, name, models or {}, is_side, policy, throttle=self._throttle)
        self._sessions[session.token] = session
        try:
            yield session
        finally:
            del self._sessions[session.token]
            await session.close()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._guard])
        # A balancer may pass the path on, or take its own prefix away.
        for prefix in [begin + end for begin in dict.fromkeys(("", self._prefix)) for end in (_TOKEN_PATH, "")]:
            for protocol in PROTOCOLS:
                app.router.add_post(prefix + protocol.path, self._handler(protocol))
            app.router.add_post(f"{prefix}/v1/messages/count_tokens", self._count_tokens)
            app.router.add_get(f"{prefix}/v1/models", self._models)
            app.router.add_route("HEAD", prefix or "/", self._alive)
        if (make := self._admin) is not None:
            for prefix in dict.fromkeys(("", self._prefix)):
                self._admin_apps.append(make())
                app.add_subapp(f"{prefix}/sessions", self._admin_apps[-1])
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what no agent sends, find the session, and give every error the form of the protocol."""
        other = PROTOCOLS[2 if "anthropic-version" in request.headers else 0]  # both have a list of models
        protocol = next((one for one in PROTOCOLS if one.path in request.path), other)
        try:
            if self.socket is None and _host(request.host) not in self._hosts:
                raise Refusal(Fault.UNKNOWN_SESSION, "this host name is not the gateway's; pass its address as url=")
            if "Origin" in request.headers or request.headers.get("Sec-Fetch-Site", "none") != "none":
                raise Refusal(Fault.UNKNOWN_SESSION, "the gateway does not answer web pages")
            if request.headers.get("Content-Encoding", "identity") != "identity":
                raise Refusal(Fault.INVALID, "Content-Encoding: send the body uncompressed")
            if any(app in self._admin_apps for app in request.match_info.apps):
                return await handler(request)
            session = request[_SESSION] = self._session_of(request)
            if session.requests >= MAX_REQUESTS:
                raise Refusal(Fault.BUSY, f"the session has {MAX_REQUESTS} requests under way; send fewer at once")
            session.requests += 1
            request[_SIZE] = 0
            try:
                return await handler(request)
            finally:
                session.requests -= 1
                self._count(request, -request[_SIZE])
        except Refusal as refusal:
            return _refused(protocol, refusal)
        except web.HTTPException as error:
            return _refused(
                protocol, Refusal(Fault.UNKNOWN_SESSION, f"{request.method} {request.path}: {error.reason}")
            )
        except ConnectionError:
            raise  # the agent is gone
        except Exception as error:
            return _refused(protocol, refusal_of(error))

    def _session_of(self, request: web.Request) -> Session:
        tokens = [request.match_info["token"]] if "token" in request.match_info else _keys(request)
        # A look-up by a random token of 128 bits tells nothing about other tokens, however long it takes.
        session = next((self._sessions[token] for token in tokens if token in self._sessions), None)
        if session is None:
            raise Refusal(
                Fault.UNKNOWN_SESSION, "there is no such session: it is closed, or its run was resumed with a new one"
            )
        return session

    def _handler(self, protocol: Protocol) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            session = request[_SESSION]
            data = await self._read(request)
            await self._throttle.wait()
            call = protocol.read(_decoded(data), request.headers, session.items)
            key = hashlib.blake2b(call.agent.encode() + b"\0" + request.path.encode() + b"\0" + data).digest()
            with session.ask(protocol, call, key) as exchange:
                response, complete = await _answered(request, protocol, call, exchange)
                if complete:
                    session.delivered(exchange)
                return response

        return handle

    async def _read(self, request: web.Request) -> bytes:
        session, data = request[_SESSION], bytearray()

        async def read() -> None:
            async for piece in request.content.iter_any():
                data.extend(piece)
                self._count(request, len(piece))
                if len(data) > MAX_BODY:
                    raise Refusal(Fault.TOO_LARGE, f"the body must have at most {MAX_BODY >> 20} MiB")
                for owner, size, most in (
                    ("session", session.bytes, MAX_BYTES),
                    ("gateway", self.bytes, MAX_ALL_BYTES),
                ):
                    if size > most:
                        self._count(request, -request[_SIZE])  # now, or those that come next would be refused, too
                        raise Refusal(
                            Fault.BUSY, f"the {owner} has {most >> 20} MiB of requests under way; wait for some"
                        )

        try:
            await asyncio.wait_for(read(), _READ_SECONDS)
            return bytes(data)
        except asyncio.TimeoutError:
            raise Refusal(Fault.INVALID, f"the body did not arrive within {_READ_SECONDS:g} s") from None

    def _count(self, request: web.Request, size: int) -> None:
        request[_SESSION].bytes += size
        self.bytes += size
        request[_SIZE] += size

    async def _count_tokens(self, request: web.Request) -> web.StreamResponse:
        session = request[_SESSION]
        data = await self._read(request)
        await self._throttle.wait()
        call = PROTOCOLS[2].read(_decoded(data), request.headers, session.items)
        try:
            count = await session.count_tokens(call)
        except StrandsSGLangError as error:
            raise refusal_of(error) from error
        return web.json_response({"input_tokens": count})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        session = request[_SESSION]
        models = [
            {"id": name, "object": "model", "created": 0, "owned_by": "strands-sglang"}
            for name in (session.name, *session.models)
        ]
        return web.json_response({"object": "list", "data": models, "has_more": False})

    async def _alive(self, request: web.Request) -> web.StreamResponse:
        return web.Response()


async def _answered(
    request: web.Request, protocol: Protocol, call: Call, exchange: Exchange
) -> tuple[web.StreamResponse, bool]:
    """Send an answer; return the response, and whether it is the answer and not an error in a stream that had begun."""
    if not call.streams:
        answer = await exchange.answer()
        assert answer is not None
        response = web.Response(body=dumped(protocol.body(answer)), content_type="application/json")
        await response.prepare(request)
        await response.write_eof()
        return response, True
    # The stream begins with the answer or the first sign of life: an error before that has a status of its own.
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    events: bytes | None = None
    while events is None:
        try:
            answer = await exchange.answer(_KEEP_ALIVE_SECONDS)
            events = None if answer is None else b"".join(protocol.events(answer, call))
        except Refusal as refusal:
            if not stream.prepared:
                raise
            await stream.write(protocol.error_event(refusal))
            await stream.write_eof()
            return stream, False
        if not stream.prepared:
            await stream.prepare(request)
        await stream.write(protocol.keep_alive if events is None else events)
    await stream.write_eof()
    return stream, True


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        check_json(data, _MAX_VALUES)
        body = loads_exactly(data)
    except ValueError as error:
        raise Refusal(Fault.INVALID, f"the body must be JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refusal(Fault.INVALID, "the body must be a JSON object")
    return body


def _refused(protocol: Protocol, refusal: Refusal) -> web.Response:
    status, body = protocol.error(refusal)
    # The SDKs of OpenAI and Anthropic do not retry with "false"; without it they retry 408, 409, 429 and 5xx.
    headers = {"x-should-retry": "true" if refusal.fault.passes else "false"}
    if refusal.fault.passes:
        headers["Retry-After"] = "2"
    return web.Response(body=dumped(body), status=status, content_type="application/json", headers=headers)


def _keys(request: web.Request) -> list[str]:
    """Return the API keys of a request. Some clients send one of their own beside the one that they were given."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return [key.strip() if scheme.lower() == "bearer" else "", request.headers.get("x-api-key", "")]


def _host(given: str) -> str:
    """Return the name in a Host header, without port and brackets."""
    name = given.rpartition(":")[0] if given.rpartition(":")[2].isdigit() else given
    return name.strip("[]").lower()
