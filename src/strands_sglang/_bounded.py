"""Runs many coroutines, a few at a time: `run_bounded`.

Invariant: at most `at_once` of them run at any moment, and none is left running when the call ends, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

ItemT = TypeVar("ItemT")


async def run_bounded(work: Callable[[ItemT], Awaitable[None]], items: Iterable[ItemT], at_once: int) -> None:
    """Call an async function with every item.

    Args:
        work: The function.
        items: Its arguments. The next one is taken in a thread, because it may be read from disk.
        at_once: Maximum number of calls at the same time.

    Raises:
        Exception: What the first call raised that failed; the others are cancelled.
    """
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
