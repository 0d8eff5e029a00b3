"""The clock of an episode: what the engine fails to answer in is not its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from strands_sglang.engine.protocol import outages
from strands_sglang.errors import EngineUnreachableError
from strands_sglang.rollout import clock as clocks
from strands_sglang.rollout.clock import Clock, counted, in_time


class Time:
    """A time that passes when it is told to."""

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
    clock = Clock()
    passing.now += 5  # of its own
    with counted([clock]):
        watch = outages.get()
        assert watch is not None and clock.asked_at == passing.now
        since = passing.now
        passing.now += 30  # an attempt that fails
        watch.failed(since)
        assert clock.stands and clock.seconds == 5
        passing.now += 60
        assert clock.seconds == 5
        since = passing.now
        passing.now += 7  # the one that is answered
        watch.answered(since)
        assert not clock.stands and clock.seconds == 12
    passing.now += 1
    assert clock.seconds == 13 and clock.asked_at is None and outages.get() is None


def test_a_call_that_ends_in_failure_is_not_counted(passing: Time) -> None:
    clock = Clock()
    with pytest.raises(EngineUnreachableError), counted([clock]):
        watch = outages.get()
        assert watch is not None
        since = passing.now
        passing.now += 30
        watch.failed(since)
        passing.now += 30
        raise EngineUnreachableError("gone")
    assert clock.seconds == 0 and not clock.stands


def test_calls_at_once_that_fail_are_given_back_once(passing: Time) -> None:
    clock = Clock()
    calls = [clocks._Call([clock]) for _ in range(3)]
    since = passing.now
    passing.now += 10
    for call in calls:
        call.failed(since)
    passing.now += 10
    for call in calls:
        call.answered(passing.now)
        call.over()
    assert clock.seconds == 0
    passing.now += 2
    late = clocks._Call([clock])
    late.failed(since)  # an attempt that began before, and was given back already
    passing.now += 3
    late.over()
    assert clock.seconds == 0
    passing.now += 4
    assert clock.seconds == 4


def test_a_silence_counts_for_whoever_has_asked(passing: Time) -> None:
    idle, asking = Clock(), Clock()
    last_sign = passing.now
    passing.now += 4
    with counted([asking]):
        passing.now += 20
        for clock in (idle, asking):
            clock.silent(last_sign)
    assert (idle.seconds, asking.seconds) == (24, 4)


def test_a_silence_is_told_of_when_the_answer_is_there_already(passing: Time) -> None:
    """What was asked for in it is answered as it ends, and the next call made before anyone hears of it."""
    clock = Clock()
    passing.now += 1
    last_sign = passing.now
    with counted([clock]):
        passing.now += 20
    passing.now += 2  # of its own
    with counted([clock]):
        passing.now += 1
        clock.silent(last_sign)
        assert clock.seconds == 3
        passing.now += 1
    assert clock.seconds == 4


async def test_time_that_is_over_is_over() -> None:
    work = asyncio.get_running_loop().create_future()

    async def alive() -> bool:
        raise AssertionError("nothing was asked, so nobody is silent")

    began = time.monotonic()
    assert not await in_time({work}, Clock(), 0.2, alive)
    assert time.monotonic() - began >= 0.2
    work.set_result(None)
    assert await in_time({work}, Clock(), 0.2, alive)
    assert await in_time({work}, Clock(), None, alive)


async def test_an_engine_that_is_alive_and_slow_uses_up_the_time() -> None:
    work, clock, asked = asyncio.get_running_loop().create_future(), Clock(), 0

    async def alive() -> bool:
        nonlocal asked
        asked += 1
        return True

    with counted([clock]):
        assert not await in_time({work}, clock, 0.1, alive)
    assert asked == 1


async def test_a_silent_engine_is_waited_for_behind_the_end_of_the_time() -> None:
    work, clock, asked = asyncio.get_running_loop().create_future(), Clock(), 0

    async def alive() -> bool:
        nonlocal asked
        asked += 1
        clock.silent(0)
        if asked == 3:
            work.set_result(None)
        return asked == 2  # it comes back for a moment, and its silence is given back

    with counted([clock]):
        assert await in_time({work}, clock, 0.1, alive)
    assert asked == 3


async def test_an_engine_that_stays_silent_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "LONGEST_SILENCE", 0.5)
    work, clock = asyncio.get_running_loop().create_future(), Clock()

    async def alive() -> bool:
        return False

    with counted([clock]), pytest.raises(EngineUnreachableError, match="restart it, and start the same run again"):
        await in_time({work}, clock, 0.1, alive)
