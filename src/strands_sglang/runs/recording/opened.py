"""What was opened for an episode, or for all episodes of a worker, and has to be closed: `Opened`.

A Strands agent may hold tool providers, such as MCP clients, which start threads and processes. The SDK stops them when
the agent is destroyed, whenever that is and on whatever thread. `close_with` has them stopped when the episode ends,
and has the files of the agent's `ShellSandbox` deleted.

Invariant: everything is closed once, in no particular order, and off the event loop; a failure to close one thing is
logged and keeps nothing else open. What several episodes use is left to its owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from weakref import finalize

from strands_sglang._strands_compat.tool_servers import providers_of
from strands_sglang.tools.shell_sandbox import ShellSandbox

logger = logging.getLogger(__name__)

_first_users: dict[int, object] = {}
"""By the id of a thing that lives, which need not be hashable: the first episode of this process that used it, as its
`Opened.episode`; None: several did."""


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
    """Register the tool providers and the `ShellSandbox` of an agent; may be called any number of times."""
    providers, sandbox = providers_of(agent), getattr(agent, "sandbox", None)
    for provider in providers:
        _use(provider, opened.episode)
    if providers:
        opened.add(agent, partial(_release, agent))
    if isinstance(sandbox, ShellSandbox):
        _use(sandbox, opened.episode)
        opened.add(sandbox, partial(_delete_files, sandbox))


def _use(thing: Any, episode: object) -> None:
    if id(thing) not in _first_users:
        finalize(thing, _first_users.pop, id(thing), None)
    if _first_users.setdefault(id(thing), episode) is not episode:
        _first_users[id(thing)] = None


def _is_shared(thing: Any) -> bool:
    return _first_users.get(id(thing)) is None


async def _release(agent: Any) -> None:
    if not any(map(_is_shared, providers_of(agent))):
        await asyncio.to_thread(agent.cleanup)  # waits for threads to end


async def _delete_files(sandbox: ShellSandbox) -> None:
    if not _is_shared(sandbox):
        await sandbox.close()
