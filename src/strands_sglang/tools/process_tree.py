"""What a process and all its descendants use, seen from outside.

Where control groups may be used they count memory better; inside a container they mostly may not, so this needs nothing
but `/proc`. It is a look now and then, not a wall: between two looks a call can take more than it may.

Invariant: looking never fails and changes nothing; a process that has gone uses nothing.
"""

from __future__ import annotations

import os
from functools import cache

_PAGE = os.sysconf("SC_PAGE_SIZE")


def descendants(pid: int) -> list[int]:
    """Return a process and what it started, directly or not."""
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
    """Return the bytes of memory that processes use together.

    Args:
        pids: The processes.
        limit: Below it, an upper bound is returned: pages that several processes share then count for each.
    """
    bound = sum(int(words[1]) for pid in pids if (words := _read(f"/proc/{pid}/statm").split())) * _PAGE
    return bound if bound <= limit else sum(_own_memory(pid) for pid in pids)


def sockets_of(pids: list[int]) -> int:
    """Return the bytes that the sockets of some processes may hold, which no process is counted for.

    They are counted by network: 0 if these processes have none of their own. A socket counts with all it may hold.
    """
    ours = _inode("/proc/self/ns/net")
    for pid in reversed(pids):
        if _inode(f"/proc/{pid}/ns/net") in (ours, None):
            continue
        words = _read(f"/proc/{pid}/net/sockstat").split()
        if words[:2] == ["sockets:", "used"]:
            return int(words[2]) * _socket_bytes()
    return 0


def files_in(pids: list[int], directory: str) -> int:
    """Return how many files there are at a directory as some processes see it; 0 if they see what we see there."""
    ours = _device(directory)
    for pid in reversed(pids):
        theirs = f"/proc/{pid}/root{directory}"
        if _device(theirs) in (ours, None):
            continue
        try:
            found = os.statvfs(theirs)
        except OSError:
            continue
        return found.f_files - found.f_ffree
    return 0


def _device(path: str) -> int | None:
    """Return the number of the file system that a path is in; None if it is not there."""
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def _inode(path: str) -> int | None:
    """Return the number of what is at a path; None if it is not there."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


@cache
def _socket_bytes() -> int:
    """Return what a socket may hold that nobody has made larger."""
    words = _read("/proc/sys/net/core/wmem_default").split()
    return int(words[0]) if words else 212_992


def _own_memory(pid: int) -> int:
    """Return the bytes of a process, with its share of what it shares."""
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
