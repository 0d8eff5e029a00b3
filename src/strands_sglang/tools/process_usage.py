"""Resource usage of a process and its descendants, read from `/proc`.

Control groups would count memory exactly but are usually not available in a container. These are samples, not hard
limits: between two samples a call can exceed its limit.

Invariant: reading never fails and changes nothing; a process that has ended uses nothing.
"""

from __future__ import annotations

import os
from functools import cache

_PAGE = os.sysconf("SC_PAGE_SIZE")


def descendants(pid: int) -> list[int]:
    """Return a process and all its direct and indirect children."""
    found, waiting = [], [pid]
    while waiting:
        found.append(one := waiting.pop())
        try:
            threads = os.listdir(f"/proc/{one}/task")
        except OSError:
            continue
        for thread in threads:
            waiting.extend(int(child) for child in _read(f"/proc/{one}/task/{thread}/children").split())
    return found


def memory_of(pids: list[int], limit: int) -> int:
    """Return the memory of processes in bytes; an upper bound, which is cheaper to read, if that is within `limit`."""
    bound = sum(int(words[1]) for pid in pids if (words := _read(f"/proc/{pid}/statm").split())) * _PAGE
    return bound if bound <= limit else sum(_proportional_memory(pid) for pid in pids)


def socket_memory_of(pids: list[int]) -> int:
    """Return the most bytes the socket buffers of processes may have; the kernel does not count them as their memory.

    Sockets are counted per network namespace: 0 if the processes share ours. Each counts with its full buffer size.
    """
    ours = _stat("/proc/self/ns/net", "st_ino")
    for pid in reversed(pids):
        if _stat(f"/proc/{pid}/ns/net", "st_ino") in (ours, None):
            continue
        words = _read(f"/proc/{pid}/net/sockstat").split()
        if words[:2] == ["sockets:", "used"]:
            return int(words[2]) * _socket_bytes()
    return 0


def files_in(pids: list[int], directory: str) -> int:
    """Return the number of files in a directory's file system as processes see it; 0 if it is also ours."""
    ours = _stat(directory, "st_dev")
    for pid in reversed(pids):
        theirs = f"/proc/{pid}/root{directory}"
        if _stat(theirs, "st_dev") in (ours, None):
            continue
        try:
            found = os.statvfs(theirs)
        except OSError:
            continue
        return found.f_files - found.f_ffree
    return 0


def _stat(path: str, name: str) -> int | None:
    try:
        found: int = getattr(os.stat(path), name)
    except OSError:
        return None
    return found


@cache
def _socket_bytes() -> int:
    words = _read("/proc/sys/net/core/wmem_default").split()
    return int(words[0]) if words else 212_992


def _proportional_memory(pid: int) -> int:
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
