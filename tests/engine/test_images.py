"""Images in a request: one placeholder each on the wire, and an answer that must say which ids were computed."""

from __future__ import annotations

import base64
from array import array
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.engine import PromptImage
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.engine.response import parse
from strands_sglang.errors import ConfigurationError, CountMismatchError

PAD = 9
PARTS = st.lists(
    st.one_of(st.integers(0, 5), st.integers(1, 4).map(lambda positions: ("image", positions))), min_size=1
)


def answer(ids: list[int] | None, prompt_tokens: int) -> dict[str, Any]:
    meta = {
        "finish_reason": {"type": "stop"},
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 2,
        "output_token_logprobs": [-0.5, 1, None, -0.25, 2, None],
        "weight_version": "1",
    }
    whole: dict[str, Any] = {"text": "", "output_ids": [1, 2], "meta_info": meta}
    return whole if ids is None else {**whole, "prompt_token_ids": ids}


@given(PARTS)
def test_one_placeholder_each_is_sent(parts: list[Any]) -> None:
    ids, wire = array("i"), list[int]()
    images: list[PromptImage] = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
            wire.append(part)
        else:
            images.append(PromptImage(len(ids), part[1], bytes([len(images)])))
            ids += array("i", [PAD] * part[1])
            wire.append(PAD)
    request = GenerateRequest(ids, {"max_new_tokens": 10}, images=images)
    for expected in (wire, [*wire, 7, 8]):
        body = orjson.loads(request.body(0))
        assert body["input_ids"] == expected
        assert body.get("image_data", []) == [
            f"data:image/png;base64,{base64.b64encode(image.png).decode()}" for image in images
        ]
        assert body.get("return_prompt_token_ids", False) is bool(images)
        request.extend(array("i", [7, 8]) if expected is wire else array("i"), None)
    assert request.prompt_tokens == len(ids) + 2
    assert (request.computed_ids or array("i", [*ids, 7, 8])).tolist() == [*ids, 7, 8]


@pytest.mark.parametrize("images", [[(0, 2)], [(1, 4)], [(3, 5)], [(1, 0)], [(1, 3), (1, 3)]])
def test_images_must_be_at_placeholders(images: list[tuple[int, int]]) -> None:
    with pytest.raises(ConfigurationError, match="an image must be at"):
        GenerateRequest([1, PAD, PAD, PAD, 2], images=[PromptImage(*place, b"x") for place in images])


def test_fields_of_images_are_the_clients() -> None:
    with pytest.raises(ConfigurationError, match="image_data"):
        GenerateRequest([PAD], images=[PromptImage(0, 1, b"x")], extra={"image_data": ["x"]})


def test_computed_ids_are_compared() -> None:
    ids = array("i", [1, PAD, PAD, 2])
    assert parse(answer([1, PAD, PAD, 2], 4), 4, computed_ids=ids).prompt_tokens == 4
    for wrong, problem in (
        ([1, PAD, 2], "from position 2 on"),
        ([1, PAD, PAD, 2, 3], "5 ids instead of 4"),
        ([1, 5, PAD, 2], "from position 1 on"),
        ("text", "0 ids instead of 4"),
        (None, "does not say which ids"),
    ):
        with pytest.raises(CountMismatchError, match=problem):
            parse(answer(wrong, 4), 4, computed_ids=ids)  # type: ignore[arg-type]


def test_a_request_of_ones_own_keeps_the_engines_count() -> None:
    """`client.generate(ids, image_data=[...])`, as the published package takes it: nothing is compared."""
    assert parse(answer(None, 70), 4, counts_images=False).prompt_tokens == 70
