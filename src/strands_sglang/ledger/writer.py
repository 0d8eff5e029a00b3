"""Writing a ledger while episodes run: `LedgerWriter`.

An event costs the event loop the appending to a list. A thread of its own compresses what has come in and hands it to
the operating system, a few times a second, or at once when somebody waits for it.

Invariant: what `flushed` has confirmed is in the file, whatever becomes of this process; events are in the file in the
order of `write`; no two processes write to the same file, not even after a fork.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import re
import secrets
import socket
import threading
import time
import weakref
from enum import Enum
from pathlib import Path

from strands_sglang.errors import ConfigurationError, LedgerError
from strands_sglang.ledger.layout import LARGEST_BLOCK, OpenShard

logger = logging.getLogger(__name__)

SHARD_BYTES = 256 << 20
"""Size on disk behind which the next shard is begun."""

_BLOCK_BYTES = 1 << 20  # of events, before compression: what is compressed at a time


class Durability(str, Enum):
    """What an event that was confirmed survives."""

    PROCESS = "process"
    """The death of this process: it was handed to the operating system."""
    MACHINE = "machine"
    """The death of the machine: it was synced to the disk, which costs some milliseconds each time."""


class LedgerWriter:
    """Writes the events of this process into shards of a run's directory. Files are made with the first event."""

    def __init__(
        self,
        directory: Path | str,
        *,
        worker: str = "0",
        durability: Durability = Durability.PROCESS,
        flush_seconds: float = 0.05,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        """Make a writer.

        Args:
            directory: Of the run.
            worker: Name of this process among those of the run: letters, digits, ".", "_".
            durability: What a confirmed event survives.
            flush_seconds: How long an event may stay in memory when nobody waits for it.
            shard_bytes: Size on disk behind which the next shard is begun.

        Raises:
            ConfigurationError: A name that cannot be part of a file's name.
        """
        if not re.fullmatch(r"[A-Za-z0-9._]+", worker):
            raise ConfigurationError(f"the name of a worker has letters, digits, '.' and '_' only, not {worker!r}")
        self._directory = Path(directory) / "ledger"
        self._worker, self._durability = worker, Durability(durability)
        self._flush_seconds, self._shard_bytes = flush_seconds, shard_bytes
        self._closed = False
        self._shard: OpenShard | None = None
        self._begin()
        _writers.add(self)

    def _begin(self) -> None:
        """Set up for this process, with nothing written."""
        self._start = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        self._parts = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pending: list[bytes] = []
        self._written = self._done = 0  # events taken in, and those handed on
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # for how many events to be handed on
        self._filled, self._hurry = threading.Event(), threading.Event()
        self._failure = ""
        self.paths: list[Path] = []
        """Shards of this process so far."""

    def write(self, event: bytes) -> None:
        """Take an encoded event in. From any thread; never waits for the disk.

        Raises:
            LedgerError: The writer is closed, the disk refused an earlier event, or this one is too large.
        """
        if len(event) > LARGEST_BLOCK:
            raise LedgerError(f"an event of {len(event)} bytes; at most {LARGEST_BLOCK} can be written")
        with self._lock:
            if self._failure or self._closed:
                raise LedgerError(self._failure or "the ledger's writer is closed")
            self._written += 1
            self._pending.append(event)
            if len(self._pending) == 1:
                self._filled.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
                self._thread.start()

    async def flushed(self) -> None:
        """Wait until everything written so far is as safe as `durability` says. From any event loop.

        Raises:
            LedgerError: The disk refused an event.
        """
        with self._lock:
            if self._failure:
                raise LedgerError(self._failure)
            if self._done == self._written:
                return
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((self._written, future))
            self._hurry.set()
        await future

    def close(self) -> None:
        """Write what is left and close the shard. Closing twice is closing once.

        Raises:
            LedgerError: The disk refused an event.
        """
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._hurry.set()
            self._filled.set()
            thread.join()
        if self._failure:
            raise LedgerError(self._failure)

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        """Write until closed. In the thread."""
        last = False
        while not last:
            self._filled.wait()
            self._hurry.wait(self._flush_seconds)  # more may come
            with self._lock:
                events, self._pending = self._pending, []
                self._filled.clear()
                self._hurry.clear()
                last = self._closed
            failure = ""
            try:
                self._put(events)
                if last and self._shard is not None:
                    self._shard.close()
            except Exception as error:  # whatever it is, those who wait must hear of it
                last, failure = True, f"the ledger in {self._directory} cannot be written: {error}"
                logger.error("directory=<%s>, error=<%s> | ledger cannot be written", self._directory, error)
            with self._lock:
                self._done += 0 if failure else len(events)
                self._failure = failure
                settled = [future for count, future in self._waiting if failure or count <= self._done]
                self._waiting = [one for one in self._waiting if not failure and one[0] > self._done]
            _settle(settled, failure)

    def _put(self, events: list[bytes]) -> None:
        at = 0
        while at < len(events):
            size, end = 0, at
            while end < len(events) and (end == at or size + len(events[end]) <= _BLOCK_BYTES):
                size += len(events[end])
                end += 1
            shard = self._shard
            if shard is None or shard.size >= self._shard_bytes:
                shard = self._next_shard()
            shard.append(b"".join(events[at:end]), end - at)
            at = end
        if events and self._durability is Durability.MACHINE and self._shard is not None:
            self._shard.sync()

    def _next_shard(self) -> OpenShard:
        if self._shard is not None:
            self._shard.close()
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{self._worker}-{self._start}-{self._parts:03d}.ledger"
        header = {"format": 1, "worker": self._worker, "start": self._start, "part": self._parts, "pid": os.getpid()}
        self._shard = OpenShard(path, {**header, "host": socket.gethostname(), "created": time.time()})
        self._parts += 1
        self.paths.append(path)
        return self._shard

    def _forked(self) -> None:
        """Begin anew in a child process: file, thread and events not yet written are the parent's."""
        if self._shard is not None:
            self._shard.abandon()
            self._shard = None
        self._begin()


_writers: weakref.WeakSet[LedgerWriter] = weakref.WeakSet()


def _settle(futures: list[asyncio.Future[None]], failure: str) -> None:
    """Tell those who wait, each in its own event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for future in futures:
        by_loop.setdefault(future.get_loop(), []).append(future)
    for loop, those in by_loop.items():
        try:
            loop.call_soon_threadsafe(_tell, those, failure)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass


def _tell(futures: list[asyncio.Future[None]], failure: str) -> None:
    for future in futures:
        if future.done():
            continue  # who waited was cancelled
        if failure:
            future.set_exception(LedgerError(failure))
        else:
            future.set_result(None)


def _close_all() -> None:
    for writer in list(_writers):
        try:
            writer.close()
        except LedgerError as error:
            logger.error("error=<%s> | events were lost", error)


def _begin_all_anew() -> None:
    for writer in list(_writers):
        writer._forked()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all_anew)
