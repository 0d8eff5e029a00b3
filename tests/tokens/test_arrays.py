"""Whatever token ids come as, they become our own 32-bit array, or are refused."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.errors import TreeError
from strands_sglang.tokens.arrays import logprob_array, token_array


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_every_form_gives_the_same_ids(ids: list[int]) -> None:
    own = array("i", ids)
    forms: list[Any] = [ids, tuple(ids), iter(ids), own, array("q", ids), np.array(ids, np.int64), np.array(ids, "u4")]
    for form in forms:
        assert token_array(form, "some") == own
    assert token_array(own, "some") is not own


@pytest.mark.parametrize(
    "values",
    [
        [-1],
        [2**31],
        [1.0],
        ["1"],
        [None],
        "12",
        b"1234",
        None,
        5,
        array("i", [0, -1]),
        array("q", [2**31]),
        np.array([2**31]),
        np.array([2**32 + 5], np.uint64),
        np.array([-1]),
        np.array([1.0]),
        np.array([True]),
        np.array([[1]]),
    ],
)
def test_what_is_not_token_ids(values: Any) -> None:
    with pytest.raises(TreeError):
        token_array(values, "some")


@given(st.lists(st.floats(max_value=1e-3, allow_nan=False, allow_infinity=False)))
def test_logprobs_keep_every_bit(values: list[float]) -> None:
    own = array("d", values)
    for form in (values, own, np.array(values, np.float64)):
        assert logprob_array(form).tobytes() == own.tobytes()


@pytest.mark.parametrize(
    "values",
    [
        [None],
        [float("nan")],
        [float("-inf")],
        [0.5],
        [9e18],
        array("d", [-1, 5.0]),
        ["-1"],
        np.array([[0.5]]),
        np.array([1]),
        b"12345678",
    ],
)
def test_what_is_not_logprobs(values: Any) -> None:
    with pytest.raises(TreeError):
        logprob_array(values)
