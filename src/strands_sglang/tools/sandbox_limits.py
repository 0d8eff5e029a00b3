"""How much a call of the sandbox may use: `SandboxLimits`.

Invariant: every limit holds for each call on its own; what one call used up, the next has again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from strands_sglang.errors import ConfigurationError

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Bounds of one call."""

    seconds: float = 10.0
    """Seconds on the clock, from when the code begins. Waiting for a free place does not count, nor does what the
    machine takes to make the sandbox."""
    memory: int = 1024 * _MIB
    """Bytes of memory. The kernel holds each process to so much address space; all processes of a call together are
    looked at ten times a second and ended above it; sockets count with all they may hold."""
    processes: int = 32
    """Processes and threads at once."""
    disk: int = 64 * _MIB
    """Bytes that all files together may take. They lie in memory, beside `memory`."""
    files: int = 10_000
    """Files and directories that may be made; looked at ten times a second."""
    open_files: int = 128
    """Open files of a process."""
    output: int = 10_000
    """Bytes of stdout that are shown, and as many of stderr: the first half and the last half, with a note between."""
    flood: int = 8 * _MIB
    """Bytes of output, stdout and stderr together, at which the call is ended."""
    code: int = 256 * 1024
    """Bytes of source code; more is not run."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            kinds = (int, float) if limit.name == "seconds" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
                raise ConfigurationError(f"SandboxLimits.{limit.name} must be a number above 0, not {value!r}")
        if self.memory < 64 * _MIB:
            raise ConfigurationError(
                f"SandboxLimits.memory is {self.memory} bytes; Python does not start with less than 64 MiB"
            )

    def for_process(self, *, count_processes: bool) -> dict[str, int]:
        """Return what the kernel is told about each process: names as in `resource.RLIMIT_*`.

        Args:
            count_processes: Whether processes are counted; only where the sandbox has a user of its own, else all
                processes of the user would count.
        """
        limits = {
            "AS": self.memory,
            "CPU": math.ceil(self.seconds) + 1,
            "FSIZE": self.disk,
            "NOFILE": self.open_files,
            "CORE": 0,
            "MEMLOCK": 0,
            "MSGQUEUE": 0,
            "SIGPENDING": 256,
        }
        return {**limits, "NPROC": self.processes} if count_processes else limits
