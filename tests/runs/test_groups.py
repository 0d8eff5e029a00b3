"""`Group` statistics, `GroupFilters` and `StopCriteria`."""

from __future__ import annotations

import logging
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs.groups import Group, GroupFilters, StopCriteria, rewards_differ
from strands_sglang.runs.task import Task
from support.rollout.finished import finished

REWARDS = st.lists(st.none() | st.floats(-1e6, 1e6), max_size=8)
MAYBE = st.none() | st.integers(1, 20)


def group_of(*rewards: Any) -> Group:
    task = Task("?", id="t")
    return Group(task, [finished(task, sample, reward, turns=0) for sample, reward in enumerate(rewards)])


@given(REWARDS)
def test_reward_mean_and_std(rewards: list[float | None]) -> None:
    group = group_of(*rewards)
    assert group.rewards == rewards
    scored = [reward for reward in rewards if reward is not None]
    if not scored:
        assert group.reward_mean is None and group.reward_std is None
    else:
        assert group.reward_mean == pytest.approx(statistics.fmean(scored))
        assert group.reward_std == pytest.approx(statistics.pstdev(scored), rel=1e-6, abs=1e-6)
    assert rewards_differ(group) == (len(set(scored)) > 1)


async def test_filters_are_called_in_order_until_one_drops() -> None:
    calls = []

    def first(group: Group) -> bool:
        calls.append("first")
        return True

    async def second(group: Group) -> bool:
        calls.append("second")
        return group.reward_mean == 1.0

    def third(group: Group) -> Any:
        calls.append("third")
        return 1

    filters = GroupFilters([first, second, third])
    assert await filters.keep(group_of(1, 1)) is True
    assert await filters.keep(group_of(0, 0)) is False
    assert calls == ["first", "second", "third", "first", "second"]
    assert await GroupFilters().keep(group_of()) is True


async def test_filter_that_raises_keeps_group_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(group: Group) -> bool:
        raise KeyError("difficulty")

    filters = GroupFilters([broken, rewards_differ])
    with caplog.at_level(logging.WARNING):
        assert [await filters.keep(group_of(0, 1)) for _ in range(3)] == [True] * 3
        assert await filters.keep(group_of(1, 1)) is False, "the other filters are still called"
    assert filters.errors == 4
    (record,) = caplog.records
    assert "filter=<broken>, task=<t>, error=<KeyError: 'difficulty' (test_groups.py:" in record.getMessage()


def test_filter_must_be_callable() -> None:
    with pytest.raises(ConfigurationError, match="a filter must be a function"):
        GroupFilters(["rewards_differ"])  # type: ignore[list-item]


@given(MAYBE, st.integers(1, 20), st.integers(0, 40))
def test_complete_group_stays_complete(samples: int | None, per_task: int, done: int) -> None:
    criteria = StopCriteria(samples=samples)
    assert 1 <= criteria.needed(per_task) <= per_task
    assert criteria.complete(per_task, per_task)
    assert not criteria.complete(0, per_task)
    if criteria.complete(done, per_task):
        assert criteria.complete(done + 1, per_task)
    assert criteria.complete(done, per_task) == (done >= min(samples or per_task, per_task))


@given(MAYBE, st.integers(0, 40), st.integers(0, 40))
def test_enough_and_within_reach_are_monotonic(groups: int | None, kept: int, open_groups: int) -> None:
    criteria = StopCriteria(groups=groups)
    assert criteria.enough(kept) == (groups is not None and kept >= groups)
    if criteria.enough(kept):
        assert criteria.enough(kept + 1) and criteria.within_reach(kept, 0)
    if open_groups and criteria.within_reach(kept, open_groups):
        assert criteria.within_reach(kept + 1, open_groups - 1), "a kept group must not put the goal out of reach"
    if groups is None:
        assert criteria.within_reach(0, 0) and not criteria.enough(10**9)


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "4"])
def test_stop_criteria_must_be_positive_ints(bad: Any) -> None:
    for name in ("groups", "samples"):
        with pytest.raises(ConfigurationError, match=f"StopCriteria.{name} must be"):
            StopCriteria(**{name: bad})
