"""A tool's result as plain data, and back.

Invariant: a result that was written down comes back equal; one that cannot be is not written as something else.
"""

from __future__ import annotations

import base64
import hashlib
from enum import Enum
from typing import Any

import orjson
from strands.middleware import ToolResultEvent

from strands_sglang.ledger.event import Event

_BYTES = "__bytes__"


class Outcome(str, Enum):
    """How a tool call came to its result."""

    RESULT = "result"
    """The tool returned it."""
    RAISED = "raised"
    """The tool raised an error, which is the result."""
    TIMEOUT = "timeout"
    """The tool took too long, which is the result."""


class RecordedToolError(Exception):
    """Stands for the error a tool raised when it was run; its words are that error's."""


def arguments_digest(arguments: Any) -> str:
    """Return a digest of a call's arguments, the same for equal ones."""
    try:
        data = orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=repr)
    except (TypeError, ValueError):
        data = repr(arguments).encode(errors="replace")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


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
    if isinstance(value, (bytes, bytearray)):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, dict):
        if _BYTES in value:
            raise ValueError("a result that looks like bytes of ours")
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {_BYTES}:
            return base64.b64decode(value[_BYTES])
        return {name: _restored(item) for name, item in value.items()}
    return [_restored(item) for item in value] if isinstance(value, list) else value
