"""Threads for tools that are not async: `ToolThreads`.

The framework runs such tools on the event loop's default threads, of which Python makes a handful. A few tools that
hang would stop every episode of the run, and then the interpreter's exit.

Invariant: a tool that is never heard of again takes one thread with it and nothing else. Threads end when idle.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

_IDLE_SECONDS = 10.0


class ToolThreads(ThreadPoolExecutor):
    """Daemon threads, as many as there is work at once, up to a limit that is there to save memory.

    A `ThreadPoolExecutor` in name only, because an event loop takes nothing else.
    """

    def __init__(self, limit: int = 1024) -> None:
        """Set up; no thread is started yet.

        Args:
            limit: Threads at once; further work waits. Those of tools that hang count.
        """
        super().__init__(1)
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._limit = limit
        self._mutex = threading.Lock()
        self._running = 0
        self._free = 0  # threads that wait for work, or are about to
        self._waiting = 0  # jobs that no thread has taken

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a thread."""
        future: Future[Any] = Future()
        with self._mutex:
            self._waiting += 1
            starts = self._waiting > self._free and self._running < self._limit
            self._running += starts
            self._free += starts
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
        if starts:
            threading.Thread(target=self._work, name="strands-sglang-tool", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            try:
                future, job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._mutex:
                    if self._waiting >= self._free:
                        continue  # work came just now
                    self._running -= 1
                    self._free -= 1
                return
            with self._mutex:
                self._waiting -= 1
                self._free -= 1
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except BaseException as error:
                    future.set_exception(error)
            del future, job
            with self._mutex:
                self._free += 1


_in_use: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[Any]] = weakref.WeakKeyDictionary()
"""For each event loop with runs: how many there are, and the threads it had before."""


@contextmanager
def tool_threads(limit: int) -> Iterator[None]:
    """Give the running event loop threads enough for the tools of a run; with the last run, what it had comes back."""
    loop = asyncio.get_running_loop()
    entry = _in_use.setdefault(loop, [0, getattr(loop, "_default_executor", None)])
    if entry[0] == 0:
        loop.set_default_executor(ToolThreads(limit))
    entry[0] += 1
    try:
        yield
    finally:
        entry[0] -= 1
        if entry[0] == 0:
            del _in_use[loop]
            if hasattr(loop, "_default_executor"):  # other kinds of loops keep ours, which does no harm
                loop._default_executor = entry[1]
