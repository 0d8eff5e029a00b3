"""Samples fit slime's own `Sample`, dispatch and conversion. Needs slime, but no engine."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from strands_sglang.trainers import slime as ours
from strands_sglang.trainers.rows import Branches
from strands_sglang.trainers.slime.samples import samples_of
from strands_sglang.trainers.slime.types import SlimeSample
from strands_sglang.trainers.statuses import STATUS_BY_END
from support.rollout_agent import build, score
from support.trainers import slime_mirror
from support.trainers.grown_episodes import ENDS, LAYERS, TOP_K, episode_of, experts_of, grown, text_of
from support.trainers.slime_checks import check_sample
from support.trainers.slime_validation import InvalidSampleError, validate_batch, validate_sample
from support.trainers.slime_world import SlimeWorld, slime

pytestmark = [pytest.mark.slime]


def slime_types() -> Any:
    return slime("utils.types").Sample


def new_sample(index: int = 0, group: int = 0) -> Any:
    return slime_types()(prompt="question", label="1", index=index, group_index=group, metadata={"of": "the dataset"})


@pytest.mark.parametrize("name", ["", "SpecInfo", "PrefixCacheInfo"])
def test_mirror_equals_slimes_sample(name: str) -> None:
    slime_sample = getattr(slime_types(), name) if name else slime_types()
    mirror = getattr(slime_mirror, name or "Sample")
    assert [one.name for one in dataclasses.fields(mirror)] == [one.name for one in dataclasses.fields(slime_sample)]
    a, b = slime_sample(), mirror()
    for one in dataclasses.fields(slime_sample):
        left, right = getattr(a, one.name), getattr(b, one.name)
        if dataclasses.is_dataclass(left):
            assert dataclasses.asdict(left) == dataclasses.asdict(right)  # type: ignore[arg-type]
        else:
            assert getattr(left, "value", left) == getattr(right, "value", right)


def test_every_status() -> None:
    slime_sample = {one.name: one.value for one in slime_types().Status}
    assert {one.name: one.value for one in slime_mirror.Status} == slime_sample
    for ended in ENDS:
        (sample,) = samples_of(new_sample(), episode_of(grown(random.Random(0)), ended), decode=text_of)
        assert sample.status is slime_types().Status[STATUS_BY_END[ended].slime_name]
    assert set(STATUS_BY_END) >= set(ENDS)


def test_every_used_field_exists_in_slime() -> None:
    slime_sample = {one.name for one in dataclasses.fields(slime_types())}
    assert set(inspect.get_annotations(SlimeSample)) <= slime_sample
    rng = random.Random(0)
    for _ in range(100):
        sample = new_sample()
        had = set(vars(sample))
        for one in samples_of(sample, episode_of(grown(rng), rng.choice(ENDS)), branches=Branches.ALL, decode=text_of):
            assert type(one) is slime_types() and set(vars(one)) == had


def test_slime_accepts_the_function() -> None:
    generate = ours.slime_rollout(build, reward=score)
    assert inspect.iscoroutinefunction(generate)
    parameters = inspect.signature(generate).parameters
    assert list(parameters)[:3] == ["args", "sample", "sampling_params"]
    assert parameters["evaluation"].default is False
    needed = [one for one in parameters.values() if one.default is one.empty]
    assert [one.name for one in needed] == ["args", "sample", "sampling_params"]
    module: Any = ModuleType("slime_user_module")
    module.generate = generate
    sys.modules["slime_user_module"] = module
    try:
        assert slime("utils.misc").load_function("slime_user_module.generate") is generate
    finally:
        del sys.modules["slime_user_module"]


def test_hooks_are_importable_by_their_paths() -> None:
    load = slime("utils.misc").load_function
    post_process = load("strands_sglang.trainers.slime.grpo_by_group")
    assert list(inspect.signature(post_process).parameters)[:2] == ["args", "samples"]
    base = slime("rollout.filter_hub.base_types")
    args = argparse.Namespace(reward_key=None)
    for name in ("check_reward_nonzero_std", "check_reward_nonzero_std_with_fallback"):
        keep = load(f"strands_sglang.trainers.slime.{name}")
        for rewards, kept in (((0.0, 1.0), True), ((1.0, 1.0), False)):
            group = [slime_sample(reward, index) for index, reward in enumerate(rewards)]
            for shape in (group, [[one] for one in group]):
                output = base.call_dynamic_filter(keep, args, shape)
                assert type(output) is base.DynamicFilterOutput and output.keep is kept
                gatherer = base.MetricGatherer()
                if not kept:
                    gatherer.on_dynamic_filter_drop(reason=output.reason)
                    assert gatherer.collect()


def slime_sample(reward: float, index: int, group: int = 0, **changed: Any) -> Any:
    made = slime_mirror.good(reward=reward, index=index, group_index=group, **changed)
    values = {one.name: getattr(made, one.name) for one in dataclasses.fields(made)}
    for name in ("status", "spec_info", "prefix_cache_info"):
        values.pop(name)
    return slime_types()(**values, status=slime_types().Status[made.status.name])


@pytest.fixture
def world(tmp_path: Path) -> Any:
    with SlimeWorld("http://127.0.0.1:9", tmp_path) as made:
        yield made


@pytest.mark.parametrize("branches", list(Branches))
@pytest.mark.parametrize("experts", [False, True])
def test_slime_converts_random_episodes(world: SlimeWorld, branches: Branches, experts: bool) -> None:
    flags = ["--use-rollout-routing-replay"] if experts else []
    flags += ["--custom-reward-post-process-path", "strands_sglang.trainers.slime.grpo_by_group"]
    args = world.configure(
        ours.slime_rollout(build), *flags, groups=3, samples=4, num_layers=LAYERS, moe_router_topk=TOP_K
    )
    rng = random.Random(branches.value)
    for _ in range(20):
        groups: list[list[Any]] = []
        for group in range(3):
            groups.append([])
            for number in range(4):
                tree = grown(rng)
                made = samples_of(
                    new_sample(4 * group + number, group),
                    episode_of(tree, rng.choice(ENDS), rng.choice([0.0, 1.0]), routed_experts=experts_of(tree)),
                    branches=branches,
                    decode=text_of,
                    expert_shape=(LAYERS, TOP_K) if experts else None,
                )
                groups[-1].append(made if branches is Branches.ALL else made[0])
        slime("observability.rollout_data_utils").validate_rollout_id_annotated(groups)
        validate_sample(groups, args)
        manager = world.manager()
        flat = groups
        while isinstance(flat[0], list):
            flat = [one for inner in flat for one in inner]
        for sample in flat:
            check_sample(sample)
        train = manager._convert_samples_to_train_data(flat)
        assert len(set(train["rollout_ids"])) == 12
        assert len(train["rewards"]) == len(flat)


def without(name: str) -> Any:
    def change(samples: list[Any]) -> None:
        setattr(samples[1], name, None)

    return change


def shorter_mask(samples: list[Any]) -> None:
    samples[1].loss_mask = samples[1].loss_mask[1:]


def none_in_logprobs(samples: list[Any]) -> None:
    samples[1].rollout_log_probs = [None, -1.0, 0.0, -1.0]


def dict_reward(samples: list[Any]) -> None:
    samples[1].reward = {"score": 1.0}


def several_rollouts_one_id(samples: list[Any]) -> None:
    for sample in samples:
        sample.rollout_id = 7


@pytest.mark.parametrize(
    "change",
    [
        without("reward"), without("rollout_log_probs"), shorter_mask, none_in_logprobs, dict_reward,
        several_rollouts_one_id,
    ],
)  # fmt: skip
def test_validation_refuses_samples_that_slime_fails_on(world: SlimeWorld, change: Any) -> None:
    args = world.configure(ours.slime_rollout(build), groups=2, samples=2)
    samples = [slime_sample(float(index % 2), index, index // 2) for index in range(4)]
    validate_batch([samples[:2], samples[2:]], args)
    manager = world.manager()

    def converted() -> Any:
        train = manager._convert_samples_to_train_data(samples)
        with world.in_memory():
            return manager._split_train_data_by_dp(train)

    converted()
    change(samples)
    with pytest.raises(InvalidSampleError):
        validate_batch([samples[:2], samples[2:]], args)
    with pytest.raises((TypeError, AssertionError, ValueError, RuntimeError)):
        converted()


def test_normalisation_equals_slimes_for_even_groups(world: SlimeWorld) -> None:
    world.configure(ours.slime_rollout(build), groups=2, samples=4)
    samples = [slime_sample(float(index in (1, 4, 5)), index, index // 4) for index in range(8)]
    raw, rewards = world.manager()._post_process_rewards(samples)
    own_raw, own = ours.grpo_by_group(world.args, samples)
    assert own_raw == raw and own == pytest.approx(rewards, abs=1e-5)
