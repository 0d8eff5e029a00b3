"""A tap on the wire: a reverse proxy between client and engine that writes down what really passed.

It shares no code with the package: what it saw is a second witness of what was sent and what was sampled.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from support.loop_thread import LoopThread


@dataclass(frozen=True)
class Passed:
    """One call of `/generate` that passed."""

    input_ids: list[int]
    output_ids: list[int]
    logprobs: list[float]
    routing_key: str
    session: str | None
    """Its session of the prefix cache; None: none."""


class Tap(LoopThread):
    """Serves on a loopback port while in a `with` block, and passes everything on to `upstream`."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.calls: dict[str, Passed] = {}
        """What passed, by request id."""

    async def _serve(self, started: threading.Event) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", self._pass)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            started.set()
            await self._stop.wait()
        await runner.cleanup()

    async def _pass(self, request: web.Request) -> web.Response:
        sent = await request.read()
        async with self._session.request(
            request.method,
            f"{self.upstream}{request.path_qs}",
            data=sent,
            headers={"Content-Type": request.headers.get("Content-Type", "application/json")},
        ) as answer:
            body = await answer.read()
            key = request.headers.get("X-SMG-Routing-Key")
            if request.path == "/generate" and answer.status == 200 and key:  # without one, it is no turn but a look
                self._note(await request.json(), await answer.json(), key)
            return web.Response(body=body, status=answer.status, content_type=answer.content_type)

    def _note(self, asked: dict[str, Any], answered: dict[str, Any], routing_key: str) -> None:
        meta = answered["meta_info"]
        logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
        sampled, session = answered["output_ids"], asked.get("session_id")
        self.calls[asked["rid"]] = Passed(asked["input_ids"], sampled, logprobs, routing_key, session)
