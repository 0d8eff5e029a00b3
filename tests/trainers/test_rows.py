"""Every episode gives at least one valid row, and a branch is the same from memory, ledger or file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.reader import Ledger
from strands_sglang.runs.reward import Reward
from strands_sglang.trainers.rows import Branches, branches_of, episodes_of, plain_rows, rows
from strands_sglang.trainers.statuses import is_trainable
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, run, steps
from support.token_trees import forked
from support.trainers.grown_episodes import ENDS, episode_of, expected_experts, experts_of, grown


def test_random_episodes_give_valid_rows() -> None:
    seen = set()
    for seed in range(600):
        rng = random.Random(seed)
        tree, ended = grown(rng), rng.choice(ENDS)
        reward = rng.choice([0.5, None, Reward(error="no")])
        episode = episode_of(tree, ended, reward)
        episode.routed_experts = experts_of(tree)
        for branches in Branches:
            made, found = plain_rows(episode, pad_id=9, scored=True, branches=branches), rows(episode, branches)
            assert len(made) == max(1, len(found))
            for one in made:
                count = len(one.response_ids)
                assert one.prompt_ids and count
                assert count == len(one.loss_mask) == len(one.logprobs) == len(one.versions)
                assert one.reward == (0.5 if reward == 0.5 else 0.0)
                assert is_trainable(episode, scored=True) or not any(one.loss_mask)
            for one, row in zip(reversed(made), found, strict=False):
                assert one.token_ids == row.token_ids.tolist() and one.logprobs == row.logprobs.tolist()
                assert one.experts is not None
                chosen = expected_experts(one.token_ids[:-1])
                assert (one.experts.reshape(chosen.shape) == chosen).all()
                trained = is_trainable(episode, scored=True)
                assert one.loss_mask == (row.loss_mask.tolist() if trained else [0] * len(row.loss_mask))
                names = [None if index < 0 else row.version_names[index] for index in row.versions.tolist()]
                assert one.versions == names
            seen.add((bool(found), is_trainable(episode, scored=True), len(found) > 1))
    assert len(seen) == 6


def test_row_of_an_episode_without_tokens() -> None:
    (one,) = plain_rows(None, pad_id=9, scored=True)
    assert (one.prompt_ids, one.response_ids, one.loss_mask, one.reward) == ([9], [9], [0], 0.0)
    assert plain_rows(None, pad_id=9, scored=False)[0].reward is None


async def test_run_and_ledger_have_the_same_branches(tmp_path: Path) -> None:
    made = await run(
        lambda _, model: plain(model),
        ["one", "two"],
        PromptEngine(steps(2)),
        tmp_path,
        samples_per_task=2,
        reward=token_counts,
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


def token_counts(episode: object) -> dict[str, float]:
    return {"reward": 7.0, "words": 2.0}


def test_all_branches_or_the_main_one() -> None:
    tree, turns = forked()
    tree.main = turns["e"].id
    every = list(branches_of([episode_of(tree)]))
    assert [one.trajectory.branch for one in every] == [turns[name].id for name in "def"]
    assert [one.main for one in every] == [False, True, False]
    [main] = branches_of([episode_of(tree)], branches=Branches.MAIN)
    assert main.main and main.trajectory.branch == turns["e"].id
    assert main.trajectory.loss_mask.tolist() == [0, 0, 0, 1, 1, 0, 1]  # as if it were the only one
    assert every[1].trajectory.loss_mask.tolist() == [0, 0, 0, 0, 0, 0, 1]


def test_directory_without_a_run_raises(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"no run\.json"):
        list(episodes_of(tmp_path))
