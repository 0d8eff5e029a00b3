"""Seccomp filter of the sandbox: `seccomp_filter`, and the system calls it refuses: `REFUSED`.

The filter is a classic BPF program of about 200 instructions that the kernel runs before every system call. It is
assembled here because the Python binding of libseccomp needs the library installed and is hardly maintained. It is a
second barrier in addition to unprivileged namespaces. The numbers are part of the kernel's stable ABI; they come from
the kernel headers (`asm/unistd_64.h`, `asm-generic/unistd.h`).

Invariants: a system call of another architecture or calling convention kills the process. Listed calls are refused,
and calls newer than `NEWEST` fail as unknown, so that new kernels do not weaken the sandbox.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from strands_sglang.errors import ConfigurationError

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24  # offsets in struct seccomp_data; for arguments, of the low 32 bits

_ALLOW = 0x7FFF0000
_KILL = 0x80000000  # kills the whole process
_REFUSE = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS

_NEW_NAMESPACE = 0x7E020000  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET
_AF_UNIX = 1
# F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW. The others
# show what other calls do with the files that all share (locks, leases, notifications of reads, write-life hints), or
# take memory that the sandbox limits do not count (the size of a pipe).
_FCNTL_COMMANDS = (0, 1030, 1, 2, 3, 4, 6, 7, 37, 38)
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: inject input into a terminal


class Machine(NamedTuple):
    """Constants of a processor architecture."""

    audit: int
    """Its value in `struct seccomp_data.arch`."""
    column: int
    """Index of its numbers in the tuples below."""
    foreign: int | None
    """First number of a second calling convention (x32); None if there is none."""


MACHINES = {
    "x86_64": Machine(0xC000003E, 0, 0x40000000),
    "aarch64": Machine(0xC00000B7, 1, None),
}
"""Supported architectures, by `platform.machine()`."""

NEWEST = 456
"""Number of `futex_requeue`; calls with higher numbers fail with ENOSYS. Calls added since 2019 have the same number on
every architecture."""

CLONE = (56, 220)
CLONE3 = (435, 435)
SOCKET = (41, 198)
SOCKETPAIR = (53, 199)
IOCTL = (16, 29)
FCNTL = (72, 25)

REFUSED: dict[str, tuple[int | None, int | None]] = {
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    # Namespaces and mounts.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # Kernel subsystems with a history of vulnerabilities.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "vmsplice": (278, 75),
    # Administration of the machine.
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    # Memory that the sandbox limits do not count.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmctl": (31, 195),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "setxattr": (188, 5),  # access lists of up to 64 KiB per file
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setsockopt": (54, 208),  # larger socket buffers
    # Resources and operations shared by the whole machine.
    "io_setup": (206, 0),
    "io_destroy": (207, 1),
    "io_submit": (209, 2),
    "io_cancel": (210, 3),
    "io_getevents": (208, 4),
    "io_pgetevents": (333, 292),
    "sync": (162, 81),
    "syncfs": (306, 267),
    # Communication with other calls through the interpreter's files, which all calls share.
    "flock": (73, 32),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    # Sockets, except the pairs that event loops need.
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
}
"""Refused system calls: name to number on x86_64 and aarch64; None if the architecture does not have it."""


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one instruction; a jump is the number of instructions to skip."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _by_argument(number: int, argument: int, values: Sequence[int], *, listed: int, others: int) -> list[bytes]:
    """Return the steps for a system call whose action depends on whether an argument is among `values`."""
    return [
        _step(_EQUAL, number, 0, len(values) + 3),
        _step(_LOAD, argument),
        *(_step(_EQUAL, value, len(values) - place) for place, value in enumerate(values)),
        _step(_RETURN, others),
        _step(_RETURN, listed),
    ]


@cache
def seccomp_filter(machine: str = "") -> bytes:
    """Return the filter that the kernel loads; `machine` as in `platform.machine()`, empty: this one."""
    machine = machine or platform.machine()
    if machine not in MACHINES:
        known = ", ".join(sorted(MACHINES))
        raise ConfigurationError(f"the sandbox's seccomp filter supports {known}, got {machine!r}")
    audit, column, foreign = MACHINES[machine]
    steps = [_step(_LOAD, _ARCH), _step(_EQUAL, audit, 1, 0), _step(_RETURN, _KILL), _step(_LOAD, _NUMBER)]
    if foreign is not None:
        steps += [_step(_AT_LEAST, foreign, 0, 1), _step(_RETURN, _KILL)]
    steps += [_step(_AT_LEAST, NEWEST + 1, 0, 1), _step(_RETURN, _UNKNOWN)]
    # A filter cannot read the flags of clone3, which are in memory. On ENOSYS, the C library falls back to clone.
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
        *_by_argument(SOCKETPAIR[column], _FIRST, (_AF_UNIX,), listed=_ALLOW, others=_REFUSE),
        *_by_argument(IOCTL[column], _SECOND, _TERMINAL_INPUT, listed=_REFUSE, others=_ALLOW),
        *_by_argument(FCNTL[column], _SECOND, _FCNTL_COMMANDS, listed=_ALLOW, others=_REFUSE),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)
