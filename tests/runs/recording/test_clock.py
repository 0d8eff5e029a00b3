"""EpisodeClock: the time of engine outages is not counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from strands_sglang.engine import Capability
from strands_sglang.engine.protocol import outages
from strands_sglang.errors import EngineUnreachableError
from strands_sglang.runs.recording import clock as clocks
from strands_sglang.runs.recording.clock import EngineMonitor, EpisodeClock, report_call, wait_in_time


class Time:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    passing = Time()
    monkeypatch.setattr(clocks, "time", passing)
    yield passing


def test_failed_attempts_are_not_counted_and_the_answered_one_is(passing: Time) -> None:
    clock = EpisodeClock()
    passing.now += 5  # outside engine calls
    with report_call([clock]):
        watch = outages.get()
        assert watch is not None and clock.outstanding_since == passing.now
        since = passing.now
        passing.now += 30  # an attempt that fails
        watch.failed(since)
        assert clock.stopped and clock.seconds == 5
        passing.now += 60
        assert clock.seconds == 5
        since = passing.now
        passing.now += 7  # the attempt that is answered
        watch.answered(since)
        assert not clock.stopped and clock.seconds == 12
    passing.now += 1
    assert clock.seconds == 13 and clock.outstanding_since is None and outages.get() is None


def test_failed_call_is_not_counted(passing: Time) -> None:
    clock = EpisodeClock()
    with pytest.raises(EngineUnreachableError), report_call([clock]):
        watch = outages.get()
        assert watch is not None
        since = passing.now
        passing.now += 30
        watch.failed(since)
        passing.now += 30
        raise EngineUnreachableError("gone")
    assert clock.seconds == 0 and not clock.stopped


def test_concurrent_failures_are_excluded_once(passing: Time) -> None:
    clock = EpisodeClock()
    since = passing.now
    for call in range(3):
        clock.start_call(call)
    passing.now += 10
    for call in range(3):
        clock.attempt_failed(call, since)
    passing.now += 10
    for call in range(3):
        clock.attempt_answered(call, passing.now)
        clock.end_call(call)
    assert clock.seconds == 0
    passing.now += 2
    clock.start_call("late")
    clock.attempt_failed("late", since)  # an attempt that started before, and is excluded already
    passing.now += 3
    clock.end_call("late")
    assert clock.seconds == 0
    passing.now += 4
    assert clock.seconds == 4


def test_silence_is_excluded_only_with_an_outstanding_call(passing: Time) -> None:
    idle, asking = EpisodeClock(), EpisodeClock()
    last_sign = passing.now
    passing.now += 4
    with report_call([asking]):
        passing.now += 20
        for clock in (idle, asking):
            clock.exclude_silence(last_sign)
    assert (idle.seconds, asking.seconds) == (24, 4)


def test_silence_reported_after_its_end_is_excluded(passing: Time) -> None:
    """The outstanding call is answered when the silence ends, and the next call starts before it is reported."""
    clock = EpisodeClock()
    passing.now += 1
    last_sign = passing.now
    with report_call([clock]):
        passing.now += 20
    passing.now += 2  # outside engine calls
    with report_call([clock]):
        passing.now += 1
        clock.exclude_silence(last_sign)
        assert clock.seconds == 3
        passing.now += 1
    assert clock.seconds == 4


async def test_in_time_returns_at_the_limit() -> None:
    work = asyncio.get_running_loop().create_future()

    async def alive() -> bool:
        raise AssertionError("no call is outstanding, so the engine is not checked")

    began = time.monotonic()
    assert not await wait_in_time({work}, EpisodeClock(), 0.2, alive)
    assert time.monotonic() - began >= 0.2
    work.set_result(None)
    assert await wait_in_time({work}, EpisodeClock(), 0.2, alive)
    assert await wait_in_time({work}, EpisodeClock(), None, alive)


async def test_slow_engine_that_is_alive_reaches_the_limit() -> None:
    work, clock, asked = asyncio.get_running_loop().create_future(), EpisodeClock(), 0

    async def alive() -> bool:
        nonlocal asked
        asked += 1
        return True

    with report_call([clock]):
        assert not await wait_in_time({work}, clock, 0.1, alive)
    assert asked == 1


async def test_wait_continues_after_the_limit_while_the_engine_is_silent() -> None:
    work, clock, asked = asyncio.get_running_loop().create_future(), EpisodeClock(), 0

    async def alive() -> bool:
        nonlocal asked
        asked += 1
        clock.exclude_silence(0)
        if asked == 3:
            work.set_result(None)
        return asked == 2  # alive for a moment; its silence is excluded

    with report_call([clock]):
        assert await wait_in_time({work}, clock, 0.1, alive)
    assert asked == 3


async def test_engine_that_stays_silent_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "LONGEST_SILENCE", 0.5)
    work, clock = asyncio.get_running_loop().create_future(), EpisodeClock()

    async def alive() -> bool:
        return False

    with report_call([clock]), pytest.raises(EngineUnreachableError, match="restart it and start the same run again"):
        await wait_in_time({work}, clock, 0.1, alive)


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
