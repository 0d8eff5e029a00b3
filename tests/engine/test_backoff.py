"""Waits: bounded, growing, spread."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.engine.backoff import Backoff


@given(st.integers(1, 10_000), st.floats(0, 10), st.floats(0, 100))
def test_waits_stay_below_their_ceiling(failures: int, base: float, cap: float) -> None:
    assert 0 <= Backoff(base, cap).delay(failures) <= min(cap, base * 2.0 ** min(failures - 1, 60))


def test_full_jitter_spreads_over_the_whole_range() -> None:
    backoff = Backoff(1.0, 30.0, random.Random(0))
    delays = sorted(backoff.delay(4) for _ in range(2000))
    assert delays[0] < 0.1 and delays[-1] > 7.9
    assert abs(sum(delays) / len(delays) - 4.0) < 0.2


def test_a_server_that_names_a_time_is_waited_for() -> None:
    assert all(5.0 <= Backoff(1.0, 2.0).delay(1, 5.0) <= 6.0 for _ in range(100))
