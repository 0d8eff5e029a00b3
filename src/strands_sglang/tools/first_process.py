"""The first process inside a sandbox, as bubblewrap names it: `FirstProcess`.

bubblewrap ends the sandbox when it is killed itself, but only once the sandbox has been set up: killed in its first
milliseconds, it leaves behind a process that nobody waits for. So the first process is killed by name; all others
inside end with it.

Invariant: nothing is killed but a child of the bubblewrap that named it.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
from pathlib import Path

_PATIENCE = 2.0  # seconds to wait for the name; it comes as soon as bubblewrap has read its arguments


class FirstProcess:
    """A pipe through which bubblewrap says who the first process is."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        self._pid: int | None = None

    @property
    def descriptor(self) -> int:
        """Where bubblewrap writes (`--info-fd`)."""
        return self._writer

    def started(self) -> None:
        """Let go of what bubblewrap has by now."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def close(self) -> None:
        """Let go of everything."""
        self.started()
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1

    def kill(self, bubblewrap: int) -> None:
        """Kill it, and everything inside with it. In the first milliseconds of a call this waits until it has a name.

        Args:
            bubblewrap: Process id of the bubblewrap that has started it.
        """
        self.started()  # else we would wait for ourselves, should bubblewrap end without a word
        if self._pid is None and self._reader >= 0:
            self._pid = self._named()
        if self._pid and _parent(self._pid) == bubblewrap:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGKILL)

    def _named(self) -> int:
        """Return its process id; 0 when bubblewrap ended without saying it."""
        words = b""
        waiting = select.poll()  # select() knows no descriptor above 1,023
        waiting.register(self._reader, select.POLLIN)
        while waiting.poll(_PATIENCE * 1000):
            more = os.read(self._reader, 4096)
            words += more
            found = re.search(rb'"child-pid"\s*:\s*(\d+)\b\s*[,}]', words)
            if found or not more:
                return int(found[1]) if found else 0
        return 0


def _parent(pid: int) -> int | None:
    """Return the process id of a process's parent; None if it has gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
