"""Reports the metrics of a run to a progress display, the `on_metrics` callback and a tracker: `Reporter`.

A terminal or a notebook gets a panel (`live_view.py`, with the extra `progress`), anything else a line of text every 10
seconds (`TextView`):

    rollout done=412 total=1024 live=256 waiting=356 eta_seconds=1100 tokens_per_second=12431 ...

Invariant: an error of a display or callback never stops the run. A display or synchronous callback that raises is not
called again, and its error is logged. Each line of text is one write. After the title, every item is `field=value`
without spaces, except `latest_error`, which is the last item and is quoted. Unknown numbers are left out. A line
contains no control characters.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol, TextIO

from strands_sglang._checks import check_methods, chosen, install
from strands_sglang._terminal import escape_for_terminal, is_terminal
from strands_sglang.errors import ConfigurationError
from strands_sglang.runs.monitoring.metrics import RunCounters, RunMetrics
from strands_sglang.runs.monitoring.trackers import Tracking

logger = logging.getLogger(__name__)


class Progress(Protocol):
    """Interface of a progress display. All methods are called on the event loop, so they must return quickly.

    An implementation may have a float attribute `interval`: the seconds between two updates (0.25 if it has none).
    """

    def begin(self, total: int | None) -> None:
        """Show that a run of `total` episodes starts; None: the number is not known."""

    def update(self, snapshot: RunMetrics) -> None:
        """Show the current state of the run."""

    def end(self, snapshot: RunMetrics) -> None:
        """Show the final state of the run. Called once after `begin`, also if the run raised."""


class ProgressKind(str, Enum):
    """The built-in progress displays."""

    AUTO = "auto"  # a panel on a terminal or in a notebook if rich is installed, otherwise lines
    LIVE = "live"  # a panel; needs rich
    LINES = "lines"  # a line every 10 seconds
    NONE = "none"  # no display


class Display:
    """Wraps a `Progress`: an error ends the display, not the run, and updates are limited to its `interval`."""

    def __init__(self, progress: Progress | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Wrap a display; None: nothing is shown. `clock` returns monotonic seconds."""
        self._progress = progress
        self._clock = clock
        self._next = 0.0
        self._begun = False

    def begin(self, total: int | None) -> None:
        """Start the display; see `Progress.begin`."""
        self._begun = True
        self._wait()
        self._guarded(lambda progress: progress.begin(total))

    def due(self) -> bool:
        """Return whether an update is due. It is cheap: callers check it before they take a snapshot."""
        return self._progress is not None and self._begun and self._clock() >= self._next

    def update(self, snapshot: RunMetrics) -> None:
        """Show the current state of the run; does nothing if no update is due."""
        if self.due():
            self._wait()
            self._guarded(lambda progress: progress.update(snapshot))

    def end(self, snapshot: RunMetrics) -> None:
        """Show the final state; does nothing when called again."""
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
            name, message = type(progress).__name__, f"{type(error).__name__}: {error}"
            logger.warning("progress=<%s>, error=<%s> | display failed, run continues without it", name, message)
            close = getattr(progress, "close", None)
            if callable(close):  # restores the terminal's cursor
                try:
                    close()
                except Exception:
                    logger.debug("progress=<%s> | display could not be closed", name, exc_info=True)


def display_for(
    progress: bool | str | Progress | None, *, title: str = "rollout", stream: TextIO | None = None
) -> Display:
    """Return the display for the `progress` argument of `rollout` (None: no display), on `stream` (None: stderr)."""
    if progress is None or isinstance(progress, bool):
        progress = ProgressKind.AUTO if progress else ProgressKind.NONE
    if isinstance(progress, str):
        kind = chosen("progress", progress, ProgressKind, others=", or a Progress")
        return Display(_builtin(kind, title, stream))
    check_methods("a progress display", progress, "begin", "update", "end")
    return Display(progress)


def _builtin(kind: ProgressKind, title: str, stream: TextIO | None) -> Progress | None:
    if kind is ProgressKind.NONE:
        return None
    installed = importlib.util.find_spec("rich") is not None
    if kind is ProgressKind.LIVE and not installed:
        raise ConfigurationError(f"the live view needs rich: {install('progress')}")
    if kind is ProgressKind.LIVE or (kind is ProgressKind.AUTO and installed and _is_interactive(stream or sys.stderr)):
        from strands_sglang.runs.monitoring.live_view import LiveView

        return LiveView(title, stream)
    return TextView(title, stream)


