"""The table of a run: from its ledger, and while the run grows."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import decoded_head
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.shard import ShardReader
from strands_sglang.ledger.summary import run_rows
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.viewer.index import RunIndex
from support.ledger.episodes import made_by, plain_episode, reopened_episode, rich_episode
from support.viewer.generated_run import EpisodeGenerator, write_generated_run


def rows_of(index: RunIndex, since: int = 0) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in map(orjson.loads, index.rows_since(since)[1])}


def test_rows_are_those_of_the_command_line(tmp_path: Path) -> None:
    write_generated_run(tmp_path, 6, tokens=40)
    index = RunIndex(tmp_path)
    assert rows_of(index) == {}
    index.refresh()
    assert rows_of(index) == {row["id"]: row for row in run_rows(tmp_path)} and index.version == 6
    index.refresh()
    assert index.version == 6, "nothing is sent twice"


def test_events_that_cannot_be_decoded_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_generated_run(tmp_path, 2, tokens=40)

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


def test_an_episode_that_is_resumed_after_its_end_counts_every_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events written while its row is computed again are added when they are read, not before."""
    events, _ = made_by(reopened_episode)
    resumed = next(at for at, raw in enumerate(events) if decoded_head(raw).kind is EventKind.RESUME)
    with LedgerWriter(tmp_path) as writer:

        def written(part: list[bytes]) -> None:
            for raw in part:
                writer.write(raw)
            asyncio.run(writer.flushed())

        index = RunIndex(tmp_path)
        written(events[:resumed])
        index.refresh()
        assert rows_of(index)["reopened/0"]["end_reason"] is not None
        real = index._rebuilt

        def slowly(*arguments: Any) -> Any:
            written(events[resumed + 1 :])
            return real(*arguments)

        monkeypatch.setattr(index, "_rebuilt", slowly)
        written(events[resumed : resumed + 1])
        index.refresh()
        assert rows_of(index)["reopened/0"]["events"] == resumed + 1
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
    generator = EpisodeGenerator(tmp_path)
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
    index._publish()
    assert not index.complete.is_set()
    assert len(index.record("task-00000/3").events) == 7
    with pytest.raises(LedgerError, match="no episode"):
        index.places("ghost/0", timeout=0.05)


def wait_for_writer(writer: LedgerWriter) -> None:
    asyncio.run(writer.flushed())
    time.sleep(0.12)  # rows are written by the same thread, within its flush interval
