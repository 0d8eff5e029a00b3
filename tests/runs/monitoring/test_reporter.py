"""`Reporter`: errors of displays and callbacks never stop the run."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from strands_sglang.runs.episode import TurnCounts
from strands_sglang.runs.monitoring.metrics import RunCounters, RunMetrics
from strands_sglang.runs.monitoring.progress import Reporter, display_for


class BrokenProgress:
    """A display whose methods all raise."""

    def __init__(self) -> None:
        self.calls = 0

    def _broken(self, *_: Any) -> None:
        self.calls += 1
        raise OSError("the terminal is gone")

    begin = update = end = _broken


async def test_metrics_are_reported_periodically_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.runs.monitoring.progress._INTERVAL", 0.01)
    reported: list[RunMetrics] = []
    async with Reporter(RunCounters(3), display_for("none"), reported.append, 0.05) as reporter:
        for _ in range(3):
            reporter.turn(TurnCounts(10, 5, 20))
        await asyncio.sleep(0.3)
        before = len(reported)
        assert 2 <= before <= 6
    assert len(reported) == before + 1
    assert (reported[-1].turns, reported[-1].sampled_tokens, reported[-1].total) == (3, 30, 3)
    assert len(asyncio.all_tasks()) == 1


async def test_callback_that_raises_is_not_called_again(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def broken(metrics: RunMetrics) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("cannot count")

    with caplog.at_level(logging.WARNING):
        async with Reporter(RunCounters(3), display_for("none"), broken, 0.01):
            await asyncio.sleep(0.6)
    assert calls == 1 and "not called again" in caplog.text


async def test_display_that_raises_is_ignored() -> None:
    display: Any = BrokenProgress()
    reported: list[RunMetrics] = []
    async with Reporter(RunCounters(3), display_for(display), reported.append, 0.2):
        await asyncio.sleep(0.6)
    assert reported and display.calls >= 1


async def test_error_in_block_propagates() -> None:
    reported: list[RunMetrics] = []
    with pytest.raises(LookupError):
        async with Reporter(RunCounters(3), display_for("none"), reported.append):
            raise LookupError("inside")
    assert len(reported) == 1 and len(asyncio.all_tasks()) == 1
