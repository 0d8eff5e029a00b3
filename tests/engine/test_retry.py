"""Retries: delays are bounded, grow and are spread; a paused episode is not retried."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from strands_sglang.engine.protocol import pause_requested
from strands_sglang.engine.response import TransientFault
from strands_sglang.engine.retry import Backoff, Retries, RetryPolicy, ServerRetries
from strands_sglang.errors import ConnectionLostError, EngineUnavailableError, EngineUnreachableError

POLICY = RetryPolicy(2, Backoff(base=0.0, cap=0.0))


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.timing
async def test_paused_episode_does_not_wait_for_next_attempt(paused: bool) -> None:
    busy = TransientFault(ConnectionLostError("gone"), retry_after=0.4)
    token = pause_requested.set(lambda: paused)
    try:
        began = time.monotonic()
        await ServerRetries(POLICY, URL("http://127.0.0.1:1")).after(busy)
        waited = time.monotonic() - began
    finally:
        pause_requested.reset(token)
    assert waited < 0.2 if paused else waited > 0.2


async def test_progress_resets_the_count() -> None:
    retries, fault = Retries(POLICY, "somebody's engine"), TransientFault(EngineUnavailableError("aborted"))
    for _ in range(3):
        await retries.after(fault)
        await retries.after(fault)
        retries.progressed()
    await retries.after(fault)
    await retries.after(fault)
    with pytest.raises(EngineUnavailableError, match="somebody's engine failed 3 times in a row, last: aborted"):
        await retries.after(fault)


async def test_final_error_has_last_failure() -> None:
    retries = Retries(RetryPolicy(0, POLICY.backoff), "it")
    with pytest.raises(EngineUnreachableError, match="it failed once, last: gone") as caught:
        await retries.after(TransientFault(ConnectionLostError("gone")))
    assert caught.value.attempts == 1 and isinstance(caught.value.__cause__, ConnectionLostError)


@given(st.integers(1, 10_000), st.floats(0, 10), st.floats(0, 100))
def test_delays_are_limited(failures: int, base: float, cap: float) -> None:
    assert 0 <= Backoff(base, cap).delay(failures) <= min(cap, base * 2.0 ** min(failures - 1, 60))


def test_full_jitter_spreads_over_the_whole_range() -> None:
    backoff = Backoff(1.0, 30.0, random.Random(0))
    delays = sorted(backoff.delay(4) for _ in range(2000))
    assert delays[0] < 0.1 and delays[-1] > 7.9
    assert abs(sum(delays) / len(delays) - 4.0) < 0.2


def test_delay_follows_retry_after() -> None:
    assert all(5.0 <= Backoff(1.0, 2.0).delay(1, 5.0) <= 6.0 for _ in range(100))
