"""What became of a call: `Outcome`, and the text of it that the model sees.

Invariant: whatever the code did, there is a text that says so.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum


class Ending(str, Enum):
    """Why a call ended."""

    FINISHED = "finished"
    """The program came to its end."""
    FAILED = "failed"
    """It raised, exited with a status, or was ended by a signal of its own making or by a limit of the kernel."""
    TIMED_OUT = "timed_out"
    """It took longer than `seconds`."""
    MEMORY = "memory"
    """Its processes together took more than `memory`."""
    FILES = "files"
    """It made more files than `files`."""
    FLOODED = "flooded"
    """It wrote more than `flood`."""
    REFUSED = "refused"
    """It was not run: the code is longer than `code`."""


_SIGNALS = {
    signal.SIGXCPU: "CPU time limit",
    signal.SIGXFSZ: "file size limit",
    signal.SIGKILL: "killed",
    signal.SIGSEGV: "segmentation fault",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One call of the sandbox, over."""

    ended: Ending
    """Why it ended."""
    stdout: str = ""
    """What it wrote there, cut in the middle where it was long."""
    stderr: str = ""
    """What it wrote there, traceback included, cut likewise."""
    status: int | None = None
    """Exit status; above 128: 128 plus the signal; None when we ended it."""
    seconds: float = 0.0
    """What it took, the start of the interpreter included."""
    note: str = ""
    """What the model is told besides; "" for a program that finished."""

    @property
    def text(self) -> str:
        """What the model sees."""
        parts = [self.stdout.rstrip("\n"), self.stderr.rstrip("\n")]
        if self.note:
            parts.append(f"[{self.note}]")
        shown = "\n".join(part for part in parts if part)
        return shown or "[no output: use print() to see a value]"


def note_for(status: int, stderr: str) -> str:
    """Return what to say about an exit status; "" when stderr says it already, or there is nothing to say."""
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
