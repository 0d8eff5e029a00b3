"""One run at a time in a directory.

Invariant: the lock goes with the process that holds it, however that ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strands_sglang.errors import ConfigurationError, LedgerError

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Hold a directory for one run.

    Raises:
        ConfigurationError: Another run has it.
        LedgerError: It cannot be written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory / ".lock", os.O_CREAT | os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise LedgerError(f"the directory {directory} cannot be written to: {error}") from error
    try:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"another run is under way in {directory}: wait for it, or take another directory"
                ) from None
            except OSError:
                pass  # a file system without locks: nothing to be had
        yield
    finally:
        os.close(handle)
