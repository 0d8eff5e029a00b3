"""Arbitrary Python values as JSON, for the ledger, for cache keys and for digests.

Invariant: for equal plain data the bytes are equal; values that JSON cannot hold are written as their `repr`, and bytes
as a short description. Values that must come back exactly are not written with this module.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import orjson


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
    """Return the value that `dump_text` wrote, or None if `text` is not JSON text."""
    if not isinstance(text, str):
        return None
    try:
        return orjson.loads(text)
    except ValueError:  # orjson refuses lone surrogates and large ints
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
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
