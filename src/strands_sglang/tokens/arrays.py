"""The arrays of a turn, copied and validated: token ids, logprobs, and spans of weight versions.

Invariant: a returned array belongs to the caller alone. Ids are integers >= 0 that fit in 32 bits; whether an id is in
the vocabulary is checked where tokens are made. Logprobs are finite and not above 0, apart from rounding. The version
spans of a run of sampled tokens are in order, non-empty, without gaps, and cover every token.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import isfinite
from operator import index
from typing import Any, NamedTuple

import numpy as np

from strands_sglang.errors import CountMismatchError, TreeError

LARGEST_LOGPROB = 1e-3  # engines subtract 32-bit floats: a logprob can exceed 0 by a rounding error

_FEW = 256  # below this length, functions of Python are faster than those of numpy


def token_array(values: Iterable[int], what: str) -> array[int]:
    """Return a copy of token ids as 32-bit integers; `what` names them in the TreeError for a value that is no id."""
    ids: array[int] = plain_array("i", values, what)
    if ids and (lowest := min(ids) if len(ids) < _FEW else int(np.asarray(ids).min())) < 0:
        raise TreeError(f"{what} ids must be integers >= 0, got {lowest}")
    return ids


def logprob_array(values: Iterable[float]) -> array[float]:
    """Return a copy of logprobs as doubles, bit for bit; TreeError if one is not finite, or clearly above 0."""
    logprobs: array[float] = plain_array("d", values, "logprobs")
    if len(logprobs) < _FEW and (not logprobs or (isfinite(sum(logprobs)) and max(logprobs) <= LARGEST_LOGPROB)):
        return logprobs
    numbers = np.asarray(logprobs)
    possible = np.isfinite(numbers) & (numbers <= LARGEST_LOGPROB)
    if not possible.all():
        at = int(possible.argmin())
        raise TreeError(f"logprobs must be finite and <= 0, got {logprobs[at]} for sampled token {at}")
    return logprobs


def plain_array(code: str, values: Any, what: str) -> array[Any]:
    """Return a copy of numbers as an array of type "i", "b" or "d"; TreeError if a value does not fit the type."""
    if isinstance(values, array) and values.typecode == code:
        return values[:]
    if isinstance(values, np.ndarray):
        values = _checked(code, values, what)
    elif isinstance(values, bytes | bytearray | memoryview):  # array() would read them as raw memory
        raise TreeError(f"{what} must be numbers, got {type(values).__name__}")
    try:
        return array(code, values)
    except (TypeError, ValueError, OverflowError) as error:
        raise TreeError(f"{what} must be numbers: {error}") from error


def _checked(code: str, values: np.ndarray[Any, Any], what: str) -> bytes:
    """Return the memory of a numpy array in the type of `code`; raise if a cast would change a value."""
    kind, kinds = ("floats", "f") if code == "d" else ("integers", "iu")
    if values.ndim != 1 or values.dtype.kind not in kinds:
        raise TreeError(f"{what} must be a flat array of {kind}, got shape {values.shape} and type {values.dtype}")
    made = values.astype(code)
    if code != "d" and (made != values).any():
        wrong = int(values[(made != values).argmax()])
        raise TreeError(f"{what} must fit in {made.itemsize * 8} bits, got {wrong}")
    return made.tobytes()


class VersionSpan(NamedTuple):
    """A run of sampled tokens that came from the same weights."""

    version: str | None
    """The engine's weight version; None if the engine does not report one."""
    start: int
    """First token of the span, counted from the first sampled token of the turn."""
    end: int


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
    """Return the spans of two consecutive runs of tokens; adjacent spans of one version are merged."""
    base = first[-1].end if first else 0
    spans = list(first)
    for span in second:
        if spans and spans[-1].version == span.version:
            spans[-1] = VersionSpan(span.version, spans[-1].start, base + span.end)
        else:
            spans.append(VersionSpan(span.version, base + span.start, base + span.end))
    return tuple(spans)


def copied_spans(spans: Iterable[tuple[str | None, int, int]]) -> tuple[VersionSpan, ...]:
    """Return spans as `VersionSpan`s of plain values; TreeError if an item is not (version, start, end)."""
    try:
        copied = tuple(VersionSpan(version, index(start), index(end)) for version, start, end in spans)
    except (TypeError, ValueError) as error:
        raise TreeError(f"version spans must be (version, start, end): {error}") from error
    for version, _, _ in copied:
        if version is not None and not isinstance(version, str):
            raise TreeError(f"a weight version must be a string or None, got {version!r}")
    return copied
