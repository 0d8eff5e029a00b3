"""The rules of other trainers, as their sources state them, each reproduced by a setting (docs/guides/staleness.md)."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.runs import MaxStaleness
from strands_sglang.runs.episode import EpisodeMetrics, Staleness
from strands_sglang.runs.staleness import StalenessGate
from support.rollout.finished import finished

GROUPS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4).map(sorted), min_size=1, max_size=4)
"""Weight versions of the turns of each episode of a group; versions only grow while an episode runs."""


def decided(rule: MaxStaleness, group: list[list[int]], current: int) -> Staleness:
    engine: Any = None
    episodes = [finished("t", number, 1.0) for number in range(len(group))]
    for episode, versions in zip(episodes, group, strict=True):
        episode.metrics = EpisodeMetrics(versions=[str(one) for one in versions])
    gate = StalenessGate(rule if rule.current else MaxStaleness(rule.limit, rule.action, current=lambda: "0"), engine)
    return gate.decide(episodes, str(current), retry=True)


@given(group=GROUPS, limit=st.integers(0, 6), more=st.integers(0, 6), retries=st.booleans())
@settings(max_examples=200)
def test_miles_and_trl_and_prime_rl(group: list[list[int]], limit: int, more: int, retries: bool) -> None:
    current = max(map(max, group)) + more
    # Miles: current version minus the oldest of the group, of versions that are digits; drop or retry.
    digits = [version for versions in group for version in map(str, versions) if version.isdigit()]
    too_old = current - min(map(int, digits)) > limit
    found = decided(MaxStaleness(limit, "retry" if retries else "drop"), group, current)
    assert found.dropped == too_old
    assert not too_old or found.decision.value == ("retried" if retries else "dropped")
    # TRL: model version minus the version when the group started, which sampled the first token of the group.
    started = min(versions[0] for versions in group)
    assert decided(MaxStaleness(limit), group, current).dropped == (current - started > limit)
    # prime-rl: the step before the current one minus the version at dispatch; the group is cancelled or dropped.
    step = current + 1
    assert decided(MaxStaleness(limit), group, step - 1).dropped == ((step - 1) - started > limit)


@given(limit=st.integers(0, 3), batch=st.integers(1, 6), seconds=st.integers(1, 12))
def test_areal_trains_nothing_that_its_setting_drops(limit: int, batch: int, seconds: int) -> None:
    """Admission of AReaL: (max_head_offpolicyness + version + 1) * batch - (accepted + running) may start.

    With episodes that take equally long; one that takes longer than others may be older there.
    """
    version, now = 0, 0
    running: list[tuple[int, int]] = []  # when it ends, and the version at its start
    accepted: list[int] = []
    trained = 0
    waiting = [seconds] * 30
    while waiting or running:
        while waiting and (limit + version + 1) * batch - (len(accepted) + len(running)) > 0:
            running.append((now + waiting.pop(), version))
        if not running:
            break  # the next batch is not complete, so that there is no further update
        now = min(ends for ends, _ in running)
        accepted += [started for ends, started in running if ends == now]
        running = [one for one in running if one[0] > now]
        while len(accepted) - trained >= batch:
            for started in accepted[trained : trained + batch]:
                assert not MaxStaleness(limit).stale([str(started)], str(version))
            trained, version = trained + batch, version + 1
    assert trained >= batch


@given(threshold=st.floats(0.0, 2.0), batch=st.integers(1, 8), updates=st.integers(1, 6))
def test_verl_trains_nothing_that_its_setting_drops(threshold: float, batch: int, updates: int) -> None:
    """Verl pauses at batch * (threshold + 1) samples ahead; trained first in, first out, one update a batch."""
    queue: list[int] = []
    rule = MaxStaleness(math.ceil(threshold))
    for version in range(updates):
        queue += [version] * max(math.floor(batch * (threshold + 1)) - len(queue), 0)
        assert len(queue) >= batch
        assert not any(rule.stale([str(started)], str(version)) for started in queue[:batch])
        del queue[:batch]


def test_slime_trains_everything() -> None:
    assert MaxStaleness.of(None) is None
