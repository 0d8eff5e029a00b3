"""Threads for tools: as many as are needed, none that holds the interpreter."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

from strands_sglang.rollout import threads as room
from strands_sglang.rollout.threads import ToolThreads, tool_threads


def test_results_errors_and_context_come_back() -> None:
    pool = ToolThreads()
    mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="unset")
    mine.set("set")
    assert pool.submit(contextvars.copy_context().run, mine.get).result(5) == "set"
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(5)
    with pytest.raises(SystemExit):
        pool.submit(sys.exit, 3).result(5)
    assert pool.submit(pow, 2, exp=5).result(5) == 32


def test_tools_that_hang_take_one_thread_each_and_nothing_else() -> None:
    pool, free = ToolThreads(50), threading.Event()
    hung = [pool.submit(free.wait, 60) for _ in range(40)]
    began = time.monotonic()
    assert [pool.submit(pow, 2, number).result(5) for number in range(100)] == [2**number for number in range(100)]
    assert time.monotonic() - began < 10
    free.set()
    assert all(one.result(5) for one in hung)


def test_more_work_than_threads_is_done_in_the_end() -> None:
    pool, lock = ToolThreads(4), threading.Lock()
    at_once = most = 0

    def work(number: int) -> int:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.002)
        with lock:
            at_once -= 1
        return number

    assert [one.result(10) for one in [pool.submit(work, n) for n in range(100)]] == list(range(100))
    assert most == 4


def test_threads_end_when_idle_and_work_goes_on_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much was waiting before: a count that is off would leave a job without a thread for ever."""
    monkeypatch.setattr(room, "_IDLE_SECONDS", 0.05)
    others = set(threading.enumerate())
    for _ in range(3):
        pool = ToolThreads(3)
        for _ in range(3):
            jobs: list[Future[Any]] = [pool.submit(time.sleep, 0.001) for _ in range(40)]
            for job in jobs:
                job.result(5)
            time.sleep(0.15)
            assert not set(threading.enumerate()) - others
        assert pool.submit(pow, 2, 2).result(5) == 4


async def test_the_loop_gets_its_own_threads_back() -> None:
    loop: Any = asyncio.get_running_loop()
    before = loop._default_executor
    with tool_threads(100):
        free = threading.Event()
        hung = [asyncio.ensure_future(asyncio.to_thread(free.wait, 60)) for _ in range(80)]
        assert await asyncio.wait_for(asyncio.to_thread(pow, 2, 3), 5) == 8
        assert threading.current_thread() is threading.main_thread()
        free.set()
        await asyncio.gather(*hung)
    assert loop._default_executor is before


async def test_a_job_that_is_cancelled_before_it_begins_is_not_run() -> None:
    pool, free = ToolThreads(1), threading.Event()
    ran: list[int] = []
    first = pool.submit(free.wait, 60)
    second = pool.submit(ran.append, 1)
    assert second.cancel()
    free.set()
    assert first.result(5) and pool.submit(pow, 2, 2).result(5) == 4
    assert not ran


def test_a_thread_that_hangs_does_not_hold_the_interpreter() -> None:
    program = """
import asyncio, threading
from strands_sglang.rollout.threads import tool_threads

async def main():
    with tool_threads(64):
        for _ in range(5):
            asyncio.ensure_future(asyncio.to_thread(threading.Event().wait))
        await asyncio.sleep(0.1)
    print("over", flush=True)

asyncio.run(main())
"""
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "over\n" and ended.returncode == 0, ended.stderr
    assert time.monotonic() - began < 30
