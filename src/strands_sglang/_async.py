"""Helpers for asyncio: `in_thread`, `run_bounded` (many calls, few at a time), `run_async`, `grouped`, `LoopThrottle`.

Invariant: `in_thread` never waits for the loop's own thread pool, which may be busy with tools. Nothing is left running
when `run_bounded` ends, however it ends. The first Ctrl-C cancels the coroutine of `run_async`; KeyboardInterrupt is
raised when it has ended.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import FrameType
from typing import Any, TypeVar

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")

_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # Python 3.10 has none


@lru_cache(maxsize=1)
def _threads_of(process: int) -> ThreadPoolExecutor:
    # One core is left to the event loop: with more threads than cores it waits for a CPU while they work.
    return ThreadPoolExecutor(min(4, max(1, (os.cpu_count() or 2) - 1)), thread_name_prefix="strands-sglang-work")


async def in_thread(work: Callable[[ArgumentT], ResultT], argument: ArgumentT) -> ResultT:
    """Run a function that blocks, and does not use the event loop, in a thread of our own, and return its result."""
    return await asyncio.get_running_loop().run_in_executor(_threads_of(os.getpid()), work, argument)


async def run_bounded(work: Callable[[ArgumentT], Awaitable[None]], items: Iterable[ArgumentT], at_once: int) -> None:
    """Call an async function with every item, at most `at_once` at a time; one that fails cancels the others."""
    end, iterator = object(), iter(items)
    tasks: set[asyncio.Future[None]] = set()
    try:
        while (item := await asyncio.to_thread(next, iterator, end)) is not end:
            if len(tasks) >= at_once:
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            tasks.add(asyncio.ensure_future(work(item)))  # type: ignore[arg-type]
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_async(coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine in a new event loop and return its result."""
    # Since Python 3.11 `asyncio.run` cancels at Ctrl-C. Before, Ctrl-C raises inside whichever task runs, which may
    # print the traceback of that task.
    takes_ctrl_c = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if sys.version_info >= (3, 11) or not takes_ctrl_c:
        return asyncio.run(coroutine)
    return asyncio.run(_cancelled_by_ctrl_c(coroutine))


async def _cancelled_by_ctrl_c(coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    presses = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses > 1 or task is None:
            raise KeyboardInterrupt  # the coroutine does not end
        loop.call_soon_threadsafe(task.cancel)

    signal.signal(signal.SIGINT, on_signal)
    try:
        return await coroutine
    except asyncio.CancelledError:
        if presses:
            raise KeyboardInterrupt from None
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is on_signal:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def grouped(error: BaseException | None) -> Sequence[BaseException]:
    """Return the errors of an exception group, which is what a task group raises; none for any other error."""
    return error.exceptions if isinstance(error, _GROUP) else ()


class LoopThrottle:
    """Lets callers continue one per iteration of the loop: nobody else waits for the work of all of them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False  # `_release` is called in the next iteration

    async def wait(self) -> None:
        """Wait until this caller may continue."""
        loop = asyncio.get_running_loop()
        if self._loop is None or self._loop.is_closed():  # the first loop is the one that runs the episodes
            self._loop, self._scheduled = loop, False
            self._waiting.clear()
        if self._loop is not loop:
            return  # a sub-agent in a thread, on its own loop: there is nothing else to wait for
        if not self._scheduled:  # nobody else continues
            self._scheduled = True
            loop.call_soon(self._release)
            return
        mine = loop.create_future()
        self._waiting.append(mine)
        await mine

    def _release(self) -> None:
        """Release one waiting caller; called in every iteration of the event loop while there are any."""
        self._scheduled = False
        while self._waiting and not self._scheduled:
            first = self._waiting.popleft()
            if not first.done():  # not cancelled while it waited
                first.set_result(None)
                self._scheduled = True
        if self._scheduled and self._loop is not None:
            self._loop.call_soon(self._release)
