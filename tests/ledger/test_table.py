"""Tables of trajectories."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strands_sglang.errors import LedgerError, RecordError
from strands_sglang.ledger import table
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.table import SCHEMA, to_arrow, to_dataset, trajectories_of, trajectory_of, write_parquet
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.tokens import Trajectory
from support.ledger.episodes import Recorder, plain_episode, random_episode, resumed_episode, rich_episode
from support.ledger.realistic import Realistic
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, run, steps

ARRAYS = ("token_ids", "loss_mask", "logprobs", "versions", "turns", "origins")


def same(one: Trajectory, other: Trajectory) -> bool:
    """Return whether they are equal bit for bit, types included."""
    return one == other and all(
        getattr(one, name).dtype == getattr(other, name).dtype
        and getattr(one, name).tobytes() == getattr(other, name).tobytes()
        for name in ARRAYS
    )


@pytest.fixture
def recorders(tmp_path: Path) -> dict[str, Recorder]:
    with LedgerWriter(tmp_path) as writer:
        made = [
            rich_episode(writer.write),
            resumed_episode(writer.write),
            *(random_episode(writer.write, random.Random(seed), sample=seed) for seed in range(30)),
            plain_episode(writer.write, end=False),
        ]
    return {recorder.id: recorder for recorder in made}


def test_every_kind_of_table_restores_the_trajectories(
    tmp_path: Path, recorders: dict[str, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_BATCH_TOKENS", 500)  # several batches
    expected = {
        (recorder.id, one.branch): one
        for recorder in recorders.values()
        if recorder.id != "add/0"
        for one in recorder.tree.trajectories()
    }
    assert len(expected) > 60
    path = tmp_path / "run.parquet"
    arrow = to_arrow(Ledger(tmp_path))
    assert write_parquet(tmp_path, path) == len(expected) == arrow.num_rows
    assert len(arrow.column("episode").chunks) > 3 and arrow.schema == SCHEMA
    assert pq.read_table(path).equals(arrow) and pq.read_schema(path).names == SCHEMA.names
    dataset = to_dataset(tmp_path)
    loaded: Any = datasets.load_dataset(
        "parquet", data_files=str(path), cache_dir=str(tmp_path / "cache"), split="train"
    )
    for rows in (
        list(trajectories_of(path)),
        [trajectory_of(row) for row in arrow.to_pylist()],
        [trajectory_of(row) for row in dataset],
        [trajectory_of(row) for row in loaded],
    ):
        assert len(rows) == len(expected)
        assert all(same(row, expected[row.tree, row.branch]) for row in rows)
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []
    negative = expected["rich/0", 6]
    assert np.signbit(negative.logprobs[negative.logprobs == 0.0]).any()  # -0.0 came through all of them


def test_episode_columns(tmp_path: Path, recorders: dict[str, Recorder]) -> None:
    rows = [row for row in to_arrow(tmp_path).to_pylist() if row["episode"] == "rich/0"]
    assert [row["branch"] for row in rows] == [turn.id for turn in recorders["rich/0"].tree.branches()]
    for row in rows:
        assert (row["task_id"], row["sample"], row["reward"], row["end_reason"]) == ("rich", 0, 0.25, "stopped")
        assert orjson.loads(row["task"]) == {"prompt": "What is 3 + 4?", "answer": 7, "data": {}, "id": "rich"}
        assert orjson.loads(row["metrics"])["turns"] == 12
        assert row["num_turns"] == len(row["turn_ids"])
    assert sum(sum(row["loss_mask"]) for row in rows) == sum(
        entry["trained_tokens"] for entry in recorders["rich/0"].events[-1].data["trajectories"]
    )


def test_filter_of_episodes(tmp_path: Path, recorders: dict[str, Recorder]) -> None:
    taken = to_arrow(tmp_path, keep=lambda record: record.id == "add/0")
    (row,) = taken.to_pylist()
    assert (row["end_reason"], row["reward"], row["metrics"]) == (None, 1.0, "{}")
    assert to_arrow(tmp_path, keep=lambda record: False).num_rows == 0
    assert write_parquet(tmp_path, tmp_path / "none.parquet", keep=lambda record: False) == 0
    assert list(trajectories_of(tmp_path / "none.parquet")) == []
    assert len(to_dataset(tmp_path, keep=lambda record: record.id == "rich/0")) == 4


def test_failed_write_leaves_no_file(tmp_path: Path, recorders: dict[str, Recorder]) -> None:
    def fails(record: Any) -> bool:
        if record.id == "random/20":
            raise RuntimeError("no")
        return True

    with pytest.raises(RuntimeError):
        write_parquet(tmp_path, tmp_path / "run.parquet", keep=fails)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger"]


def test_other_tables_are_refused(tmp_path: Path, recorders: dict[str, Recorder]) -> None:
    path = tmp_path / "x.parquet"
    with pytest.raises(LedgerError, match="cannot be read"):
        next(trajectories_of(path))
    path.write_bytes(b"xyz")
    with pytest.raises(LedgerError, match="cannot be read"):
        next(trajectories_of(path))
    pq.write_table(pa.table({"token_ids": [[1]]}), path)
    with pytest.raises(LedgerError, match="no column agent, branch"):
        next(trajectories_of(path))
    row = to_arrow(tmp_path).to_pylist()[0]
    for name, value in [
        ("logprobs", row["logprobs"][1:]),
        *(("loss_mask", [2] * len(row["loss_mask"])), ("token_ids", None), ("token_ids", ["x"])),
        *(("version_names", None), ("branch", 99)),
    ]:
        with pytest.raises(RecordError):
            trajectory_of({**row, name: value})
    with pytest.raises(RecordError):
        trajectory_of({})


def test_memory_of_writing_does_not_grow_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_BATCH_TOKENS", 1 << 14)

    def peak_memory(tasks: int) -> int:
        directory = tmp_path / str(tasks)
        with LedgerWriter(directory) as writer:
            for number in range(tasks):
                Realistic(writer.write, first=number, tasks=1, samples=4, turns=3).record()
                asyncio.run(writer.flushed())  # blocks as small as those of a run
        ledger = Ledger(directory)
        assert len(ledger) == 4 * tasks
        tracemalloc.start()
        assert write_parquet(ledger, directory / "x.parquet") == 4 * tasks
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    small, large = peak_memory(4), peak_memory(16)
    print(f"\nmost memory while writing: {small / 1e6:.1f} MB for 16 episodes, {large / 1e6:.1f} MB for 64")
    assert large < 2 * small


async def test_run_and_ledger_make_the_same_table(tmp_path: Path) -> None:
    made = await run(
        lambda _, model: plain(model), ["one", "two"], PromptEngine(steps(2)), tmp_path,
        reward=lambda episode: 0.5 if episode.task.prompt == "one" else None,
    )  # fmt: skip
    ours, theirs = to_arrow(made), to_arrow(tmp_path)
    assert ours.num_rows == 2 and ours.schema.equals(table.SCHEMA) and ours.column("reward").null_count == 1
    assert to_arrow([]).num_rows == 0
    assert ours.sort_by("episode").equals(theirs.sort_by("episode"))
    with pytest.raises(LedgerError, match=r"no run\.json"):
        to_arrow(tmp_path / "nothing")
