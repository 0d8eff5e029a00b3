"""`LoopThrottle`: callers continue one per loop iteration; callers on other event loops never wait."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise

from strands_sglang.runs.scheduler import LoopThrottle


async def test_one_caller_continues_per_iteration_in_order() -> None:
    scheduler, continued, rounds = LoopThrottle(), [], 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def episode(number: int) -> None:
        await scheduler.wait()
        continued.append((number, rounds))

    counting = asyncio.ensure_future(count())
    await asyncio.gather(*(episode(number) for number in range(100)))
    counting.cancel()
    assert [number for number, _ in continued] == list(range(100))
    # At least one loop iteration passed between any two of them.
    assert all(later - earlier >= 1 for (_, earlier), (_, later) in pairwise(continued))


async def test_timers_are_on_time_while_many_wait() -> None:
    scheduler, loop = LoopThrottle(), asyncio.get_running_loop()
    late: list[float] = []

    async def episode() -> None:
        await scheduler.wait()
        until = loop.time() + 0.001
        while loop.time() < until:
            pass

    async def timer() -> None:
        while True:
            due = loop.time() + 0.005
            await asyncio.sleep(0.005)
            late.append(loop.time() - due)

    timing = asyncio.ensure_future(timer())
    await asyncio.gather(*(episode() for _ in range(300)))
    timing.cancel()
    assert len(late) > 10 and sorted(late)[len(late) // 2] < 0.02


async def test_cancelled_caller_does_not_block_others() -> None:
    scheduler = LoopThrottle()
    waiting = [asyncio.ensure_future(scheduler.wait()) for _ in range(10)]
    await asyncio.sleep(0)
    for one in waiting[1::2]:
        one.cancel()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(one, asyncio.CancelledError) for one in done) == 5
    await asyncio.wait_for(scheduler.wait(), 1)


async def test_callers_on_other_loops_never_wait() -> None:
    """A sub-agent in a thread calls it at the same time: it never waits, and releases no caller of this loop."""
    scheduler, stop = LoopThrottle(), threading.Event()
    await scheduler.wait()
    turns = 0

    def thread() -> None:
        nonlocal turns

        async def call() -> None:
            nonlocal turns
            while not stop.is_set():
                await scheduler.wait()
                turns += 1

        asyncio.run(call())

    threads = [threading.Thread(target=thread) for _ in range(3)]
    for one in threads:
        one.start()
    for _ in range(300):
        await asyncio.wait_for(scheduler.wait(), 2)
    until = time.monotonic() + 60
    while turns < 300 and time.monotonic() < until:  # the threads may start late
        await asyncio.sleep(0.01)
    stop.set()
    for one in threads:
        one.join()
    assert turns >= 300


def test_a_later_event_loop_is_throttled_too() -> None:
    throttle, most = LoopThrottle(), []

    async def run() -> None:
        continued: list[int] = []

        async def episode() -> None:
            await throttle.wait()
            continued.append(1)

        waiting = asyncio.gather(*(episode() for _ in range(5)))
        while not waiting.done():
            before = len(continued)
            await asyncio.sleep(0)
            most.append(len(continued) - before)

    for _ in range(2):
        asyncio.run(run())
    assert max(most) == 1
