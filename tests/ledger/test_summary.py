"""Summary rows: what a run writes equals what is computed from its ledger, and damage is harmless."""

from __future__ import annotations

from pathlib import Path

import orjson

from strands_sglang.ledger.encoding import decoded, decoded_head
from strands_sglang.ledger.summary import SummaryBuilder, checked_row, read_rows, row_line
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.proof.verify import verify
from support.ledger.episodes import made_by, plain_episode, reopened_episode, resumed_episode, rich_episode


def built(events: list[bytes], id: str) -> dict[str, object]:
    builder = SummaryBuilder(id)
    for raw in events:
        builder.add(decoded_head(raw))
    return dict(builder.row())


def test_head_equals_the_whole_event() -> None:
    events, _ = made_by(rich_episode)
    for raw in events:
        event, head = decoded(raw)[0], decoded_head(raw)
        assert head[:5] == (event.episode, event.epoch, event.number, event.kind, event.data)
        assert head.counts == {name: len(values) for name, values in event.arrays.items()}


def test_row_of_a_finished_episode() -> None:
    events, _ = made_by(plain_episode, sample=2)
    row = built(events, "add/2")
    assert row["task_id"] == "add" and row["sample"] == 2 and row["reward"] == 1.0 and row["end_reason"] == "answered"
    assert (row["turns"], row["tokens"], row["sampled_tokens"], row["branches"]) == (3, 60, 12, 1)
    assert row["versions"] == ["step-1"] and row["prompt"] == "What is 3 + 4?" and row["text"] == "It is 7."
    assert row["events"] == len(events)


def test_row_of_a_running_episode_counts_its_calls() -> None:
    events, recorder = made_by(plain_episode, end=False)
    row = built(events[:-1], "add/0")  # without the reward
    assert row["end_reason"] is None and row["reward"] is None
    assert row["turns"] == 3 and row["sampled_tokens"] == 12 and row["tool_calls"] == 2
    assert row["tokens"] == sum(len(turn) for turn in recorder.tree.turns)
    assert row["engine_seconds"] == 3 * 12.5 / 1000


def test_events_of_a_process_that_lost_the_episode_do_not_count() -> None:
    events, recorder = made_by(resumed_episode)
    row = built(events, "resumed/0")
    assert row["turns"] == len(recorder.tree) and row["end_reason"] == "answered" and row["epoch"] == 1


def test_reopened_episode_has_its_last_reward() -> None:
    events, _ = made_by(reopened_episode)
    assert built(events, "reopened/0")["reward"] == 1.0
    resumed = next(at for at, raw in enumerate(events) if decoded_head(raw).kind.value == "resume")
    row = built(events[: resumed + 1], "reopened/0")
    assert row["end_reason"] is None and row["reward"] is None


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good = row_line(checked_row("a/0", {"turns": 3, "versions": ["1", 2, None], "reward": "high"}))
    path.write_bytes(b"\xff\n{}\n[1]\n" + good + b'{"id": 3}\n' + b'{"id": "b/0", "tur')
    rows, offset = read_rows(path)
    assert [row["id"] for row in rows] == ["a/0"]
    assert rows[0]["turns"] == 3 and rows[0]["versions"] == ["1", None] and rows[0]["reward"] is None
    path.write_bytes(path.read_bytes() + b'ns": 7}\n')
    more, _ = read_rows(path, offset)
    assert [(row["id"], row["turns"]) for row in more] == [("b/0", 7)]


def test_lines_too_long_for_a_row_are_skipped_without_being_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    whole = row_line(checked_row("a/0", {"reward": 1.0})) + b"[" * 300_000 + b"\n" + row_line(checked_row("a/1", {}))
    path.write_bytes(whole + b'{"id":"a/2"')
    rows, end = read_rows(path)
    assert [row["id"] for row in rows] == ["a/0", "a/1"] and end == len(whole), "an incomplete line is read later"
    path.write_bytes(whole + b'{"id":"a/2"}\n')
    assert [row["id"] for row in read_rows(path, end)[0]] == ["a/2"]


def test_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "none.jsonl") == ([], 0)


def test_a_lone_surrogate_is_written() -> None:
    line = row_line(checked_row("a/0", {"text": "\ud800"}))
    assert orjson.loads(line)["text"] == "\\ud800"


def test_rows_do_not_change_the_verdict(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        plain_episode(writer.write)
        writer.write_summary(checked_row("add/0", {}))
    before = verify(tmp_path).to_dict()
    assert len(list((tmp_path / "index").iterdir())) == 1
    (tmp_path / "index" / "other.jsonl").write_text("nonsense")
    assert verify(tmp_path).to_dict() == before


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "index").write_text("a file where the folder should be")
    with LedgerWriter(tmp_path) as writer:
        plain_episode(writer.write)
        writer.write_summary(checked_row("add/0", {}))
    assert sum(verify(tmp_path).episodes.values()) == 1
