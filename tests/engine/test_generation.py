"""A `Generation` whose parts do not fit together cannot be made."""

from __future__ import annotations

import pickle
from array import array

import pytest

from strands_sglang.engine import FinishReason, Generation, VersionSpan
from strands_sglang.errors import CountMismatchError


def make(ids: int = 3, logprobs: int = 3, *spans: VersionSpan) -> Generation:
    return Generation(array("i", [0] * ids), array("d", [0.0] * logprobs), FinishReason.STOP, versions=spans)


def test_parts_that_fit() -> None:
    generation = make(3, 3, VersionSpan("a", 0, 1), VersionSpan("b", 1, 3))
    assert len(generation) == 3
    assert generation.weight_version == "b"
    assert generation.versions_per_token() == ["a", "b", "b"]


def test_no_tokens() -> None:
    assert make(0, 0).weight_version is None


@pytest.mark.parametrize(
    "parts",
    [
        (3, 2, VersionSpan("a", 0, 3)),
        (3, 3),
        (3, 3, VersionSpan("a", 0, 2)),
        (3, 3, VersionSpan("a", 1, 3)),
        (3, 3, VersionSpan("a", 0, 2), VersionSpan("b", 1, 3)),
        (3, 3, VersionSpan("a", 0, 0), VersionSpan("b", 0, 3)),
        (0, 0, VersionSpan("a", 0, 1)),
    ],
)
def test_parts_that_do_not_fit(parts: tuple[int, int, VersionSpan]) -> None:
    with pytest.raises(CountMismatchError):
        make(*parts)


def test_it_pickles() -> None:
    generation = make(3, 3, VersionSpan("a", 0, 3))
    assert pickle.loads(pickle.dumps(generation)) == generation
