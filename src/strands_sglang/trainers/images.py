"""The images of a branch in the forms that trainers take: pictures, and the tensors of the model's image processor.

Trainers need the images in the order and with the grids of the placeholders. Needs Pillow (the extra `images`); tensors
also need `transformers` and PyTorch.

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
    """Return the images of the first `tokens` tokens of a branch; one that is cut in two is an error."""
    kept = [image for image in images if image.start < tokens]
    if kept and kept[-1].end > tokens:
        raise CountMismatchError(f"the image at {kept[-1].start} ends after the {tokens} tokens that are kept")
    return kept


def whole_images(images: Sequence[ImageSpan], tokens: int) -> int:
    """Return how many of the first `tokens` tokens can be kept without cutting an image in two."""
    return next((image.start for image in images if image.start < tokens < image.end), tokens)


def pictures_of(files: Mapping[str, bytes], images: Sequence[ImageSpan]) -> list[Any]:
    """Return images as RGB images of Pillow; `files` are PNG files by digest."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigurationError(f"images for a trainer need Pillow: {install('images')}") from error
    return [Image.open(io.BytesIO(files[image.digest])).convert("RGB") for image in images]


class ImageFeatures:
    """Computes the tensors that a model takes for images, with the model's own image processor."""

    def __init__(self, processor: Any) -> None:
        """Take an image processor, a processor that has one, or a model's name or path (loaded at the first image)."""
        self._source = processor

    @cached_property
    def _processor(self) -> Any:
        source = self._source
        if isinstance(source, (str, Path)):
            try:
                from transformers import AutoImageProcessor
            except ImportError as error:
                raise ConfigurationError("images for a trainer need transformers and PyTorch") from error
            source = AutoImageProcessor.from_pretrained(str(source), trust_remote_code=False)  # type: ignore[no-untyped-call]
        return getattr(source, "image_processor", source)

    def of(self, files: Mapping[str, bytes], images: Sequence[ImageSpan]) -> dict[str, Any]:
        """Return the tensors of at least one image, concatenated in order; `files` are PNG files by digest."""
        features = dict(self._processor(images=pictures_of(files, images), return_tensors="pt"))
        for image, grid in zip(images, features["image_grid_thw"].tolist(), strict=True):
            if tuple(grid) != image.grid:
                raise CountMismatchError(
                    f"the trainer's image processor gives image {image.digest[:12]} the grid {tuple(grid)}, during the "
                    f"rollout it had {image.grid}: use the image processor of the served model"
                )
        return features
