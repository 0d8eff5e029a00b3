"""A `Generation` whose parts do not fit together cannot be made; routed experts are decoded with every row checked."""

from __future__ import annotations

import base64
import pickle
from array import array

import numpy as np
import pytest

from strands_sglang.engine import FinishReason, Generation, RoutedExperts, VersionSpan
from strands_sglang.errors import CountMismatchError, MalformedResponseError


def make(ids: int = 3, logprobs: int = 3, *spans: VersionSpan) -> Generation:
    return Generation(array("i", [0] * ids), array("d", [0.0] * logprobs), FinishReason.STOP, versions=spans)


def test_consistent_parts() -> None:
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
def test_inconsistent_parts_are_refused(parts: tuple[int, int, VersionSpan]) -> None:
    with pytest.raises(CountMismatchError):
        make(*parts)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 5.0, 9e18, 0.002])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_invalid_logprobs_are_refused(value: float, place: int) -> None:
    logprobs = [-0.5, 0.0, -3.0]
    logprobs[place] = value
    with pytest.raises(MalformedResponseError, match=f"logprob of sampled token {place} must be finite"):
        Generation(array("i", [1, 2, 3]), array("d", logprobs), FinishReason.STOP, versions=(VersionSpan("a", 0, 3),))


def test_invalid_ids_are_refused() -> None:
    with pytest.raises(MalformedResponseError, match="-7"):
        Generation(array("i", [1, -7]), array("d", [-1.0, -1.0]), FinishReason.STOP, versions=(VersionSpan("a", 0, 2),))


def test_rounding_is_accepted() -> None:
    """32-bit engines give the sure token a logprob that is a little off 0, to either side."""
    logprobs = array("d", [1.1920929e-07, 1e-6, -0.0, -745.0, -1e30])
    spans = (VersionSpan("a", 0, 5),)
    assert Generation(array("i", range(5)), logprobs, FinishReason.STOP, versions=spans).logprobs == logprobs


def test_it_pickles() -> None:
    generation = make(3, 3, VersionSpan("a", 0, 3))
    assert pickle.loads(pickle.dumps(generation)) == generation


def packed(values: list[int]) -> str:
    return base64.b64encode(np.array(values, "<i4").tobytes()).decode()


def test_the_shape_of_routed_experts_with_and_without_layers() -> None:
    experts = RoutedExperts((packed(list(range(12))),), (2,))
    assert experts.decode().shape == (2, 6)
    assert experts.decode(3, 2).tolist() == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]


def test_routed_experts_without_rows() -> None:
    assert RoutedExperts(("",), (0,)).decode(3, 2).shape == (0, 3, 2)


@pytest.mark.parametrize(
    "experts",
    [
        RoutedExperts((packed([1, 2, 3]),), (2,)),
        RoutedExperts((packed([1, 2, 3]),), (0,)),
        RoutedExperts((packed([1, 2]), packed([1, 2, 3])), (1, 1)),
    ],
)
def test_inconsistent_routed_experts_are_refused(experts: RoutedExperts) -> None:
    with pytest.raises(CountMismatchError):
        experts.decode()


def test_the_wrong_number_of_layers() -> None:
    with pytest.raises(CountMismatchError, match="4 layers"):
        RoutedExperts((packed(list(range(12))),), (2,)).decode(4, 2)


@pytest.mark.parametrize("part", ["not base64!", "AAA", base64.b64encode(b"12345").decode()])
def test_invalid_base64_is_refused(part: str) -> None:
    with pytest.raises(MalformedResponseError):
        RoutedExperts((part,), (1,)).decode()
