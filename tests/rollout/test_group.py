"""Groups: their numbers, the filters that keep or drop them, and when there is enough."""

from __future__ import annotations

import logging
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.finished import finished
from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout.group import Filters, Group, Wanted, rewards_differ
from strands_sglang.rollout.task import Task

REWARDS = st.lists(st.none() | st.floats(-1e6, 1e6), max_size=8)
MAYBE = st.none() | st.integers(1, 20)


def group_of(*rewards: Any) -> Group:
    task = Task("?", id="t")
    return Group(task, [finished(task, sample, reward, turns=0) for sample, reward in enumerate(rewards)])


@given(REWARDS)
def test_numbers_of_a_group(rewards: list[float | None]) -> None:
    group = group_of(*rewards)
    assert group.rewards == rewards
    scored = [reward for reward in rewards if reward is not None]
    if not scored:
        assert group.reward_mean is None and group.reward_std is None
    else:
        assert group.reward_mean == pytest.approx(statistics.fmean(scored))
        assert group.reward_std == pytest.approx(statistics.pstdev(scored), rel=1e-6, abs=1e-6)
    assert rewards_differ(group) == (len(set(scored)) > 1)


async def test_filters_in_order_until_one_drops() -> None:
    asked = []

    def first(group: Group) -> bool:
        asked.append("first")
        return True

    async def second(group: Group) -> bool:
        asked.append("second")
        return group.reward_mean == 1.0

    def third(group: Group) -> Any:
        asked.append("third")
        return 1

    filters = Filters([first, second, third])
    assert await filters.keep(group_of(1, 1)) is True
    assert await filters.keep(group_of(0, 0)) is False
    assert asked == ["first", "second", "third", "first", "second"]
    assert await Filters().keep(group_of()) is True


async def test_a_filter_that_raises_drops_nothing_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(group: Group) -> bool:
        raise KeyError("difficulty")

    filters = Filters([broken, rewards_differ])
    with caplog.at_level(logging.WARNING):
        assert [await filters.keep(group_of(0, 1)) for _ in range(3)] == [True] * 3
        assert await filters.keep(group_of(1, 1)) is False, "the others are still asked"
    assert filters.errors == 4
    (record,) = caplog.records
    assert "filter=<broken>, task=<t>, error=<KeyError: 'difficulty' (test_group.py:" in record.getMessage()


def test_filters_are_functions() -> None:
    with pytest.raises(ConfigurationError, match="a filter is a function"):
        Filters(["rewards_differ"])  # type: ignore[list-item]


@given(MAYBE, st.integers(1, 20), st.integers(0, 40))
def test_a_group_is_complete_for_good_and_at_the_latest_with_all(samples: int | None, per_task: int, done: int) -> None:
    wanted = Wanted(samples=samples)
    assert 1 <= wanted.needed(per_task) <= per_task
    assert wanted.complete(per_task, per_task)
    assert not wanted.complete(0, per_task)
    if wanted.complete(done, per_task):
        assert wanted.complete(done + 1, per_task)
    assert wanted.complete(done, per_task) == (done >= min(samples or per_task, per_task))


@given(MAYBE, st.integers(0, 40), st.integers(0, 40))
def test_enough_is_enough_and_only_what_can_come_is_waited_for(groups: int | None, kept: int, open_groups: int) -> None:
    wanted = Wanted(groups=groups)
    assert wanted.enough(kept) == (groups is not None and kept >= groups)
    if wanted.enough(kept):
        assert wanted.enough(kept + 1) and wanted.within_reach(kept, 0)
    if open_groups and wanted.within_reach(kept, open_groups):
        assert wanted.within_reach(kept + 1, open_groups - 1), "a kept group brings it no farther away"
    if groups is None:
        assert wanted.within_reach(0, 0) and not wanted.enough(10**9)


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "4"])
def test_wanted_numbers_are_checked(bad: Any) -> None:
    for name in ("groups", "samples"):
        with pytest.raises(ConfigurationError, match=f"Wanted.{name} must be"):
            Wanted(**{name: bad})
