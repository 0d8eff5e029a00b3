"""Whatever token ids come as, they become our own 32-bit array, or are refused."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang import engine
from strands_sglang.engine import protocol as generation
from strands_sglang.errors import CountMismatchError, TreeError
from strands_sglang.tokens.arrays import (
    VersionSpan,
    check_spans,
    copied_spans,
    joined_spans,
    logprob_array,
    token_array,
)


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_every_input_type_gives_the_same_ids(ids: list[int]) -> None:
    own = array("i", ids)
    forms: list[Any] = [ids, tuple(ids), iter(ids), own, array("q", ids), np.array(ids, np.int64), np.array(ids, "u4")]
    for form in forms:
        assert token_array(form, "some") == own
    assert token_array(own, "some") is not own


@pytest.mark.parametrize(
    "values",
    [
        *([-1], [2**31], [1.0], ["1"], [None]),
        *("12", b"1234", None, 5),
        *(array("i", [0, -1]), array("q", [2**31]), np.array([2**31]), np.array([2**32 + 5], np.uint64)),
        *(np.array([-1]), np.array([1.0]), np.array([True]), np.array([[1]])),
    ],
)
def test_invalid_token_ids_are_refused(values: Any) -> None:
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
        *([None], [float("nan")], [float("-inf")], [0.5], [9e18], array("d", [-1, 5.0]), ["-1"], np.array([[0.5]])),
        *(np.array([1]), b"12345678"),
    ],
)
def test_invalid_logprobs_are_refused(values: Any) -> None:
    with pytest.raises(TreeError):
        logprob_array(values)


per_token = st.lists(st.sampled_from(["a", "b", None]), max_size=8)


def spans_of(versions: list[str | None]) -> tuple[VersionSpan, ...]:
    spans: tuple[VersionSpan, ...] = ()
    for version in versions:
        spans = joined_spans(spans, (VersionSpan(version, 0, 1),))
    return spans


@given(per_token, per_token)
def test_joined_spans_are_those_of_the_joined_tokens(first: list[str | None], second: list[str | None]) -> None:
    joined = joined_spans(spans_of(first), spans_of(second))
    check_spans(joined, len(first) + len(second))
    assert [span.version for span in joined for _ in range(span.start, span.end)] == first + second
    assert all(left.version != right.version for left, right in pairwise(joined))


@pytest.mark.parametrize("spans", [[("a", 0, 2)], [("a", 0, 4)], [("a", 1, 3)], [("a", 0, 1), ("a", 2, 3)], []])
def test_spans_that_do_not_cover_three_tokens(spans: list[tuple[str, int, int]]) -> None:
    with pytest.raises(CountMismatchError):
        check_spans(copied_spans(spans), 3)


def test_copies_are_plain() -> None:
    (span,) = copied_spans([("a", np.int64(0), np.int64(2))])
    assert span == VersionSpan("a", 0, 2) and type(span.end) is int


@pytest.mark.parametrize("spans", [[("a", 0)], [(1, 0, 2)], [("a", 0, 1.5)], ["a"], [None], 3])
def test_invalid_spans_are_refused(spans: list[tuple[str, int, int]]) -> None:
    with pytest.raises(TreeError):
        copied_spans(spans)


def test_former_import_paths() -> None:
    assert engine.VersionSpan is generation.VersionSpan is VersionSpan
