"""A turn knows where it stands in its branch, and what of it came from where."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from strands_sglang.errors import CountMismatchError
from strands_sglang.tokens import Origin, Segment, Turn, VersionSpan


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


def test_empty_segments_are_omitted() -> None:
    assert turn([], [], []).segments() == [] and turn([], [], []).end == 100
    assert [s.origin for s in turn([], [1], []).segments()] == [Origin.CONTEXT]


def test_counts_that_do_not_agree() -> None:
    with pytest.raises(CountMismatchError):
        turn([], [1], [2, 3], logprobs=1)


def test_turns_are_compared_by_identity() -> None:
    assert turn([], [1], [2]) != turn([], [1], [2])


IDS = array("i", [5, 6])
LOGPROBS = array("d", [-0.1, -0.2])
SPANS = (VersionSpan("a", 0, 2),)


def test_segment_behaves_like_its_ids() -> None:
    segment = Segment(Origin.SAMPLED, IDS, LOGPROBS, SPANS, 3)
    assert len(segment) == 2 and list(segment) == [5, 6] and segment[-1] == 6 and segment[1:] == array("i", [6])
    assert segment.sampled and segment == Segment(Origin.SAMPLED, IDS[:], LOGPROBS[:], SPANS, 3)
    assert not Segment(Origin.CLOSING, IDS, None, (), 3).sampled


@pytest.mark.parametrize(
    ("origin", "ids", "logprobs", "spans"),
    [
        (Origin.SAMPLED, IDS, None, SPANS),
        (Origin.SAMPLED, IDS, LOGPROBS[:1], SPANS),
        (Origin.SAMPLED, IDS, LOGPROBS, ()),
        (Origin.SAMPLED, IDS, LOGPROBS, (VersionSpan("a", 0, 1),)),
        (Origin.CONTEXT, IDS, LOGPROBS, ()),
        (Origin.CLOSING, IDS, None, SPANS),
    ],
)
def test_inconsistent_parts_are_refused(origin: Origin, ids: Any, logprobs: Any, spans: Any) -> None:
    with pytest.raises(CountMismatchError):
        Segment(origin, ids, logprobs, spans, 0)


def test_origin_numbers_are_stable() -> None:
    assert [(origin.name, int(origin)) for origin in Origin] == [("CONTEXT", 0), ("SAMPLED", 1), ("CLOSING", 2)]
