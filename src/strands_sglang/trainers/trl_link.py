"""A trainer's connection to the engine: one event loop in a thread of its own, and one client on it. `EngineLink`.

A trainer calls us synchronously, perhaps from inside a running event loop (a notebook), and again at every step.

Invariant: all coroutines of a link run on the same loop, so connections are kept from step to step; whoever stops
waiting cancels what it waited for, on the engine too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from strands_sglang.engine import SGLangClient, TokenEngine
from strands_sglang.engine.control import EngineControl
from strands_sglang.errors import ConfigurationError

T = TypeVar("T")


class EngineLink:
    """An event loop in a thread, begun at its first use, and the client that runs on it."""

    def __init__(self, client: TokenEngine, *, ours: bool = False) -> None:
        """Hold the client; no thread is begun yet.

        Args:
            client: Where tokens come from.
            ours: Whether the link closes it in the end.
        """
        self.client = client
        """Where tokens come from."""
        self._ours = ours
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    @property
    def control(self) -> EngineControl:
        """Control calls to the workers behind the client.

        Raises:
            ConfigurationError: The client has none.
        """
        if not isinstance(self.client, SGLangClient):
            raise ConfigurationError(
                f"weights cannot be updated through a {type(self.client).__name__}: give base_url=, or an SGLangClient "
                "as client=; or sync='none', and see to the engine's weights yourself"
            )
        return self.client.control

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the link's loop, and wait for what it returns or raises."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        except BaseException:
            # A KeyboardInterrupt in the waiting thread: nobody wants the episodes any more.
            if future.cancel():
                self._settle()
            raise

    def close(self) -> None:
        """End the thread, and the client if it is ours; a later `run` begins anew."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        if self._ours and isinstance(self.client, SGLangClient):
            asyncio.run_coroutine_threadsafe(self.client.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A daemon: a training script that forgets `close` ends all the same.
                threading.Thread(target=_serve, args=(self._loop,), name="strands-sglang-trainer", daemon=True).start()
            return self._loop

    def _settle(self) -> None:
        """Give what was cancelled a moment to tell the engine."""
        loop = self._loop
        if loop is not None:
            done = asyncio.run_coroutine_threadsafe(_others_done(), loop)
            done.result(timeout=10.0)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _others_done() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=5.0)
