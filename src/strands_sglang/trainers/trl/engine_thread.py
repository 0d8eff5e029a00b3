"""An event loop in its own thread, with the client that runs on it: `EngineThread`.

TRL calls the rollout function synchronously at every step, possibly inside a running event loop (a notebook).

Invariant: all coroutines run on the same loop, so that connections are kept from step to step. If the caller stops
waiting, its coroutine is cancelled, and its requests are aborted on the engine.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from strands_sglang.engine import TokenEngine, is_server
from strands_sglang.engine.control import EngineControl
from strands_sglang.errors import ConfigurationError

T = TypeVar("T")


class EngineThread:
    """An event loop in a thread that starts at first use, and the client that runs on it.

    Example:
        >>> engine = EngineThread(SGLangClient("http://127.0.0.1:30000"), owned=True)
    """

    def __init__(self, client: TokenEngine, *, owned: bool = False) -> None:
        """Keep the client, which `close` closes if it is `owned`; no thread is started yet."""
        self.client = client
        self._owned = owned
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    @property
    def control(self) -> EngineControl:
        """Control calls to the engine's workers."""
        if not is_server(self.client):
            raise ConfigurationError(
                f"client must be an SGLangClient to update weights, got a {type(self.client).__name__}: pass base_url= "
                "or client=SGLangClient(...), or sync='none' and update the engine's weights yourself"
            )
        return self.client.control

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the thread's loop; return or raise its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        except BaseException:
            # For example a KeyboardInterrupt in the waiting thread: the result is no longer needed.
            if future.cancel():
                self._settle()
            raise

    def close(self) -> None:
        """Stop the thread and close the client if it is owned; a later `run` starts a new thread."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        if self._owned and is_server(self.client):
            asyncio.run_coroutine_threadsafe(self.client.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A daemon thread, so that a training script that does not call `close` can exit.
                threading.Thread(target=_serve, args=(self._loop,), name="strands-sglang-trainer", daemon=True).start()
            return self._loop

    def _settle(self) -> None:
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
