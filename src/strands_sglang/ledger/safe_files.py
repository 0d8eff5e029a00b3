"""Files and JSON that somebody else may have made: `open_file`, `loads`.

Invariant: nothing but a plain file is read, so that nothing waits for a writer that never comes; and what is read is
nested no deeper than what can be written.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

import orjson

DEEPEST = 254
"""Levels of nesting that can be written."""

_TOKENS = re.compile(rb'"[^"]*"?|[\[{]|[\]}]')


def open_file(path: Path, buffering: int = 1 << 17) -> BinaryIO:
    """Open a plain file for reading.

    Raises:
        OSError: There is none, or it is something else: a directory, a pipe, a device.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a plain file")
        return os.fdopen(descriptor, "rb", buffering)
    except BaseException:
        os.close(descriptor)
        raise


def loads(data: bytes) -> Any:
    """Decode JSON.

    Raises:
        ValueError: It is none, or nested deeper than what can be written.
    """
    if data.count(b"[") + data.count(b"{") > DEEPEST and _depth(data) > DEEPEST:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return orjson.loads(data)


def _depth(data: bytes) -> int:
    deepest = depth = 0
    for token in _TOKENS.finditer(data.replace(b"\\\\", b"").replace(b'\\"', b"")):
        first = token[0][0]
        if first in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in b"]}":
            depth -= 1
    return deepest
