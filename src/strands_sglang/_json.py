"""Arbitrary Python values as JSON, for the ledger, for cache keys and for digests; and JSON that may not be trusted.

`loads` decodes JSON only up to the nesting depth that can also be written, and up to `MOST_VALUES` values.
`loads_exactly` decodes JSON whose ints may have any size.

Invariant: for equal plain data the bytes are equal; values that JSON cannot hold are written as their `repr`, and bytes
as a short description. Values that must come back exactly are not written with this module.
"""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import orjson

DEEPEST = 254  # largest nesting depth of JSON that can be written and is read
MOST_VALUES = 1 << 22
"""Maximum number of values in one JSON text; keys and containers count too. Each takes up to 80 bytes of memory."""

_PIECE = 1 << 18  # bytes of JSON
_EXACT = 4096  # above so many marks, those in strings are left out
_COMMA, _QUOTE = 2, 3  # a bracket that opens is 1, one that closes -1
_MARKS = bytes.maketrans(b'[{]},:"', bytes((1, 1, 255, 255, _COMMA, _COMMA, _QUOTE)))
_PLAIN = re.compile(rb"[^\\]")
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LARGE = b"0" * 19
_TEXT = bytes(set(range(256)) - set(b'[{]},:"'))


def dump_bytes(value: Any, *, sort_keys: bool = False, non_str_keys: bool = False) -> bytes:
    """Return a value as JSON, with `repr` in place of what JSON cannot hold.

    Args:
        value: Any value.
        sort_keys: Whether keys are sorted, so that the order of a dict does not count.
        non_str_keys: Whether keys that are not strings are accepted, and written as strings.

    Raises:
        TypeError: A lone surrogate, an int of more than 64 bits, or a key that is not accepted.
    """
    option = (orjson.OPT_SORT_KEYS if sort_keys else 0) | (orjson.OPT_NON_STR_KEYS if non_str_keys else 0)
    return orjson.dumps(value, default=described, option=option)


def dump_text(value: Any) -> str:
    """Return a value as JSON text, also where `dump_bytes` raises: with lone surrogates and large ints."""
    try:
        return dump_bytes(value).decode()
    except TypeError:
        return json.dumps(value, default=described)


def load_text(text: Any) -> Any:
    """Return the value that `dump_text` wrote, or None if `text` is not JSON text, or has too many values to read."""
    if not isinstance(text, str):
        return None
    try:
        check_values(text.encode(errors="surrogatepass"))
        return loads_exactly(text)
    except ValueError:
        return None


def jsonable(value: Any) -> Any:
    """Return the closest value that JSON can hold: tuples as lists, NumPy scalars as Python's, the rest as `repr`."""
    if isinstance(value, dict):
        return {str(jsonable(name)): jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()  # a NumPy scalar
    if isinstance(value, str):
        return str(value).encode(errors="backslashreplace").decode()
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    return jsonable(described(value))


def as_dict(value: Any) -> dict[str, Any]:
    """Return a dict of a record, which may have another form than declared; anything else becomes an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list of a record, which may have another form than declared; anything else becomes an empty one."""
    return value if isinstance(value, list) else []


def plain_data(value: Any) -> Any:
    """Return a dataclass, or a container of some, as dicts by field name; enums become their values, tuples lists."""
    if is_dataclass(value):
        return {one.name: plain_data(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {plain_data(name): plain_data(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def described(value: Any) -> str:
    """Return what stands for a value that JSON cannot hold: its `repr`, or size and SHA-256 of bytes."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return f"<{type(value).__name__}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}>"
    return repr(value)


def loads(data: bytes, most: int = MOST_VALUES) -> Any:
    """Decode JSON; ValueError if it is not JSON, deeper than `DEEPEST`, or has more than `most` values."""
    check_json(data, most)
    if not gc.isenabled():
        return orjson.loads(data)
    gc.disable()  # each collection would visit again all lists that were decoded so far
    try:
        return orjson.loads(data)
    finally:
        gc.enable()


def loads_exactly(text: str | bytes) -> Any:
    """Decode JSON with ints of any size and lone surrogates, unchecked; ValueError if it is not JSON."""
    data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    try:
        # orjson reads an int of more than 64 bits as a float. One of 18 digits or fewer is smaller.
        if _LARGE not in data.translate(_DIGITS):
            with suppress(orjson.JSONDecodeError):  # it refuses lone surrogates, and floats that are too large
                return orjson.loads(data)
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def check_json(data: bytes, most: int = MOST_VALUES) -> None:
    """Raise ValueError if JSON is nested deeper than `DEEPEST`, or has more than `most` values."""
    if data.count(b"[") + data.count(b"{") <= DEEPEST:
        check_values(data, most)
        return
    values, depth = _shape(data, most)
    _refuse_above(most, values)
    if depth > DEEPEST:
        raise ValueError(f"JSON is nested deeper than {DEEPEST} levels")


def check_values(data: bytes, most: int = MOST_VALUES) -> None:
    """Raise ValueError if JSON has more than `most` values."""
    if len(data) > most and _marks(data) > most:
        _refuse_above(most, _shape(data, most)[0])


def _refuse_above(most: int, values: int) -> None:
    if values > most:
        raise ValueError(f"JSON must have at most {most} values, got at least {values}")


def count_values(data: bytes, most: int = MOST_VALUES) -> int:
    """Return the number of values in JSON; keys and containers count too. A small number may be too large.

    Of JSON with more than `most` values, not all are counted.
    """
    count = _marks(data)
    return count if count <= _EXACT else _shape(data, most)[0]


def _marks(data: bytes) -> int:
    return len(data) - len(data.translate(None, b",:[{"))  # one pass, however many there are


def _shape(data: bytes, most: int) -> tuple[int, int]:
    """Return the number of values in JSON and its depth, of the first pieces with more than `most` values.

    Text in strings does not count.
    """
    import numpy as np  # not at the top: it takes as long to import as the command line to start

    values = depth = deepest = at = 0
    quoted = False
    while at < len(data) and values <= most:
        ends = _PLAIN.search(data, at + _PIECE)  # an escape is not split
        text = data[at : None if ends is None else ends.end()]
        at += len(text)
        if b"\\" in text:
            # Spaces are removed with the other text; a replacement of the same length is twice as fast as none.
            text = text.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        piece = np.frombuffer(text.translate(_MARKS, _TEXT), np.int8)
        if not len(piece):
            continue
        inside = np.logical_xor.accumulate(piece == _QUOTE) ^ quoted
        steps = np.where(inside | (abs(piece) > 1), np.int8(0), piece)
        levels = np.cumsum(steps, dtype=np.int32) + depth
        values += int(np.count_nonzero(steps > 0)) + int(np.count_nonzero((piece == _COMMA) & ~inside))
        quoted, depth, deepest = bool(inside[-1]), int(levels[-1]), max(deepest, int(levels.max()))
    return values, deepest
