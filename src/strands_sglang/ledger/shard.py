"""One file of a ledger, a shard, as it is found: `ShardReader`, which also reads one that is torn or damaged.

Invariant: what is read is what was written: a block whose checks fail is never read, nor is what is compressed behind
it; reading goes on at the next section, and the state says what was lost.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import first_size, frames
from strands_sglang.ledger.layout import BLOCK_HEAD, LARGEST_BLOCK, MAGIC, MARK, SEVERAL_EVENTS, BlockKind
from strands_sglang.ledger.safe_files import loads, open_file

_CHUNK = 1 << 20


class ShardVerdict(str, Enum):
    """What became of a shard."""

    WHOLE = "whole"
    """Everything in it can be read."""
    TORN = "torn"
    """It ends within a block, as a process that died leaves it: the events of the last block are lost."""
    DAMAGED = "damaged"
    """Something in it was changed after it was written."""


@dataclass(frozen=True, slots=True)
class ShardState:
    """What a shard is like, as far as it was there when it was read."""

    path: Path
    """The file."""
    bytes: int
    """Its size."""
    verdict: ShardVerdict
    """What became of it."""
    at: int | None = None
    """Byte where the first thing that cannot be read begins; None: everything can."""
    message: str = ""
    """What is wrong there; "" when nothing is."""
    lost: tuple[tuple[int, int], ...] = ()
    """Runs of bytes that cannot be read: first, one past the last."""
    closed: bool = False
    """Whether its writer closed it; else it died, or still writes."""
    header: dict[str, Any] = field(default_factory=dict)
    """Who wrote it; empty when that is lost."""


class Block(NamedTuple):
    """Events that were written together."""

    at: int
    """Byte of the shard where the block begins."""
    section: int
    """Byte where its section begins: where reading has to start to get at it."""
    events: list[bytes]
    """The events, in the order they were written."""


def shard_paths(directory: Path) -> list[Path]:
    """Return the shards of a run's directory, in the order of their names."""
    return sorted((directory / "ledger").glob("*.ledger"))


