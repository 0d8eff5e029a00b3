"""A turn knows where it stands in its branch, and what of it came from where."""

from __future__ import annotations

from array import array

import pytest

from strands_sglang.errors import CountMismatchError
from strands_sglang.tokens import Origin, Turn, VersionSpan


def turn(closing: list[int], context: list[int], sampled: list[int], logprobs: int | None = None) -> Turn:
    count = len(sampled) if logprobs is None else logprobs
    ids = (array("i", closing), array("i", context), array("i", sampled))
    spans = (VersionSpan(None, 0, len(sampled)),) if sampled else ()
    return Turn(4, 2, *ids, array("d", [-1.0] * count), spans, start=100)


def test_positions_and_segments() -> None:
    one = turn([9], [1, 2], [3, 4, 5])
    assert (len(one), one.start, one.sampled_start, one.end) == (6, 100, 103, 106)
    assert [(s.origin, list(s), s.turn) for s in one.segments()] == [
        (Origin.CLOSING, [9], 4),
        (Origin.CONTEXT, [1, 2], 4),
        (Origin.SAMPLED, [3, 4, 5], 4),
    ]


def test_empty_segments_are_left_out() -> None:
    assert turn([], [], []).segments() == [] and turn([], [], []).end == 100
    assert [s.origin for s in turn([], [1], []).segments()] == [Origin.CONTEXT]


def test_counts_that_do_not_agree() -> None:
    with pytest.raises(CountMismatchError):
        turn([], [1], [2, 3], logprobs=1)


def test_a_turn_is_equal_only_to_itself() -> None:
    assert turn([], [1], [2]) != turn([], [1], [2])
