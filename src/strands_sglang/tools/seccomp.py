"""The filter that the kernel asks before every system call made in the sandbox.

It is a program of the kernel's classic packet filter, some 200 instructions long, put together here: the one library
for it in Python needs libseccomp at hand and is hardly kept. The sandbox does not stand on it alone: it is the second
lock behind namespaces without privileges.

Invariant: a call of another architecture or calling convention ends the process; there is no way around the numbers.
"""

from __future__ import annotations

import errno
import platform
import struct
from functools import cache

from strands_sglang.errors import ConfigurationError
from strands_sglang.tools.syscalls import (
    CLONE,
    CLONE3,
    FCNTL,
    IOCTL,
    MACHINES,
    NEWEST,
    REFUSED,
    SOCKET,
    SOCKETPAIR,
)

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24  # places in struct seccomp_data; arguments: their low halves

_ALLOW = 0x7FFF0000
_KILL = 0x80000000  # the whole process
_REFUSE = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS

_NEW_NAMESPACE = 0x7E020000  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET
_AF_UNIX = 1
_LOCK_QUESTIONS = (5, 36)  # F_GETLK, F_OFD_GETLK: whether somebody else has locked a file
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into somebody's terminal


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one instruction; jumps count the instructions that are left out."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _second_is_not(number: int, values: tuple[int, int]) -> list[bytes]:
    """Return instructions that refuse a call with one of two second arguments, and allow it with any other."""
    return [
        _step(_EQUAL, number, 0, 5),
        _step(_LOAD, _SECOND),
        _step(_EQUAL, values[0], 1, 0),
        _step(_EQUAL, values[1], 0, 1),
        _step(_RETURN, _REFUSE),
        _step(_RETURN, _ALLOW),
    ]


@cache
def seccomp_filter(machine: str = "") -> bytes:
    """Return the filter as the kernel loads it.

    Args:
        machine: As `platform.machine()` says it; "": this one.

    Raises:
        ConfigurationError: No filter is known for this architecture.
    """
    machine = machine or platform.machine()
    if machine not in MACHINES:
        known = ", ".join(sorted(MACHINES))
        raise ConfigurationError(f"the sandbox has no system call filter for {machine!r} (it has one for {known})")
    audit, column, foreign = MACHINES[machine]
    steps = [_step(_LOAD, _ARCH), _step(_EQUAL, audit, 1, 0), _step(_RETURN, _KILL), _step(_LOAD, _NUMBER)]
    if foreign is not None:
        steps += [_step(_AT_LEAST, foreign, 0, 1), _step(_RETURN, _KILL)]
    steps += [_step(_AT_LEAST, NEWEST + 1, 0, 1), _step(_RETURN, _UNKNOWN)]
    # Its flags lie in memory, where a filter cannot look. The C library then uses clone.
    steps += [_step(_EQUAL, CLONE3[column], 0, 1), _step(_RETURN, _UNKNOWN)]
    for number in sorted({*(numbers[column] for numbers in REFUSED.values()), SOCKET[column]} - {None}, key=str):
        assert number is not None
        steps += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _REFUSE)]
    steps += [
        _step(_EQUAL, CLONE[column], 0, 5),
        _step(_LOAD, _FIRST),
        _step(_AND, _NEW_NAMESPACE),
        _step(_EQUAL, 0, 0, 1),
        _step(_RETURN, _ALLOW),
        _step(_RETURN, _REFUSE),
        _step(_EQUAL, SOCKETPAIR[column], 0, 4),
        _step(_LOAD, _FIRST),
        _step(_EQUAL, _AF_UNIX, 0, 1),
        _step(_RETURN, _ALLOW),
        _step(_RETURN, _REFUSE),
        *_second_is_not(IOCTL[column], _TERMINAL_INPUT),
        *_second_is_not(FCNTL[column], _LOCK_QUESTIONS),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)
