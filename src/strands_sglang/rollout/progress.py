"""How a run shows how far it is: `Progress`, and which one fits where it runs.

A terminal or a notebook gets a panel (`live_view.py`, with the extra `progress`), anything else a
line of text every 10 seconds (`plain_lines.py`).

Invariant: a display never breaks a run: its first error is logged, and it is not asked again.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable
from enum import Enum
from typing import Protocol, TextIO

from strands_sglang.errors import ConfigurationError
from strands_sglang.extras import install
from strands_sglang.rollout.plain_lines import PlainLines
from strands_sglang.rollout.totals import RunMetrics

logger = logging.getLogger(__name__)


class Progress(Protocol):
    """Something that shows how far a run is. All its methods are called on the event loop, so they must be short.

    It may have a number `interval`: seconds between two updates (0.25 if it has none).
    """

    def begin(self, total: int | None) -> None:
        """Show that a run of so many episodes begins; None: nobody knows how many."""

    def update(self, snapshot: RunMetrics) -> None:
        """Show how far it is."""

    def end(self, snapshot: RunMetrics) -> None:
        """Show how it ended. Called once, whatever happened, if `begin` was."""


class ProgressKind(str, Enum):
    """Which display."""

    AUTO = "auto"
    """A panel where people look, else lines."""
    LIVE = "live"
    """A panel; needs rich."""
    LINES = "lines"
    """A line every 10 seconds."""
    NONE = "none"
    """Nothing."""


class Display:
    """A `Progress` that cannot hurt: errors end the display, not the run, and it is asked only as often as it wants."""

    def __init__(self, progress: Progress | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Wrap a display.

        Args:
            progress: What to show with; None: nothing is shown.
            clock: Seconds from anywhere.
        """
        self._progress = progress
        self._clock = clock
        self._next = 0.0
        self._begun = False

    def begin(self, total: int | None) -> None:
        """Begin to show."""
        self._begun = True
        self._wait()
        self._guarded(lambda progress: progress.begin(total))

    def due(self) -> bool:
        """Return whether it is time for an update: cheap, so that nobody makes a snapshot for nothing."""
        return self._progress is not None and self._begun and self._clock() >= self._next

    def update(self, snapshot: RunMetrics) -> None:
        """Show how far the run is; too early, it does nothing."""
        if self.due():
            self._wait()
            self._guarded(lambda progress: progress.update(snapshot))

    def end(self, snapshot: RunMetrics) -> None:
        """Show how it ended; the second time, nothing."""
        if self._begun:
            self._begun = False
            self._guarded(lambda progress: progress.end(snapshot))

    def _wait(self) -> None:
        self._next = self._clock() + float(getattr(self._progress, "interval", 0.25))

    def _guarded(self, show: Callable[[Progress], None]) -> None:
        if self._progress is None:
            return
        progress = self._progress
        try:
            show(progress)
        except Exception as error:
            self._progress = None
            name, words = type(progress).__name__, f"{type(error).__name__}: {error}"
            logger.warning("progress=<%s>, error=<%s> | the display failed; the run goes on without", name, words)
            closing = getattr(progress, "close", None)
            if callable(closing):  # a terminal must not be left without its cursor
                try:
                    closing()
                except Exception:
                    logger.debug("progress=<%s> | could not be closed either", name, exc_info=True)


def display_for(
    progress: str | ProgressKind | Progress | None = ProgressKind.AUTO,
    *,
    title: str = "rollout",
    stream: TextIO | None = None,
) -> Display:
    """Return the display a user asked for.

    Args:
        progress: Which kind; or an object of the user's own; None: nothing.
        title: What the run is called.
        stream: Where to write; None: stderr, so that what a program prints stays its own.

    Raises:
        ConfigurationError: No such kind; or a panel was asked for and rich is not installed.
    """
    if progress is None or isinstance(progress, str):
        try:
            kind = ProgressKind.NONE if progress is None else ProgressKind(progress)
        except ValueError:
            kinds = ", ".join(repr(kind.value) for kind in ProgressKind)
            raise ConfigurationError(f"progress must be one of {kinds}, or an object, not {progress!r}") from None
        return Display(_made(kind, title, stream))
    missing = [name for name in ("begin", "update", "end") if not callable(getattr(progress, name, None))]
    if missing:
        raise ConfigurationError(f"a progress display needs {', '.join(missing)}, which {progress!r:.200} has not")
    return Display(progress)


def _made(kind: ProgressKind, title: str, stream: TextIO | None) -> Progress | None:
    if kind is ProgressKind.NONE:
        return None
    installed = importlib.util.find_spec("rich") is not None
    if kind is ProgressKind.LIVE and not installed:
        raise ConfigurationError(f"the live view needs rich: {install('progress')}")
    if kind is ProgressKind.LIVE or (kind is ProgressKind.AUTO and installed and _people_look(stream or sys.stderr)):
        from strands_sglang.rollout.live_view import LiveView

        return LiveView(title, stream)
    return PlainLines(title, stream)


def _people_look(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can move its cursor, or a notebook's."""
    try:
        if stream.isatty():
            return os.environ.get("TERM", "") not in ("dumb", "unknown")
    except (AttributeError, ValueError):  # closed, or not quite a file
        return False
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return type(running).__name__ == "ZMQInteractiveShell"
