"""slime's own `generate_rollout` with rollouts of several samples: agents that rewrite their history or ask others."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from lab_servers import Routed
from rollout_agent import build, score
from strands_sglang.trainers.slime import slime_rollout
from strands_sglang.trainers.slime_valid import validate_batch
from trainers.slime_agents import second_thoughts
from trainers.slime_checks import check_batch, check_rescored, check_witnessed
from trainers.slime_world import IMPORTABLE, MISSING, Batch, SlimeWorld, slime

pytestmark = [pytest.mark.slime, pytest.mark.engine, pytest.mark.skipif(not IMPORTABLE, reason=MISSING)]

OURS = "strands_sglang.trainers.slime"
POST_PROCESS = ["--custom-reward-post-process-path", f"{OURS}.grpo_by_group"]
FILTER = ["--dynamic-sampling-filter-path", f"{OURS}.check_reward_nonzero_std"]


def check_advantages(batch: Batch) -> None:
    """Worked out anew: each rollout counts once in its group."""
    train = batch.train
    by_group: dict[int, dict[int, float]] = {}
    for sample in batch.samples:
        by_group.setdefault(sample.group_index, {})[sample.rollout_id] = float(sample.reward)
    for sample, advantage in zip(batch.samples, train["rewards"], strict=True):
        worth = list(by_group[sample.group_index].values())
        assert len(worth) == 4
        scale = statistics.stdev(worth) + 1e-6
        assert math.isclose(advantage, (sample.reward - statistics.fmean(worth)) / scale, abs_tol=1e-5)


def test_every_branch_is_trained_once(slime_world: SlimeWorld, routed: Routed) -> None:
    world = slime_world
    generate = slime_rollout(second_thoughts, reward=score, branches="all")
    args = world.configure(generate, *POST_PROCESS, *FILTER)
    batch = world.step()
    check_batch(batch, rollouts=16)
    validate_batch(batch.groups, args)
    check_rescored(batch.samples, routed.workers[0].url)
    sizes = [len(rollout) for group in batch.groups for rollout in group]
    assert len(sizes) == 16 and len(set(sizes)) > 1 and max(sizes) <= 3, sizes
    # Groups that the filter dropped were sampled too: look at the sessions that are in the batch.
    sessions = {sample.session_id for sample in batch.samples}
    asked = [one for one in world.wire.generates if one.key in sessions]
    used = check_witnessed(batch.samples, asked)
    assert sum(used.values()) == sum(len(one.sampled) for one in asked), "every token that was sampled is trained"
    for group in batch.groups:
        for rollout in group:
            assert len({sample.reward for sample in rollout}) == 1
            assert len({sample.rollout_id for sample in rollout}) == 1
            assert {sample.index for sample in rollout} == {rollout[0].index}
    check_advantages(batch)
    for group in batch.groups:
        assert len({rollout[0].reward for rollout in group}) > 1, "the filter keeps only groups that differ"


def test_the_main_branch_alone(slime_world: SlimeWorld) -> None:
    world = slime_world
    args = world.configure(slime_rollout(second_thoughts, reward=score))
    batch = world.step()
    check_batch(batch, rollouts=16)
    validate_batch(batch.groups, args)
    assert all(isinstance(one, slime("utils.types").Sample) for group in batch.groups for one in group)
    used = check_witnessed(batch.samples, world.wire.generates)
    assert sum(used.values()) < sum(len(one.sampled) for one in world.wire.generates)


def test_lists_of_one_are_like_samples(slime_world: SlimeWorld) -> None:
    """Where no episode has a second branch, slime makes the same of both settings."""
    world = slime_world
    args = world.configure(slime_rollout(build, reward=score, branches="all"), *POST_PROCESS)
    batch = world.step()
    check_batch(batch, rollouts=16)
    validate_batch(batch.groups, args)
    assert len(batch.samples) == 16
    kinds = {type(rollout) for group in batch.groups for rollout in group}
    assert len(kinds) == 1 and issubclass(kinds.pop(), list), "groups are of one shape"
    assert sum(check_witnessed(batch.samples, world.wire.generates).values()) == sum(
        len(one.sampled) for one in world.wire.generates
    )


def test_slime_scores_branches(slime_world: SlimeWorld) -> None:
    """A reward function is given all samples of a rollout at once."""

    async def scored(args: Any, samples: Any, **more: Any) -> list[float]:
        assert isinstance(samples, list)
        return [float(f"The answer is {sample.label}." in sample.response) for sample in samples]

    world = slime_world
    generate = slime_rollout(second_thoughts, branches="all")
    world.configure(generate, "--custom-rm-path", world.path(scored), *POST_PROCESS, groups=2)
    batch = world.step()
    check_batch(batch, rollouts=8)
    assert set(batch.train["raw_reward"]) == {0.0, 1.0}


def test_slime_scores_groups_of_branches(slime_world: SlimeWorld) -> None:
    """With --group-rm slime gives a number for each rollout, and writes it to what it was given for it."""

    async def scored(args: Any, group: Any, **more: Any) -> list[float]:
        assert len(group) == 4
        return [float(f"The answer is {rollout[0].label}." in rollout[0].response) for rollout in group]

    world = slime_world
    generate = slime_rollout(second_thoughts, branches="all")
    world.configure(generate, "--group-rm", "--custom-rm-path", world.path(scored), *POST_PROCESS, groups=2)
    batch = world.step()
    check_batch(batch, rollouts=8)
    assert all(len({sample.reward for sample in rollout}) == 1 for group in batch.groups for rollout in group)
