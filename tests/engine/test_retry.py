"""When a call is tried again: not when its episode is halted."""

from __future__ import annotations

import time

import pytest
from yarl import URL

from strands_sglang.engine.backoff import Backoff
from strands_sglang.engine.faults import TransientFault
from strands_sglang.engine.protocol import halting
from strands_sglang.engine.retry import Retries, RetryPolicy
from strands_sglang.errors import ConnectionLostError


@pytest.mark.parametrize("halted", [False, True])
async def test_a_halted_episode_does_not_wait_for_the_next_try(halted: bool) -> None:
    policy = RetryPolicy(5, Backoff(base=0.0, cap=0.0))
    busy = TransientFault(ConnectionLostError("gone"), retry_after=0.4)
    token = halting.set(lambda: halted)
    try:
        began = time.monotonic()
        await Retries(policy, URL("http://127.0.0.1:1")).after(busy)
        waited = time.monotonic() - began
    finally:
        halting.reset(token)
    assert waited < 0.2 if halted else waited > 0.2
