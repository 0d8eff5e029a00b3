"""`run_async`: a result, an error, and Ctrl-C on every version of Python."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from strands_sglang._run_async import run_async
from support.interrupts import heeds_interrupts


@pytest.fixture(autouse=True)
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
