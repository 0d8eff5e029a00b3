"""Every export of random episodes with images and kept sets has one entry per token, and every image whole."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from strands_sglang.ledger import table
from strands_sglang.runs import Episode
from strands_sglang.tokens import ImageSpan, KeptSets, Trajectory
from strands_sglang.trainers.images import ImageFeatures, whole_images
from strands_sglang.trainers.rows import Branches, PlainRow, plain_rows
from strands_sglang.trainers.slime.kept_sets import KeptSetsForm
from strands_sglang.trainers.slime.samples import samples_of
from support.trainers.areal_mirror import areal_installed
from support.trainers.grown_episodes import ENDS, PLACEHOLDER, VOCABULARY, episode_of, grown, text_of
from support.trainers.skyrl_mirror import adapter as skyrl
from support.trainers.slime_mirror import Sample, slime_args
from support.trainers.slime_validation import problems_of
from support.trainers.verl_mirror import AgentLoopOutput
from support.trainers.verl_mirror import adapter as verl

pytest.importorskip("PIL.Image")

KINDS = [(kept, images) for kept in (False, True) for images in (False, True)]
PAD = 77
WIDTH = 4


class Processor:
    """An image processor whose patches have 16 pixels, without tensors."""

    def __call__(self, images: list[Any], return_tensors: str) -> dict[str, Any]:
        grids = np.array([[1, image.height // 16, image.width // 16] for image in images])
        return {"pixel_values": np.zeros((int(grids.prod(-1).sum()), 8)), "image_grid_thw": grids}


@pytest.fixture(params=KINDS, ids=lambda kind: f"kept={kind[0]},images={kind[1]}")
def episodes(request: pytest.FixtureRequest) -> list[Episode]:
    """Return episodes that end in every way; some of their trees are empty."""
    kept, images = request.param
    rng = random.Random(f"{kept} {images}")
    made = [
        episode_of(grown(rng, kept=kept, images=images), rng.choice(ENDS), rng.choice([0.5, 1.0])) for _ in range(150)
    ]
    assert any(one.tree.has_images for one in made) is images
    return made


def row_pairs(episodes: list[Episode], branches: Branches = Branches.ALL) -> Iterator[tuple[Episode, PlainRow]]:
    for episode in episodes:
        for row in plain_rows(episode, pad_id=PAD, scored=True, branches=branches):
            yield episode, row


def placeholders(images: Any) -> int:
    """Return the number of positions that pictures take: patches of 16 pixels, 2 x 2 of them merged."""
    return sum(image.width * image.height // 32**2 for image in images)


def check_kept(kept: KeptSets | None, ids: list[int], sampled: list[bool]) -> None:
    """There is a set for every token: with the token if it was sampled, else empty."""
    if kept is None:
        return
    assert len(kept) == len(ids) == len(kept.logprobs)
    for at, (token, was_sampled) in enumerate(zip(ids, sampled, strict=True)):
        assert token in kept.at(at) if was_sampled else not kept.at(at)


def check_images(images: tuple[ImageSpan, ...], ids: list[int]) -> None:
    """The placeholders among the tokens are exactly those of the images."""
    assert [at for at, token in enumerate(ids) if token == PLACEHOLDER] == [
        at for image in images for at in range(image.start, image.end)
    ]


def check_trajectory(trajectory: Trajectory) -> None:
    trajectory.validate()
    count = len(trajectory.token_ids)
    for name in ("loss_mask", "logprobs", "versions", "turns", "origins"):
        assert len(getattr(trajectory, name)) == count
    check_kept(trajectory.kept, trajectory.token_ids.tolist(), (trajectory.origins == 1).tolist())
    check_images(trajectory.images, trajectory.token_ids.tolist())


def test_arrow(episodes: list[Episode]) -> None:
    pytest.importorskip("pyarrow")
    found = [table.trajectory_of(row) for row in table.to_arrow(iter(episodes)).to_pylist()]
    assert found == [trajectory for episode in episodes for trajectory in episode.trajectories]
    for trajectory in found:
        check_trajectory(trajectory)


@pytest.mark.parametrize("limit", [None, 3, 9])
def test_slime(episodes: list[Episode], limit: int | None) -> None:
    args = slime_args(vocab_size=PLACEHOLDER + 1)
    for episode in episodes:
        for form in (KeptSetsForm.NONE, KeptSetsForm.SLIME):
            args.rollout_top_p = 0.8 if form else 1.0
            for one in samples_of(
                Sample(index=0, group_index=0),
                episode,
                branches=Branches.ALL,
                decode=text_of,
                response_limit=limit,
                images=ImageFeatures(Processor()),
                kept_sets=form,
            ):
                assert not problems_of(one, args)
                shown = (one.multimodal_inputs or {"images": []})["images"]
                assert one.tokens.count(PLACEHOLDER) == placeholders(shown)
                if shown:
                    assert one.multimodal_train_inputs is not None
                    grids = one.multimodal_train_inputs["image_grid_thw"]
                    assert len(grids) == len(shown) and grids.prod(-1).sum() // 4 == placeholders(shown)


def test_verl(episodes: list[Episode]) -> None:
    rng = random.Random(3)
    for episode, row in row_pairs(episodes):
        # A response must have room for an image that a long prompt leaves for it.
        lengths: dict[str, Any] = {"prompt_length": rng.choice([40, 99]), "response_length": rng.choice([20, 99])}
        unnumbered: list[str | None] = [None] * len(row.versions)
        made = AgentLoopOutput(
            **verl.output_fields(replace(row, versions=unnumbered), episode, **lengths, logprobs=True, steps=0)
        )
        count = len(made.response_ids)
        assert made.response_logprobs is not None
        assert count == len(made.response_mask) == len(made.response_logprobs) >= 1
        ids = made.prompt_ids + made.response_ids
        assert ids == row.token_ids[: len(ids)]
        shown = (made.multi_modal_data or {"images": []})["images"]
        assert ids.count(PLACEHOLDER) == placeholders(shown)


def test_skyrl(episodes: list[Episode]) -> None:
    results = [(episode, plain_rows(episode, pad_id=PAD, scored=True, branches=Branches.ALL)) for episode in episodes]
    known = all(row.kept is not None or not any(row.loss_mask) for _, rows in results for row in rows)
    options = skyrl.OutputOptions(step_wise=True, support_width=WIDTH if known else 0)
    output = skyrl.generator_output(results, options, trajectory_ids=None)
    count = len(output["response_ids"])
    for name in ("prompt_token_ids", "rewards", "loss_masks", "rollout_logprobs", "stop_reasons", "is_last_step"):
        assert len(output[name]) == count
    for at, response in enumerate(output["response_ids"]):
        assert len(response) == len(output["loss_masks"][at]) == len(output["rollout_logprobs"][at])
        if known:
            support = output["rollout_sample_support"][at]
            assert support.shape == (len(response), WIDTH) and support.dtype == np.int32
            assert support.max(initial=-1) < VOCABULARY
            for token, trained, row in zip(response, output["loss_masks"][at], support, strict=True):
                assert not trained or token in row


def test_areal(episodes: list[Episode]) -> None:
    with areal_installed():
        trajectory = importlib.import_module("strands_sglang.trainers.areal").trajectory
        for _, row in row_pairs(episodes, Branches.MAIN):
            made = {name: tensor.array for name, tensor in trajectory(row).items()}
            count = len(row.token_ids)
            assert made.pop("rewards").shape == (1,)
            assert {array.shape for array in made.values()} == {(1, count)}


def test_images_are_never_cut_in_two() -> None:
    images = [ImageSpan(3, 4, "d", (1, 4, 4)), ImageSpan(9, 1, "d", (1, 2, 2))]
    assert [whole_images(images, tokens) for tokens in range(11)] == [0, 1, 2, 3, 3, 3, 3, 7, 8, 9, 10]
