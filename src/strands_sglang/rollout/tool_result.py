"""A tool's result as plain data, and back.

Invariant: a result that was written down comes back equal; one that cannot be is not written as something else.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import sysconfig
import traceback
from collections.abc import Callable
from enum import Enum
from typing import Any

import orjson
from strands.middleware import ToolResultEvent

from strands_sglang.ledger.event import Event

_FOREIGN = (
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    "<frozen",
)
"""Where code is that is not the user's: the standard library, and what was installed."""
_BYTES, _TUPLE, _NUMBER, _TEXT = "__bytes__", "__tuple__", "__number__", "__text__"


class Outcome(str, Enum):
    """How a tool call came to its result."""

    RESULT = "result"
    """The tool returned it."""
    RAISED = "raised"
    """The tool raised an error, which is the result."""
    TIMEOUT = "timeout"
    """The tool took too long, which is the result."""
    REFUSED = "refused"
    """It was not run, which is the result: its episode had run as many tools as it may."""


class ToolArguments(str, Enum):
    """What is on record of the arguments of tool calls."""

    RECORD = "record"
    """All of them, as plain data."""
    DIGEST = "digest"
    """Their digest alone: for tools that hooks hand secrets to."""


class RecordedToolError(Exception):
    """Stands for the error a tool raised when it was run; its words are that error's."""


def arguments_digest(arguments: Any) -> str:
    """Return a digest of a call's arguments, the same for equal ones."""
    try:
        data = orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=repr)
    except (TypeError, ValueError):
        data = repr(arguments).encode(errors="replace")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def plain_arguments(arguments: Any) -> Any:
    """Return a call's arguments as plain data; None when that would not be all of them."""
    try:
        kept = _plain(arguments)
        return kept if orjson.loads(orjson.dumps(kept)) == kept else None
    except (TypeError, ValueError, RecursionError):
        return None


def place_of(error: BaseException | None) -> str | None:
    """Return where a tool raised an error: file, line and function, of its own code if there is any; None: unknown."""
    frames = [] if error is None else traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_FOREIGN)]
    at = next(reversed(own or frames), None)
    return None if at is None else f"{at.filename}:{at.lineno} in {at.name}"


def to_record(event: ToolResultEvent) -> dict[str, Any] | None:
    """Return a result as plain data; None when that would not be all of it."""
    result = event.tool_result
    try:
        kept = {name: _plain(value) for name, value in result.items() if name != "toolUseId"}
        return kept if orjson.loads(orjson.dumps(kept)) == kept else None
    except (TypeError, ValueError):
        return None


def from_record(event: Event, call_id: str) -> ToolResultEvent:
    """Return the result of a call as it was."""
    result = {"toolUseId": call_id, **_restored(event.data["result"])}
    raised = event.data.get("raised")
    return ToolResultEvent(result, exception=None if raised is None else RecordedToolError(raised))  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it; what JSON cannot hold as it stands is wrapped."""
    if isinstance(value, (bytes, bytearray)):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, dict):
        if len(value) == 1 and next(iter(value)) in _WRAPPED:
            raise ValueError("a result that looks like one of our wrappings")
        return {name: _plain(item) for name, item in value.items()}
    if type(value) is tuple:
        return {_TUPLE: [_plain(item) for item in value]}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if type(value) is float and not math.isfinite(value):
        return {_NUMBER: repr(value)}
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return {_NUMBER: str(value)}
    if type(value) is str and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # half a surrogate pair
            return {_TEXT: base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1:
            [(name, item)] = value.items()
            if name in _WRAPPED:
                return _WRAPPED[name](item)
        return {name: _restored(item) for name, item in value.items()}
    return [_restored(item) for item in value] if isinstance(value, list) else value


_WRAPPED: dict[str, Callable[[Any], Any]] = {
    _BYTES: base64.b64decode,
    _TUPLE: lambda items: tuple(_restored(item) for item in items),
    _NUMBER: lambda text: float(text) if text in ("nan", "inf", "-inf") else int(text),
    _TEXT: lambda text: base64.b64decode(text).decode("utf-8", "surrogatepass"),
}
