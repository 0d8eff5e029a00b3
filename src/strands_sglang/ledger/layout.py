"""How events are laid out in a file of a ledger, a shard, and the one that is being written: `OpenShard`.

    magic line
    block: header                         JSON: who wrote it
    mark  block  block  block ...         a section: one deflate stream, flushed behind each block
    mark  block  block ...                the next section, about 4 MiB later
    block: closing                        JSON: number of events; only when the file was closed

A block is its size, the CRC-32 of its bytes, its kind, the CRC-32 of these three, and its bytes.

Invariant: a block holds whole events, and everything before its end is enough to read it; a section can be read
without what comes before it.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

import orjson

MAGIC = b"strands-sglang ledger 1\n"
"""The first line of every shard."""
MARK = bytes.fromhex("e3d1a07f5b92c4188e6a35f9d20b7c46")
"""What stands before each section: sixteen bytes that nothing else is likely to have."""
SECTION_BYTES = 4 << 20
"""Size on disk behind which a new section begins."""
LARGEST_BLOCK = 1 << 29
"""Most bytes of events in a block, before compression."""
SEVERAL_EVENTS = 1 << 24
"""Most bytes of a block of more than one event. Writers stay far below."""

BLOCK_HEAD = struct.Struct("<IIBI")
"""Size, check of the bytes, kind, check of these three."""
_LEVEL = 1  # 6 takes half again the time and saves 4 %


class BlockKind(int, Enum):
    """What a block holds."""

    EVENTS = 0
    """Events, compressed."""
    HEADER = 1
    """JSON: who wrote the shard."""
    CLOSING = 2
    """JSON: how many events the shard has; nothing comes behind it."""


class OpenShard:
    """A new file that is being written. Blocks are handed to the operating system one by one."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        """Make the file.

        Args:
            path: Where; nothing must be there yet.
            header: Who writes it: plain JSON data.

        Raises:
            OSError: It cannot be made.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # not every system has both
        self._file = os.open(path, flags, 0o644)
        self._folder: Path | None = path.parent  # to be synced, since the file is new
        self._opening = MAGIC + _block(BlockKind.HEADER, orjson.dumps(header))
        self._stream: Any = None  # of the section
        self._left = 0  # bytes until the next section
        self._events = 0
        self.size = 0
        """Bytes written so far."""

    def append(self, data: bytes, count: int) -> None:
        """Write a block of `count` events, one behind the other in `data`.

        Raises:
            OSError: The disk does not take it. The file ends with the block before.
        """
        mark = b""
        if self._left <= 0:
            self._stream, self._left, mark = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15), SECTION_BYTES, MARK
        block = _block(BlockKind.EVENTS, self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH))
        self._left -= len(block)
        self._events += count
        self._write(mark + block)

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        os.fsync(self._file)
        if self._folder is not None:
            with suppress(OSError):  # where a folder cannot be opened there is no such thing to be done
                folder = os.open(self._folder, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
            self._folder = None

    def close(self) -> None:
        """Write the closing block, wait until everything is on the disk, and close the file."""
        self._write(_block(BlockKind.CLOSING, orjson.dumps({"events": self._events})))
        self.sync()
        self.abandon()

    def abandon(self) -> None:
        """Close the file as it is."""
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
            with suppress(OSError):  # then the end is torn, which a reader can tell
                os.ftruncate(self._file, self.size)
            self.abandon()
            raise
        self.size += whole
        self._opening = b""


def _block(kind: BlockKind, content: bytes) -> bytes:
    head = BLOCK_HEAD.pack(len(content), zlib.crc32(content), kind.value, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head)) + content
