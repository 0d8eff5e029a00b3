"""A ledger of format 1 still reads and verifies: tests/fixtures/ledger_format_1, whose files never change."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from strands_sglang.ledger.event import Event, EventKind, encoded, first_link
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.schema import trajectory_digest
from strands_sglang.proof import verify
from strands_sglang.runs.recording.event_data import error_of, generation_of
from strands_sglang.runs.recording.replay_log import ReplayLog
from strands_sglang.runs.resume import read_previous_run

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "ledger_format_1"
EXPECTED: dict[str, Any] = orjson.loads((FIXTURE / "expected.json").read_bytes())
RUNS = sorted(EXPECTED)


def events_of(run: str) -> list[Event]:
    return [event for record in Ledger(FIXTURE / run).episodes() for event in record.events]


@pytest.mark.parametrize("run", RUNS)
def test_certificate_is_unchanged(run: str) -> None:
    certificate, expected = verify(FIXTURE / run), EXPECTED[run]
    assert (certificate.verdict.value, certificate.root) == (expected["verdict"], expected["root"])
    kinds = Counter(kind for episode in expected["episodes"].values() for kind in episode["events"])
    assert certificate.events == kinds


@pytest.mark.parametrize("run", RUNS)
def test_episodes_are_read_unchanged(run: str) -> None:
    read = {}
    for record in Ledger(FIXTURE / run).episodes():
        assert not record.problems
        read[record.id] = {
            "events": [event.kind.value for event in record.events],
            "head": record.head.hex(),
            "orphans": record.orphans,
            "ended": None if record.end is None else record.end.data["ended"],
            "reward": None if record.reward is None else record.reward.data["value"],
            "trajectories": [trajectory_digest(one) for one in record.trajectories()],
        }
    assert read == EXPECTED[run]["episodes"]


@pytest.mark.parametrize("run", RUNS)
def test_events_are_encoded_to_the_same_bytes(run: str) -> None:
    for record in Ledger(FIXTURE / run).episodes():
        head = first_link(record.id)
        for event in record.events:
            digest = event.digest
            encoded(event, head)
            assert event.digest == digest
            head = digest


def test_calls_partial_calls_and_errors_are_rebuilt() -> None:
    events = events_of("sealed")
    for event in events:
        if event.kind.value in ("call", "part"):
            generation = generation_of(event)
            assert generation.token_ids == event.arrays["sampled"]
            assert generation.logprobs == event.arrays["logprobs"]
            assert generation.prompt_tokens == event.data["sent"]
        elif event.kind.value == "fault":
            assert type(error_of(event)).__name__ == event.data["error"]
    assert {event.kind for event in events} == set(EventKind) - {EventKind.TEACHER}  # which is newer


def test_run_can_be_resumed() -> None:
    before = read_previous_run(FIXTURE / "sealed")
    assert before is not None and not before.unfinished
    episodes = EXPECTED["sealed"]["episodes"]
    assert {id: (one.end_reason.value, one.reward) for id, one in before.finished.items()} == {
        id: (one["ended"], one["reward"]) for id, one in episodes.items()
    }
    assert all(episode.messages for episode in before.finished.values())
    record = Ledger(FIXTURE / "killed").episode("unfinished/0")
    assert len(ReplayLog(record)) == 3 and ReplayLog(record).turns == 3
