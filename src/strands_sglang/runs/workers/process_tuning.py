"""Process-wide settings that a run changes: threads for tools, the garbage collector, the limit of open files.

Threads: the SDK runs synchronous tools on the event loop's default executor, which by default has only a few threads.
A few tools that hang would block every episode, and then the exit of the interpreter.

Garbage collector: by default it scans all live objects repeatedly; with ten thousand agents each scan blocks the
process for seconds. It frees almost nothing, because agents are freed by reference counting.

Invariant: executor and collector are restored when the last run that uses them ends, for whatever reason; runs may be
nested, overlap, and use several event loops. A tool that hangs occupies one daemon thread and nothing else.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 10.0  # a thread without work ends after this time
_EXECUTOR = "_default_executor"  # attribute of asyncio's event loops; there is no public way to read it

_YOUNG_SECONDS = 0.05  # interval between two collections of the youngest generation
_FULL_SECONDS = 300.0  # minimum interval between full collections, and the time before the first one
_FULL_RATIO = 200  # after a full collection of t seconds there is none for 200 t: at most 0.5 % of the time

_OTHER_FILES = 512  # files that a process opens besides its connections

_lock = threading.Lock()
_gc_users = 0
_gc_was_enabled = False


class ToolThreads(ThreadPoolExecutor):
    """An executor of daemon threads, started on demand up to a limit. A loop accepts only a `ThreadPoolExecutor`."""

    def __init__(self, limit: int = 1024) -> None:
        """Prepare the executor of at most `limit` threads, those of hanging tools included; further calls wait."""
        super().__init__(1)
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._limit = limit
        self._mutex = threading.Lock()
        self._running = 0
        self._free = 0  # threads that wait for a call, or are about to
        self._waiting = 0  # calls that no thread has taken

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in a thread; see `Executor.submit`."""
        future: Future[Any] = Future()
        with self._mutex:
            self._waiting += 1
            starts = self._waiting > self._free and self._running < self._limit
            self._running += starts
            self._free += starts
            self._calls.put((future, lambda: fn(*args, **kwargs)))
        if starts:
            threading.Thread(target=self._work, name="strands-sglang-tool", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            try:
                future, call = self._calls.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._mutex:
                    if self._waiting >= self._free:
                        continue  # a call was submitted meanwhile
                    self._running -= 1
                    self._free -= 1
                return
            with self._mutex:
                self._waiting -= 1
                self._free -= 1
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del future, call
            with self._mutex:
                self._free += 1


class _LoopThreads:
    """The `ToolThreads` of an event loop, and the executor it had before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.users = 0
        self.previous = getattr(loop, _EXECUTOR, None)
        self.ours = ToolThreads(limit)
        loop.set_default_executor(self.ours)

    def restore(self, loop: asyncio.AbstractEventLoop) -> None:
        """Restore the previous executor of the event loop, unless its executor was replaced meanwhile."""
        # Event loops of other packages do not expose their executor; they keep ours, whose threads end when idle.
        if getattr(loop, _EXECUTOR, None) is self.ours:
            setattr(loop, _EXECUTOR, self.previous)


_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopThreads] = weakref.WeakKeyDictionary()


def threads_for(concurrency: int) -> int:
    """Return the maximum number of tool threads for this number of concurrent episodes."""
    return max(64, min(4 * concurrency, 1024))


@contextmanager
def tool_threads(limit: int) -> Iterator[None]:
    """Make `ToolThreads` the default executor of the running event loop while the `with` block runs, unless it is."""
    loop = asyncio.get_running_loop()
    with _lock:
        threads = _by_loop.get(loop)
        if threads is None:
            threads = _by_loop[loop] = _LoopThreads(loop, limit)
        threads.users += 1
    try:
        yield
    finally:
        with _lock:
            threads.users -= 1
            if not threads.users:
                del _by_loop[loop]
                threads.restore(loop)


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """Collect young objects often and all objects rarely, by a timer; a disabled collector stays disabled."""
    global _gc_users, _gc_was_enabled
    loop = asyncio.get_running_loop()
    with _lock:
        if not _gc_users:
            _gc_was_enabled = gc.isenabled()
            gc.disable()
        _gc_users += 1
    timer = _GcTimer(loop) if _gc_was_enabled else None
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        with _lock:
            _gc_users -= 1
            if not _gc_users and _gc_was_enabled:
                gc.enable()


class _GcTimer:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._full_at = time.monotonic() + _FULL_SECONDS
        self._handle = loop.call_later(_YOUNG_SECONDS, self._collect)

    def cancel(self) -> None:
        self._handle.cancel()

    def _collect(self) -> None:
        gc.collect(0)  # survivors are not scanned again before the next full collection
        now = time.monotonic()
        if now >= self._full_at:
            gc.collect()
            took = time.monotonic() - now
            self._full_at = time.monotonic() + max(_FULL_SECONDS, _FULL_RATIO * took)
        self._handle = self._loop.call_later(_YOUNG_SECONDS, self._collect)


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """The limit of open files of this process, and how many a run needs."""

    soft: float
    """Files that the process may open now; infinity: no limit."""
    hard: float
    """Value up to which the process may raise the soft limit; infinity: no limit."""
    needed: int


def open_files(connections: int) -> OpenFiles | None:
    """Return the limit of open files and what a run with this many connections needs; None: the system has no limit."""
    if resource is None:
        return None
    soft, hard = (
        math.inf if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return OpenFiles(soft, hard, connections + _OTHER_FILES)


def check_open_files(connections: int, *, raise_limit: bool) -> None:
    """Log a warning if too few files may be open; `raise_limit`: raise the soft limit first, and leave it raised."""
    limit = open_files(connections)
    if limit is None or limit.soft >= limit.needed:
        return
    granted, needed = limit.soft, limit.needed
    if raise_limit:
        try:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(min(needed, limit.hard)), hard))
            granted = min(needed, limit.hard)
        except (OSError, ValueError) as error:
            logger.debug("limit=<%d>, error=<%s> | limit of open files could not be raised", granted, error)
    if granted < needed:
        logger.warning("limit=<%d>, needed=<%d> | limit of open files is too low: raise `ulimit -n`", granted, needed)
