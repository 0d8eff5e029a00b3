"""Episodes go on one after the other; nobody waits who is alone, or on a loop of their own."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

from strands_sglang.rollout.pace import Pace


async def test_one_goes_on_in_each_round_in_the_order_they_came() -> None:
    pace, went, rounds = Pace(), [], 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def episode(number: int) -> None:
        await pace.turn()
        went.append((number, rounds))

    counting = asyncio.ensure_future(count())
    await asyncio.gather(*(episode(number) for number in range(100)))
    counting.cancel()
    assert [number for number, _ in went] == list(range(100))
    # Something else came in between any two of them.
    assert all(later - earlier >= 1 for (_, earlier), (_, later) in pairwise(went))


async def test_a_timer_is_not_late_when_thousands_wait() -> None:
    pace, loop = Pace(), asyncio.get_running_loop()
    late: list[float] = []

    async def episode() -> None:
        await pace.turn()
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


async def test_who_is_cancelled_while_waiting_holds_nobody_up() -> None:
    pace = Pace()
    waiting = [asyncio.ensure_future(pace.turn()) for _ in range(10)]
    await asyncio.sleep(0)
    for one in waiting[1::2]:
        one.cancel()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(one, asyncio.CancelledError) for one in done) == 5
    await asyncio.wait_for(pace.turn(), 1)


async def test_threads_with_loops_of_their_own_never_touch_this_one() -> None:
    """A sub-agent in a thread asks at the same time: it never waits, and never wakes anybody here."""
    pace, stop = Pace(), threading.Event()
    await pace.turn()
    turns = 0

    def thread() -> None:
        nonlocal turns

        async def ask() -> None:
            nonlocal turns
            while not stop.is_set():
                await pace.turn()
                turns += 1

        asyncio.run(ask())

    threads = [threading.Thread(target=thread) for _ in range(3)]
    for one in threads:
        one.start()
    for _ in range(300):
        await asyncio.wait_for(pace.turn(), 2)
    stop.set()
    for one in threads:
        one.join()
    assert turns > 0
