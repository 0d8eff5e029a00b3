"""Episodes as they come in, in any order: each counted once, each group judged once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.finished import finished
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.group import Filters, Group, Wanted, rewards_differ
from strands_sglang.rollout.tally import Tally
from strands_sglang.rollout.task import Task

ENDS = st.sampled_from([Ended.ANSWERED, Ended.ANSWERED, Ended.TURN_LIMIT, Ended.AGENT, Ended.ENGINE, Ended.CUT_SHORT])


@given(
    ends=st.lists(st.lists(ENDS, min_size=3, max_size=3), min_size=1, max_size=4),
    samples=st.none() | st.integers(1, 3),
    groups=st.none() | st.integers(1, 4),
    seed=st.integers(0, 99),
    slow=st.booleans(),
)
@settings(max_examples=100, deadline=None)
async def test_each_is_counted_once_and_each_group_judged_once(
    ends: list[list[Ended]], samples: int | None, groups: int | None, seed: int, slow: bool
) -> None:
    judged: list[str] = []
    closed: list[str] = []

    async def even(group: Group) -> bool:
        judged.append(group.task.id)
        if slow:
            await asyncio.sleep(0)
        return int(group.task.id) % 2 == 0

    tally = Tally(Wanted(groups, samples), Filters([even]), lambda task: closed.append(task.id))
    episodes: list[Episode] = []
    for number, group in enumerate(ends):
        task = Task("question", id=str(number))
        tally.expect(task, 3)
        episodes += [finished(task, sample, ended=ended) for sample, ended in enumerate(group)]
    random.Random(seed).shuffle(episodes)
    await asyncio.gather(*(tally.add(episode) for episode in episodes))
    assert len(judged) == len(set(judged)) == tally.kept + tally.dropped
    assert len(closed) == len(set(closed)) and set(closed) <= set(judged)
    kept, dropped = tally.groups(kept=True), tally.groups(kept=False)
    assert len(kept) == tally.kept and {group.task.id for group in kept} <= {str(n) for n in range(0, 4, 2)}
    told = [episode.id for one in [*kept, *dropped] for episode in one.episodes]
    told += [episode.id for episode in tally.left_over]
    # One that failed while its group was not complete is held back, in case the run goes on later.
    held = [episode.id for place in tally.places.values() if not place.complete for episode in place.failed]
    assert sorted(told + held) == sorted(episode.id for episode in episodes)
    for one in [*kept, *dropped]:
        order = [episode.sample for episode in one.episodes]
        assert order == sorted(order) or not tally.places[one.task.id].complete
        assert not any(episode.ended is Ended.CUT_SHORT for episode in one.episodes)
    assert groups is None or tally.kept <= groups
    assert tally.enough == (groups is not None and tally.kept >= groups)


async def test_a_group_is_complete_with_all_its_episodes() -> None:
    tally = Tally(Wanted(1), Filters([rewards_differ]))
    task = Task("question", id="t")
    tally.expect(task, 3)
    rewards: list[Any] = [1.0, 0.0, None]
    enough = [await tally.add(finished(task, sample, reward)) for sample, reward in enumerate(rewards)]
    assert enough == [False, False, True]
    (group,) = tally.groups(kept=True)
    assert group.rewards == rewards


async def test_late_ones_are_left_over() -> None:
    dropped: list[str] = []
    tally = Tally(Wanted(None, 2), Filters(), lambda task: dropped.append(task.id))
    task = Task("question", id="t")
    tally.expect(task, 4)
    for sample in (3, 1, 0, 2):
        await tally.add(finished(task, sample))
    assert dropped == ["t"]
    assert [episode.sample for episode in tally.groups(kept=True)[0].episodes] == [1, 3]
    assert [episode.sample for episode in tally.left_over] == [0, 2]
