"""The schema declares what is on disk: every field that a run writes, and no required field that it does not write."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from ledger.test_format_1 import events_of
from strands_sglang.ledger import schema
from strands_sglang.ledger.event import EventKind

DATA: dict[EventKind, Any] = {
    EventKind.BEGIN: schema.BeginData,
    EventKind.CALL: schema.CallData,
    EventKind.PARTIAL_CALL: schema.PartialCallData,
    EventKind.CALL_ERROR: schema.CallErrorData,
    EventKind.TOOL: schema.ToolData,
    EventKind.RESUME: schema.ResumeData,
    EventKind.ROLLBACK: schema.RollbackData,
    EventKind.REWARD: schema.RewardData,
    EventKind.END: schema.EndData,
    EventKind.TEACHER: schema.TeacherData,
}
ARRAYS: dict[EventKind, Any] = {
    EventKind.CALL: schema.CallArrays,
    EventKind.PARTIAL_CALL: schema.SampledArrays,
    EventKind.TEACHER: schema.TeacherArrays,
}


def declared(payload: Any) -> tuple[set[str], set[str]]:
    """Return the fields of a TypedDict, and those of them that are required."""
    fields = {name: str(getattr(kind, "__forward_arg__", kind)) for name, kind in payload.__annotations__.items()}
    return set(fields), {name for name, kind in fields.items() if not kind.startswith("NotRequired")}


def test_every_kind_has_a_payload() -> None:
    assert set(DATA) == set(EventKind)
    table = {line.split("`")[1] for line in (schema.__doc__ or "").splitlines() if line.startswith("| `")}
    assert table == {kind.name for kind in EventKind}


def test_events_on_disk_have_the_declared_fields() -> None:
    for event in events_of("sealed"):
        for found, payload in ((event.data, DATA[event.kind]), (event.arrays, ARRAYS.get(event.kind))):
            fields, required = (set(), set()) if payload is None else declared(payload)
            assert required <= set(found) <= fields, event
        if event.kind in (EventKind.CALL, EventKind.PARTIAL_CALL):
            assert set(event.data["detail"]) <= set(schema.CallDetail.__annotations__)


def test_names_on_disk_never_change() -> None:
    assert {kind.name: kind.value for kind in EventKind} == {
        "BEGIN": "begin",
        "CALL": "call",
        "PARTIAL_CALL": "part",
        "CALL_ERROR": "fault",
        "TOOL": "tool",
        "RESUME": "resume",
        "ROLLBACK": "cut",
        "REWARD": "reward",
        "END": "end",
        "TEACHER": "teacher",
    }


def test_every_field_is_described() -> None:
    for node in ast.parse(inspect.getsource(schema)).body:
        if isinstance(node, ast.ClassDef):
            for place, field in enumerate(node.body):
                if isinstance(field, ast.AnnAssign):
                    described = node.body[place + 1 : place + 2]
                    assert described and isinstance(described[0], ast.Expr), ast.unparse(field)
