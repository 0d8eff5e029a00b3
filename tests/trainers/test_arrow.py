"""A run in memory and its ledger make the same table."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from rollout.kinds import plain
from rollout.scripts import PromptEngine, run, steps
from strands_sglang.ledger import table
from strands_sglang.trainers import arrow
from strands_sglang.trainers.arrow import to_arrow
from trainers.grown_episodes import episode_of, grown


async def test_the_table_of_a_run_is_that_of_its_ledger(tmp_path: Path) -> None:
    made = await run(
        lambda _, model: plain(model), ["one", "two"], PromptEngine(steps(2)), tmp_path, reward=lambda episode: 0.5
    )
    ours, theirs = to_arrow(made), table.to_arrow(tmp_path)
    assert ours.num_rows == 2 and ours.schema.equals(table.SCHEMA)
    assert ours.sort_by("episode").equals(theirs.sort_by("episode"))
    assert to_arrow(tmp_path).equals(theirs)


def test_rows_give_back_their_trajectories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_BATCH_ROWS", 7)  # several batches
    rng = random.Random(2)
    episodes = [episode_of(grown(rng), reward=rng.choice([None, 0.1])) for _ in range(50)]
    expected = [one for episode in episodes for one in episode.trajectories]
    found = to_arrow(iter(episodes))
    assert [table.trajectory_of(row) for row in found.to_pylist()] == expected and len(expected) > 30
    assert found.column("reward").null_count > 0
    assert isinstance(to_arrow([]), pa.Table) and to_arrow([]).num_rows == 0
