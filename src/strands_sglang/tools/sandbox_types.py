"""Settings and results of the sandbox: `SandboxLimits`, `Isolation`, `Privileges`, `SandboxResult`.

Invariants: every limit applies to each call separately. Every result has a text for the model, whatever the code did.
"""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass, fields
from enum import Enum

from strands_sglang._checks import check_int, check_number
from strands_sglang.errors import ConfigurationError

_MIB = 1024 * 1024
_ARCHIVE = 4096  # bytes that an archive needs for each file, besides its content


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Resource limits of one call."""

    seconds: float = 10.0
    """Wall-clock seconds from the start of the code, without the wait for a slot and the setup of the sandbox."""
    memory: int = 1024 * _MIB
    """Bytes of memory. The kernel limits the address space of each process to this value. The total of all processes of
    a call is measured ten times per second, and a call above the limit is killed; a socket counts with its full
    buffer size."""
    processes: int = 32
    """Concurrent processes and threads."""
    disk: int = 64 * _MIB
    """Total bytes of all files. Files are stored in memory, in addition to `memory`."""
    files: int = 10_000
    """Files and directories that may be created; measured ten times per second."""
    open_files: int = 128
    """Open files per process."""
    output: int = 10_000
    """Bytes of stdout, and of stderr, that are kept: the first and the last half, with a note in between."""
    flood: int = 8 * _MIB
    """Bytes of output, stdout and stderr together, above which the call is killed."""
    code: int = 256 * 1024
    """Bytes of source code; longer code is not run."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            name, value = f"SandboxLimits.{limit.name}", getattr(self, limit.name)
            if limit.name == "seconds":
                check_number(name, value, finite=True, optional=False)
            else:
                check_int(name, value, optional=False)
        if self.memory < 64 * _MIB:
            raise ConfigurationError(
                f"SandboxLimits.memory must be at least 64 MiB ({64 * _MIB}), which Python needs to start, "
                f"got {self.memory}"
            )

    def for_process(self, *, count_processes: bool, packs_files: bool = False) -> dict[str, int]:
        """Return each process's kernel limits by `RLIMIT_*` name.

        `count_processes`: needs a user of its own. `packs_files`: all files are packed into one, which has to fit.
        """
        limits = {
            "AS": self.memory,
            "CPU": math.ceil(self.seconds) + 1,
            "FSIZE": 2 * self.disk + _ARCHIVE * self.files if packs_files else self.disk,
            "NOFILE": self.open_files,
            "CORE": 0,
            "MEMLOCK": 0,
            "MSGQUEUE": 0,
            "SIGPENDING": 256,
        }
        return {**limits, "NPROC": self.processes} if count_processes else limits


class Isolation(str, Enum):
    """How code is isolated from the host. The sandbox never uses less isolation than requested."""

    BUBBLEWRAP = "bubblewrap"
    """In separate namespaces, created by bubblewrap."""
    NONE_RUNS_AS_ME = "none_runs_as_me"
    """No isolation: model-written code runs with all your privileges. Use it only for code you would run yourself."""


class Privileges(str, Enum):
    """Privileges that bubblewrap is started with."""

    ROOT = "root"
    """Root: bubblewrap creates the namespaces as root; the code then runs as an otherwise unused user id."""
    USER = "user"
    """Ordinary user, in a user namespace."""
    NOBODY = "nobody"
    """Root starts bubblewrap as nobody, in a user namespace: for root without CAP_SYS_ADMIN."""
    USER_IN_CONTAINER = "user_in_container"
    """As USER, with a read-only `/proc/sys`: only the seccomp filter prevents further user namespaces inside."""
    NOBODY_IN_CONTAINER = "nobody_in_container"
    """As NOBODY, with a read-only `/proc/sys`."""


class SandboxEndReason(str, Enum):
    """Why a call ended."""

    FINISHED = "finished"
    """The program exited with status 0."""
    FAILED = "failed"
    """The program raised, exited with another status, or was killed by a signal or a kernel limit."""
    TIMED_OUT = "timed_out"
    """It exceeded `seconds`."""
    MEMORY = "memory"
    """Its processes together exceeded `memory`."""
    FILES = "files"
    """It exceeded `files`."""
    FLOODED = "flooded"
    """Its output exceeded `flood`."""
    REFUSED = "refused"
    """It was not run: the source exceeds `code`."""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """Result of one call."""

    end_reason: SandboxEndReason
    stdout: str = ""
    """Standard output; the middle is cut if it is long."""
    stderr: str = ""
    """Standard error, including the traceback; the middle is cut if it is long."""
    status: int | None = None
    """Exit status; 128 plus the signal number if it was killed by a signal; None if the sandbox killed it."""
    seconds: float = 0.0
    """Duration, including the setup of the sandbox."""
    note: str = ""
    """Note for the model after the output; empty for a program that finished."""

    @property
    def text(self) -> str:
        """Text for the model."""
        parts = [self.stdout.rstrip("\n"), self.stderr.rstrip("\n")]
        if self.note:
            parts.append(f"[{self.note}]")
        text = "\n".join(part for part in parts if part)
        return text or "[no output: use print() to see a value]"


_SIGNALS = {
    signal.SIGXCPU: "CPU time limit",
    signal.SIGXFSZ: "file size limit",
    signal.SIGKILL: "killed",
    signal.SIGSEGV: "segmentation fault",
}


def exit_note(status: int, stderr: str) -> str:
    """Return a note about an exit status; empty for status 0 and for status 1 with text on stderr."""
    if status == 0:
        return ""
    number = status - 128 if status > 128 else -status if status < 0 else 0
    if number:
        try:
            name = signal.Signals(number)
        except ValueError:
            return f"exit status {status}"
        words = _SIGNALS.get(name, "")
        return f"ended by {name.name}: {words}" if words else f"ended by {name.name}"
    return "" if status == 1 and stderr else f"exit status {status}"
