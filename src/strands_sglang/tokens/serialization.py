"""Turns as plain data that is written as JSON and read back exactly.

Invariant: reading what was written returns the same turns, logprobs bit for bit. Anything that does not conform to the
format is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from strands_sglang.errors import CountMismatchError, RecordError, TreeError
from strands_sglang.tokens.arrays import copied_spans, logprob_array, token_array
from strands_sglang.tokens.images import copied_images
from strands_sglang.tokens.kept_sets import KeptSets
from strands_sglang.tokens.teacher import TeacherLogprobs
from strands_sglang.tokens.turn import Join, Turn, TurnPurpose, TurnStatus

RECORD_FORMAT = 2  # version of this format; a change that an older reader would misread gets a new number

_FIELDS = [field.name for field in fields(Turn)]
_OPTIONAL = {"images", "kept", "teacher"}  # written only if the turn has any: other turns read as before
_PLAIN = (str, int, float, bool)
_KINDS: dict[str, tuple[type, ...]] = {
    "id": (int,),
    "parent": (int, type(None)),
    "start": (int,),
    "finish_reason": (str,),
    "forked_from": (int, type(None)),
    "detail": (dict,),
}


def record_of(tree: str, turns: Iterable[Turn], main: int | None) -> dict[str, Any]:
    """Return a tree as plain data: its turns in order of their ids, and `TokenTree.main`."""
    return {"format": RECORD_FORMAT, "id": tree, "turns": [_written(turn) for turn in turns], "main": main}


def read_record(data: Mapping[str, Any]) -> tuple[str, list[Turn], int | None]:
    """Return id, turns and main turn of a serialized tree, each checked alone; RecordError if that fails."""
    if not isinstance(data, Mapping) or data.get("format") != RECORD_FORMAT:
        found = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        raise RecordError(f"the format of a recorded tree must be {RECORD_FORMAT}, got {found!r}")
    tree, turns, main = data.get("id"), data.get("turns"), data.get("main")
    if not isinstance(tree, str) or not isinstance(turns, list):
        raise RecordError("a recorded tree must have an id and a list of turns")
    if main is not None and (type(main) is not int or not -1 <= main < len(turns)):
        raise RecordError(f"main must be the id of a turn, -1 or None, got {main!r:.50}")
    return tree, [_read(number, turn) for number, turn in enumerate(turns)], main


def plain_copy(value: Any) -> Any:
    """Return a copy of plain JSON data (TreeError for anything else): tuples become lists, enums their values."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):
        return [plain_copy(item) for item in value]
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {key: plain_copy(item) for key, item in value.items()}
    raise TreeError(f"a value must be plain JSON data, got {value!r:.100}")


def _written(turn: Turn) -> dict[str, Any]:
    data: dict[str, Any] = {name: getattr(turn, name) for name in _FIELDS}
    for name in ("closing", "context", "sampled", "logprobs"):
        data[name] = data[name].tolist()
    for name in ("versions", "caller", "purpose", "status", "join", "detail"):
        data[name] = plain_copy(data[name])
    if turn.images:
        data["images"] = plain_copy(turn.images)
    else:
        del data["images"]
    for name, sets in (("kept", turn.kept), ("teacher", turn.teacher)):
        if sets is not None:
            data[name] = sets.to_dict()
        else:
            del data[name]
    return data


def _read(number: int, data: Any) -> Turn:
    if not isinstance(data, Mapping) or set(data) | _OPTIONAL != set(_FIELDS):
        wrong = (
            sorted(set(_FIELDS).symmetric_difference(data) - _OPTIONAL)
            if isinstance(data, Mapping)
            else repr(data)[:100]
        )
        raise RecordError(f"turn {number} has missing or unknown fields: {wrong}")
    try:
        values = dict(data)
        for name in ("closing", "context", "sampled"):
            values[name] = token_array(values[name], name)
        values["images"] = copied_images(values.get("images", ()), values["context"])
        if values.get("kept") is not None:
            values["kept"] = KeptSets.from_dict(values["kept"])
            values["kept"].check_members(values["sampled"])
        if values.get("teacher") is not None:
            values["teacher"] = TeacherLogprobs.from_dict(values["teacher"])
        values["logprobs"] = logprob_array(values["logprobs"])
        values["versions"] = copied_spans(values["versions"])
        values["purpose"] = TurnPurpose(values["purpose"])
        values["status"] = TurnStatus(values["status"])
        values["join"] = Join(values["join"])
        values["caller"] = None if values["caller"] is None else tuple(values["caller"])
        values["detail"] = plain_copy(values["detail"])
        for name, kinds in _KINDS.items():
            if type(values[name]) not in kinds:
                raise TypeError(f"{name} has the wrong type: {values[name]!r:.100}")
        return Turn(**values)
    except (TypeError, ValueError, TreeError, CountMismatchError) as error:
        raise RecordError(f"turn {number} is inconsistent: {error}") from error
