"""Ctrl-C, really pressed: on processes that say when they are under way."""

from __future__ import annotations

import signal
import subprocess

PATIENCE = 300.0
"""Seconds for a process on a busy machine to get anywhere."""


def heeds_interrupts() -> None:
    """Let a process that is about to be started hear SIGINT, though this one may run in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def press_ctrl_c(process: subprocess.Popen[str]) -> list[str]:
    """Interrupt a process when it is under way; return what it says of it, when it is over."""
    try:
        assert process.stdout is not None and process.stdout.readline().strip() == "under way"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return told(errors)


def told(errors: str) -> list[str]:
    """Return the lines that are ours."""
    return [line for line in errors.splitlines() if not line.startswith("[transformers]")]
