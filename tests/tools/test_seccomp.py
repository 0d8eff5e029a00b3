"""The seccomp filter, executed by an independent interpreter of its instructions."""

from __future__ import annotations

import struct

import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.tools.seccomp import (
    CLONE,
    CLONE3,
    FCNTL,
    IOCTL,
    MACHINES,
    NEWEST,
    REFUSED,
    SOCKET,
    SOCKETPAIR,
    seccomp_filter,
)

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


def answer(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """Return the action of the filter for a system call."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, arch, 0, *words)
    steps = [struct.unpack_from("=HBBI", program, place) for place in range(0, len(program), 8)]
    place = accumulator = 0
    while True:
        code, if_true, if_false, value = steps[place]
        place += 1
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif code == 0x54:
            accumulator &= value
        elif code == 0x15:
            place += if_true if accumulator == value else if_false
        elif code == 0x35:
            place += if_true if accumulator >= value else if_false
        else:
            assert code == 0x06
            return int(value)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_system_call_number(machine: str) -> None:
    program, (audit, column, foreign) = seccomp_filter(machine), MACHINES[machine]
    assert len(program) % 8 == 0 and len(program) // 8 < 4096
    refused = {numbers[column] for numbers in REFUSED.values()} | {SOCKET[column]}
    for number in range(NEWEST + 200):
        expected = EPERM if number in refused else ENOSYS if number > NEWEST or number == CLONE3[column] else ALLOW
        if number == SOCKETPAIR[column]:
            expected = EPERM  # the address family is 0
        assert answer(program, audit, number) == expected, number
        assert answer(program, audit ^ 1, number) == KILL
        if foreign is not None:
            assert answer(program, audit, number + foreign) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_argument_checks(machine: str) -> None:
    program, (audit, column, _) = seccomp_filter(machine), MACHINES[machine]
    thread = 0x3D0F00
    assert answer(program, audit, CLONE[column], thread) == ALLOW
    assert answer(program, audit, CLONE[column], 17) == ALLOW
    for bit in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(program, audit, CLONE[column], 17 | bit) == EPERM
    assert answer(program, audit, SOCKETPAIR[column], 1) == ALLOW
    assert answer(program, audit, SOCKETPAIR[column], 2) == EPERM
    # Setting flags and locks; not: querying locks, leases, notifications (dnotify), write-life hints, sizes of pipes.
    allowed = {0, 1, 2, 3, 4, 6, 7, 37, 38, 1030}
    for command in (*range(50), *range(1020, 1050)):
        assert (answer(program, audit, FCNTL[column], 3, command) == ALLOW) == (command in allowed), command
    assert answer(program, audit, IOCTL[column], 1, 0x5401) == ALLOW
    assert answer(program, audit, IOCTL[column], 1, 0x5412) == EPERM
    assert answer(program, audit, IOCTL[column], 1, 0x541C) == EPERM
    assert (
        answer(program, audit, IOCTL[column], 1, 0xDEAD00005412) == EPERM
    )  # only the low 32 bits count, as in the kernel


def test_numbers_are_unique() -> None:
    for column in (0, 1):
        numbers = [found[column] for found in REFUSED.values() if found[column] is not None]
        assert len(numbers) == len(set(numbers))


def test_unknown_machine() -> None:
    with pytest.raises(ConfigurationError, match="riscv64"):
        seccomp_filter("riscv64")
