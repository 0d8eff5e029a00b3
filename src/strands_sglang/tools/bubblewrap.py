"""Command lines for bubblewrap, and a probe of what this machine allows: `bwrap_command`, `probe_privileges`.

Invariants: whatever the command line does not grant is absent in the sandbox: no network, no host files except the
interpreter's, no file that another call can change, no environment variables, no capabilities, no terminal.
`probe_privileges` returns only privileges with which a sandbox has just run code correctly; it never falls back to less
isolation.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from strands_sglang.errors import SandboxUnavailableError
from strands_sglang.tools.interpreter import HOME, PACKAGES, PROGRAM, Interpreter
from strands_sglang.tools.sandbox_types import Privileges, SandboxLimits
from strands_sglang.tools.seccomp import seccomp_filter

WORKDIR = "/tmp"  # working directory in the sandbox, and the only writable one
NOBODY = 65534
_INNER_UID = 1000  # user id in the sandbox, in a user namespace
_UNUSED_UIDS = (2_000_000_000, 100_000_000)  # first and number of user ids that no system assigns
_BOOTSTRAP = Path(__file__).with_name("bootstrap.py").read_text()
_INSTALL = "apt-get install bubblewrap, dnf install bubblewrap, or conda install -c conda-forge bubblewrap"
_PROBE_SECONDS = 60  # a probe takes about 20 ms; a busy machine may take much longer
_WITHOUT_SANDBOX = (
    "To run code without a sandbox, with all your privileges, pass isolation=Isolation.NONE_RUNS_AS_ME. "
    "See docs/sandbox.md for details"
)

ENVIRONMENT = {
    "HOME": WORKDIR,
    "LANG": "C.UTF-8",
    "PATH": "/python/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # sets of strings have the same order in every call, so output is reproducible
    "PYTHONIOENCODING": "utf-8:backslashreplace",
    "PYTHONUTF8": "1",
    "TMPDIR": WORKDIR,
    # One thread per library, because of the limits on threads and address space.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""The complete environment in the sandbox."""

WORKSPACE = "/workspace"  # as `WORKDIR`, in a sandbox with the system's programs
_PROGRAMS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def bwrap_command(
    bwrap: str,
    interpreter: Interpreter,
    limits: SandboxLimits,
    privileges: Privileges,
    filter_fd: int,
    null_fd: int,
    info_fd: int | None = None,
    arguments: Sequence[str] = (),
    *,
    programs: bool = False,
) -> list[str]:
    """Return the command line of one call.

    `filter_fd`: descriptor from which bubblewrap reads the seccomp filter. `null_fd`: one that reads as empty, which
    becomes the content of /dev/null. `info_fd`: descriptor to which bubblewrap writes the id of the sandbox's init
    process; None: not written. `programs`: whether the system's programs are there too, such as a shell.
    """
    arguments = [*arguments, *[f"path={PACKAGES}"] * bool(interpreter.packages)]
    command = [bwrap, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--hostname", "sandbox", "--new-session", "--die-with-parent", "--cap-drop", "ALL"]
    if privileges is Privileges.ROOT:
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]  # lost when the bootstrap changes the uid
        arguments = [f"uid={unused_uid()}", *arguments]
    else:
        command += ["--unshare-user", "--uid", str(_INNER_UID), "--gid", str(_INNER_UID)]
        if privileges in (Privileges.USER, Privileges.NOBODY):
            command.append("--disable-userns")
    if info_fd is not None:
        command += ["--info-fd", str(info_fd)]
    command.append("--clearenv")
    workdir, temporary = (WORKSPACE, f"{WORKSPACE}/.tmp") if programs else (WORKDIR, WORKDIR)
    directories = {"LD_LIBRARY_PATH": interpreter.library_path, "HOME": workdir, "TMPDIR": temporary}
    for name, value in {**ENVIRONMENT, **directories}.items():
        command += ["--setenv", name, value]
    mounts, links = interpreter.mounts, interpreter.links
    if programs:  # libraries of the system are where its programs expect them
        mounts = tuple(one for one in mounts if one[1].startswith(f"{HOME}/"))
        links = tuple(one for one in links if one[1].startswith(f"{HOME}/"))
        command += system_mounts()
    places = [place for _, place in (*mounts, *links)]
    for parent in _parents([*places, "/dev/null"]):
        command += ["--dir", parent]  # parents that bubblewrap creates implicitly are readable only by root
    for outside, inside in mounts:
        command += ["--ro-bind", str(outside), inside]
    for target, place in links:
        command += ["--symlink", target, place]
    for place in interpreter.hidden:
        command += ["--size", "4096", "--tmpfs", place, "--remount-ro", place]
    command += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", workdir]
    # A file, not the device: a device node is the same inode for the host and all calls, which could exchange messages
    # with its locks and timestamps, and a user namespace cannot have nodes of its own.
    command += ["--perms", "0666", "--bind-data", str(null_fd), "/dev/null"]
    # Shared memory is in the same file system as files, so that one limit covers both. Everything else, including /,
    # is read-only. There is no /proc: it is not needed, and a container that masks parts of its own cannot mount one.
    command += ["--symlink", temporary, "/tmp"] if programs else []
    command += ["--symlink", temporary, "/dev/shm", "--remount-ro", "/", "--chdir", workdir]
    command += ["--seccomp", str(filter_fd), "--"]
    return command + python_command(PROGRAM, limits, arguments, count_processes=True, packs_files=programs)


