"""How many positions an image takes, and for which models that is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.chat.image_geometry import ImageGeometry, image_geometry
from strands_sglang.errors import ConfigurationError, UnsupportedContentError

QWEN3 = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 16,
    "merge_size": 2,
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
}


# Measured with the image processors of transformers 5.12.
@pytest.mark.parametrize(
    ("geometry", "size", "positions", "grid"),
    [
        (ImageGeometry("qwen", 14, 2, 3136, 200704), (140, 84), 15, (1, 6, 10)),
        (ImageGeometry("qwen", 14, 2, 3136, 200704), (84, 196), 21, (1, 14, 6)),
        (ImageGeometry("qwen", 14, 2, 3136, 200704), (1920, 1080), 252, (1, 24, 42)),
        (ImageGeometry("qwen", 14, 2, 3136, 200704), (4, 508), 23, (1, 46, 2)),
        (ImageGeometry("qwen", 16, 2, 65536, 16777216), (640, 480), 300, (1, 30, 40)),
        (ImageGeometry("glm", 14, 2, 12544, 9633792), (640, 480), 391, (1, 34, 46)),
    ],
)
def test_sizes_are_those_of_the_processors(
    geometry: ImageGeometry, size: tuple[int, int], positions: int, grid: tuple[int, int, int]
) -> None:
    assert geometry.size(*size) == (positions, grid)


@given(st.integers(1, 4000), st.integers(1, 4000), st.sampled_from(["qwen", "glm"]))
def test_positions_follow_from_the_grid(width: int, height: int, family: str) -> None:
    geometry = ImageGeometry(family, 14, 2, 3136, 1003520)
    try:
        positions, (time, rows, columns) = geometry.size(width, height)
    except UnsupportedContentError:
        assert max(width, height) > 200 * min(width, height)
        return
    assert time == 1 and rows % 2 == columns % 2 == 0
    assert positions == rows * columns // 4 > 0


def test_geometry_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(QWEN3))
    assert image_geometry(str(tmp_path)) == ImageGeometry("qwen", 16, 2, 65536, 16777216)


def test_geometry_of_a_folder_of_newer_transformers(tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": QWEN3, "processor_class": "X"}))
    assert image_geometry(tmp_path) == ImageGeometry("qwen", 16, 2, 65536, 16777216)


def test_geometry_of_a_processor() -> None:
    class Qwen2VLImageProcessor:
        def to_dict(self) -> dict[str, object]:
            return {**QWEN3, "image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 100, "max_pixels": 1000}

    class Processor:
        image_processor = Qwen2VLImageProcessor()

    for source in (Processor(), Processor.image_processor):
        assert image_geometry(source) == ImageGeometry("qwen", 16, 2, 100, 1000)


@pytest.mark.parametrize("kind", ["Gemma3ImageProcessor", "PixtralImageProcessorFast", "Llama4ImageProcessorFast"])
def test_families_that_are_tokenised_again_are_refused(kind: str) -> None:
    with pytest.raises(ConfigurationError, match="tokenises it again"):
        image_geometry({"image_processor_type": kind})


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"image_processor_type": "SomeImageProcessor"}, "known are"),
        ({"image_processor_type": "Qwen2VLImageProcessor"}, "lack 'patch_size'"),
        ({}, "known are"),
        (7, "must be a processor of transformers"),
    ],
)
def test_unknown_settings_are_refused(source: object, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        image_geometry(source)


def test_a_folder_without_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="pass image_processor="):
        image_geometry(tmp_path)


def test_images_that_are_too_narrow_are_refused() -> None:
    with pytest.raises(UnsupportedContentError, match="200 times"):
        ImageGeometry("qwen", 14, 2, 3136, 200704).size(2001, 10)
