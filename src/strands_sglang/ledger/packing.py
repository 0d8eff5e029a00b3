"""Flat arrays as few bytes, exactly: token ids, logprobs, raw bytes.

Every array is written as byte planes: the lowest byte of all values, then the next byte of all values, and so on. The
high bytes of token ids and logprobs take few values, so that a compressor makes little of their planes.

Invariant: unpacking gives back every value bit by bit, -0.0 and NaN included, whatever the machine; bytes and shapes
that do not fit together are refused, never misread.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# How values may be written: their typecode, and the bytes kept of each.
_CODES: dict[str, tuple[str, int]] = {
    "i2": ("i", 2),  # ids below 2**16
    "i3": ("i", 3),  # ids below 2**24
    "i4": ("i", 4),  # any 32-bit integers
    "d4": ("d", 4),  # doubles that a 32-bit float holds bit by bit, as every logprob that was sampled as one
    "d8": ("d", 8),  # any doubles
    "B1": ("B", 1),  # bytes
    "B4": ("B", 4),  # bytes of 32-bit numbers
}
_SWAPPED = sys.byteorder == "big"
_NOTHING = {"i": "i2", "d": "d4", "B": "B1"}


def packed(arrays: Mapping[str, array[Any]]) -> tuple[bytes, list[list[Any]]]:
    """Return the arrays as bytes, and what is needed to read them back.

    Args:
        arrays: By name, of typecode "i", "d" or "B".

    Returns:
        The bytes, and for each array its name, how it is written, and the number of its values.

    Raises:
        ValueError: An array of another type.
    """
    blobs, shapes = [], []
    for name, values in arrays.items():
        if not isinstance(values, array) or values.typecode not in _NOTHING:
            raise ValueError(f"array {name!r}: an array of 'i', 'd' or 'B', not {values!r:.100}")
        if values:
            code, blob = _WAYS[values.typecode](values)
            blobs.append(blob)
        else:
            code = _NOTHING[values.typecode]
        shapes.append([name, code, len(values)])
    return b"".join(blobs), shapes


def unpacked(blob: bytes | memoryview, shapes: Sequence[Sequence[Any]]) -> dict[str, array[Any]]:
    """Return the arrays that `packed` wrote.

    Raises:
        ValueError: The bytes and the shapes do not fit together.
    """
    arrays: dict[str, array[Any]] = {}
    at = 0
    if not isinstance(shapes, list | tuple):
        raise ValueError(f"shapes of arrays: {shapes!r:.100}")
    for shape in shapes:
        if not isinstance(shape, list | tuple) or len(shape) != 3:
            raise ValueError(f"shape of an array: {shape!r:.100}")
        name, code, count = shape
        if type(name) is not str or name in arrays or type(count) is not int or count < 0:
            raise ValueError(f"shape of an array: {shape!r:.100}")
        if type(code) is not str or code not in _CODES:
            raise ValueError(f"array {name!r} is written in an unknown way: {code!r:.100}")
        typecode, width = _CODES[code]
        size = count if typecode == "B" else count * width
        if size % width or at + size > len(blob):
            raise ValueError(f"array {name!r} of {count} values as {code}, but {len(blob) - at} bytes are left")
        values = array(typecode)
        if count:
            values.frombytes(_joined(np.frombuffer(blob, np.uint8, size, at), code, width))
        arrays[name] = values
        at += size
    if at != len(blob):
        raise ValueError(f"{len(blob) - at} bytes behind the last array")
    return arrays


def _integers(values: array[int]) -> tuple[str, bytes]:
    numbers = np.frombuffer(values, np.uint32)  # what is below 0 counts as large
    highest = int(numbers.max())
    width = 2 if highest < 1 << 16 else 3 if highest < 1 << 24 else 4
    return f"i{width}", _planes(numbers, 4, width)


def _doubles(values: array[float]) -> tuple[str, bytes]:
    exact = np.frombuffer(values, np.float64)
    with np.errstate(all="ignore"):  # what overflows is not the same afterwards
        short = exact.astype(np.float32)
        same = short.astype(np.float64).tobytes() == values.tobytes()
    return ("d4", _planes(short, 4, 4)) if same else ("d8", _planes(exact, 8, 8))


def _bytes(values: array[int]) -> tuple[str, bytes]:
    if len(values) % 4:
        return "B1", values.tobytes()
    return "B4", np.frombuffer(values, np.uint8).reshape(-1, 4).T.tobytes()


_WAYS: dict[str, Callable[[Any], tuple[str, bytes]]] = {"i": _integers, "d": _doubles, "B": _bytes}


def _planes(values: npt.NDArray[Any], size: int, width: int) -> bytes:
    """Return the lowest `width` of the `size` bytes of each value, plane by plane."""
    if _SWAPPED:
        values = values.byteswap()
    rows: npt.NDArray[np.uint8] = values.view(np.uint8).reshape(-1, size)
    planes: npt.NDArray[np.uint8] = rows[:, :width].T
    return planes.tobytes()


def _joined(planes: npt.NDArray[np.uint8], code: str, width: int) -> bytes:
    """Return the memory of an array whose byte planes these are."""
    rows: npt.NDArray[np.uint8] = planes.reshape(width, -1).T
    if code in ("B1", "B4"):
        return rows.tobytes()
    size = max(width, 4)
    whole = np.zeros((len(rows), size), np.uint8)
    whole[:, :width] = rows
    if _SWAPPED:
        whole = np.ascontiguousarray(whole[:, ::-1])
    if code == "d4":
        wide: npt.NDArray[np.float64] = whole.view(np.float32).astype(np.float64)
        return wide.tobytes()
    return whole.tobytes()
