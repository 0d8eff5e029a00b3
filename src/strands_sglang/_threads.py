"""Work that would block the event loop for too long runs in threads of our own: `in_thread`.

Invariant: the loop's own thread pool is not used: it may be busy with tools. A forked process gets threads of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")


@lru_cache(maxsize=1)
def _threads_of(process: int) -> ThreadPoolExecutor:
    # One core is left to the event loop: with more threads than cores it waits for a CPU while they work.
    return ThreadPoolExecutor(min(4, max(1, (os.cpu_count() or 2) - 1)), thread_name_prefix="strands-sglang-work")


async def in_thread(work: Callable[[ArgumentT], ResultT], argument: ArgumentT) -> ResultT:
    """Run a function in a thread and return its result.

    Args:
        work: The function; it must not use the event loop.
        argument: Its only argument.
    """
    return await asyncio.get_running_loop().run_in_executor(_threads_of(os.getpid()), work, argument)
