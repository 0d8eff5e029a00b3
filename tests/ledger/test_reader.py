from __future__ import annotations

import asyncio
import random
import tracemalloc
from pathlib import Path

import pytest

from ledger.test_shard import write
from strands_sglang.errors import LedgerError
from strands_sglang.ledger import shard as shard_module
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import ChainFault
from strands_sglang.ledger.run_dir import shard_paths, write_run
from strands_sglang.ledger.shard import ShardVerdict
from strands_sglang.ledger.writer import LedgerWriter
from support.ledger.episodes import made_by, plain_episode, random_episode, resumed_episode, rich_episode


def test_run_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "SECTION_BYTES", 4000)
    about = write_run(tmp_path, {"samples_per_task": 4, "run": "ab" * 16})
    recorders = {}
    with LedgerWriter(tmp_path, worker="0") as first, LedgerWriter(tmp_path, worker="1", shard_bytes=9000) as second:
        for recorder in (
            rich_episode(first.write),
            resumed_episode(second.write, first.write),
            *(plain_episode(second.write, sample=sample, end=sample != 3) for sample in range(4)),
            *(random_episode(first.write, random.Random(seed), sample=seed) for seed in range(40)),
        ):
            recorders[recorder.id] = recorder
    ledger = Ledger(tmp_path)
    assert ledger.run == about
    assert [state.path for state in ledger.files] == shard_paths(tmp_path)
    assert all(state.verdict is ShardVerdict.WHOLE for state in ledger.files)
    assert sorted(ledger.ids()) == sorted(recorders) and len(ledger) == len(recorders) == 46
    seen = set()
    for record in ledger.episodes():
        recorder = recorders[record.id]
        assert record.events == tuple(recorder.events) and not record.problems
        assert record.finished == (record.id != "add/3")
        assert record.tree().to_dict() == recorder.tree.to_dict() or not record.finished
        assert ledger.episode(record.id) == record
        assert record.id in ledger
        seen.add(record.id)
    assert seen == set(recorders) and not ledger.problems
    assert "none/0" not in ledger
    with pytest.raises(LedgerError, match="no episode 'none/0'"):
        ledger.episode("none/0")


def test_empty_directory(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "none")
    assert (ledger.files, ledger.ids(), list(ledger.episodes()), len(ledger)) == ([], [], [], 0)
    with pytest.raises(LedgerError, match=r"no run\.json"):
        _ = ledger.run


async def test_ledger_is_a_snapshot(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        recorder = plain_episode(writer.write, end=False)
        await writer.flushed()
        ledger = Ledger(tmp_path)
        assert ledger.ids() == ["add/0"] and not ledger.files[0].closed
        recorder.end()
        plain_episode(writer.write, sample=1)
        await writer.flushed()
        (record,) = ledger.episodes()
        assert not record.finished and ledger.episode("add/0") == record
        assert [record.finished for record in Ledger(tmp_path).episodes()] == [True, True]


def test_files_that_shrink_while_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    events: list[bytes] = []
    for sample in range(3):
        plain_episode(events.append, sample=sample)
    path = tmp_path / "ledger" / "0.ledger"
    write(path, [[event] for event in events])
    ledger = Ledger(tmp_path)
    assert len(ledger) == 3
    write(path, [[event] for event in events[:20]])
    records = list(ledger.episodes())
    assert [record.next_number for record in records] == [8, 8, 4]


def test_truncated_file_yields_a_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncation is neither a problem nor damage: events are missing, nothing else."""
    monkeypatch.setattr(shard_module, "SECTION_BYTES", 900)
    (tmp_path / "ledger").mkdir()
    path, events = tmp_path / "ledger" / "0.ledger", list[bytes]()
    recorder = resumed_episode(events.append)
    plain = plain_episode(events.append, turns=2)
    write(path, [events[at : at + 3] for at in range(0, len(events), 3)])
    whole = path.read_bytes()
    for cut in range(len(whole), -1, -1):
        path.open("r+b").truncate(cut)
        ledger = Ledger(tmp_path)
        assert ledger.files[0].verdict in (ShardVerdict.WHOLE, ShardVerdict.TORN)
        for record in ledger.episodes():
            made = recorder if record.id == recorder.id else plain
            assert not record.problems
            if record.epoch == made.chain.epoch:
                assert record.events == tuple(made.events[: record.next_number])


def test_damage_is_reported_with_its_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "SECTION_BYTES", 1)  # each block can be read alone
    (tmp_path / "ledger").mkdir()
    path, events = tmp_path / "ledger" / "0.ledger", list[bytes]()
    recorder = plain_episode(events.append)
    write(path, [[event] for event in events])
    whole = bytearray(path.read_bytes())
    marks = [at for at in range(len(whole)) if whole.startswith(shard_module.MARK, at)]
    whole[marks[4] + 40] ^= 1
    path.write_bytes(whole)
    ledger = Ledger(tmp_path)
    (state,) = ledger.files
    assert (state.verdict, state.at) == (ShardVerdict.DAMAGED, marks[4] + len(shard_module.MARK))
    (record,) = ledger.episodes()
    assert record.events == tuple(recorder.events[:4])
    (problem,) = record.problems
    assert (problem.kind, problem.number, problem.shard) == (ChainFault.MISSING, 5, "0.ledger")
    assert problem.byte == marks[5] + len(shard_module.MARK)


def test_event_without_an_episode_id(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    events, _ = made_by(plain_episode)
    without_episode = (2).to_bytes(4, "little") + bytes(4) + b"{}" + bytes(16)
    write(tmp_path / "ledger" / "0.ledger", [[*events[:4], without_episode], events[4:]])
    ledger = Ledger(tmp_path)
    (problem,) = ledger.problems
    assert (problem.kind, problem.episode, problem.number) == (ChainFault.UNREADABLE, "", None)
    (record,) = ledger.episodes()
    assert record.finished and not record.problems


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    def peak_memory(episodes: int) -> int:
        directory = tmp_path / str(episodes)
        with LedgerWriter(directory) as writer:
            for number in range(episodes):
                random_episode(writer.write, random.Random(number % 7), sample=number)
                asyncio.run(writer.flushed())  # blocks as small as those of a run
        ledger = Ledger(directory)
        tracemalloc.start()
        assert sum(1 for record in ledger.episodes() if record.finished) == episodes
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    small, large = peak_memory(50), peak_memory(250)
    print(f"\nmost memory while reading: {small / 1e6:.1f} MB for 50 episodes, {large / 1e6:.1f} MB for 250")
    assert large < 2 * small + 500_000
