"""A `SessionService` over HTTP: `session_api`, for programs that start agents elsewhere.

    POST /sessions                          open: {"task": "..." or {"prompt": ..., "id": ..., ...}, "sample": 0}
    GET  /sessions                          all sessions that are open, or have ended since the service was started
    GET  /sessions/{task}/{sample}          one of them
    POST /sessions/{task}/{sample}/close    end: {"reward": 1.0, "text": "..."}, or {"error": "..."}
    POST /sessions/{task}/{sample}/score    reward of one that has ended: {"reward": 1.0}

Invariant: nothing is answered without the admin token (`Authorization: Bearer`), which no agent is given. Closing or
scoring again after a lost answer has the same effect as once.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from aiohttp import web

from strands_sglang._json import dump_text, loads
from strands_sglang.errors import ConfigurationError, SessionStateError, UnknownSessionError
from strands_sglang.runs.session_service import OpenSession, SessionService

_MAX_BODY = 16 << 20
_ID = "/{task}/{sample:[0-9]{1,9}}"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def session_api(service: SessionService, token: str) -> web.Application:
    """Return what answers requests below /sessions, for `Gateway(admin=...)`; `token`: what they must present."""
    expected = token.encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), expected):
            return _error(401, "the admin token must be given: Authorization: Bearer TOKEN")
        try:
            return await handler(request)
        except UnknownSessionError as error:
            return _error(404, str(error))
        except SessionStateError as error:
            return _error(409, str(error))
        except ConfigurationError as error:
            return _error(400, str(error))

    async def open_session(request: web.Request) -> web.StreamResponse:
        body = await _body(request, {"task", "sample", "model", "on_changed_echo"})
        sample = body.get("sample")
        if sample is not None and (type(sample) is not int or sample < 0):
            raise ConfigurationError(f"sample must be an integer of at least 0, got {sample!r:.80}")
        if not body.get("task"):
            raise ConfigurationError("task must be given: a prompt, or an object with 'prompt'")
        more = {"on_changed_echo": body["on_changed_echo"]} if body.get("on_changed_echo") is not None else {}
        opened = await service.open(body["task"], sample, name=str(body.get("model") or "policy"), **more)
        return _answer(_opened(service, opened, secret=True), 201)

    async def list_sessions(request: web.Request) -> web.StreamResponse:
        found = [*(_opened(service, one) for one in service.open_sessions.values()), *service.ended.values()]
        return _answer({"sessions": found})

    async def one_session(request: web.Request) -> web.StreamResponse:
        id = _id(request)
        opened = service.open_sessions.get(id)
        return _answer(await service.known(id) if opened is None else _opened(service, opened, secret=True))

    async def close(request: web.Request) -> web.StreamResponse:
        body = await _body(request, {"reward", "text", "error"})
        text, error = body.get("text") or "", body.get("error")
        if not isinstance(text, str) or not isinstance(error, (str, type(None))):
            raise ConfigurationError("text and error must be texts")
        work = service.close(_id(request), reward=body.get("reward"), text=text, error=error)
        return _answer(await asyncio.shield(work))  # also if the caller is gone

    async def score(request: web.Request) -> web.StreamResponse:
        body = await _body(request, {"reward"})
        return _answer(await asyncio.shield(service.score(_id(request), body.get("reward"))))

    app = web.Application(client_max_size=_MAX_BODY, middlewares=[guard])
    app.router.add_post("", open_session)
    app.router.add_get("", list_sessions)
    app.router.add_get(_ID, one_session)
    app.router.add_post(f"{_ID}/close", close)
    app.router.add_post(f"{_ID}/score", score)
    return app


def _opened(service: SessionService, opened: OpenSession, *, secret: bool = False) -> dict[str, Any]:
    """Return what a caller is told of an open session; `secret`: with its address, which gives access to it."""
    agent = opened.agent
    state: dict[str, Any] = {"id": opened.id, "state": "open", "model": agent.name}
    if not agent.opened.done():
        return {**state, "state": "opening"}
    session = opened.session
    state |= {"turns": len(session.episode.tree), "requests": session.requests}
    if session.ended.is_set():
        state |= {"state": "limit", "why": str(session.error)}
    if secret:
        base_url = service.gateway.base_url(session)
        state |= {"base_url": base_url, "openai_base_url": f"{base_url}/v1", "token": session.token}
    return state


def _id(request: web.Request) -> str:
    return f"{request.match_info['task']}/{int(request.match_info['sample'])}"


async def _body(request: web.Request, names: set[str]) -> Mapping[str, Any]:
    data = await request.read()
    try:
        body = loads(data) if data else {}
    except ValueError as error:
        raise ConfigurationError(f"the body must be JSON: {error}") from None
    if not isinstance(body, dict) or set(body) - names:
        raise ConfigurationError(f"the body must be a JSON object with {', '.join(sorted(names))}, got {body!r:.200}")
    return body


def _answer(data: Any, status: int = 200) -> web.Response:
    return web.Response(body=dump_text(data).encode(), status=status, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return web.Response(
        body=orjson.dumps({"error": {"message": message}}), status=status, content_type="application/json"
    )
