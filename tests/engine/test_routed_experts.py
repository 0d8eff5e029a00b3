"""Routed experts: decoded on demand, with every row accounted for."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from strands_sglang.engine import RoutedExperts
from strands_sglang.errors import CountMismatchError, MalformedResponseError


def packed(values: list[int]) -> str:
    return base64.b64encode(np.array(values, "<i4").tobytes()).decode()


def test_shape_with_and_without_layers() -> None:
    experts = RoutedExperts((packed(list(range(12))),), (2,))
    assert experts.decode().shape == (2, 6)
    assert experts.decode(3, 2).tolist() == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]


def test_no_rows() -> None:
    assert RoutedExperts(("",), (0,)).decode(3, 2).shape == (0, 3, 2)


@pytest.mark.parametrize(
    "experts",
    [
        RoutedExperts((packed([1, 2, 3]),), (2,)),
        RoutedExperts((packed([1, 2, 3]),), (0,)),
        RoutedExperts((packed([1, 2]), packed([1, 2, 3])), (1, 1)),
    ],
)
def test_rows_that_do_not_add_up(experts: RoutedExperts) -> None:
    with pytest.raises(CountMismatchError):
        experts.decode()


def test_the_wrong_number_of_layers() -> None:
    with pytest.raises(CountMismatchError, match="4 layers"):
        RoutedExperts((packed(list(range(12))),), (2,)).decode(4, 2)


@pytest.mark.parametrize("part", ["not base64!", "AAA", base64.b64encode(b"12345").decode()])
def test_what_is_not_base64_of_int32(part: str) -> None:
    with pytest.raises(MalformedResponseError):
        RoutedExperts((part,), (1,)).decode()
