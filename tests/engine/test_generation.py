"""A `Generation` whose parts do not fit together cannot be made."""

from __future__ import annotations

import pickle
from array import array

import pytest

from strands_sglang.engine import FinishReason, Generation, VersionSpan
from strands_sglang.errors import CountMismatchError, MalformedResponseError


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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 5.0, 9e18, 0.002])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_logprobs_that_cannot_be(value: float, place: int) -> None:
    logprobs = [-0.5, 0.0, -3.0]
    logprobs[place] = value
    with pytest.raises(MalformedResponseError, match=f"token {place} the logprob"):
        Generation(array("i", [1, 2, 3]), array("d", logprobs), FinishReason.STOP, versions=(VersionSpan("a", 0, 3),))


def test_ids_that_cannot_be() -> None:
    with pytest.raises(MalformedResponseError, match="-7"):
        Generation(array("i", [1, -7]), array("d", [-1.0, -1.0]), FinishReason.STOP, versions=(VersionSpan("a", 0, 2),))


def test_rounding_is_no_fault() -> None:
    """32-bit engines give the sure token a logprob that is a little off 0, to either side."""
    logprobs = array("d", [1.1920929e-07, 1e-6, -0.0, -745.0, -1e30])
    spans = (VersionSpan("a", 0, 5),)
    assert Generation(array("i", range(5)), logprobs, FinishReason.STOP, versions=spans).logprobs == logprobs


def test_it_pickles() -> None:
    generation = make(3, 3, VersionSpan("a", 0, 3))
    assert pickle.loads(pickle.dumps(generation)) == generation
