"""Telling people and programs how a run goes: `Reporter`.

Invariant: whatever a display or a callback does, the run goes on; an error of theirs is logged once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

from strands_sglang.rollout.measures import TurnCounts
from strands_sglang.rollout.progress import Display
from strands_sglang.rollout.totals import RunMetrics, Totals

logger = logging.getLogger(__name__)

_LOOK = 0.25  # seconds between two looks at whether a display wants an update


class Reporter:
    """Counts, and shows what was counted, while in an `async with` block."""

    def __init__(
        self,
        totals: Totals,
        display: Display,
        on_metrics: Callable[[RunMetrics], Any] | None = None,
        metrics_seconds: float = 10.0,
    ) -> None:
        """Set up.

        Args:
            totals: What is counted.
            display: Where it is shown.
            on_metrics: Called with the numbers every so often, and at the end.
            metrics_seconds: How often.
        """
        self.totals, self._display = totals, display
        self._on_metrics, self._seconds = on_metrics, metrics_seconds
        self._task: asyncio.Task[None] | None = None
        self._telling: asyncio.Future[Any] | None = None

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
        self._call(snapshot)

    def turn(self, counts: TurnCounts) -> None:
        """Count a turn that was sampled."""
        self.totals.turn(counts.sampled, counts.cached, counts.prompt)

    async def _report(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._seconds
        while True:
            await asyncio.sleep(_LOOK)
            if self._display.due():
                self._display.update(self.totals.snapshot())
            if loop.time() >= due:
                due = loop.time() + self._seconds
                self._call(self.totals.snapshot())

    def _call(self, snapshot: RunMetrics) -> None:
        if self._on_metrics is None:
            return
        try:
            told = self._on_metrics(snapshot)
            if inspect.isawaitable(told):
                self._telling = asyncio.ensure_future(told)  # kept, so that it is not collected
        except Exception:
            logger.warning("on_metrics=<%r> | failed, and is not called again", self._on_metrics, exc_info=True)
            self._on_metrics = None
