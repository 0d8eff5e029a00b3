"""Shards: the files of a ledger. `OpenShard` writes one, `ShardReader` reads one, even if it is torn or damaged.

    magic line
    block: header                         JSON: who wrote the file
    mark  block  block  block ...         a section: one deflate stream, flushed after each block
    mark  block  block ...                the next section, after about 4 MiB
    block: closing                        JSON: number of events; only if the file was closed

A block is its size, the CRC-32 of its content, its kind, the CRC-32 of these three fields, and its content.

Invariants: a block holds whole events, and can be read once everything up to its end is written. A section can be read
without the sections before it. A block that fails its checks is never decoded, nor is the rest of its section; reading
continues at the next section, and `ShardState` reports what was lost. What a shard takes in memory is bounded by what
it takes on disk: the events of a section have at most `LARGEST_RATIO` times its size, and holes in a file are not read.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from strands_sglang._files import open_file, sync_folder
from strands_sglang._json import loads
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import first_size, frames
from strands_sglang.ledger.run_dir import FORMAT, MAGIC

MARK = bytes.fromhex("e3d1a07f5b92c4188e6a35f9d20b7c46")
"""Start of each section: 16 bytes that are unlikely to occur anywhere else."""
SECTION_BYTES = 4 << 20
"""Size of a section on disk in bytes; the next block starts a new section."""
LARGEST_BLOCK = 1 << 28
"""Maximum size of a block in bytes, before compression."""
SEVERAL_EVENTS = 1 << 24
"""Maximum size in bytes of a block with more than one event, before compression. Writers stay far below."""

LARGEST_SHARD = 3 * LARGEST_BLOCK
"""Maximum size of a shard on disk in bytes. Writers start the next shard before."""
LARGEST_RATIO = 64
"""Maximum size of a section's events before compression, as a multiple of the section's size in the file. Each event
counts `EVENT_WEIGHT` bytes more than it has. What compresses better is stored uncompressed."""
EVENT_WEIGHT = 4096
"""Bytes that an event counts beside its own: about what readers keep for it, however small it is."""

BLOCK_HEAD = struct.Struct("<IIBI")
"""Head of a block: size, CRC-32 of the content, kind, CRC-32 of these three fields."""
_LEVEL = 1  # level 6 takes 40 % more CPU time and saves 4 % of the bytes
_FIRST_CHUNK, _CHUNK = 1 << 12, 1 << 20  # bytes read at a time, in a search that mostly ends soon
_LARGEST_ABOUT = 1 << 20  # bytes of a block that is not of events
_MOST_LOST = 1000  # ranges that cannot be read, after which the rest of the file is not read either


class BlockKind(int, Enum):
    """Content of a block."""

    EVENTS = 0
    HEADER = 1
    """JSON: who wrote the shard."""
    CLOSING = 2
    """JSON: number of events in the shard. The last block."""


class OpenShard:
    """A shard that is being written, block by block, without buffering."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        """Create the file.

        Args:
            path: The file; must not exist.
            header: Who writes it, as JSON data.

        Raises:
            OSError: The file cannot be created.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # not on every platform
        self._file = os.open(path, flags, 0o644)
        self._folder: Path | None = path.parent  # synced once, because the file is new
        self._opening = MAGIC + _block(BlockKind.HEADER, orjson.dumps(header))
        self._stream: Any = None  # deflate stream of the section
        self._left = 0  # bytes until the next section
        self._room = 0  # bytes of events that the section may still have for its size in the file
        self._events = 0
        self.size = 0
        """Bytes written so far."""

    def append(self, data: bytes, count: int) -> None:
        """Write a block of `count` events, concatenated in `data`.

        Raises:
            OSError: The block cannot be written. The file ends with the previous block.
        """
        mark = b""
        if self._left <= 0:
            mark, self._left, self._room = MARK, SECTION_BYTES, 0
            self._stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
        block = self._compressed(data)
        weight = len(data) + EVENT_WEIGHT * count
        if weight > self._room + LARGEST_RATIO * len(mark + block):  # as a section of its own, not compressed
            mark, self._left, self._room = MARK, 0, 0
            self._stream = zlib.compressobj(0, zlib.DEFLATED, -15)
            block = self._compressed(data)
        self._left -= len(block)
        self._room += LARGEST_RATIO * len(mark + block) - weight
        self._events += count
        self._write(mark + block)

    def _compressed(self, data: bytes) -> bytes:
        content = self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)
        return _block(BlockKind.EVENTS, content)

    def sync(self) -> None:
        """Sync everything written so far to disk."""
        os.fsync(self._file)
        if self._folder is not None:
            sync_folder(self._folder)
            self._folder = None

    def close(self) -> None:
        """Write the closing block, sync, and close the file."""
        self._write(_block(BlockKind.CLOSING, orjson.dumps({"events": self._events})))
        self.sync()
        self.abandon()

    def abandon(self) -> None:
        """Close the file without a closing block."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _write(self, data: bytes) -> None:
        rest = memoryview(self._opening + data)
        whole = len(rest)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            with suppress(OSError):  # the torn end is then detected by the reader
                os.ftruncate(self._file, self.size)
            self.abandon()
            raise
        self.size += whole
        self._opening = b""


def _block(kind: BlockKind, content: bytes) -> bytes:
    head = BLOCK_HEAD.pack(len(content), zlib.crc32(content), kind.value, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head)) + content


class ShardVerdict(str, Enum):
    """Condition of a shard."""

    WHOLE = "whole"
    TORN = "torn"
    """It ends inside a block, as after the death of a process: the events of the last block are lost."""
    DAMAGED = "damaged"
    """It was changed after it was written."""


@dataclass(frozen=True, slots=True)
class ShardState:
    """Condition of a shard when it was read."""

    path: Path
    bytes: int
    verdict: ShardVerdict
    at: int | None = None
    """Offset of the first byte that cannot be read; None: everything can be read."""
    message: str = ""
    """What is wrong; "" if nothing is."""
    lost: tuple[tuple[int, int], ...] = ()
    """Byte ranges that cannot be read, as (start, end)."""
    closed: bool = False
    """Whether its writer closed it. If not, the writer died or is still writing."""
    header: dict[str, Any] = field(default_factory=dict)
    """Who wrote it; empty if that is lost."""


class Block(NamedTuple):
    """Events that were written together."""

    at: int
    """Offset of the block in the shard, in bytes."""
    section: int
    """Offset of its section, where decompression has to start."""
    events: list[bytes]
    """The encoded events, in the order in which they were written."""


class ShardReader:
    """Reads a whole shard, or one section of it, once."""

    def __init__(self, path: Path, *, start: int = 0, stop: int | None = None) -> None:
        """Prepare to read; the file is opened on iteration.

        Args:
            path: The file.
            start: Offset of the section to read; 0: the whole file.
            stop: Offset at which to stop; None: the size of the file when reading starts.
        """
        self.path, self._start, self._stop = path, start, stop
        self._size = self._events = 0
        self._stream: Any = None  # deflate stream of the section
        self._section = start
        self._room = 0  # bytes of events that the section may still have for its size in the file
        self._header: dict[str, Any] = {}
        self._closed = False
        self._verdict = ShardVerdict.WHOLE
        self._messages: list[str] = []
        self._lost: list[tuple[int, int]] = []

    @property
    def section(self) -> int:
        """Offset of the last section that was found: of the next one, if a section was read and another follows."""
        return self._section

    @property
    def state(self) -> ShardState:
        """The condition found so far."""
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
            if self._size > LARGEST_SHARD:
                message = f"a shard must have at most {LARGEST_SHARD} bytes, got {self._size}"
                self._note(ShardVerdict.DAMAGED, 0, self._size, message)
                return
            at = self._start
            while at < self._size:
                try:
                    end, events = self._item(file, at)
                except _BrokenError as error:
                    end, events = self._passed_over(file, at, error), None
                if self._start and at > self._start and self._section != self._start:
                    return  # the next section starts here
                if events is not None:
                    yield Block(at, self._section, events)
                at = end
            if self._start == self._size == 0:
                self._note(ShardVerdict.TORN, 0, 0, "the file is empty")

    def _item(self, file: BinaryIO, at: int) -> tuple[int, list[bytes] | None]:
        """Read one item (magic line, mark or block); return the offset of the next one, and the events of a block."""
        file.seek(at)
        first = file.read(min(len(MAGIC), self._size - at))
        if at == 0:
            if first == MAGIC:
                return len(MAGIC), None
            torn = MAGIC.startswith(first.rstrip(b"\0")) and self._zeros(file, len(MAGIC))
            raise _BrokenError(_torn_if(torn), f"the first line is not that of a ledger of format {FORMAT}")
        if self._closed:
            raise _BrokenError(ShardVerdict.DAMAGED, "there is data after the closing block")
        if first.startswith(MARK):
            self._section, self._stream, self._room = at, zlib.decompressobj(-15), LARGEST_RATIO * len(MARK)
            return at + len(MARK), None
        if len(first) < BLOCK_HEAD.size or MARK.startswith(first):
            raise _BrokenError(ShardVerdict.TORN, "the file ends inside the head of a block")
        size, check, kind, head_check = BLOCK_HEAD.unpack_from(first)
        if zlib.crc32(first[: BLOCK_HEAD.size - 4]) != head_check:
            torn = self._zeros(file, at + len(MARK))  # after the head or mark that was cut off
            raise _BrokenError(_torn_if(torn), "the head of a block fails its checksum")
        end = at + BLOCK_HEAD.size + size
        most = LARGEST_BLOCK + (LARGEST_BLOCK >> 8) if kind == BlockKind.EVENTS else _LARGEST_ABOUT
        if size > most:
            raise _BrokenError(ShardVerdict.DAMAGED, f"a block must have at most {most} bytes, got {size}")
        if end > self._size:
            raise _BrokenError(ShardVerdict.TORN, f"the file ends {end - self._size} bytes before the end of a block")
        file.seek(at + BLOCK_HEAD.size)
        content = file.read(size)
        if zlib.crc32(content) != check:
            raise _BrokenError(_torn_if(self._zeros(file, end)), "the content of a block fails its checksum")
        try:
            return end, self._opened(BlockKind(kind), content)
        except (zlib.error, ValueError, LedgerError) as error:
            raise _BrokenError(ShardVerdict.DAMAGED, f"the content of a block is invalid: {error}") from error

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
                raise LedgerError(
                    f"the closing block counts {about.get('events')} events, but the file has {self._events}"
                )
            return None
        if self._stream is None:
            raise LedgerError("events before the first section")
        self._room += LARGEST_RATIO * (BLOCK_HEAD.size + len(content))
        most = self._room + 1
        data = self._stream.decompress(content, min(SEVERAL_EVENTS, most))
        if self._stream.unconsumed_tail:
            left = min(first_size(data), LARGEST_BLOCK, most) - len(data)  # a larger block must be a single event
            data += self._stream.decompress(self._stream.unconsumed_tail, max(left, 0) + 1)
        if self._stream.unconsumed_tail or self._stream.eof:
            raise LedgerError("the compressed stream does not end with its block, or its data is too large")
        events = frames(data)
        self._room -= len(data) + EVENT_WEIGHT * len(events)
        if self._room < 0:
            raise LedgerError(f"its events have more than {LARGEST_RATIO} times the size of their section")
        self._events += len(events)
        return events

    def _passed_over(self, file: BinaryIO, at: int, error: _BrokenError) -> int:
        """Record what is lost and return the offset where reading continues: the next mark, or the end of the file."""
        end, self._stream = self._size, None
        if error.verdict is ShardVerdict.DAMAGED and len(self._lost) < _MOST_LOST:
            end = self._next_mark(file, at + 1)
        self._note(error.verdict, at, end, str(error))
        return end

    def _note(self, verdict: ShardVerdict, at: int, end: int, message: str) -> None:
        if self._verdict is not ShardVerdict.DAMAGED:
            self._verdict = verdict
        self._lost.append((at, end))
        self._messages.append(f"byte {at}: {message}, {end - at} bytes are lost")

    def _next_mark(self, file: BinaryIO, at: int) -> int:
        tail = b""
        for start, chunk in self._chunks(file, at):
            if start != at:
                tail = b""  # a hole was skipped
            found = (tail + chunk).find(MARK)
            if found >= 0:
                return start - len(tail) + found
            at = start + len(chunk)
            tail = (tail + chunk)[1 - len(MARK) :]
        return self._size

    def _zeros(self, file: BinaryIO, at: int) -> bool:
        """Return whether only zeros, or nothing, follow: what a file may end with after a power failure."""
        return all(chunk.count(0) == len(chunk) for _, chunk in self._chunks(file, at))

    def _chunks(self, file: BinaryIO, at: int) -> Iterator[tuple[int, bytes]]:
        """Yield what follows in a file without its holes, first a little: offset and bytes."""
        size, at = _FIRST_CHUNK, _data_from(file, at)
        while chunk := file.read(max(0, min(size, self._size - at))):
            yield at, chunk
            size, at = min(2 * size, _CHUNK), _data_from(file, at + len(chunk))


def _data_from(file: BinaryIO, at: int) -> int:
    """Seek to an offset, or past the hole that is there, and return the new offset. A hole reads as zeros."""
    with suppress(AttributeError):  # the platform does not know holes
        try:
            return file.seek(os.lseek(file.fileno(), at, os.SEEK_DATA))
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return file.seek(0, 2)
    return file.seek(at)


class _BrokenError(Exception):
    """Part of a shard cannot be read."""

    def __init__(self, verdict: ShardVerdict, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict


def _torn_if(torn: bool) -> ShardVerdict:
    return ShardVerdict.TORN if torn else ShardVerdict.DAMAGED
