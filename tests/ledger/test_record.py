from __future__ import annotations

import pickle
import random
from datetime import datetime
from typing import Any

import pytest

from ledger.test_reader_chains import record_of
from strands_sglang.errors import LedgerError, RecordError
from strands_sglang.ledger.encoding import first_link, trajectory_summary
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.record import ChainFault, ChainProblem, EpisodeRecord
from support.ledger.episodes import (
    Recorder,
    made_by,
    plain_episode,
    random_episode,
    reopened_episode,
    resumed_episode,
    rich_episode,
)


def test_tree_is_restored() -> None:
    recorders = [make(lambda data: None) for make in (plain_episode, rich_episode, resumed_episode, reopened_episode)]
    recorders += [random_episode(lambda data: None, random.Random(seed)) for seed in range(60)]
    for recorder in recorders:
        record = EpisodeRecord(recorder.id, tuple(recorder.events))
        assert record.tree().to_dict() == recorder.tree.to_dict()
        assert record.trajectories() == recorder.tree.trajectories()
        assert record.end is not None
        assert [trajectory_summary(one) for one in record.trajectories()] == record.end.data["trajectories"]
        assert [call.data["turn"] for call in record.calls] == [turn.id for turn in recorder.tree]


def test_events_by_kind() -> None:
    events, recorder = made_by(rich_episode)
    record = record_of(events)
    assert (record.begin, record.end, record.finished) == (recorder.events[0], recorder.events[-1], True)
    assert record.reward is not None and record.reward.data["value"] == 0.25
    assert [event.data["id"] for event in record.tools] == ["call-a", "call-sub", "call-b", "call-c"]
    assert [event.data["error"] for event in record.call_errors] == ["EngineUnavailableError"]
    assert len(record.calls) == len(record.tree()) == 12
    assert [turn.id for turn in record.tree() if turn.rejected] == [2]
    (experts,) = [call.arrays["routed_experts"] for call in record.calls if "routed_experts" in call.arrays]
    assert experts.tobytes() == bytes(range(128))
    assert pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize(
    ("recorded", "time"),
    [("2026-03-01T23:59:58.5", datetime(2026, 3, 1, 23, 59, 58, 500_000)), ("today", None), (5, None), ([[]], None)],
)
def test_time_of_the_template(recorded: Any, time: datetime | None) -> None:
    _, recorder = made_by(plain_episode)
    record = EpisodeRecord(recorder.id, tuple(recorder.events))
    assert record.template_time is None
    record.events[0].data["template_time"] = recorded
    assert record.template_time == time


def test_no_turn_is_rejected_before_the_end() -> None:
    events, _ = made_by(rich_episode)
    record = record_of(events[:-1])
    assert record.end is None and not record.finished and record.reward is not None
    assert not any(turn.rejected for turn in record.tree())


def test_last_end_of_a_reopened_episode_counts() -> None:
    events, recorder = made_by(reopened_episode)
    seen = []
    for count in range(1, len(events) + 1):
        record = record_of(events[:count])
        last = record.events[-1].kind
        ended = None if record.end is None else record.end.data["end_reason"]
        seen += [(ended, [turn.id for turn in record.tree() if turn.rejected])] if last is EventKind.END else []
        assert record.finished is (last is EventKind.END) and not record.problems
        # A score counts until the episode is resumed.
        kinds = [event.kind for event in record.events]
        later = kinds[len(kinds) - kinds[::-1].index(EventKind.RESUME) :] if EventKind.RESUME in kinds else kinds
        assert (record.reward is not None) is (EventKind.REWARD in later)
    assert seen == [("engine_error", [1]), ("not_needed", []), ("answered", [])]
    record = record_of(events)
    assert record.reward is not None and record.reward.data["value"] == 1.0 and record.epoch == 2
    assert record.tree().to_dict() == recorder.tree.to_dict()
    # A score before a resume is not the score of an end without one.
    recorder = reopened_episode(lambda data: None)
    recorder.resume()
    recorder.end("agent_error")
    assert EpisodeRecord(recorder.id, tuple(recorder.events)).reward is None


def test_problem_is_one_line() -> None:
    problem = ChainProblem(ChainFault.BROKEN, "a\n\x1b[2Jb/0", 3, "x\u202e.ledger", 7, "not\rright")
    assert str(problem) == r"x\u202e.ledger, block at byte 7, event 3 of a\n\x1b[2Jb/0: not\rright"


def test_calls_exclude_rolled_back_turns() -> None:
    events: list[bytes] = []
    recorder = Recorder(events.append)
    first = recorder.call(None, context=[1], sampled=[2])
    recorder.call(first, context=[3], sampled=[4])
    recorder.rollback(1)
    again = recorder.call(recorder.tree[0], context=[5], sampled=[6])
    assert again.id == 1
    recorder.rollback(0)
    assert record_of(events).calls == []
    recorder.call(None, context=[7], sampled=[8])
    record = record_of(events)
    assert [call.number for call in record.calls] == [6]
    tree = record.tree()
    assert list(tree.ids(tree[0])) == [7, 8]


def test_record_without_events() -> None:
    record = EpisodeRecord("a/0", ())
    assert (record.begin, record.end, record.reward, record.calls, record.next_number) == (None, None, None, [], 0)
    assert record.head == first_link("a/0") and not record.tree()


def test_malformed_calls_raise() -> None:
    events: list[bytes] = []
    recorder = Recorder(events.append)
    turn = recorder.call(None, context=[1], sampled=[2])
    recorder.call(turn, context=[3], sampled=[4])
    without = EpisodeRecord(recorder.id, tuple(event for event in recorder.events if event.data.get("turn") != 0))
    with pytest.raises(RecordError):
        without.tree()
    recorder.append(EventKind.CALL, {"turn": 2})
    with pytest.raises(LedgerError, match="has no 'parent'"):
        record_of(events).tree()
