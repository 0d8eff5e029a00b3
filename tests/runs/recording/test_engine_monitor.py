"""EngineMonitor: health requests are sent only while calls are outstanding."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from strands_sglang.engine import Capability
from strands_sglang.runs.recording.clock import EngineMonitor, EpisodeClock, report_call


class Control:
    """Answers health requests."""

    def __init__(self) -> None:
        self.healthy: bool | Exception = True
        self.asked = 0

    async def signs_of_life(self, timeout: float) -> dict[str, bool]:
        self.asked += 1
        if isinstance(self.healthy, Exception):
            raise self.healthy
        return {"http://router": True, "http://worker": self.healthy, "http://elsewhere": False}


class Engine:
    capabilities = frozenset({Capability.CONTROL})

    def __init__(self) -> None:
        self.control = Control()


def quick(engine: Any) -> EngineMonitor:
    return EngineMonitor(engine, check_seconds=0.02, quiet_seconds=0.1, sign_timeout=1)


async def test_answering_engine_gets_one_health_request() -> None:
    engine, clock = Engine(), EpisodeClock()
    monitor = EngineMonitor(cast(Any, engine), check_seconds=0.02, quiet_seconds=30)
    with monitor.watching(clock):
        await asyncio.sleep(0.3)  # no call is outstanding
        assert engine.control.asked == 1  # finds which workers can be reached
        monitor.answered()
        with report_call([clock]):
            for _ in range(15):
                await asyncio.sleep(0.02)
                monitor.answered()
    assert engine.control.asked == 1
    await asyncio.sleep(0.05)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.timing
async def test_silence_is_excluded_from_clocks_with_outstanding_calls() -> None:
    for sign in (False, OSError("gone")):
        engine, clock, idle = Engine(), EpisodeClock(), EpisodeClock()
        monitor, began = quick(engine), time.monotonic()
        assert await monitor.alive()
        engine.control.healthy = sign
        with monitor.watching(clock), monitor.watching(idle), report_call([clock]):
            while engine.control.asked < 5:
                await asyncio.sleep(0.01)
            assert not await monitor.alive()
            passed = time.monotonic() - began
            assert clock.seconds < passed / 2 and idle.seconds > passed / 2
        engine.control.healthy = True
        assert await monitor.alive()


async def test_engine_without_health_requests_counts_as_alive() -> None:
    monitor, clock = quick(object()), EpisodeClock()
    with monitor.watching(clock):
        assert await monitor.alive()


async def test_many_short_watches_share_one_health_request() -> None:
    engine = Engine()
    monitor = EngineMonitor(cast(Any, engine))
    for _ in range(20):  # every tool call is watched, and between two of them nothing is
        with monitor.watching(EpisodeClock()):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
    assert engine.control.asked == 1


def test_a_monitor_continues_on_another_event_loop() -> None:
    engine = Engine()
    monitor = quick(engine)

    async def silent() -> int:
        clock = EpisodeClock()
        with monitor.watching(clock), report_call([clock]):
            await asyncio.sleep(0.3)
        return engine.control.asked

    first = asyncio.run(silent())
    assert first >= 2 and asyncio.run(silent()) > first
