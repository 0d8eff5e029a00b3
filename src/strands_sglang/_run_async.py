"""Runs a coroutine from synchronous code.

Invariant: the first Ctrl-C cancels the coroutine, and KeyboardInterrupt is raised when it has ended. `asyncio.run` does
so since Python 3.11; before, Ctrl-C raises inside whichever task runs, which may print the traceback of that task.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop and return its result."""
    takes_ctrl_c = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if sys.version_info >= (3, 11) or not takes_ctrl_c:
        return asyncio.run(coroutine)
    return asyncio.run(_cancelled_by_ctrl_c(coroutine))


async def _cancelled_by_ctrl_c(coroutine: Coroutine[Any, Any, T]) -> T:
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
