"""Whatever a display or a callback does, the run goes on."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from strands_sglang.rollout.measures import TurnCounts
from strands_sglang.rollout.progress import display_for
from strands_sglang.rollout.reporter import Reporter
from strands_sglang.rollout.totals import RunMetrics, Totals


class BrokenProgress:
    """A display that cannot be shown."""

    def __init__(self) -> None:
        self.asked = 0

    def _broken(self, *_: Any) -> None:
        self.asked += 1
        raise OSError("the terminal is gone")

    begin = update = end = _broken


async def test_numbers_come_every_so_often_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.rollout.reporter._LOOK", 0.01)
    told: list[RunMetrics] = []
    async with Reporter(Totals(3), display_for("none"), told.append, 0.05) as reporter:
        for _ in range(3):
            reporter.turn(TurnCounts(10, 5, 20))
        await asyncio.sleep(0.3)
        before = len(told)
        assert 2 <= before <= 6
    assert len(told) == before + 1
    assert (told[-1].turns, told[-1].sampled_tokens, told[-1].total) == (3, 30, 3)
    assert len(asyncio.all_tasks()) == 1


async def test_a_callback_that_fails_is_not_called_again(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def broken(metrics: RunMetrics) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("cannot count")

    with caplog.at_level(logging.WARNING):
        async with Reporter(Totals(3), display_for("none"), broken, 0.01):
            await asyncio.sleep(0.6)
    assert calls == 1 and "not called again" in caplog.text


async def test_a_display_that_fails_is_passed_over() -> None:
    shown: Any = BrokenProgress()
    told: list[RunMetrics] = []
    async with Reporter(Totals(3), display_for(shown), told.append, 0.2):
        await asyncio.sleep(0.6)
    assert told and shown.asked >= 1


async def test_an_error_inside_passes_through() -> None:
    told: list[RunMetrics] = []
    with pytest.raises(LookupError):
        async with Reporter(Totals(3), display_for("none"), told.append):
            raise LookupError("inside")
    assert len(told) == 1 and len(asyncio.all_tasks()) == 1
