"""The collector while a run lasts, and afterwards."""

from __future__ import annotations

import asyncio
import gc
import weakref

from strands_sglang.rollout.collector import calm_collector


class Knot:
    """Something that only the collector can take away."""

    def __init__(self) -> None:
        self.me = self


async def test_young_objects_are_collected_and_the_rest_comes_back() -> None:
    assert gc.isenabled()
    with calm_collector():
        assert not gc.isenabled()
        with calm_collector():
            knot = weakref.ref(Knot())
        assert not gc.isenabled()
        await asyncio.sleep(0.2)
        assert knot() is None
    assert gc.isenabled()


async def test_one_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with calm_collector():
            knot = weakref.ref(Knot())
            await asyncio.sleep(0.15)
            assert knot() is not None
        assert not gc.isenabled()
    finally:
        gc.enable()
