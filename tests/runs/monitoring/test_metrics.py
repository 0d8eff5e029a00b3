"""`RunCounters` and `RunMetrics`."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Failure
from strands_sglang.runs.monitoring.metrics import WINDOW, RollingSeries, RunCounters, RunMetrics
from strands_sglang.runs.reward import Reward
from support.rollout.finished import finished


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_snapshot_of_counts() -> None:
    clock = Clock()
    totals = RunCounters(10, clock=clock)
    assert totals.snapshot() == RunMetrics(total=10, waiting=10)
    for sample in range(4):
        totals.began(f"t/{sample}")
    clock.now += 2
    for _ in range(4):
        totals.turn(50, 30, 40)
    totals.turn(50, None, 1000)  # without reported cached tokens, the call does not count for the hit rate
    broken = Failure("KeyError", "'x'")
    totals.finished(finished("t", 0, 1.0, tool_calls=5, tool_errors=2, tool_timeouts=1))
    totals.finished(finished("t", 1, {"reward": 0.0}, version="v2"))
    totals.finished(finished("t", 2, ended=EndReason.AGENT_ERROR, failure=broken, version=None))
    assert totals.snapshot().latest_error == "t/2: KeyError: 'x'"
    bad = finished("t", 7)
    bad.reward_detail = Reward(error="ValueError: no")
    totals.finished(bad, restored=True)
    totals.groups(1, 2, filter_errors=1)
    now = totals.snapshot()
    assert (now.done, now.restored, now.live, now.waiting, now.total) == (4, 1, 1, 5, 10)
    assert (now.turns, now.sampled_tokens, now.tokens_per_second, now.turns_per_second) == (5, 250, 125.0, 2.5)
    assert now.cache_hit_rate == 0.75
    assert (now.rewards, now.reward_mean, now.reward_history, now.reward_errors) == (2, 0.5, (1.0, 0.0), 1)
    assert now.end_reasons == {EndReason.ANSWERED: 3, EndReason.AGENT_ERROR: 1} and now.failures == 1
    assert now.latest_error == "t/7: reward: ValueError: no"
    assert (now.tool_calls, now.tool_errors, now.tool_timeouts) == (5, 2, 1)
    assert (now.groups_kept, now.groups_dropped, now.filter_errors) == (1, 2, 1)
    assert now.versions == {"v1": 2, "v2": 1, None: 1}
    mean = (3 * 2.0 + 2.0) / 3  # three that ended, and the time so far of the running one
    assert now.eta == pytest.approx(5 * mean + mean)

    flat = now.to_dict()
    assert flat["rollout/reward_mean"] == 0.5 and flat["rollout/end_reason/answered"] == 3
    assert flat["rollout/weight_versions"] == 3
    assert all(isinstance(value, (int, float)) for value in flat.values())
    assert "rollout/eta" not in RunMetrics().to_dict(), "unknown numbers are left out"
    assert "rollout.done" in now.to_dict("rollout.")


def test_rates_cover_only_the_window() -> None:
    clock = Clock()
    totals = RunCounters(clock=clock)
    for _ in range(600):
        totals.turn(10, None, 0)
        clock.now += 0.1
    assert totals.snapshot().tokens_per_second == pytest.approx(100, rel=0.11)
    assert totals.snapshot().tokens_per_second_overall == pytest.approx(100)
    assert len(totals._recent) <= WINDOW + 2
    clock.now += WINDOW + 1
    now = totals.snapshot()
    assert (now.tokens_per_second, now.turns_per_second) == (0, 0)
    assert 80 < now.tokens_per_second_overall < 100


@pytest.mark.parametrize("slots", [1, 16, 64])
@pytest.mark.timing
def test_eta_is_accurate_early(slots: int) -> None:
    """Episodes of very different durations, after a fifth of the run."""
    ratios = []
    for seed in range(4):
        draw, clock, count = random.Random(seed), Clock(), 512
        totals, episode = RunCounters(count, clock=clock), finished(turns=0)
        waiting = [f"t/{sample}" for sample in range(count)]
        live: list[tuple[float, str]] = []
        seen: list[tuple[float, float | None]] = []
        while waiting or live:
            while waiting and len(live) < slots:
                totals.began(waiting[-1])
                live.append((clock.now + draw.lognormvariate(2, 0.6), waiting.pop()))
            live.sort()
            clock.now, episode.id = live.pop(0)
            totals.finished(episode)
            seen.append((clock.now, totals.snapshot().eta))
        assert seen[-1][1] == 0.0
        ratios.append(statistics.median((eta or 0.0) / (clock.now - at) for at, eta in seen[count // 5 : -count // 5]))
    # The longest episode is often the last one, which cannot be predicted.
    assert 0.6 < statistics.median(ratios) < 1.3, ratios


def test_stopped_and_restored_episodes_do_not_count_for_eta() -> None:
    clock = Clock()
    totals = RunCounters(4, clock=clock)
    totals.finished(finished("t", 0), restored=True)
    totals.began("t/1")
    clock.now += 1
    totals.finished(finished("t", 1, ended=EndReason.NOT_NEEDED))
    assert totals.snapshot().eta is None


@pytest.mark.soak
def test_counting_takes_constant_time() -> None:
    totals = RunCounters(200_000)
    episode = finished("t", 0, 1.0)

    def seconds(rounds: int) -> float:
        began = time.process_time()
        for number in range(rounds):
            totals.began("t/0")
            totals.turn(100, 50, 200)
            episode.metrics.versions = [f"step-{number}"]
            totals.finished(episode)
        return time.process_time() - began

    seconds(2000)
    first = min(seconds(2000) for _ in range(3))
    seconds(50_000)
    last = min(seconds(2000) for _ in range(3))
    assert last < 2 * first + 0.01
    now = totals.snapshot()
    assert len(now.versions) == 32 and len(now.reward_history) <= 64


@given(st.lists(st.floats(-1e3, 1e3), max_size=700))
def test_rolling_series_has_bounded_length_and_exact_means(values: list[float]) -> None:
    history = RollingSeries(8)
    for value in values:
        history.add(value)
    points = history.points()
    assert len(points) < 8
    assert bool(points) == bool(values)
    size = history._size
    for index, point in enumerate(points):
        assert point == pytest.approx(math.fsum(values[index * size : (index + 1) * size]) / size, abs=1e-6)
    assert len(values) - len(points) * size < size


@given(st.lists(st.sampled_from(EndReason), max_size=40))
def test_end_reasons_add_up(reasons: list[EndReason]) -> None:
    totals = RunCounters(len(reasons))
    for sample, ended in enumerate(reasons):
        totals.finished(finished("t", sample, ended=ended, turns=0))
    now = totals.snapshot()
    assert Counter(now.end_reasons) == Counter(reasons) and sum(now.end_reasons.values()) == now.done
    assert now.failures == sum(ended.failed for ended in reasons)
    assert list(now.end_reasons.values()) == sorted(now.end_reasons.values(), reverse=True)


def test_unreachable_seconds() -> None:
    totals = RunCounters(4)
    assert totals.snapshot().unreachable_seconds == 0
    totals.unreachable = lambda: 40.4
    assert totals.snapshot().to_dict()["rollout/unreachable_seconds"] == 40.4
