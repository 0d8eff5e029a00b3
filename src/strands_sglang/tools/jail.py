"""The command line that starts an interpreter inside bubblewrap.

Invariant: what is not said here is not there: no network, no file of the host beyond the interpreter's, no variable of
the environment, no capability, no terminal.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from strands_sglang.tools.interpreter import PACKAGES, Interpreter
from strands_sglang.tools.isolation import Rights
from strands_sglang.tools.sandbox_limits import SandboxLimits

WORK = "/tmp"
"""Where the code runs and may write, inside."""
NOBODY = 65534
_INSIDE = 1000  # the user's number inside, where it has a namespace of its own
_STRANGERS = (2_000_000_000, 100_000_000)  # user numbers that no system gives out: the first, and how many
_PROLOGUE = Path(__file__).with_name("prologue.py").read_text()

ENVIRONMENT = {
    "HOME": WORK,
    "LANG": "C.UTF-8",
    "PATH": "/python/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # sets of strings have the same order in every call: the same code prints the same
    "PYTHONIOENCODING": "utf-8:backslashreplace",
    "PYTHONUTF8": "1",
    "TMPDIR": WORK,
    # One thread for each, as far as limits on threads and address space are concerned.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""All there is in the environment."""


def stranger() -> int:
    """Return a user number that no process has, as far as this container has numbers to give.

    Processes are counted by user: with a number of its own, a call is counted alone.
    """
    first, count = _STRANGERS
    try:
        for line in Path("/proc/self/uid_map").read_text().splitlines():
            inside, _, length = (int(word) for word in line.split())
            if inside == 0 and length < first + count:
                first, count = length // 2, max(length // 2 - 2, 1)
    except (OSError, ValueError):
        pass
    return first + secrets.randbelow(count)


def python_command(program: str, limits: SandboxLimits, words: Sequence[str], *, count_processes: bool) -> list[str]:
    """Return the command that runs code from stdin in an interpreter, within limits.

    Args:
        program: The interpreter.
        limits: What each process may use.
        words: Further words for the prologue: `uid=...`, `path=...`.
        count_processes: Whether the number of processes is limited.
    """
    bounds = limits.for_process(count_processes=count_processes).items()
    # Without site and user directories: most of the time an interpreter takes to start goes there.
    return [program, "-s", "-S", "-B", "-c", _PROLOGUE, *words, *(f"{name}={value}" for name, value in bounds)]


def jail_command(
    bwrap: str,
    interpreter: Interpreter,
    limits: SandboxLimits,
    rights: Rights,
    filter_fd: int,
    info_fd: int | None = None,
    words: Sequence[str] = (),
) -> list[str]:
    """Return the command of one call.

    Args:
        bwrap: The program.
        interpreter: What runs inside.
        limits: What it may use.
        rights: Whose rights the command is started with.
        filter_fd: Where bubblewrap reads the system call filter.
        info_fd: Where it says which is the first process inside; None: nowhere.
        words: Further words for the prologue.
    """
    words = [*words, *[f"path={PACKAGES}"] * bool(interpreter.packages)]
    command = [bwrap, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--hostname", "sandbox", "--new-session", "--die-with-parent", "--cap-drop", "ALL"]
    if rights is Rights.ROOT:
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]  # for the prologue, which loses them by it
        words = [f"uid={stranger()}", *words]
    else:
        command += ["--unshare-user", "--uid", str(_INSIDE), "--gid", str(_INSIDE)]
        if rights in (Rights.USER, Rights.NOBODY):
            command.append("--disable-userns")
    if info_fd is not None:
        command += ["--info-fd", str(info_fd)]
    command.append("--clearenv")
    for name, value in {**ENVIRONMENT, "LD_LIBRARY_PATH": interpreter.library_path}.items():
        command += ["--setenv", name, value]
    places = [place for _, place in (*interpreter.mounts, *interpreter.links)]
    for parent in _parents([*places, "/dev/null"]):
        command += ["--dir", parent]  # those that bubblewrap makes by the way are closed to others than root
    for outside, inside in interpreter.mounts:
        command += ["--ro-bind", str(outside), inside]
    for target, place in interpreter.links:
        command += ["--symlink", target, place]
    for place in interpreter.hidden:
        command += ["--size", "4096", "--tmpfs", place, "--remount-ro", place]
    command += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", WORK]
    for device in ("null", "urandom"):
        command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    # Shared memory counts as files: one file system, one bound. Everything else is read-only, the root too. There is
    # no /proc: nothing needs it, and a container that hides part of its own may not make another.
    command += ["--symlink", WORK, "/dev/shm", "--remount-ro", "/", "--chdir", WORK]
    command += ["--seccomp", str(filter_fd), "--"]
    return command + python_command(interpreter.program, limits, words, count_processes=True)


def _parents(places: Sequence[str]) -> list[str]:
    """Return all directories above some paths, the outer ones first."""
    return sorted({str(parent) for place in places for parent in Path(place).parents} - {"/"})


def user_of(rights: Rights) -> dict[str, object]:
    """Return what `subprocess` must be told about the user that starts the command."""
    if rights not in (Rights.NOBODY, Rights.NOBODY_IN_CONTAINER):
        return {}
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def possible_rights() -> tuple[Rights, ...]:
    """Return whose rights can be had by this process, the best first."""
    if os.geteuid() == 0:
        return Rights.ROOT, Rights.NOBODY, Rights.NOBODY_IN_CONTAINER
    return Rights.USER, Rights.USER_IN_CONTAINER
