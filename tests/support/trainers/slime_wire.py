"""The wire between slime and the router: writes down every request with its time, and breaks some on demand."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import aiohttp
from aiohttp import web

from support.loop_thread import LoopThread

_PASSED_ON = ("Content-Type", "X-SMG-Routing-Key")


class Fault(Enum):
    """What may happen to a request."""

    BUSY = 503
    BROKEN = 500
    DROPPED = "dropped"
    LOST = "lost"
    """The engine does the work, and the connection is cut when it answers."""


@dataclass
class Request:
    """One request that came to the wire."""

    at: float
    path: str
    asked: Any
    """Its JSON; None where it had none."""
    key: str | None
    fault: Fault | None = None
    """What was done to it; None: it was passed on."""
    answer: Any = None
    """The JSON that went back; None: none did."""

    @property
    def sampled(self) -> list[int]:
        return list(self.answer["output_ids"]) if self.answer is not None else []

    @property
    def logprobs(self) -> list[float]:
        return [entry[0] for entry in self.answer["meta_info"]["output_token_logprobs"]]


@dataclass
class Wire(LoopThread):
    """Serves on a loopback port while in a `with` block, and passes everything on to `upstream`."""

    upstream: str
    fault: Callable[[int, Request], Fault | None] = lambda number, request: None
    hold: Callable[[Request], bool] = lambda request: False
    """Whether a request is not passed on yet; asked again and again."""
    requests: list[Request] = field(default_factory=list)
    alone: bool = False
    """Whether upstream is a server and not a router: `/workers` is then answered here."""

    @property
    def generates(self) -> list[Request]:
        """The calls of `/generate`, in the order they came; one without a key is no turn, but the look before a run."""
        return [one for one in self.requests if one.path == "/generate" and one.key]

    async def _serve(self, started: threading.Event) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", self._pass)
        # A client that goes away takes its request to the engine with it, as with no wire in between.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        self.port = runner.addresses[0][1]
        limits = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits) as self._session:
            started.set()
            await self._stop.wait()
        await runner.cleanup()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        at = time.monotonic()
        sent = await request.read()
        asked = json.loads(sent) if sent else None
        noted = Request(at, request.path, asked, request.headers.get("X-SMG-Routing-Key"))
        if request.path == "/generate" and noted.key:
            noted.fault = self.fault(len(self.generates), noted)
        self.requests.append(noted)
        if self.alone and request.path == "/workers":
            return web.json_response({"workers": [{"id": "0", "url": self.upstream, "is_healthy": True}], "total": 1})
        if noted.fault in (Fault.BUSY, Fault.BROKEN):
            return web.json_response({"error": {"message": "the wire said so"}}, status=noted.fault.value)
        if noted.fault is Fault.DROPPED:
            return self._cut(request)
        while self.hold(noted):
            await asyncio.sleep(0.02)
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        url = f"{self.upstream}{request.path_qs}"
        async with self._session.request(request.method, url, data=sent, headers=headers) as answer:
            body = await answer.read()
        if noted.fault is Fault.LOST:
            return self._cut(request)
        if request.path == "/generate" and answer.status == 200:
            noted.answer = json.loads(body)
        return web.Response(body=body, status=answer.status, content_type=answer.content_type)

    @staticmethod
    def _cut(request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()
