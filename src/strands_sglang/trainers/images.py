"""The images of a branch in the forms that trainers take: pictures, and the tensors of the model's image processor.

Tokens of a branch have one placeholder for every position of an image, so a trainer needs the images in the same order
and with the same grids. Needs Pillow (the extra `images`); tensors also need `transformers` and PyTorch.

Invariant: the images returned for some tokens are exactly those whose placeholders are among them, in order, and the
image processor gives each the grid that it had when the engine sampled. Otherwise an error is raised: the trainer would
compute other positions than the engine did.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from strands_sglang._checks import install
from strands_sglang.errors import ConfigurationError, CountMismatchError
from strands_sglang.tokens import ImageSpan


def images_within(images: Sequence[ImageSpan], tokens: int) -> list[ImageSpan]:
    """Return the images of the first so many tokens of a branch.

    Args:
        images: All images of the branch.
        tokens: Number of tokens that are kept.

    Raises:
        CountMismatchError: An image is cut in two.
    """
    kept = [image for image in images if image.start < tokens]
    if kept and kept[-1].end > tokens:
        raise CountMismatchError(f"the image at {kept[-1].start} ends after the {tokens} tokens that are kept")
    return kept


def whole_images(images: Sequence[ImageSpan], tokens: int) -> int:
    """Return how many of the first so many tokens can be kept without cutting an image in two.

    Example:
        >>> whole_images([ImageSpan(3, 4, "d", (1, 4, 4))], 5)
        3
    """
    return next((image.start for image in images if image.start < tokens < image.end), tokens)


def pictures_of(files: Mapping[str, bytes], images: Sequence[ImageSpan]) -> list[Any]:
    """Return images as RGB images of Pillow.

    Args:
        files: PNG files by digest (`Episode.image_files`).
        images: The images, in order.

    Raises:
        ConfigurationError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigurationError(f"images for a trainer need Pillow: {install('images')}") from error
    return [Image.open(io.BytesIO(files[image.digest])).convert("RGB") for image in images]


class ImageFeatures:
    """Computes the tensors that a model takes for images, with the model's own image processor.

    Example:
        >>> features = ImageFeatures("Qwen/Qwen3-VL-8B-Instruct")
        >>> features.of(episode.image_files, trajectory.images)["pixel_values"].shape  # doctest: +SKIP
    """

    def __init__(self, processor: Any) -> None:
        """Keep the image processor; a name or path is loaded when the first image arrives.

        Args:
            processor: An image processor of `transformers`, a processor that has one, or the name or path of the model.
        """
        self._source = processor

    @cached_property
    def _processor(self) -> Any:
        source = self._source
        if isinstance(source, (str, Path)):
            try:
                from transformers import AutoImageProcessor
            except ImportError as error:
                raise ConfigurationError("images for a trainer need transformers and PyTorch") from error
            source = AutoImageProcessor.from_pretrained(str(source))  # type: ignore[no-untyped-call]
        return getattr(source, "image_processor", source)

    def of(self, files: Mapping[str, bytes], images: Sequence[ImageSpan]) -> dict[str, Any]:
        """Return the tensors of images, concatenated in order, such as `pixel_values` and `image_grid_thw`.

        Args:
            files: PNG files by digest (`Episode.image_files`).
            images: The images, in order; at least one.

        Raises:
            CountMismatchError: The image processor gives an image another grid than it had during the rollout.
        """
        features = dict(self._processor(images=pictures_of(files, images), return_tensors="pt"))
        for image, grid in zip(images, features["image_grid_thw"].tolist(), strict=True):
            if tuple(grid) != image.grid:
                raise CountMismatchError(
                    f"the trainer's image processor gives image {image.digest[:12]} the grid {tuple(grid)}, during the "
                    f"rollout it had {image.grid}: use the image processor of the served model"
                )
        return features
