"""Samples with images fit Miles' own `Sample` and conversion. Needs an importable Miles, but no engine."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from strands_sglang.runs.end_reason import EndReason
from strands_sglang.trainers.images import ImageFeatures
from strands_sglang.trainers.slime.kept_sets import KeptSetsForm
from strands_sglang.trainers.slime.samples import samples_of
from support.trainers.grown_episodes import PLACEHOLDER, episode_of, grown, text_of

pytestmark = pytest.mark.slime

types = pytest.importorskip("miles.utils.types", reason="Miles is not importable: put a checkout on PYTHONPATH")


def test_miles_converts_images_and_kept_sets() -> None:
    conversion = pytest.importorskip("miles.ray.rollout.train_data_conversion")
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, "Qwen2VLImageProcessorPil", None) or transformers.Qwen2VLImageProcessor
    size = {"shortest_edge": 3136, "longest_edge": 200704}
    features, rng = ImageFeatures(kind(patch_size=16, merge_size=2, size=size)), random.Random(1)
    args: Any = SimpleNamespace(
        reward_key=None, advantage_estimator="grpo", rewards_normalization=False,
        custom_reward_post_process_path=None, use_dynamic_global_batch_size=False, rollout_top_p=0.8,
        rollout_top_k=-1,
    )  # fmt: skip
    samples = []
    for index in range(24):
        sample = types.Sample(prompt="question", label="1", index=index, group_index=index // 4)
        form = KeptSetsForm.of(args, sample)
        assert bool(form) is hasattr(sample, "rollout_sampling_mask"), "older versions do not renormalise"
        episode = episode_of(grown(rng, kept=True, images=True), EndReason.ANSWERED, 1.0)
        samples += samples_of(sample, episode, decode=text_of, images=features, kept_sets=form)
    train = conversion.convert_samples_to_train_data(args, samples, {}, None, None)
    shown = 0
    for sample, inputs in zip(samples, train["multimodal_train_inputs"], strict=True):
        count = sample.tokens.count(PLACEHOLDER)
        assert (inputs is None) == (count == 0)
        if inputs is not None:
            assert int(inputs["image_grid_thw"].prod(-1).sum()) // 4 == count
            shown += len(inputs["image_grid_thw"])
    assert shown > 15