class ShardReader:
    """Reads a shard once, from its beginning or one section of it."""

    def __init__(self, path: Path, *, start: int = 0, stop: int | None = None) -> None:
        """Take a file to be read.

        Args:
            path: The file.
            start: The section to be read, by its first byte; 0: the whole file.
            stop: Bytes of the file to be looked at; None: as many as there are when reading begins.
        """
        self.path, self._start, self._stop = path, start, stop
        self._size = self._events = 0
        self._stream: Any = None  # of the section
        self._section = start
        self._header: dict[str, Any] = {}
        self._closed = False
        self._verdict = ShardVerdict.WHOLE
        self._messages: list[str] = []
        self._lost: list[tuple[int, int]] = []

    @property
    def state(self) -> ShardState:
        """What was found so far."""
        at, message = self._lost[0][0] if self._lost else None, "; ".join(self._messages)
        lost = tuple(self._lost)
        return ShardState(self.path, self._size, self._verdict, at, message, lost, self._closed, self._header)

    def __iter__(self) -> Iterator[Block]:
        try:
            opened = open_file(self.path)
        except FileNotFoundError:
            raise
        except OSError as error:
            self._note(ShardVerdict.DAMAGED, 0, 0, str(error))
            return
        with opened as file:
            there = file.seek(0, 2)
            self._size = there if self._stop is None else min(there, self._stop)
            at = self._start
            while at < self._size:
                try:
                    end, events = self._item(file, at)
                except _BrokenError as error:
                    end, events = self._passed_over(file, at, error), None
                if self._start and at > self._start and self._section != self._start:
                    return  # it is the mark of the next section
                if events is not None:
                    yield Block(at, self._section, events)
                at = end
            if self._start == self._size == 0:
                self._note(ShardVerdict.TORN, 0, 0, "the file is empty")

    def _item(self, file: BinaryIO, at: int) -> tuple[int, list[bytes] | None]:
        """Read what stands at a byte; return where the next thing begins, and events if these it was."""
        file.seek(at)
        first = file.read(min(len(MAGIC), self._size - at))
        if at == 0:
            if first == MAGIC:
                return len(MAGIC), None
            torn = MAGIC.startswith(first.rstrip(b"\0")) and self._zeros(file, len(MAGIC))
            raise _BrokenError(_torn_if(torn), "the first line is not that of a ledger")
        if self._closed:
            raise _BrokenError(ShardVerdict.DAMAGED, "something behind the closing block")
        if first.startswith(MARK):
            self._section, self._stream = at, zlib.decompressobj(-15)
            return at + len(MARK), None
        if len(first) < BLOCK_HEAD.size or MARK.startswith(first):
            raise _BrokenError(ShardVerdict.TORN, "the file ends within the head of a block")
        size, check, kind, head_check = BLOCK_HEAD.unpack_from(first)
        if zlib.crc32(first[: BLOCK_HEAD.size - 4]) != head_check:
            torn = self._zeros(file, at + len(MARK))  # behind the head, or the mark, that was cut
            raise _BrokenError(_torn_if(torn), "the head of a block is not right")
        end = at + BLOCK_HEAD.size + size
        if end > self._size:
            raise _BrokenError(ShardVerdict.TORN, f"the file ends {end - self._size} bytes before the end of a block")
        file.seek(at + BLOCK_HEAD.size)
        content = file.read(size)
        if zlib.crc32(content) != check:
            raise _BrokenError(_torn_if(self._zeros(file, end)), "the bytes of a block are not those that were written")
        try:
            return end, self._opened(BlockKind(kind), content)
        except (zlib.error, ValueError, LedgerError) as error:
            raise _BrokenError(ShardVerdict.DAMAGED, f"the content of a block is not right: {error}") from error

    def _opened(self, kind: BlockKind, content: bytes) -> list[bytes] | None:
        if kind is not BlockKind.EVENTS:
            about = loads(content)
            if not isinstance(about, dict):
                raise LedgerError("not a JSON object")
            if kind is BlockKind.HEADER:
                self._header = about
                return None
            self._closed = True
            if not (self._lost or self._start) and about.get("events") != self._events:
                raise LedgerError(f"{about.get('events')} events were written, {self._events} are there")
            return None
        if self._stream is None:
            raise LedgerError("events before the first section")
        data = self._stream.decompress(content, SEVERAL_EVENTS)
        if self._stream.unconsumed_tail:
            left = min(first_size(data), LARGEST_BLOCK) - len(data)  # more than that is one event
            data += self._stream.decompress(self._stream.unconsumed_tail, max(left, 0) + 1)
        if self._stream.unconsumed_tail or self._stream.eof:
            raise LedgerError("the compressed stream does not end with its block")
        events = frames(data)
        self._events += len(events)
        return events

    def _passed_over(self, file: BinaryIO, at: int, error: _BrokenError) -> int:
        """Note what is lost and return where reading can go on: at the next mark with a block behind it."""
        end, self._stream = self._size, None
        if error.verdict is ShardVerdict.DAMAGED:
            end = self._next_mark(file, at + 1)
        self._note(error.verdict, at, end, str(error))
        return end

    def _note(self, verdict: ShardVerdict, at: int, end: int, message: str) -> None:
        if self._verdict is not ShardVerdict.DAMAGED:
            self._verdict = verdict
        self._lost.append((at, end))
        self._messages.append(f"byte {at}: {message}, {end - at} bytes are lost")

    def _next_mark(self, file: BinaryIO, at: int) -> int:
        file.seek(at)
        tail = b""
        while chunk := file.read(min(_CHUNK, self._size - at)):
            found = (tail + chunk).find(MARK)
            if found >= 0:
                return at - len(tail) + found
            at += len(chunk)
            tail = (tail + chunk)[1 - len(MARK) :]
        return self._size

    def _zeros(self, file: BinaryIO, at: int) -> bool:
        """Whether nothing but zeros, or nothing at all, comes from here on: what a machine that died may leave."""
        file.seek(at)
        while chunk := file.read(max(0, min(_CHUNK, self._size - at))):
            if chunk.count(0) != len(chunk):
                return False
            at += len(chunk)
        return True


class _BrokenError(Exception):
    """Something in a shard that cannot be read."""

    def __init__(self, verdict: ShardVerdict, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict


def _torn_if(torn: bool) -> ShardVerdict:
    return ShardVerdict.TORN if torn else ShardVerdict.DAMAGED
