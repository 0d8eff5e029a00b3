"""Whether the engine is alive is asked when calls wait for it, and not before."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from strands_sglang.rollout.clock import Clock, counted
from strands_sglang.rollout.pulse import Pulse


class Control:
    """Says whether an engine is alive."""

    def __init__(self) -> None:
        self.healthy: bool | Exception = True
        self.asked = 0

    async def signs_of_life(self, timeout: float) -> dict[str, bool]:
        self.asked += 1
        if isinstance(self.healthy, Exception):
            raise self.healthy
        return {"http://router": True, "http://worker": self.healthy, "http://elsewhere": False}


class Engine:
    def __init__(self) -> None:
        self.control = Control()


def quick(engine: Any) -> Pulse:
    return Pulse(engine, beat=0.02, quiet=0.1, patience=1)


async def test_an_engine_that_answers_is_not_asked() -> None:
    engine, clock = Engine(), Clock()
    pulse = Pulse(engine, beat=0.02, quiet=30)
    with pulse.watching(clock):
        await asyncio.sleep(0.3)  # nobody waits for it
        assert engine.control.asked == 1  # who can be asked at all
        pulse.answered()
        with counted([clock]):
            for _ in range(15):
                await asyncio.sleep(0.02)
                pulse.answered()
    assert engine.control.asked == 1
    await asyncio.sleep(0.05)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_silence_is_given_back_to_those_who_wait() -> None:
    for silent in (False, OSError("gone")):
        engine, clock, idle = Engine(), Clock(), Clock()
        pulse, began = quick(engine), time.monotonic()
        assert await pulse.alive()
        engine.control.healthy = silent
        with pulse.watching(clock), pulse.watching(idle), counted([clock]):
            while engine.control.asked < 5:
                await asyncio.sleep(0.01)
            assert not await pulse.alive()
            passed = time.monotonic() - began
            assert clock.seconds < passed / 2 and idle.seconds > passed / 2
        engine.control.healthy = True
        assert await pulse.alive()


async def test_an_engine_that_cannot_be_asked_is_taken_to_be_alive() -> None:
    pulse, clock = quick(object()), Clock()
    with pulse.watching(clock):
        assert await pulse.alive()
