"""A branch is the same wherever it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout.kinds import plain
from rollout.scripts import PromptEngine, run, steps
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.trainers.branch import branches_of, episodes_of
from strands_sglang.trainers.row import Branches
from tokens.growing import forked
from trainers.grown_episodes import episode_of


async def test_a_run_and_its_ledger_have_the_same_branches(tmp_path: Path) -> None:
    made = await run(
        lambda _, model: plain(model),
        ["one", "two"],
        PromptEngine(steps(2)),
        tmp_path,
        samples_per_task=2,
        reward=len_of,
    )
    expected = list(branches_of(made))
    assert [one.episode for one in expected] == [episode.id for episode in made]
    assert all(one.main and one.reward == 7.0 and one.parts == {"words": 2.0} for one in expected)
    assert all(one.row is not None and one.row.num_turns == 3 for one in expected)
    for source in (Ledger(tmp_path), tmp_path, str(tmp_path)):
        found = sorted(branches_of(source), key=lambda one: [episode.id for episode in made].index(one.episode))
        assert found == expected
    assert list(branches_of(tmp_path, keep=lambda episode: episode.sample == 1)) != []
    assert {one.sample for one in branches_of(tmp_path, keep=lambda episode: episode.sample == 1)} == {1}


def len_of(episode: object) -> dict[str, float]:
    return {"reward": 7.0, "words": 2.0}


def test_all_branches_or_the_main_one() -> None:
    tree, turns = forked()
    every = list(branches_of([episode_of(tree)]))
    assert [one.trajectory.branch for one in every] == [turns[name].id for name in "def"]
    assert [one.main for one in every] == [False, True, False]
    [main] = branches_of([episode_of(tree)], branches=Branches.MAIN)
    assert main.main and main.trajectory.branch == turns["e"].id
    assert main.trajectory.loss_mask.tolist() == [0, 0, 0, 1, 1, 0, 1]  # as if it were the only one
    assert every[1].trajectory.loss_mask.tolist() == [0, 0, 0, 0, 0, 0, 1]


def test_a_directory_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"no run\.json"):
        list(episodes_of(tmp_path))
