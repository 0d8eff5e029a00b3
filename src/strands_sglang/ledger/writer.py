"""Writing a ledger while episodes run: `LedgerWriter`.

Writing an event costs the event loop one list append. A background thread compresses pending events and writes them,
a few times a second, or immediately when a caller waits in `flushed`.

Invariants: events confirmed by `flushed` are in the file even if this process dies. Events are in the file in the order
of `write`. No two processes write to the same file, not even after a fork. A file that events refer to is written
before them.
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
from strands_sglang.ledger.files import FileStore, file_digest
from strands_sglang.ledger.run_dir import FORMAT
from strands_sglang.ledger.shard import LARGEST_BLOCK, OpenShard

logger = logging.getLogger(__name__)

SHARD_BYTES = 256 << 20
"""Size of a shard on disk in bytes; the next block starts a new shard."""

_BLOCK_BYTES = 1 << 20  # size of a block of events before compression


class Durability(str, Enum):
    """What a confirmed event survives."""

    PROCESS = "process"
    """The death of this process: the event was written to the operating system."""
    MACHINE = "machine"
    """A failure of the machine: the event was synced to disk, which takes milliseconds each time."""


class LedgerWriter:
    """Writes the events of this process to shards in a run directory. Files are created with the first event."""

    def __init__(
        self,
        directory: Path | str,
        *,
        worker: str = "0",
        durability: Durability = Durability.PROCESS,
        flush_seconds: float = 0.05,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        """Create a writer.

        Args:
            directory: The run directory.
            worker: Name of this process within the run: letters, digits, ".", "_". Part of the file names.
            durability: What a confirmed event survives.
            flush_seconds: Maximum time an event stays in memory if no caller waits for it.
            shard_bytes: Size of a shard on disk in bytes; the next block starts a new shard.

        Raises:
            ConfigurationError: The worker name has other characters.
        """
        if not re.fullmatch(r"[A-Za-z0-9._]+", worker):
            raise ConfigurationError(f"worker must consist of letters, digits, '.' and '_', got {worker!r}")
        self._directory = Path(directory) / "ledger"
        self._store = FileStore(directory)
        self._worker, self._durability = worker, Durability(durability)
        self._flush_seconds, self._shard_bytes = flush_seconds, shard_bytes
        self._closed = False
        self._shard: OpenShard | None = None
        self._reset()
        _writers.add(self)

    def _reset(self) -> None:
        """Initialize the state of this process, with nothing written."""
        self._start = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        self._parts = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pending: list[bytes] = []
        self._files: list[tuple[str, bytes]] = []  # to be written before the pending events
        self._known_files: set[str] = set()
        self._written = self._done = 0  # events accepted, and events written to the file
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # event count to wait for, and its future
        self._filled, self._hurry = threading.Event(), threading.Event()
        self._failure = ""
        self.paths: list[Path] = []
        """Shards that this process has created so far."""

    def write(self, event: bytes) -> None:
        """Accept an encoded event. Thread-safe; does not wait for the disk.

        Raises:
            LedgerError: The writer is closed, an earlier write failed, or the event is too large.
        """
        if len(event) > LARGEST_BLOCK:
            raise LedgerError(f"an event must have at most {LARGEST_BLOCK} bytes, got {len(event)}")
        with self._lock:
            if self._failure or self._closed:
                raise LedgerError(self._failure or "the ledger writer is closed")
            self._written += 1
            self._pending.append(event)
            if len(self._pending) == 1:
                self._filled.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
                self._thread.start()

    def put_file(self, data: bytes) -> str:
        """Accept a file that an event will refer to, and return its digest. Thread-safe; does not wait for the disk."""
        digest = file_digest(data)
        with self._lock:
            if digest not in self._known_files:
                self._known_files.add(digest)
                self._files.append((digest, data))
        return digest

    async def flushed(self) -> None:
        """Wait until everything written so far is as durable as `durability` requires. Works in any event loop.

        Raises:
            LedgerError: A write failed.
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
        """Write pending events and close the shard. Calling it again has no effect.

        Raises:
            LedgerError: A write failed.
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
        """Write until closed. Runs in the background thread."""
        last = False
        while not last:
            self._filled.wait()
            self._hurry.wait(self._flush_seconds)  # wait for more events to write together
            with self._lock:
                events, self._pending = self._pending, []
                files, self._files = self._files, []
                self._filled.clear()
                self._hurry.clear()
                last = self._closed
            failure = ""
            try:
                for digest, data in files:
                    self._store.write(digest, data, sync=self._durability is Durability.MACHINE)
                self._put(events)
                if last and self._shard is not None:
                    self._shard.close()
            except Exception as error:  # any failure must reach the waiting callers
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
        header = {
            "format": FORMAT,
            "worker": self._worker,
            "start": self._start,
            "part": self._parts,
            "pid": os.getpid(),
        }
        self._shard = OpenShard(path, {**header, "host": socket.gethostname(), "created": time.time()})
        self._parts += 1
        self.paths.append(path)
        return self._shard

    def _forked(self) -> None:
        """Reset the state in a forked child: the file, the thread and pending events belong to the parent."""
        if self._shard is not None:
            self._shard.abandon()
            self._shard = None
        self._reset()


_writers: weakref.WeakSet[LedgerWriter] = weakref.WeakSet()


def _settle(futures: list[asyncio.Future[None]], failure: str) -> None:
    """Complete the futures of waiting callers, each in its own event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for future in futures:
        by_loop.setdefault(future.get_loop(), []).append(future)
    for loop, those in by_loop.items():
        try:
            loop.call_soon_threadsafe(_complete, those, failure)
        except RuntimeError:  # the loop is closed, so its callers no longer wait
            pass


def _complete(futures: list[asyncio.Future[None]], failure: str) -> None:
    for future in futures:
        if future.done():
            continue  # the caller was cancelled
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


def _reset_all() -> None:
    for writer in list(_writers):
        writer._forked()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
