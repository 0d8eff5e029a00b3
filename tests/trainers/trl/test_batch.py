"""Episodes as TRL's lists of equal length, however they ended."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import EndReason
from strands_sglang.tokens import TokenTree
from strands_sglang.tokens.turn import Origin
from strands_sglang.trainers.trl.batch import Completion, MaskReason, batch_of, trl_reward
from support.trainers.grown_episodes import VOCABULARY, episode_of, grown
from support.trainers.trl_doubles import two_turns

PAD = 99
KEYS = ["prompt_ids", "completion_ids", "logprobs", "env_mask", "strands_reward", "strands_agent", "episode"]


def test_random_episodes_give_valid_completions() -> None:
    dice, seen = random.Random(1), Counter[Any]()
    for _ in range(800):
        episode = episode_of(grown(dice), dice.choice([*EndReason]), dice.choice([None, 0.0, 1.0]))
        place = Completion.of(episode, dice.choice([None, "1"]))
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
    assert min(seen[kind] for kind in (None, *MaskReason)) > 20, seen


def test_tool_results_are_in_the_completion_and_masked() -> None:
    place = Completion.of(episode_of(two_turns()))
    batch = batch_of([place], pad=PAD, longest=None)
    assert batch["prompt_ids"] == [[1, 2]]
    assert batch["completion_ids"] == [[3, 4, 5, 6, 7]]
    assert batch["env_mask"] == [[1, 1, 0, 1, 1]]
    assert batch["logprobs"] == [[-0.1, -0.2, 0.0, -0.3, -0.4]]


def test_episode_without_tokens_is_one_masked_token() -> None:
    batch = batch_of([Completion.of(episode_of(TokenTree(), EndReason.ENGINE_ERROR, None))], pad=PAD, longest=8)
    assert [batch[key] for key in KEYS[:5]] == [[[PAD]], [[PAD]], [[0.0]], [[0]], [None]]


def test_tokens_of_other_weights_are_masked() -> None:
    episode = episode_of(two_turns("7", "8"))
    assert Completion.of(episode, "7").masked is MaskReason.STALE
    assert Completion.of(episode, None).masked is None
    assert Completion.of(episode_of(two_turns("7", "7")), "7").masked is None


def test_long_completion_is_truncated() -> None:
    batch = batch_of([Completion.of(episode_of(two_turns()))], pad=PAD, longest=3)
    assert batch["completion_ids"] == [[3, 4, 5]] and batch["env_mask"] == [[1, 1, 0]]
    assert np.allclose(batch["logprobs"], [[-0.1, -0.2, 0.0]])


def test_reward_function_returns_rewards_and_logs_parts() -> None:
    logged: dict[str, float] = {}
    metrics = [{"sync/seconds": 0.5}] * 2
    given: dict[str, Any] = {"completions": ["", ""], "completion_ids": [[1], [1]], "trainer_state": None}
    rewards = trl_reward(["a", "b"], [1.0, None], metrics, logged.__setitem__, **given)
    assert rewards == [1.0, None] and logged == {"sync/seconds": 0.5}
    assert trl_reward(["a", "b"], **given) == [None, None]


def test_images_are_refused() -> None:
    for seed in range(20):
        completion = Completion.of(episode_of(grown(random.Random(seed), images=True)))
        if completion.row is not None and completion.row.images:
            with pytest.raises(ConfigurationError, match="cannot return them"):
                batch_of([completion], pad=PAD, longest=None)
            return
    raise AssertionError("none of the trees has images")
