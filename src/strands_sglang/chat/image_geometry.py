"""How many positions an image takes: the arithmetic of a model's image processor, without its pixels.

An image processor resizes an image to a whole number of patches; the model merges neighbouring patches, and every
merged patch takes one position. The numbers come from the model's own `preprocessor_config.json`. The engine proves
every result: it returns the ids that it computed, and a turn whose ids differ is refused.

Only families of which SGLang takes token ids and images together are supported. For the others SGLang decodes the ids
to text and tokenises it again, so the sampled tokens would change; they are refused with the reason.

Invariant: `ImageGeometry.size` is a function of the settings and of width and height alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from strands_sglang.errors import ConfigurationError, UnsupportedContentError

_MOST_STRETCHED = 200
"""Largest ratio of the sides of an image; the processors refuse more."""
_FAMILIES = {"Qwen2VLImageProcessor": "qwen", "Qwen2_5_VLImageProcessor": "qwen", "Qwen3VLImageProcessor": "qwen"}
_FAMILIES |= {"Glm4vImageProcessor": "glm", "Glm46VImageProcessor": "glm"}
_PLACEHOLDERS = {"qwen": ("<|image_pad|>", "<|video_pad|>"), "glm": ("<|image|>", "<|video|>")}
_TOKENISED_AGAIN = (
    "SGLang decodes the prompt of this family to text and tokenises it again, which changes sampled tokens"
)
_REFUSED = {
    "Gemma3ImageProcessor": _TOKENISED_AGAIN,
    "PixtralImageProcessor": _TOKENISED_AGAIN,
    "Llama4ImageProcessor": _TOKENISED_AGAIN,
    "MllamaImageProcessor": _TOKENISED_AGAIN,
    "GotOcr2ImageProcessor": "SGLang accepts no images together with token ids for this family (InternVL)",
}
_FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True, slots=True)
class ImageGeometry:
    """The settings of an image processor that determine how many positions an image takes."""

    family: str
    """Which arithmetic is used: "qwen" (Qwen2-VL to Qwen3.6) or "glm" (GLM-4V)."""
    patch_size: int
    merge_size: int
    """Patches along one side of a merged patch, which takes one position."""
    min_pixels: int
    """Images with fewer pixels are enlarged."""
    max_pixels: int
    """Images with more pixels are reduced."""
    temporal_patch_size: int = 2
    """Frames of a patch. GLM counts an image as that many frames."""

    @property
    def placeholder(self) -> str:
        """The token that stands for an image."""
        return _PLACEHOLDERS[self.family][0]

    @property
    def reserved(self) -> tuple[str, ...]:
        """Tokens that claim an image or a video. A model that samples one ends its turn there."""
        return _PLACEHOLDERS[self.family]

    def size(self, width: int, height: int) -> tuple[int, tuple[int, int, int]]:
        """Return the number of positions of an image, and its grid: patches in time, height and width."""
        if max(width, height) > _MOST_STRETCHED * min(width, height):
            raise UnsupportedContentError(
                f"an image has {width} x {height} pixels: the model's image processor accepts no side that is more"
                f" than {_MOST_STRETCHED} times the other",
                kind="image",
            )
        rows, columns = (side // self.patch_size for side in self._resized(height, width))
        return rows * columns // self.merge_size**2, (1, rows, columns)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        unit, sides, frames = self.patch_size * self.merge_size, (height, width), 1
        if self.family == "glm":
            frames, scale = self.temporal_patch_size, unit / min(sides)
            if scale > 1:
                sides = (int(height * scale), int(width * scale))
        # `round` to even, as the processors do.
        rounded = [round(side / unit) * unit for side in sides]
        pixels, whole = frames * sides[0] * sides[1], frames * rounded[0] * rounded[1]
        if whole > self.max_pixels:
            shrink = math.sqrt(pixels / self.max_pixels)
            rounded = [max(unit, math.floor(side / shrink / unit) * unit) for side in sides]
        elif whole < self.min_pixels:
            grow = math.sqrt(self.min_pixels / pixels)
            rounded = [math.ceil(side * grow / unit) * unit for side in sides]
        return rounded[0], rounded[1]


def image_geometry(source: Any) -> ImageGeometry:
    """Return the geometry of an image processor, given as such, by its settings, or by the model's name."""
    settings = _settings(source)
    kind = str(settings.get("image_processor_type") or "").removesuffix("Fast").removesuffix("Pil")
    if (reason := _REFUSED.get(kind)) is not None:
        raise ConfigurationError(f"images cannot be used with {kind}: {reason}. Use a model such as Qwen3-VL")
    family = _FAMILIES.get(kind)
    if family is None:
        raise ConfigurationError(
            f"images cannot be used with the image processor {kind or 'of this model'}: known are "
            f"{', '.join(sorted(_FAMILIES))}"
        )
    size = settings.get("size") or {}
    try:
        return ImageGeometry(
            family,
            patch_size=int(settings["patch_size"]),
            merge_size=int(settings["merge_size"]),
            min_pixels=int(settings.get("min_pixels") or size["shortest_edge"]),
            max_pixels=int(settings.get("max_pixels") or size["longest_edge"]),
            temporal_patch_size=int(settings.get("temporal_patch_size") or 2),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"the settings of {kind} lack {error}: {settings!r:.300}") from error


def _settings(source: Any) -> Mapping[str, Any]:
    if isinstance(source, (str, Path)):
        source = _from_files(str(source))
    source = getattr(source, "image_processor", source)
    if not isinstance(source, Mapping):
        if not hasattr(source, "to_dict"):
            raise ConfigurationError(
                f"image_processor must be a processor of transformers, its settings, or a path, got {source!r:.200}"
            )
        source = {"image_processor_type": type(source).__name__, **source.to_dict()}
    nested = source.get("image_processor")
    return nested if isinstance(nested, Mapping) else source


@lru_cache(maxsize=64)
def _from_files(name: str) -> Mapping[str, Any]:
    for file in _FILES:
        path = Path(name) / file
        if not path.is_file():
            found = _downloaded(name, file)
            if found is None:
                continue
            path = Path(found)
        settings = json.loads(path.read_text())
        if isinstance(settings, dict) and ("image_processor_type" in settings or "image_processor" in settings):
            return settings
    raise ConfigurationError(
        f"{name or 'the tokenizer'} has no preprocessor_config.json. It is a text-only model: send it no images; "
        "or its image settings are elsewhere: pass image_processor=, the name or path of a model that takes images"
    )


def _downloaded(name: str, file: str) -> str | None:
    if not name or Path(name).exists():
        return None
    try:
        from transformers.utils.hub import cached_file

        found: str | None = cached_file(name, file)
    except (OSError, ValueError):
        return None
    return found
