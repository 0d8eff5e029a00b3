"""Opens a session of a service (`strands-sglang serve`) from another process or machine: `open_session`.

Invariant: the session is closed when the `async with` block ends, as failed if the block raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from strands_sglang.errors import ConfigurationError


@dataclass(slots=True)
class RemoteSession:
    """An open session. Set `reward` and `text` before the `async with` block ends."""

    id: str
    base_url: str
    """Address of the session: for Anthropic's protocol as it is, for OpenAI's with /v1 appended."""
    token: str
    """The API key of the session."""
    model: str
    reward: Any = None
    """As a reward function returns it; None: the episode is not scored."""
    text: str = ""
    """What the agent answered."""
    ended: dict[str, Any] = field(default_factory=dict)
    """How the episode ended; empty while it is open."""


@asynccontextmanager
async def open_session(
    service: str, admin_token: str, task: str | Mapping[str, Any], *, sample: int | None = None, **settings: Any
) -> AsyncIterator[RemoteSession]:
    """Open a session while the `async with` block runs.

    Args:
        service: Address of the service.
        sample: Number of the episode among those of its task; None: the next one, or one that was interrupted.
        **settings: `model`, the name that the agent asks for; `on_changed_echo`, see `Gateway.session`.

    Raises:
        ConfigurationError: The service refuses to open or to close it; the message is the service's.

    Example:
        async with open_session("http://gateway:8400", token, {"prompt": "Fix the bug.", "id": "bug-7"}) as session:
            session.text = await run_my_agent(base_url=f"{session.base_url}/v1", api_key=session.token)
            session.reward = float("fixed" in session.text)
    """
    headers = {"Authorization": f"Bearer {admin_token}"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(600)) as http:

        async def call(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
            async with http.post(f"{service.rstrip('/')}/sessions{path}", data=orjson.dumps(body)) as response:
                data: dict[str, Any] = orjson.loads(await response.read())
            if response.status >= 400:
                raise ConfigurationError(f"{service}: {data['error']['message']}")
            return data

        found = await call("", {"task": task, "sample": sample, **settings})
        session = RemoteSession(found["id"], found["base_url"], found["token"], found["model"])
        path = f"/{quote(session.id)}/close"
        try:
            yield session
        except BaseException as error:
            session.ended = await call(path, {"error": f"{type(error).__name__}: {error}"})
            raise
        session.ended = await call(path, {"reward": session.reward, "text": session.text})
