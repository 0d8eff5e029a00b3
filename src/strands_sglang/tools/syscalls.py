"""System calls that code in the sandbox may not make, by their numbers.

The numbers are part of the kernel's binary interface and never change; they were taken from the kernel's own headers
(`asm/unistd_64.h`, `asm-generic/unistd.h`).

Invariant: what is listed is refused; a call newer than `NEWEST` does not exist for the sandbox, so that a kernel which
learns new ones does not open it.
"""

from __future__ import annotations

from typing import NamedTuple


class Machine(NamedTuple):
    """What the filter must know of a processor architecture."""

    audit: int
    """Its number in `struct seccomp_data.arch`."""
    column: int
    """Place of its numbers in the tuples below."""
    foreign: int | None
    """Numbers from here on belong to a second calling convention (x32); None: there is none."""


MACHINES = {
    "x86_64": Machine(0xC000003E, 0, 0x40000000),
    "aarch64": Machine(0xC00000B7, 1, None),
}
"""By `platform.machine()`."""

NEWEST = 456
"""`futex_requeue`; calls with higher numbers are answered with "no such call". Since 2019 new calls have the same
number everywhere."""

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
    # Parts of the kernel with a history.
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
    # The machine itself.
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
    # Memory that no limit of ours would count.
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
    "setxattr": (188, 5),  # access lists of 64 KiB for every file
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setsockopt": (54, 208),  # larger buffers
    # What the whole machine has so much of and no more, or does for everybody.
    "io_setup": (206, 0),
    "io_destroy": (207, 1),
    "io_submit": (209, 2),
    "io_cancel": (210, 3),
    "io_getevents": (208, 4),
    "io_pgetevents": (333, 292),
    "sync": (162, 81),
    "syncfs": (306, 267),
    # Ways to talk to another call through the files of the interpreter, which all calls share.
    "flock": (73, 32),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    # Sockets, beyond the pairs that event loops are made with.
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
}
"""Name to its number on x86_64 and on aarch64; None: that architecture never had it."""
