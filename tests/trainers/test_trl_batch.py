"""Episodes as TRL reads them: lists of one length, whatever became of an episode."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from strands_sglang.rollout import Ended
from strands_sglang.tokens import TokenTree
from strands_sglang.tokens.origin import Origin
from strands_sglang.trainers.trl_batch import Masked, Place, batch_of, trl_reward
from trainers.grown_episodes import VOCABULARY, episode_of, grown
from trainers.trl_doubles import two_turns

PAD = 99
KEYS = ["prompt_ids", "completion_ids", "logprobs", "env_mask", "strands_reward", "strands_agent", "episode"]


def test_whatever_an_episode_is_its_entry_can_be_trained() -> None:
    dice, seen = random.Random(1), Counter[Any]()
    for _ in range(800):
        episode = episode_of(grown(dice), dice.choice([*Ended]), dice.choice([None, 0.0, 1.0]))
        place = Place.of(episode, dice.choice([None, "1"]))
        seen[place.masked] += 1
        batch = batch_of([place], pad=PAD, longest=dice.choice([None, 3]))
        assert list(batch) == KEYS and all(len(values) == 1 for values in batch.values())
        ids, mask, logprobs = (batch[name][0] for name in ("completion_ids", "env_mask", "logprobs"))
        assert batch["prompt_ids"][0] and len(ids) == len(mask) == len(logprobs) >= 1
        assert all(type(one) is int for one in (*ids, *mask, *batch["prompt_ids"][0]))
        assert all(type(one) is float for one in logprobs)
        if place.masked is not None:
            assert not any(mask) and batch["strands_reward"] == [None]
            continue
        assert place.row is not None and batch["strands_reward"] == [episode.reward]
        whole = place.row.trajectory
        first = len(batch["prompt_ids"][0])
        assert batch["prompt_ids"][0] + ids == whole.token_ids[: first + len(ids)].tolist()
        for at, trained in enumerate(mask):
            assert not trained or whole.origins[first + at] == Origin.SAMPLED
            assert logprobs[at] == (whole.logprobs[first + at] if trained else pytest.approx(logprobs[at]))
        assert max(ids) <= VOCABULARY
    assert min(seen[kind] for kind in (None, *Masked)) > 20, seen


def test_tool_results_are_in_the_completion_and_masked() -> None:
    place = Place.of(episode_of(two_turns()))
    batch = batch_of([place], pad=PAD, longest=None)
    assert batch["prompt_ids"] == [[1, 2]]
    assert batch["completion_ids"] == [[3, 4, 5, 6, 7]]
    assert batch["env_mask"] == [[1, 1, 0, 1, 1]]
    assert batch["logprobs"] == [[-0.1, -0.2, 0.0, -0.3, -0.4]]


def test_an_episode_of_nothing_is_a_masked_token() -> None:
    batch = batch_of([Place.of(episode_of(TokenTree(), Ended.ENGINE, None))], pad=PAD, longest=8)
    assert [batch[key] for key in KEYS[:5]] == [[[PAD]], [[PAD]], [[0.0]], [[0]], [None]]


def test_what_other_weights_sampled_is_masked() -> None:
    episode = episode_of(two_turns("7", "8"))
    assert Place.of(episode, "7").masked is Masked.STALE
    assert Place.of(episode, None).masked is None
    assert Place.of(episode_of(two_turns("7", "7")), "7").masked is None


def test_what_failed_is_masked_and_keeps_its_tokens() -> None:
    batch = batch_of([Place.of(episode_of(two_turns(), Ended.AGENT, 1.0))], pad=PAD, longest=None)
    assert batch["completion_ids"] == [[3, 4, 5, 6, 7]] and batch["env_mask"] == [[0] * 5]
    assert batch["strands_reward"] == [None]


def test_a_completion_that_is_too_long_is_cut() -> None:
    batch = batch_of([Place.of(episode_of(two_turns()))], pad=PAD, longest=3)
    assert batch["completion_ids"] == [[3, 4, 5]] and batch["env_mask"] == [[1, 1, 0]]
    assert np.allclose(batch["logprobs"], [[-0.1, -0.2, 0.0]])


def test_the_reward_function_hands_on_and_logs() -> None:
    logged: dict[str, float] = {}
    figures = [{"sync/seconds": 0.5}] * 2
    given: dict[str, Any] = {"completions": ["", ""], "completion_ids": [[1], [1]], "trainer_state": None}
    rewards = trl_reward(["a", "b"], [1.0, None], figures, logged.__setitem__, **given)
    assert rewards == [1.0, None] and logged == {"sync/seconds": 0.5}
    assert trl_reward(["a", "b"], **given) == [None, None]