def python_command(
    program: str,
    limits: SandboxLimits,
    arguments: Sequence[str],
    *,
    count_processes: bool,
    packs_files: bool = False,
) -> list[str]:
    """Return the command line that runs code from stdin with limits; `arguments`: of the bootstrap (`uid=...`)."""
    bounds = limits.for_process(count_processes=count_processes, packs_files=packs_files).items()
    # Without site and user directories, which take most of an interpreter's start time.
    return [program, "-s", "-S", "-B", "-c", _BOOTSTRAP, *arguments, *(f"{name}={value}" for name, value in bounds)]


@cache
def system_mounts() -> tuple[str, ...]:
    """Return the arguments that mount the system's programs, read-only, with the links that lead to them."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for path in (Path("/", name) for name in _PROGRAMS):
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    arguments += ["--dir", "/etc"]
    for place in ("/etc/alternatives", "/etc/ld.so.cache"):
        arguments += ["--ro-bind-try", place, place]
    return tuple(arguments)


def unused_uid() -> int:
    """Return a random unused user id: the kernel counts processes per user, so a call is counted alone."""
    first, count = _UNUSED_UIDS
    try:
        for line in Path("/proc/self/uid_map").read_text().splitlines():
            inside, _, length = (int(word) for word in line.split())
            if inside == 0 and length < first + count:
                first, count = length // 2, max(length // 2 - 2, 1)
    except (OSError, ValueError):
        pass
    return first + secrets.randbelow(count)


def _parents(places: Sequence[str]) -> list[str]:
    return sorted({str(parent) for place in places for parent in Path(place).parents} - {"/"})


def popen_user(privileges: Privileges) -> dict[str, object]:
    """Return the arguments of `subprocess.Popen` that set the user of the command."""
    if privileges not in (Privileges.NOBODY, Privileges.NOBODY_IN_CONTAINER):
        return {}
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


@contextmanager
def input_descriptors() -> Iterator[tuple[int, int]]:
    """Open `filter_fd` and `null_fd` of `bwrap_command` for one call."""
    reader, writer = os.pipe()
    with open(reader, "rb") as pipe, open(os.devnull, "rb") as null:
        with open(writer, "wb") as file:
            file.write(seccomp_filter())  # a few kilobytes, which fit into the pipe
        yield pipe.fileno(), null.fileno()


def find_bubblewrap(bwrap: str = "bwrap") -> str:
    """Return the path of bubblewrap. Raises SandboxUnavailableError if it is not installed."""
    found = shutil.which(bwrap)
    if found is None:
        raise SandboxUnavailableError(
            f"the sandbox for model-written code needs bubblewrap, and {bwrap!r} is not installed: {_INSTALL} "
            f"(Linux only). {_WITHOUT_SANDBOX}",
            program=bwrap,
        )
    return found


@cache
def probe_privileges(bwrap: str, interpreter: Interpreter, requested: Privileges | None = None) -> Privileges:
    """Return the best privileges (or `requested`) with which a sandbox ran here; SandboxUnavailableError: none did."""
    errors = []
    for privileges in (requested,) if requested is not None else _candidates():
        error = _probe(bwrap, interpreter, privileges)
        if error is None:
            return privileges
        errors.append(f"as {privileges.value}: {error}")
    raise SandboxUnavailableError(
        f"bubblewrap cannot create a sandbox on this machine ({'; '.join(errors)}). {_advice(' '.join(errors))}. "
        f"{_WITHOUT_SANDBOX}",
        program=bwrap,
        reason="; ".join(errors),
    )


def _candidates() -> tuple[Privileges, ...]:
    """Return the privileges that this process can start bubblewrap with, best first."""
    if os.geteuid() == 0:
        return Privileges.ROOT, Privileges.NOBODY, Privileges.NOBODY_IN_CONTAINER
    return Privileges.USER, Privileges.USER_IN_CONTAINER


def _probe(bwrap: str, interpreter: Interpreter, privileges: Privileges) -> str | None:
    """Run a line of code in a sandbox; return an error, or None if the output is correct."""
    try:
        with input_descriptors() as inputs:
            answer = subprocess.run(
                bwrap_command(bwrap, interpreter, SandboxLimits(seconds=_PROBE_SECONDS), privileges, *inputs),
                input=b"print(6 * 7)",
                capture_output=True,
                timeout=_PROBE_SECONDS,
                pass_fds=inputs,
                env={},
                cwd="/",
                **popen_user(privileges),  # type: ignore[call-overload]
            )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if answer.stdout == b"42\n":
        return None
    lines = answer.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit status {answer.returncode}"


def _advice(errors: str) -> str:
    if "nknown option" in errors:
        return f"This bubblewrap is too old; install 0.8 or later: {_INSTALL}"
    if "source path" in errors and "as root" not in errors:
        return (
            "The interpreter must be readable by every user (not in root's home directory); choose another with python="
        )
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return (
            "In Docker, start the container with --cap-add SYS_ADMIN --cap-add NET_ADMIN "
            "--security-opt apparmor=unconfined, or with --privileged"
        )
    return (
        "The kernel must allow ordinary users to create user namespaces: set sysctl user.max_user_namespaces=10000 "
        "and, if they exist, kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0 "
        "(Ubuntu; an AppArmor profile for bwrap is better)"
    )
