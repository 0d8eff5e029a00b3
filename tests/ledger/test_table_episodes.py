"""A run in memory and its ledger make the same table."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from strands_sglang.errors import LedgerError
from strands_sglang.ledger import table
from strands_sglang.ledger.table import to_arrow
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, run, steps
from support.trainers.grown_episodes import episode_of, grown


async def test_run_and_ledger_make_the_same_table(tmp_path: Path) -> None:
    made = await run(
        lambda _, model: plain(model), ["one", "two"], PromptEngine(steps(2)), tmp_path, reward=lambda episode: 0.5
    )
    ours, theirs = to_arrow(made), to_arrow(tmp_path)
    assert ours.num_rows == 2 and ours.schema.equals(table.SCHEMA)
    assert ours.sort_by("episode").equals(theirs.sort_by("episode"))
    with pytest.raises(LedgerError, match=r"no run\.json"):
        to_arrow(tmp_path / "nothing")


def test_rows_restore_their_trajectories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_BATCH_TOKENS", 100)  # several batches
    rng = random.Random(2)
    episodes = [episode_of(grown(rng), reward=rng.choice([None, 0.1])) for _ in range(50)]
    expected = [one for episode in episodes for one in episode.trajectories]
    found = to_arrow(iter(episodes))
    assert [table.trajectory_of(row) for row in found.to_pylist()] == expected and len(expected) > 30
    assert found.column("reward").null_count > 0
    assert isinstance(to_arrow([]), pa.Table) and to_arrow([]).num_rows == 0
