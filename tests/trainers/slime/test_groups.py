"""Every rollout counts once in its group; a rollout that is kept out of the loss does not count."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.trainers.slime.groups import (
    FilterOutput,
    check_reward_nonzero_std,
    check_reward_nonzero_std_with_fallback,
    grpo_by_group,
)
from support.trainers.slime_mirror import Sample, Status, good, slime_args

HALF = math.sqrt(0.5)
"""Standard deviation of the two rewards 0 and 1."""


def group(number: int | None, *rewards: float, first: int = 0, **changed: Any) -> list[Sample]:
    return [good(group_index=number, index=first + at, reward=one, **changed) for at, one in enumerate(rewards)]


def advantages(samples: Any, **args: Any) -> list[float]:
    return grpo_by_group(slime_args(**args), samples)[1]


def test_even_groups_equal_slimes() -> None:
    samples = group(0, 0.0, 1.0) + group(1, 2.0, 5.0, first=2)
    raw, made = grpo_by_group(slime_args(), samples)
    assert raw == [0.0, 1.0, 2.0, 5.0]
    # (r - mean) / (std + 1e-6), the unbiased std: 1/sqrt(2) and 3/sqrt(2)
    expected = [-0.5 / (HALF + 1e-6), 0.5 / (HALF + 1e-6), -1.5 / (3 * HALF + 1e-6), 1.5 / (3 * HALF + 1e-6)]
    assert made == pytest.approx(expected, abs=1e-12)
    assert advantages(group(0, 1.0, 2.0, 3.0, 6.0)) == pytest.approx(
        [(r - 3) / (math.sqrt(14 / 3) + 1e-6) for r in (1.0, 2.0, 3.0, 6.0)], abs=1e-12
    )


def test_slimes_settings_apply() -> None:
    samples = group(0, 0.0, 1.0)
    assert advantages(samples, grpo_std_normalization=False) == [-0.5, 0.5]
    assert advantages(samples, rewards_normalization=False) == [0.0, 1.0]
    for estimator in ("gspo", "cispo"):
        assert advantages(samples, advantage_estimator=estimator) == advantages(samples)
    assert advantages(samples, advantage_estimator="reinforce_plus_plus_baseline") == [-0.5, 0.5]
    assert advantages(samples, advantage_estimator="ppo") == [0.0, 1.0]
    for one in samples:
        one.reward = {"score": one.reward, "other": 7.0}
    assert grpo_by_group(slime_args(reward_key="score"), samples)[0] == [0.0, 1.0]
    assert advantages(samples, reward_key="score", grpo_std_normalization=False) == [-0.5, 0.5]


def test_uneven_groups_are_normalised_separately() -> None:
    samples = group(0, 0.0, 1.0, 2.0) + group(1, 10.0, 20.0, first=3) + group(2, 7.0, first=5)
    assert advantages(samples, grpo_std_normalization=False) == [-1.0, 0.0, 1.0, -5.0, 5.0, 0.0]
    shuffled = [samples[at] for at in (3, 0, 5, 1, 4, 2)]
    assert advantages(shuffled, grpo_std_normalization=False) == [-5.0, -1.0, 0.0, 0.0, 5.0, 1.0]
    assert advantages(samples)[:3] == pytest.approx([-1 / (1 + 1e-6), 0.0, 1 / (1 + 1e-6)])


def test_removed_samples_do_not_count() -> None:
    samples = group(0, 0.0, 1.0, 9.0)
    samples[2].remove_sample = True
    assert grpo_by_group(slime_args(grpo_std_normalization=False), samples) == ([0.0, 1.0, 9.0], [-0.5, 0.5, 0.0])
    samples[2].remove_sample, samples[2].status, samples[2].reward = False, Status.ABORTED, None
    assert grpo_by_group(slime_args(grpo_std_normalization=False), samples) == ([0.0, 1.0, 0.0], [-0.5, 0.5, 0.0])
    samples[1].remove_sample = True  # one is left: nothing to compare with, and no nan
    assert advantages(samples) == [0.0, 0.0, 0.0]
    samples[0].remove_sample = True
    assert advantages(samples) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1e300])
def test_group_with_equal_rewards_has_zero_advantages(reward: float) -> None:
    assert advantages(group(0, reward, reward, reward)) == [0.0, 0.0, 0.0]
    assert advantages(group(0, reward), advantage_estimator="reinforce_plus_plus_baseline") == [0.0]


def test_rollout_of_several_samples_counts_once() -> None:
    single, double = group(0, 0.0, 1.0)
    siblings = [good(group_index=0, index=1, rollout_id=1, reward=1.0) for _ in range(3)]
    double.rollout_id = 1
    nested = [[[single], [double, *siblings]]]
    flat = [single, double, *siblings]
    expected = [-0.5, 0.5, 0.5, 0.5, 0.5]  # the mean is 0.5, not 0.8
    assert advantages(nested, grpo_std_normalization=False) == expected
    assert advantages(flat, grpo_std_normalization=False) == expected
    scaled = [value / (HALF + 1e-6) for value in expected]
    assert advantages(flat) == pytest.approx(scaled, abs=1e-12)
    siblings[0].remove_sample = True
    assert advantages(flat, grpo_std_normalization=False) == [-0.5, 0.5, 0.0, 0.5, 0.5]


def test_samples_with_one_rollout_id_are_one_rollout() -> None:
    samples = [good(group_index=0, index=at, rollout_id=10 + at, reward=float(at < 1)) for at in range(3)]
    assert advantages(samples, grpo_std_normalization=False) == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    samples[2].rollout_id = 11  # now one rollout with the one before
    samples[0].rollout_id = None
    assert advantages(samples, grpo_std_normalization=False) == [0.5, -0.5, -0.5]


def test_samples_of_a_rollout_with_different_rewards() -> None:
    samples = [*group(0, 0.0, 1.0), good(group_index=0, index=1, reward=3.0)]
    assert advantages(samples, grpo_std_normalization=False) == [-1.0, 0.0, 2.0]  # rollouts of 0 and 2


def test_groups_without_indices_are_consecutive_rollouts() -> None:
    samples = group(None, 0.0, 1.0, 10.0, 20.0)
    assert advantages(samples, grpo_std_normalization=False) == [-0.5, 0.5, -5.0, 5.0]
    for one in samples:
        one.index = None
    assert advantages(samples, grpo_std_normalization=False) == [-0.5, 0.5, -5.0, 5.0]
    assert advantages(samples, grpo_std_normalization=False, n_samples_per_prompt=None) == [-7.75, -6.75, 2.25, 12.25]


@pytest.mark.parametrize(
    ("reward", "key"), [(None, None), ({"score": 1.0}, None), ({"x": 1.0}, "score"), (1.0, "score")]
)
def test_sample_without_a_reward_raises(reward: Any, key: str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"sample 1 \(index 7\).*--reward-key"):
        grpo_by_group(slime_args(reward_key=key), [good(remove_sample=True), good(index=7, reward=reward)])


def kept(samples: Any, **args: Any) -> tuple[bool, str | None]:
    output = check_reward_nonzero_std(slime_args(**args), samples)
    assert bool(output) is output.keep and output.keep_when_insufficient is False
    return output.keep, output.reason


def test_groups_that_differ_are_kept() -> None:
    assert kept(group(0, 0.0, 1.0)) == (True, None)
    assert kept(group(0, 0.04, 0.04, 0.04)) == (False, "zero_std_0.0")
    assert kept(group(0, 1.0, 1.0 + 1e-9)) == (False, "zero_std_1.0")
    assert kept(group(0, 1.0)) == (False, "only_1_rollouts")
    assert kept([]) == (False, "only_0_rollouts")
    for one in (dicts := group(0, 0.0, 1.0)):
        one.reward = {"score": one.reward, "other": 1.0}
    assert kept(dicts, reward_key="score") == (True, None) and kept(dicts, reward_key="other") == (
        False,
        "zero_std_1.0",
    )


def test_filters_accept_rollouts_of_several_samples() -> None:
    first, second = group(0, 1.0, 1.0)
    twin = good(group_index=0, index=1, reward=1.0)
    assert kept([[first], [second, twin]]) == (False, "zero_std_1.0")
    assert kept([first, [second, twin]]) == (False, "zero_std_1.0")
    first.reward = 0.0
    assert kept([[first], [second, twin]]) == (True, None)
    assert kept([[second, twin]]) == (False, "only_1_rollouts")


def test_filters_ignore_removed_samples() -> None:
    samples = group(0, 1.0, 1.0, 0.0)
    assert kept(samples) == (True, None)
    samples[2].remove_sample = True
    assert kept(samples) == (False, "zero_std_1.0")
    samples[2].remove_sample, samples[2].status = False, Status.ABORTED
    assert kept(samples) == (False, "zero_std_1.0")
    samples[2].status, samples[2].reward = Status.COMPLETED, None
    assert kept(samples) == (False, "zero_std_1.0")


def test_fallback_filter_keeps_a_group_if_the_batch_needs_it() -> None:
    output = check_reward_nonzero_std_with_fallback(slime_args(), group(0, 1.0, 1.0), anything=1)
    assert output == FilterOutput(False, "zero_std_1.0", keep_when_insufficient=True)


def test_filters_return_slimes_class(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class DynamicFilterOutput:
        keep: bool
        reason: str | None = None
        keep_when_insufficient: bool = False

    theirs = ModuleType("slime.rollout.filter_hub.base_types")
    theirs.DynamicFilterOutput = DynamicFilterOutput  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, theirs.__name__, theirs)
    assert check_reward_nonzero_std(slime_args(), group(0, 0.0, 1.0)) == DynamicFilterOutput(True)
    fallback = check_reward_nonzero_std_with_fallback(slime_args(), group(0, 1.0, 1.0))
    assert fallback == DynamicFilterOutput(False, "zero_std_1.0", True)
