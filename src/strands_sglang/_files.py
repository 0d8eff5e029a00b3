"""Reading files that may not be trusted, and writing files atomically.

Invariants: only regular files are opened, so a read never blocks on a pipe or a device. A file written through
`replace_file` exists complete, or not at all.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def open_file(path: Path, buffering: int = 1 << 17) -> BinaryIO:
    """Open a regular file for reading; OSError if it is missing, or a directory, a pipe or a device."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        return os.fdopen(descriptor, "rb", buffering)
    except BaseException:
        os.close(descriptor)
        raise


@contextmanager
def replace_file(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Write a file atomically, replacing an existing one; `sync`: sync the content to disk first.

    The block writes to the temporary path it is given, in the same directory. When the block succeeds, the temporary
    file is renamed to `path`; when it raises, the temporary file is removed and `path` is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield temporary
        if sync:
            with temporary.open("r+b") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Sync the names of a folder to disk, so that files created or renamed in it survive a failure of the machine."""
    with suppress(OSError):  # not every platform can open and sync a directory
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
