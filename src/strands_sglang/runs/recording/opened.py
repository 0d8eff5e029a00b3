"""What was opened for an episode, or for all episodes of a worker, and has to be closed: `Opened`.

A Strands agent may hold tool providers, such as MCP clients, which start threads and processes. The SDK stops them when
the agent is destroyed, whenever that is and on whatever thread. `close_with` has them stopped when the episode ends.

Invariant: everything is closed once, in no particular order, and off the event loop; a failure to close one thing is
logged and keeps nothing else open. A provider that several episodes use is left to its owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from strands_sglang._strands_compat.tool_servers import providers_of

logger = logging.getLogger(__name__)

_first_users: WeakKeyDictionary[Any, object] = WeakKeyDictionary()
"""The first episode of this process that used a provider, as its `Opened.episode`; None: several did."""


class Opened:
    """Things that are open."""

    def __init__(self) -> None:
        self.episode = object()
        """Stands for the episode; keeps nothing of it alive."""
        self._close: dict[Any, Callable[[], Awaitable[object]]] = {}

    def __len__(self) -> int:
        """Return the number of things."""
        return len(self._close)

    def add(self, thing: Any, close: Callable[[], Awaitable[object]]) -> None:
        """Register how to close a thing; again: no effect."""
        self._close.setdefault(thing, close)

    async def close(self) -> None:
        """Close everything."""
        waiting, self._close = self._close, {}
        for failure in await asyncio.gather(*(close() for close in waiting.values()), return_exceptions=True):
            if isinstance(failure, Exception):
                logger.warning("error=<%s: %s> | could not be closed", type(failure).__name__, failure)


def close_with(opened: Opened, agent: Any) -> None:
    """Register the tool providers of an agent; may be called any number of times."""
    providers = providers_of(agent)
    for provider in providers:
        if _first_users.setdefault(provider, opened.episode) is not opened.episode:
            _first_users[provider] = None
    if providers:
        opened.add(agent, partial(_release, agent))


async def _release(agent: Any) -> None:
    if all(_first_users.get(provider) is not None for provider in providers_of(agent)):
        await asyncio.to_thread(agent.cleanup)  # waits for threads to end
