"""Ctrl-C during a run, in one line: `InterruptHandler`, and the texts it shows.

asyncio turns Ctrl-C into a cancellation of the main task and then into a KeyboardInterrupt, whose long traceback has no
useful information.

Invariant: Ctrl-C has the same effect as without this module, and the process still ends by it (exit code 130 in a
shell); only the output differs. Other errors are shown unchanged.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from strands_sglang._terminal import counted, this_command
from strands_sglang.runs.monitoring.metrics import RunMetrics

_reported = False  # whether a line was printed that replaces the traceback of the next KeyboardInterrupt


class InterruptHandler:
    """Detects Ctrl-C while its `with` block runs; outside the main thread it does nothing."""

    def __init__(self) -> None:
        self.seen = False
        self._previous_handler: Any = None

    def __enter__(self) -> InterruptHandler:
        global _reported
        _reported = False
        previous = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(previous):
            self._previous_handler = previous
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.signal(signal.SIGINT, self._previous_handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        self._previous_handler(number, frame)

    def report(self, line: str) -> None:
        """Print a line to stderr in place of the traceback, if Ctrl-C was pressed; does nothing otherwise."""
        global _reported
        if not self.seen or _reported:
            return
        _reported = True
        print(line, file=sys.stderr, flush=True)
        if sys.excepthook is not _quiet:
            _quiet.previous = sys.excepthook
            sys.excepthook = _quiet


class _Quiet:
    """An `excepthook` that hides a KeyboardInterrupt that was already reported in one line."""

    previous: Callable[[type[BaseException], BaseException, TracebackType | None], Any] = sys.__excepthook__

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        global _reported
        reported, _reported = _reported, False
        if not (reported and issubclass(kind, KeyboardInterrupt)):
            self.previous(kind, error, traceback)


_quiet = _Quiet()


def interrupted_line(run: RunMetrics, directory: Path | None) -> str:
    """Return the line about an interrupted run: what is on disk (None: no ledger is written), and how to resume it."""
    done = counted(run.done, "episode") if run.total is None else f"{run.done:,} of {counted(run.total, 'episode')}"
    if directory is None:
        return f"interrupted after {done}: nothing was saved; pass directory= to rollout to save and resume a run"
    saved = f"{done} and the recorded turns of the others"
    return f"interrupted: {saved} are saved in {directory}; to resume: {this_command()}"
