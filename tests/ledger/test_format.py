"""The format on disk: its names, its declared fields, and runs in tests/fixtures, whose files never change."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from strands_sglang.errors import LedgerError
from strands_sglang.ledger import event as declarations
from strands_sglang.ledger.encoding import encoded, first_link, trajectory_digest
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.summary import run_rows
from strands_sglang.proof import verify
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.recording.event_data import error_of, generation_of
from strands_sglang.runs.recording.replay_log import ReplayLog
from strands_sglang.runs.resume import read_previous_run

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
RUN = FIXTURES / "ledger_format_2"
EXPECTED: dict[str, Any] = orjson.loads((RUN / "expected.json").read_bytes())
EVENTS: list[Event] = [event for record in Ledger(RUN).episodes() for event in record.events]

DATA: dict[EventKind, Any] = {
    EventKind.BEGIN: declarations.BeginData,
    EventKind.CALL: declarations.CallData,
    EventKind.PARTIAL_CALL: declarations.PartialCallData,
    EventKind.CALL_ERROR: declarations.CallErrorData,
    EventKind.TOOL: declarations.ToolData,
    EventKind.TOOL_LIST: declarations.ToolListData,
    EventKind.MODEL: declarations.ModelData,
    EventKind.MODEL_ERROR: declarations.ModelErrorData,
    EventKind.RESUME: declarations.ResumeData,
    EventKind.ROLLBACK: declarations.RollbackData,
    EventKind.REWARD: declarations.RewardData,
    EventKind.END: declarations.EndData,
    EventKind.TEACHER: declarations.TeacherData,
    EventKind.STALENESS: declarations.StalenessData,
}
ARRAYS: dict[EventKind, Any] = {
    EventKind.CALL: declarations.CallArrays,
    EventKind.PARTIAL_CALL: declarations.SampledArrays,
    EventKind.TEACHER: declarations.TeacherArrays,
}


def declared(payload: Any) -> tuple[set[str], set[str]]:
    """Return the fields of a TypedDict, and those of them that are required."""
    fields = {name: str(getattr(kind, "__forward_arg__", kind)) for name, kind in payload.__annotations__.items()}
    return set(fields), {name for name, kind in fields.items() if not kind.startswith("NotRequired")}


def test_every_kind_has_a_payload() -> None:
    assert set(DATA) == set(EventKind)
    table = {line.split("`")[1] for line in (declarations.__doc__ or "").splitlines() if line.startswith("| `")}
    assert table == {kind.name for kind in EventKind}


@pytest.mark.parametrize("names", [EventKind, EndReason, declarations.RollbackCause])
def test_a_name_is_the_same_in_python_and_on_disk(names: Any) -> None:
    assert [one.value for one in names] == [one.name.lower() for one in names]


def test_every_field_is_described() -> None:
    for node in ast.parse(inspect.getsource(declarations)).body:
        if isinstance(node, ast.ClassDef):
            for place, field in enumerate(node.body):
                if isinstance(field, ast.AnnAssign):
                    described = node.body[place + 1 : place + 2]
                    assert described and isinstance(described[0], ast.Expr), ast.unparse(field)


def test_events_on_disk_have_the_declared_fields() -> None:
    for event in EVENTS:
        for found, payload in ((event.data, DATA[event.kind]), (event.arrays, ARRAYS.get(event.kind))):
            fields, required = (set(), set()) if payload is None else declared(payload)
            assert required <= set(found) <= fields, event
        if event.kind in (EventKind.CALL, EventKind.PARTIAL_CALL):
            assert set(event.data["detail"]) <= set(declarations.CallDetail.__annotations__)


def test_certificate_is_unchanged() -> None:
    certificate = verify(RUN)
    assert (certificate.verdict.value, certificate.root) == (EXPECTED["verdict"], EXPECTED["root"])
    assert certificate.events == Counter(kind for one in EXPECTED["episodes"].values() for kind in one["events"])


def test_episodes_are_read_unchanged_and_encoded_to_the_same_bytes() -> None:
    read = {}
    for record in Ledger(RUN).episodes():
        assert not record.problems and record.end is not None and record.reward is not None
        read[record.id] = {
            "events": [event.kind.value for event in record.events],
            "head": record.head.hex(),
            "orphans": record.orphans,
            "end_reason": record.end.data["end_reason"],
            "reward": record.reward.data["value"],
            "trajectories": [trajectory_digest(one) for one in record.trajectories()],
        }
        head = first_link(record.id)
        for event in record.events:
            digest = event.digest
            encoded(event, head)
            assert event.digest == digest
            head = digest
    assert read == EXPECTED["episodes"]


_ADDED_LATER = {
    *(EventKind.TEACHER, EventKind.STALENESS, EventKind.TOOL_LIST, EventKind.MODEL, EventKind.MODEL_ERROR),
}


def test_calls_partial_calls_and_errors_are_rebuilt() -> None:
    for event in EVENTS:
        if event.kind in (EventKind.CALL, EventKind.PARTIAL_CALL):
            generation = generation_of(event)
            assert generation.token_ids == event.arrays["sampled"]
            assert generation.logprobs == event.arrays["logprobs"]
            assert generation.prompt_tokens == event.data["prompt_tokens"]
        elif event.kind is EventKind.CALL_ERROR:
            assert type(error_of(event)).__name__ == event.data["error"]
    assert {event.kind for event in EVENTS} == set(EventKind) - _ADDED_LATER


def test_run_can_be_resumed() -> None:
    before = read_previous_run(RUN)
    assert before is not None and not before.unfinished
    assert {id: (one.end_reason.value, one.reward) for id, one in before.finished.items()} == {
        id: (one["end_reason"], one["reward"]) for id, one in EXPECTED["episodes"].items()
    }
    assert all(episode.messages for episode in before.finished.values())
    record = Ledger(RUN).episode("helper/0")
    assert len(ReplayLog(record)) == ReplayLog(record).turns == len(record.calls)


@pytest.mark.parametrize(
    "read",
    [verify, read_previous_run, run_rows, lambda run: Ledger(run).run, lambda run: list(Ledger(run).episodes())],
    ids=["verify", "resume", "rows", "run", "episodes"],
)
def test_another_format_is_refused_in_one_sentence(read: Callable[[Path], object]) -> None:
    with pytest.raises(LedgerError) as refused:
        read(FIXTURES / "ledger_format_1")
    message = str(refused.value)
    assert "ledger_format_1" in message and message.endswith(
        " has ledger format 1, and this version of strands-sglang reads format 2 only: use the version that wrote it, "
        "or record the run again"
    )
