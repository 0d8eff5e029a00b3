"""A segment whose parts do not fit together cannot be made."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from strands_sglang.errors import CountMismatchError
from strands_sglang.tokens import Origin, Segment, VersionSpan

IDS = array("i", [5, 6])
LOGPROBS = array("d", [-0.1, -0.2])
SPANS = (VersionSpan("a", 0, 2),)


def test_it_reads_like_its_ids() -> None:
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
def test_parts_that_do_not_fit(origin: Origin, ids: Any, logprobs: Any, spans: Any) -> None:
    with pytest.raises(CountMismatchError):
        Segment(origin, ids, logprobs, spans, 0)


def test_the_numbers_of_the_origins_stay() -> None:
    assert [(origin.name, int(origin)) for origin in Origin] == [("CONTEXT", 0), ("SAMPLED", 1), ("CLOSING", 2)]
