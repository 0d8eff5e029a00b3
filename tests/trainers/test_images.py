"""Images for trainers: slime's samples, verl's outputs, and tensors with the grids of the rollout."""

from __future__ import annotations

import io
from typing import Any

import pytest

from strands_sglang.engine import BaseEngine
from strands_sglang.errors import ConfigurationError, CountMismatchError
from strands_sglang.runs import Episode, Task
from strands_sglang.tokens import ImageSpan
from strands_sglang.trainers.images import ImageFeatures, images_within, pictures_of
from strands_sglang.trainers.slime.samples import samples_of
from support.rollout.looking import OPTIONS, TASKS, build, engine
from support.rollout.scripts import run
from support.trainers.slime_mirror import Sample

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
async def episode() -> Episode:
    (made,) = await run(build, TASKS[:1], engine(), None, reward=lambda episode: 1.0, **OPTIONS)
    return made


class Grids:
    """Stands for a tensor of grids."""

    def __init__(self, grids: list[list[int]]) -> None:
        self.grids = grids

    def tolist(self) -> list[list[int]]:
        return self.grids


class Processor:
    """An image processor that knows the grids of the pictures, by size."""

    def __init__(self, **grids: list[int]) -> None:
        self.grids = {"140x84": [1, 6, 8], "64x96": [1, 6, 4], **grids}
        self.seen = 0

    def __call__(self, images: list[Any], return_tensors: str) -> dict[str, Any]:
        self.seen += len(images)
        return {
            "pixel_values": len(images),
            "image_grid_thw": Grids([self.grids[f"{i.width}x{i.height}"] for i in images]),
        }


def test_samples_have_the_images_of_their_tokens(episode: Episode) -> None:
    (sample,) = samples_of(Sample(), episode, decode=str, images=ImageFeatures(Processor()))
    assert len(sample.loss_mask or ()) == sample.response_length == len(sample.rollout_log_probs or ())
    assert sample.multimodal_inputs is not None and sample.multimodal_train_inputs is not None
    assert [image.size for image in sample.multimodal_inputs["images"]] == [(140, 84), (64, 96), (64, 96)]
    assert sample.multimodal_train_inputs["pixel_values"] == 3
    pad = 248056
    assert sample.tokens.count(pad) == 12 + 6 + 6


def test_text_only_samples_have_none(episode: Episode) -> None:
    sample = Sample(multimodal_inputs={"images": ["old"]})
    (filled,) = samples_of(
        sample, Episode("x/0", Task("x", id="x"), 0, episode.end_reason, type(episode.tree)("x")), decode=str
    )
    assert filled.multimodal_inputs is None and filled.multimodal_train_inputs is None


def test_another_grid_than_in_the_rollout_is_refused(episode: Episode) -> None:
    processor = Processor(**{"64x96": [1, 8, 4]})
    with pytest.raises(CountMismatchError, match="use the image processor of the served model"):
        samples_of(Sample(), episode, decode=str, images=ImageFeatures(processor))


def test_an_image_must_not_be_cut_in_two() -> None:
    images = [ImageSpan(3, 4, "d", (1, 4, 4))]
    assert images_within(images, 3) == [] and images_within(images, 7) == images
    with pytest.raises(CountMismatchError, match="ends after the 5 tokens"):
        images_within(images, 5)


def test_pictures_are_rgb() -> None:
    written = io.BytesIO()
    Image.new("L", (4, 4)).save(written, "PNG")
    (picture,) = pictures_of({"d": written.getvalue()}, [ImageSpan(0, 1, "d", (1, 2, 2))])
    assert picture.mode == "RGB"


async def test_engines_of_trainers_refuse_images() -> None:
    class Engine(BaseEngine):
        owner = "a trainer"

        async def request(self, *arguments: Any) -> Any:
            raise AssertionError("nothing is sent")

    with pytest.raises(ConfigurationError, match="does not report the ids"):
        await Engine().generate([1], {"max_new_tokens": 1}, images=["x"])  # type: ignore[list-item]
