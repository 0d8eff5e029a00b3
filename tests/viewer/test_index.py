"""The table of a run: from side rows, from the ledger alone, and while the run grows."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import decoded_head
from strands_sglang.ledger.shard import ShardReader
from strands_sglang.ledger.summary import checked_row, row_line, run_rows
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.viewer.index import RunIndex
from support.ledger.episodes import plain_episode, rich_episode
from support.viewer.generated_run import EpisodeGenerator, write_generated_run


def rows_of(index: RunIndex, since: int = 0) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in map(orjson.loads, index.rows_since(since)[1])}


def test_side_rows_are_there_before_the_ledger_is_read(tmp_path: Path) -> None:
    write_generated_run(tmp_path, 12, tokens=40)
    index = RunIndex(tmp_path)
    assert len(rows_of(index)) == 12 and not index.complete.is_set()
    before = index.version
    index.refresh()
    assert index.version == before, "the ledger agrees with the side rows"


def test_rows_are_computed_without_side_rows(tmp_path: Path) -> None:
    write_generated_run(tmp_path, 12, tokens=40)
    with_rows = rows_of(RunIndex(tmp_path))
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    index = RunIndex(tmp_path)
    assert rows_of(index) == {}
    index.refresh()
    assert rows_of(index) == with_rows


def test_a_row_that_disagrees_with_the_ledger_is_computed_again(tmp_path: Path) -> None:
    write_generated_run(tmp_path, 3, tokens=40)
    known = rows_of(RunIndex(tmp_path))
    lie = checked_row("task-00000/1", {**known["task-00000/1"], "reward": 99.0, "events": 3, "epoch": 5})
    ghost = checked_row("ghost/0", {"events": 4})
    (tmp_path / "index" / "lies.jsonl").write_bytes(row_line(lie) + row_line(ghost))
    index = RunIndex(tmp_path)
    assert rows_of(index)["task-00000/1"]["reward"] == 99.0
    version = index.version
    index.refresh()
    changed = rows_of(index, version)
    assert changed["task-00000/1"]["reward"] == known["task-00000/1"]["reward"]
    assert changed["ghost/0"] == {"id": "ghost/0", "gone": True}
    assert set(changed) == {"task-00000/1", "ghost/0"}


def test_rows_are_those_of_the_command_line(tmp_path: Path) -> None:
    """`RunIndex` and `run_rows` decide in the same way which row of an episode counts."""
    write_generated_run(tmp_path, 6, tokens=40)
    known = rows_of(RunIndex(tmp_path))
    lines = []
    for number, (id, row) in enumerate(known.items()):
        marked = {**row, "text": f"marked {number}"}
        if number == 1:  # the same events, written later: replaces the row before it
            lines.append(row_line(checked_row(id, marked)))
        elif number == 2:  # covers more than the ledger has
            lines.append(row_line(checked_row(id, {**marked, "events": 99})))
        elif number == 3:  # covers less than another row
            lines.append(row_line(checked_row(id, {**marked, "events": 2})))
    lines.append(row_line(checked_row("ghost/0", {"events": 4})))
    (tmp_path / "index" / "zz.jsonl").write_bytes(b"".join(lines))
    index = RunIndex(tmp_path)
    index.refresh()
    expected = {row["id"]: row for row in run_rows(tmp_path)}
    assert {id: row for id, row in rows_of(index).items() if "gone" not in row} == expected
    texts = [row["text"] for row in expected.values()]
    assert texts[1] == "marked 1" and not any(text.startswith("marked") for text in (*texts[:1], *texts[2:]))


def test_events_that_cannot_be_decoded_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_generated_run(tmp_path, 2, tokens=40, index=False)

    def damaged(raw: bytes) -> Any:
        head = decoded_head(raw)
        if head.kind.value == "reward":
            raise LedgerError("damaged")
        return head

    monkeypatch.setattr("strands_sglang.ledger.summary.decoded_head", damaged)
    index = RunIndex(tmp_path)
    index.refresh()
    assert rows_of(index) == {row["id"]: row for row in run_rows(tmp_path)}
    assert {row["events"] for row in rows_of(index).values()} == {7}


def test_a_row_that_is_computed_again_counts_every_event_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events written between two looks at the ledger are added when they are read, not before."""
    generator = EpisodeGenerator(tmp_path)
    turns = generator.turns(0, tokens=40)
    next(turns)
    wait_for_writer(generator.writer)
    lie = checked_row("task-00000/0", {"events": 9})
    (tmp_path / "index").mkdir(exist_ok=True)
    (tmp_path / "index" / "lies.jsonl").write_bytes(row_line(lie))
    index = RunIndex(tmp_path)
    real = index._rebuilt

    def slowly(*arguments: Any) -> Any:
        next(turns)
        wait_for_writer(generator.writer)
        return real(*arguments)

    monkeypatch.setattr(index, "_rebuilt", slowly)
    index.refresh()
    assert rows_of(index)["task-00000/0"]["turns"] == 1
    index.refresh()
    assert rows_of(index)["task-00000/0"]["turns"] == 2
    assert list(turns) == [2, 3]
    generator.close()
    index.refresh()
    assert rows_of(index) == {row["id"]: row for row in run_rows(tmp_path)}


def test_a_growing_run_is_followed(tmp_path: Path) -> None:
    generator = EpisodeGenerator(tmp_path)
    generator.write(0, tokens=40, finish=False)
    wait_for_writer(generator.writer)
    index = RunIndex(tmp_path)
    index.refresh()
    version = index.version
    assert rows_of(index)["task-00000/0"]["end_reason"] is None
    generator.write(1, tokens=40)
    wait_for_writer(generator.writer)
    index.refresh()
    assert set(rows_of(index, version)) == {"task-00000/1"}, "only what changed is sent"
    assert rows_of(index)["task-00000/1"]["end_reason"] is not None
    generator.close()
    index.refresh()
    assert len(index.ids()) == 2


def test_many_sections_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.ledger.shard.SECTION_BYTES", 400)
    generator = EpisodeGenerator(tmp_path, index=False)
    index = RunIndex(tmp_path)
    for number in range(8):
        generator.write(number, tokens=200)
        wait_for_writer(generator.writer)
        index.refresh()
        assert len(index.ids()) == number + 1
    generator.close()
    index.refresh()
    fresh = RunIndex(tmp_path)
    fresh.refresh()
    assert rows_of(index) == rows_of(fresh)
    assert all(len(index.record(id).events) == 7 for id in index.ids())


def test_record_is_that_of_the_ledger(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        plain_episode(writer.write)
        recorder = rich_episode(writer.write)
    index = RunIndex(tmp_path)
    index.refresh()
    record = index.record("rich/0")
    assert [event.digest for event in record.events] == [event.digest for event in recorder.events]
    with pytest.raises(LedgerError, match="no episode 'none/0'"):
        index.record("none/0")


def test_an_episode_is_found_before_the_whole_ledger_was_read(tmp_path: Path) -> None:
    write_generated_run(tmp_path, 12, tokens=40)
    index = RunIndex(tmp_path)
    [path] = (tmp_path / "ledger").iterdir()
    for block in ShardReader(path):
        for raw in block.events:
            index._add(raw, path.name, block.section)
    assert not index.complete.is_set()
    assert len(index.record("task-00000/3").events) == 7
    with pytest.raises(LedgerError, match="no episode"):
        index.places("ghost/0", timeout=0.05)


def wait_for_writer(writer: LedgerWriter) -> None:
    asyncio.run(writer.flushed())
    time.sleep(0.12)  # rows are written by the same thread, within its flush interval
