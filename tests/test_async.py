"""`run_bounded`: how many run at once, what a failure does; `run_async`: results, errors, Ctrl-C on every Python."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from strands_sglang._async import run_async, run_bounded
from support.interrupts import heeds_interrupts


@pytest.mark.parametrize("at_once", [1, 3, 50])
async def test_every_item_runs_and_few_at_once(at_once: int) -> None:
    running, most, done = 0, 0, list[int]()
    full = asyncio.Event()

    async def work(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == min(at_once, 20):
            full.set()
        await full.wait()  # so many do run at once; after that, no more than that
        await asyncio.sleep(0)
        running -= 1
        done.append(item)

    await run_bounded(work, range(20), at_once)
    assert sorted(done) == list(range(20)) and most == min(at_once, 20)


@pytest.mark.parametrize("fails", ["work", "items"])
async def test_a_failure_ends_the_others(fails: str) -> None:
    ended: list[int] = []

    def items() -> Iterator[int]:
        yield from range(4)
        if fails == "items":
            raise ValueError("unreadable")

    async def work(item: int) -> None:
        try:
            if item == 2 and fails == "work":
                raise ValueError("broken")
            await asyncio.sleep(30)
        finally:
            ended.append(item)

    with pytest.raises(ValueError, match="broken" if fails == "work" else "unreadable"):
        await run_bounded(work, items(), 10)
    assert sorted(ended) == [0, 1, 2, 3]
    assert len(asyncio.all_tasks()) == 1


async def test_none_is_an_item() -> None:
    seen: list[None] = []

    async def work(item: None) -> None:
        seen.append(item)

    await run_bounded(work, [None, None], 1)
    assert seen == [None, None]


@pytest.fixture
def ctrl_c_is_received() -> Iterator[None]:
    """A process that was started in the background ignores SIGINT."""
    before = signal.getsignal(signal.SIGINT)
    heeds_interrupts()
    yield
    signal.signal(signal.SIGINT, before)


async def pressed(ended: list[str], *, stubborn: bool = False) -> None:
    asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(60)
    finally:
        if stubborn:
            asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        ended.append("in order")


def test_result_and_error() -> None:
    async def answer(value: int) -> int:
        return 1 // value

    assert run_async(answer(1)) == 1
    with pytest.raises(ZeroDivisionError):
        run_async(answer(0))


@pytest.mark.usefixtures("ctrl_c_is_received")
@pytest.mark.parametrize("stubborn", [False, True])
def test_ctrl_c_cancels_then_raises(stubborn: bool) -> None:
    ended: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_async(pressed(ended, stubborn=stubborn))
    assert ended == ([] if stubborn else ["in order"])
    assert signal.getsignal(signal.SIGINT) is before


def test_cancellation_without_ctrl_c_is_passed_on() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_async(cancelled())


def test_in_another_thread() -> None:
    found: list[int] = []

    async def answer() -> int:
        return 1

    thread = threading.Thread(target=lambda: found.append(run_async(answer())))
    thread.start()
    thread.join(10)
    assert found == [1]
