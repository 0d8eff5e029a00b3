"""Making the flat arrays of a turn: copied, and every value checked.

Invariant: an array that comes from here belongs to the caller alone; ids are whole numbers from 0 up that fit 32
bits, logprobs are finite and not above 0, but for rounding. (Whether an id is in the vocabulary is for the tokenizer to
know.)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from strands_sglang.errors import TreeError

LARGEST_LOGPROB = 1e-3
"""What a logprob may be above 0: engines subtract 32-bit floats, and those of some thousands are rounded by as much."""

_LARGEST = 2**31 - 1


def token_array(values: Iterable[int], what: str) -> array[int]:
    """Return a copy of token ids as 32-bit integers.

    Args:
        values: A list, an `array`, a one-dimensional numpy array of integers, any iterable of integers.
        what: What these tokens are, for the message.

    Raises:
        TreeError: Something in it is not a token id.
    """
    ids = _copied("i", values, what)
    if ids and (lowest := int(np.asarray(ids).min())) < 0:
        raise TreeError(f"{what} ids: {lowest} is not a token id")
    return ids


def logprob_array(values: Iterable[float]) -> array[float]:
    """Return a copy of logprobs as doubles, bit by bit.

    Raises:
        TreeError: Something in it is not a finite number, or above 0 by more than rounding.
    """
    logprobs: array[float] = _copied("d", values, "logprobs")
    numbers = np.asarray(logprobs)
    possible = np.isfinite(numbers) & (numbers <= LARGEST_LOGPROB)
    if not possible.all():
        at = int(possible.argmin())
        raise TreeError(f"the logprob of sampled token {at} is {logprobs[at]}")
    return logprobs


def _copied(code: str, values: Any, what: str) -> array[Any]:
    if isinstance(values, array) and values.typecode == code:
        return values[:]
    if isinstance(values, np.ndarray):
        values = _checked(code, values, what)
    elif isinstance(values, bytes | bytearray | memoryview):  # array() would take them for raw memory
        raise TreeError(f"{what}: numbers, not {type(values).__name__}")
    try:
        return array(code, values)
    except (TypeError, ValueError, OverflowError) as error:
        raise TreeError(f"{what}: {error}") from error


def _checked(code: str, values: np.ndarray[Any, Any], what: str) -> bytes:
    """Return the memory of a numpy array in the type of `code`, refusing what a cast would change."""
    if values.ndim != 1 or values.dtype.kind not in ("iu" if code == "i" else "f"):
        raise TreeError(f"{what}: a numpy array of shape {values.shape} and type {values.dtype}")
    if code == "i" and values.size and (highest := int(values.max())) > _LARGEST:
        raise TreeError(f"{what} ids: {highest} does not fit 32 bits")
    if code == "i" and values.size and (lowest := int(values.min())) < 0:
        raise TreeError(f"{what} ids: {lowest} is not a token id")
    return values.astype(np.int32 if code == "i" else np.float64).tobytes()
