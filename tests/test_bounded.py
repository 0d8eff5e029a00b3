"""`run_bounded`: how many run at once, what a failure does, and that nothing is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from strands_sglang._bounded import run_bounded


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
