#!/usr/bin/env python3
"""Serve an agent over HTTP: a chat page, and an endpoint that streams text while it is sampled.

    python examples/serving/server.py --base-url http://localhost:30000 --tokenizer lab/tool_policy/canonical
    curl -N http://127.0.0.1:8000/chat -d '{"session": "me", "message": "Compute 615 * 17."}'

The agent is the one you train. `streaming=True` changes how text arrives, not which tokens are recorded, so GET
/sessions/NAME returns the exact tokens of a conversation. Sessions are kept in memory, the newest 100 of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

from aiohttp import web
from strands import Agent, tool

from strands_sglang import EpisodeTokens, SGLangClient, SGLangModel, TokenEngine
from strands_sglang.errors import StrandsSGLangError

PAGE = Path(__file__).parent / "chat.html"
SESSIONS = 100


@tool
def calculator(expression: str) -> str:
    """Compute one operation on two integers.

    Args:
        expression: Such as `615 * 17`.
    """
    left, operator, right = expression.split()
    return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator](int(left), int(right)))


class Session:
    """One conversation: an agent, the episode that records its tokens, and a lock, because it answers one at a time."""

    def __init__(self, model: SGLangModel) -> None:
        self.episode = EpisodeTokens()
        self.agent = Agent(model=model, tools=[calculator], callback_handler=None)
        self.busy = asyncio.Lock()


class Chat:
    """The handlers, and the sessions that they share."""

    def __init__(self, model: SGLangModel) -> None:
        self.model = model
        self.sessions: OrderedDict[str, Session] = OrderedDict()

    def session(self, name: str) -> Session:
        """Return the session of this name; makes it, and forgets the oldest one that is too many."""
        found = self.sessions.setdefault(name, Session(self.model))
        self.sessions.move_to_end(name)
        while len(self.sessions) > SESSIONS:
            self.sessions.popitem(last=False)
        return found

    async def page(self, request: web.Request) -> web.FileResponse:
        """GET /: the chat page."""
        return web.FileResponse(PAGE)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /chat {"session": ..., "message": ...}: server-sent events, one JSON object each."""
        try:
            asked = json.loads(await request.text())
            name, message = str(asked["session"]), str(asked["message"])
        except (ValueError, TypeError, KeyError) as error:
            raise web.HTTPBadRequest(text="the body must be JSON with session and message\n") from error
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        session = self.session(name)
        told: set[str] = set()  # tool calls; the framework reports each several times, while its arguments arrive
        async with session.busy:
            # The same episode is opened for every request of the session: its turns are one tree.
            with self.model.episode(session.episode):
                try:
                    async for event in session.agent.stream_async(message):
                        if "data" in event:
                            await send(response, {"text": event["data"]})
                        elif (use := event.get("current_tool_use")) and use["toolUseId"] not in told:
                            told.add(use["toolUseId"])
                            await send(response, {"tool": use["name"]})
                    await send(response, {"done": True})
                except StrandsSGLangError as error:
                    await send(response, {"error": str(error)})
        return response

    async def tokens(self, request: web.Request) -> web.Response:
        """GET /sessions/NAME: every branch of a conversation, as exact tokens."""
        session = self.sessions.get(request.match_info["name"])
        if session is None:
            raise web.HTTPNotFound(text="no such session\n")
        return web.json_response([one.to_dict() for one in session.episode.trajectories()])


async def send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    """Write one server-sent event."""
    await response.write(f"data: {json.dumps(event)}\n\n".encode())


def application(client: TokenEngine, tokenizer: Any) -> web.Application:
    """Return the web application; one model serves all sessions."""
    sampling = {"max_new_tokens": 512, "temperature": 0.7}
    chat = Chat(SGLangModel(tokenizer=tokenizer, client=client, sampling_params=sampling, streaming=True))
    app = web.Application()
    app.add_routes([web.get("/", chat.page), web.post("/chat", chat.chat), web.get("/sessions/{name}", chat.tokens)])
    return app


def main() -> None:
    """Start the server."""
    parser = argparse.ArgumentParser(description="Serve an agent over HTTP.")
    parser.add_argument("--base-url", default="http://localhost:30000")
    parser.add_argument("--tokenizer", default="lab/tool_policy/canonical")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    web.run_app(application(SGLangClient(options.base_url), options.tokenizer), host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