def _is_interactive(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can move its cursor, or the process is a notebook."""
    if is_terminal(stream):
        return os.environ.get("TERM", "") not in ("dumb", "unknown")
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return type(running).__name__ == "ZMQInteractiveShell"


_INTERVAL = 0.25  # seconds between two checks whether an update is due


class Reporter:
    """Reports metrics periodically while its `async with` block runs, and once at its end."""

    def __init__(
        self,
        totals: RunCounters,
        display: Display,
        on_metrics: Callable[[RunMetrics], Any] | None = None,
        metrics_seconds: float = 10.0,
        tracking: Tracking | None = None,
    ) -> None:
        """Prepare the reporter; `metrics_seconds`: between two calls of `on_metrics`, and two points of the tracker."""
        self.totals, self._display, self._tracking = totals, display, tracking
        self._on_metrics, self._seconds = on_metrics, metrics_seconds
        self._task: asyncio.Task[None] | None = None
        self._callback: asyncio.Future[Any] | None = None

    async def __aenter__(self) -> Reporter:
        self._display.begin(self.totals.total)
        self._task = asyncio.ensure_future(self._report())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        snapshot = self.totals.snapshot()
        self._display.end(snapshot)
        self._send(snapshot, last=True)

    async def _report(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._seconds
        while True:
            await asyncio.sleep(_INTERVAL)
            if self._display.due():
                self._display.update(self.totals.snapshot())
            if loop.time() >= due:
                due = loop.time() + self._seconds
                self._send(self.totals.snapshot())

    def _send(self, snapshot: RunMetrics, *, last: bool = False) -> None:
        if self._tracking is not None:
            self._tracking.send(snapshot, last=last)
        if self._on_metrics is None:
            return
        try:
            returned = self._on_metrics(snapshot)
            if inspect.isawaitable(returned):
                self._callback = asyncio.ensure_future(returned)  # a reference, so that it is not garbage-collected
        except Exception:
            logger.warning("on_metrics=<%r> | callback failed and is not called again", self._on_metrics, exc_info=True)
            self._on_metrics = None


_MAX_ERROR = 200


class TextView:
    """Writes one line per update."""

    def __init__(self, title: str = "rollout", stream: TextIO | None = None, *, interval: float = 10.0) -> None:
        """Choose where to write; None: the `sys.stderr` of that moment. `interval`: seconds between two lines."""
        self.interval = interval
        self._title = escape_for_terminal("-".join(title.split())) or "rollout"
        self._stream = stream

    def begin(self, total: int | None) -> None:
        """Write that the run starts."""
        self._write("begins", RunMetrics(total=total))

    def update(self, snapshot: RunMetrics) -> None:
        """Write the current state of the run."""
        self._write("", snapshot)

    def end(self, snapshot: RunMetrics) -> None:
        """Write the final state of the run."""
        self._write("ended", snapshot)

    def _write(self, state: str, snapshot: RunMetrics) -> None:
        items = [self._title, *([f"state={state}"] if state else []), line(snapshot)]
        stream = self._stream or sys.stderr
        stream.write(" ".join(items) + "\n")
        stream.flush()


def line(snapshot: RunMetrics) -> str:
    """Return the metrics of a run as one line of `field=value` items."""
    known = {
        "done": snapshot.done,
        "total": snapshot.total,
        "live": snapshot.live,
        "waiting": snapshot.waiting,
        "seconds": round(snapshot.seconds),
        "eta_seconds": None if snapshot.eta is None else round(snapshot.eta),
        "tokens_per_second": round(snapshot.tokens_per_second),
        "turns_per_second": f"{snapshot.turns_per_second:.1f}",
        "cache_hit_rate": _short(snapshot.cache_hit_rate),
        "reward_mean": _short(snapshot.reward_mean),
        "rewards": snapshot.rewards,
        **{f"end_reason_{reason.value}": count for reason, count in snapshot.end_reasons.items()},
        "failures": snapshot.failures,
        "reward_errors": snapshot.reward_errors or None,
        "tool_errors": snapshot.tool_errors or None,
        "tool_timeouts": snapshot.tool_timeouts or None,
        "groups_kept": snapshot.groups_kept or None,
        "groups_dropped": snapshot.groups_dropped or None,
        "groups_stale": snapshot.groups_stale or None,
        "filter_errors": snapshot.filter_errors or None,
        "version": _word(snapshot.newest_version),
        "engine_unreachable_seconds": round(snapshot.unreachable_seconds) or None,
    }
    items = [f"{name}={value}" for name, value in known.items() if value is not None]
    if snapshot.latest_error:
        items.append(
            f"latest_error={escape_for_terminal(json.dumps(snapshot.latest_error[:_MAX_ERROR], ensure_ascii=False))}"
        )
    return " ".join(items)


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _word(text: str | None) -> str | None:
    """Return a text without whitespace and control characters; None if nothing is left."""
    return escape_for_terminal("_".join((text or "").split())) or None
