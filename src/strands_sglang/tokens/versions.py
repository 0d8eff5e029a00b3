"""Which weights sampled which tokens: runs of one version, `VersionSpan`.

Invariant: the spans of a run of sampled tokens are in order, not empty, without gaps, and cover every token.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import NamedTuple

from strands_sglang.errors import CountMismatchError, TreeError


class VersionSpan(NamedTuple):
    """A run of sampled tokens that came from the same weights."""

    version: str | None
    """The engine's weight version; None when the engine does not report one."""
    start: int
    """First token of the span, counted from the first sampled token of the turn."""
    end: int
    """One past the last token of the span."""


def check_spans(spans: Iterable[VersionSpan], count: int) -> None:
    """Raise CountMismatchError unless the spans cover `count` tokens in order and without gaps."""
    at = 0
    for _, start, end in spans:
        if start != at or end <= at:
            raise CountMismatchError(f"version spans {spans} have a gap or overlap at token {at}")
        at = end
    if at != count:
        raise CountMismatchError(f"version spans cover {at} of {count} sampled tokens")


def joined_spans(first: tuple[VersionSpan, ...], second: tuple[VersionSpan, ...]) -> tuple[VersionSpan, ...]:
    """Return the spans of two runs of tokens, the second behind the first; neighbours of one version become one."""
    base = first[-1].end if first else 0
    spans = list(first)
    for span in second:
        if spans and spans[-1].version == span.version:
            spans[-1] = VersionSpan(span.version, spans[-1].start, base + span.end)
        else:
            spans.append(VersionSpan(span.version, base + span.start, base + span.end))
    return tuple(spans)


def copied_spans(spans: Iterable[tuple[str | None, int, int]]) -> tuple[VersionSpan, ...]:
    """Return spans as plain values.

    Raises:
        TreeError: They are not (version, start, end).
    """
    try:
        copied = tuple(VersionSpan(version, index(start), index(end)) for version, start, end in spans)
    except (TypeError, ValueError) as error:
        raise TreeError(f"version spans are (version, start, end): {error}") from error
    for version, _, _ in copied:
        if version is not None and not isinstance(version, str):
            raise TreeError(f"a weight version is a string or None, not {version!r}")
    return copied
