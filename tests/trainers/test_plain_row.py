"""At least one valid row for whatever becomes of an episode, and nothing trained that should not be."""

from __future__ import annotations

import random

from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.reward import Reward
from strands_sglang.trainers.plain_row import plain_rows, stop_reason, usable
from strands_sglang.trainers.row import Branches, rows
from trainers.grown_episodes import ENDS, episode_of, expected_experts, experts_of, grown


def test_whatever_becomes_of_an_episode() -> None:
    seen = set()
    for seed in range(600):
        rng = random.Random(seed)
        tree, ended = grown(rng), rng.choice(ENDS)
        reward = rng.choice([0.5, None, Reward(error="no")])
        episode = episode_of(tree, ended, reward)
        experts = experts_of(tree)
        episode.routed_experts = {leaf.id: experts(leaf) for leaf in tree.branches()}
        for branches in Branches:
            made, found = plain_rows(episode, pad_id=9, scored=True, branches=branches), rows(episode, branches)
            assert len(made) == max(1, len(found))
            for plain in made:
                count = len(plain.response_ids)
                assert plain.prompt_ids and count
                assert count == len(plain.loss_mask) == len(plain.logprobs) == len(plain.versions)
                assert plain.reward == (0.5 if reward == 0.5 else 0.0)
                assert usable(episode, scored=True) or not any(plain.loss_mask)
            for plain, row in zip(reversed(made), found, strict=False):
                assert plain.token_ids == row.token_ids.tolist() and plain.logprobs == row.logprobs.tolist()
                assert plain.experts is not None
                chosen = expected_experts(plain.token_ids[:-1])
                assert (plain.experts.reshape(chosen.shape) == chosen).all()
                trained = usable(episode, scored=True)
                assert plain.loss_mask == (row.loss_mask.tolist() if trained else [0] * len(row.loss_mask))
                names = [None if index < 0 else row.version_names[index] for index in row.versions.tolist()]
                assert plain.versions == names
            seen.add((bool(found), usable(episode, scored=True), len(found) > 1))
    assert len(seen) == 6


def test_nothing_at_all() -> None:
    (plain,) = plain_rows(None, pad_id=9, scored=True)
    assert (plain.prompt_ids, plain.response_ids, plain.loss_mask, plain.reward) == ([9], [9], [0], 0.0)
    assert plain_rows(None, pad_id=9, scored=False)[0].reward is None


def test_ends_in_an_engines_words() -> None:
    words = {ended: stop_reason(episode_of(grown(random.Random(1)), ended)) for ended in Ended}
    assert words[Ended.ANSWERED] == words[Ended.STOPPED] == words[Ended.FAILED_CALL] == "stop"
    assert words[Ended.CONTEXT] == words[Ended.TURN_LIMIT] == words[Ended.TIMEOUT] == "length"
    assert words[Ended.ENGINE] == words[Ended.CUT_SHORT] == stop_reason(None) == "abort"
    assert set(words.values()) == {"stop", "length", "abort"}
