"""Ctrl-C while a run is under way: noticed, and told in one line. `Interrupt`.

asyncio turns Ctrl-C into a cancellation of the main task, and that, in the end, into KeyboardInterrupt, which Python
shows with the whole way it came. Whoever pressed the keys knows that way.

Invariant: an interrupt ends what it would have ended without us, and the process still dies of it (a shell's exit code
130); only what is shown of it is another. What an interrupt did not cause is not touched.
"""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from strands_sglang.ledger.shown import counted
from strands_sglang.rollout.totals import RunMetrics

_told = False  # whether a line was shown that stands for the traceback of the next KeyboardInterrupt


class Interrupt:
    """Notices Ctrl-C while in a `with` block; elsewhere than in the main thread there is nothing to notice."""

    def __init__(self) -> None:
        self.seen = False
        """Whether it was pressed."""
        self._before: Any = None
        self._ours: Any = None

    def __enter__(self) -> Interrupt:
        global _told
        _told = False
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before, self._ours = before, self._noticed
            signal.signal(signal.SIGINT, self._ours)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours is not None and signal.getsignal(signal.SIGINT) is self._ours:
            signal.signal(signal.SIGINT, self._before)

    def _noticed(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        self._before(number, frame)

    def tell(self, line: str) -> None:
        """Show a line in the place of the traceback, if it was Ctrl-C that ended things."""
        global _told
        if not self.seen or _told:
            return
        _told = True
        print(line, file=sys.stderr, flush=True)
        if sys.excepthook is not _quiet:
            _quiet.shown_by = sys.excepthook
            sys.excepthook = _quiet


class _Quiet:
    """An `excepthook` that shows no KeyboardInterrupt of which a line has told already."""

    shown_by: Callable[[type[BaseException], BaseException, TracebackType | None], Any] = sys.__excepthook__

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        global _told
        told, _told = _told, False
        if not (told and issubclass(kind, KeyboardInterrupt)):
            self.shown_by(kind, error, traceback)


_quiet = _Quiet()


def interrupted_line(run: RunMetrics, directory: Path | None) -> str:
    """Return what is to be known of a run that was interrupted: what is on disk, and how it goes on.

    Args:
        run: Its numbers.
        directory: Where its ledger is; None: there is none.
    """
    done = counted(run.done, "episode") if run.total is None else f"{run.done:,} of {counted(run.total, 'episode')}"
    if directory is None:
        return f"interrupted after {done}: nothing is on disk, rollout(directory=...) would keep what was sampled"
    kept = f"{done} and what was sampled of the others"
    return f"interrupted: on disk in {directory}: {kept}; to go on: {this_command()}"


def this_command() -> str:
    """Return the command this process was started with."""
    return shlex.join(sys.orig_argv)
