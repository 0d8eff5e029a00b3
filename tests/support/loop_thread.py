"""A server in a thread with an event loop of its own, on a loopback port, while in a `with` block.

Tests may then use any number of loops, threads and processes on their side.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import TypeVar

S = TypeVar("S", bound="LoopThread")


class LoopThread:
    """Runs `_serve` until the block ends; `_serve` sets `port`, then `started`, and waits for `_stop`."""

    port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self: S) -> S:
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._stop = asyncio.Event()
        self._loop.run_until_complete(self._serve(started))
        self._loop.close()

    async def _serve(self, started: threading.Event) -> None:
        raise NotImplementedError
