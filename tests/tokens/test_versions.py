"""Version spans cover what was sampled, also when runs are joined."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strands_sglang
from strands_sglang import engine
from strands_sglang.engine import generation
from strands_sglang.errors import CountMismatchError, TreeError
from strands_sglang.tokens.versions import VersionSpan, check_spans, copied_spans, joined_spans

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
def test_what_is_not_a_span(spans: list[tuple[str, int, int]]) -> None:
    with pytest.raises(TreeError):
        copied_spans(spans)


def test_the_names_it_had_before_it_moved_here() -> None:
    assert engine.VersionSpan is generation.VersionSpan is strands_sglang.VersionSpan is VersionSpan
