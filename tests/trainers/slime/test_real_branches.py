"""slime's own `generate_rollout` with several samples per rollout: rewritten histories and sub-agents."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest

from strands_sglang.runs import Episode
from strands_sglang.trainers.slime import slime_rollout
from support.lab_servers import Routed
from support.rollout_agent import build, score
from support.trainers.slime_agents import second_thoughts
from support.trainers.slime_checks import check_rescored, check_witnessed, checked_step
from support.trainers.slime_validation import validate_batch
from support.trainers.slime_world import Batch, SlimeWorld, slime

pytestmark = [pytest.mark.slime, pytest.mark.engine]

OURS = "strands_sglang.trainers.slime"
POST_PROCESS = ["--custom-reward-post-process-path", f"{OURS}.grpo_by_group"]
FILTER = ["--dynamic-sampling-filter-path", f"{OURS}.check_reward_nonzero_std"]


def check_advantages(batch: Batch) -> None:
    """Recompute the advantages: each rollout counts once in its group."""
    train = batch.train
    by_group: dict[int, dict[int, float]] = {}
    for sample in batch.samples:
        by_group.setdefault(sample.group_index, {})[sample.rollout_id] = float(sample.reward)
    for sample, advantage in zip(batch.samples, train["rewards"], strict=True):
        worth = list(by_group[sample.group_index].values())
        assert len(worth) == 4
        scale = statistics.stdev(worth) + 1e-6
        assert math.isclose(advantage, (sample.reward - statistics.fmean(worth)) / scale, abs_tol=1e-5)


def test_every_branch_is_trained_once(world: SlimeWorld, routed: Routed) -> None:
    numbers = itertools.count()

    def alternating(episode: Episode) -> float:
        """Differ within most groups, and never within those that the filter is to drop: neither depends on luck."""
        return 0.0 if episode.task.data.get("flat") else float(next(numbers) % 2)

    generate = slime_rollout(second_thoughts, reward=alternating, branches="all")
    prompts = world.prompts(mark=lambda number: {"flat": number % 4 == 3})
    args = world.configure(generate, *POST_PROCESS, *FILTER, "--prompt-data", prompts)
    batch = checked_step(world, rollouts=16)
    validate_batch(batch.groups, args)
    check_rescored(batch.samples, routed.workers[0].url)
    sizes = [len(rollout) for group in batch.groups for rollout in group]
    assert len(sizes) == 16 and len(set(sizes)) > 1 and max(sizes) <= 3, sizes
    # Groups that the filter dropped were sampled too: look at the sessions that are in the batch.
    sessions = {sample.session_id for sample in batch.samples}
    requests = [one for one in world.wire.generates if one.key in sessions]
    used = check_witnessed(batch.samples, requests)
    assert sum(used.values()) == sum(len(one.sampled) for one in requests), "every token that was sampled is trained"
    for group in batch.groups:
        for rollout in group:
            assert len({sample.reward for sample in rollout}) == 1
            assert len({sample.rollout_id for sample in rollout}) == 1
            assert {sample.index for sample in rollout} == {rollout[0].index}
    check_advantages(batch)
    for group in batch.groups:
        assert len({rollout[0].reward for rollout in group}) > 1, "the filter keeps only groups that differ"


def test_main_branch_only(world: SlimeWorld) -> None:
    args = world.configure(slime_rollout(second_thoughts, reward=score))
    batch = checked_step(world, rollouts=16)
    validate_batch(batch.groups, args)
    assert all(isinstance(one, slime("utils.types").Sample) for group in batch.groups for one in group)
    used = check_witnessed(batch.samples, world.wire.generates)
    assert sum(used.values()) < sum(len(one.sampled) for one in world.wire.generates)


def test_lists_of_one_sample_equal_samples(world: SlimeWorld) -> None:
    """If no episode has a second branch, both settings give the same training data."""
    args = world.configure(slime_rollout(build, reward=score, branches="all"), *POST_PROCESS)
    batch = checked_step(world, rollouts=16)
    validate_batch(batch.groups, args)
    assert len(batch.samples) == 16
    kinds = {type(rollout) for group in batch.groups for rollout in group}
    assert len(kinds) == 1 and issubclass(kinds.pop(), list), "groups are of one shape"
    assert sum(check_witnessed(batch.samples, world.wire.generates).values()) == sum(
        len(one.sampled) for one in world.wire.generates
    )


def test_slime_scores_branches(world: SlimeWorld) -> None:
    """The reward function of slime gets all samples of a rollout at once."""

    async def scored(args: Any, samples: Any, **more: Any) -> list[float]:
        assert isinstance(samples, list)
        return [float(f"The answer is {sample.label}." in sample.response) for sample in samples]

    generate = slime_rollout(second_thoughts, branches="all")
    world.configure(generate, "--custom-rm-path", world.path(scored), *POST_PROCESS, groups=2)
    batch = checked_step(world, rollouts=8)
    assert set(batch.train["raw_reward"]) == {0.0, 1.0}


def test_slime_scores_groups_of_branches(world: SlimeWorld) -> None:
    """With --group-rm slime computes one reward per rollout and writes it to all samples of the rollout."""

    async def scored(args: Any, group: Any, **more: Any) -> list[float]:
        assert len(group) == 4
        return [float(f"The answer is {rollout[0].label}." in rollout[0].response) for rollout in group]

    generate = slime_rollout(second_thoughts, branches="all")
    world.configure(generate, "--group-rm", "--custom-rm-path", world.path(scored), *POST_PROCESS, groups=2)
    batch = checked_step(world, rollouts=8)
    assert all(len({sample.reward for sample in rollout}) == 1 for group in batch.groups for rollout in group)
