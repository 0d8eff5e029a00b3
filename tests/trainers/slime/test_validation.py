"""Samples that slime refuses or trains wrongly are reported, and no episode gives such a sample."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from strands_sglang.runs.episode import Episode
from strands_sglang.runs.reward import Reward
from strands_sglang.tokens import TokenTree, TurnPurpose
from strands_sglang.trainers.rows import Branches
from strands_sglang.trainers.slime.samples import METADATA_KEY, samples_of
from support.examples import size
from support.trainers.grown_episodes import (
    ENDS,
    LAYERS,
    TOP_K,
    VOCABULARY,
    episode_of,
    expected_experts,
    experts_of,
    grown,
    text_of,
)
from support.trainers.slime_mirror import Sample, Status, good, slime_args
from support.trainers.slime_validation import (
    InvalidSampleError,
    Stage,
    batch_problems,
    problems_of,
    validate_batch,
    validate_sample,
)

CHOSEN = np.ones((6, 2, 2), np.int32)


def test_valid_sample_has_no_problem() -> None:
    validate_sample(good())
    validate_sample(good(rollout_routed_experts=CHOSEN), slime_args(use_rollout_routing_replay=True))
    validate_sample(good(reward={"score": 1}), slime_args(reward_key="score"))
    kept = good(rollout_top_p_token_ids=[1, 2, 3], rollout_top_p_token_offsets=[0, 1, 2, 2, 3])
    validate_sample(kept, slime_args(rollout_top_p=0.9))
    validate_sample(good(status=Status.ABORTED, remove_sample=True), slime_args())


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tokens": np.arange(7)}, "tokens must be a list"),
    ({"tokens": [5, 6, 7, 8, 9, 10, 1.5]}, "tokens must be a list"),
    ({"tokens": [5, 6, 7, 8, 9, 10, -1]}, "must be 0 or more, got -1"),
    ({"tokens": [5, 6, 7, 8, 9, 10, 100]}, "vocabulary size of 100"),
    ({"response_length": 0, "loss_mask": [], "rollout_log_probs": []}, "response_length must be at least 1, got 0"),
    ({"tokens": [1, 2, 3, 4]}, "response_length must be below the 4 tokens"),
    ({"tokens": []}, "response_length must be below the 0 tokens"),
    ({"response_length": None}, "response_length must be an int"),
    ({"loss_mask": None}, "loss_mask is None"),
    ({"loss_mask": [1, 1, 0]}, "loss_mask has 3 entries for 4"),
    ({"loss_mask": [1, 1, 0, 2]}, "loss_mask must be a list of 0 and 1"),
    ({"loss_mask": [1, 1, 0, True]}, "loss_mask must be a list of 0 and 1"),
    ({"rollout_log_probs": None}, "rollout_log_probs is None"),
    ({"rollout_log_probs": [-0.5]}, "rollout_log_probs has 1 entries for 4"),
    ({"rollout_log_probs": [-0.5, None, 0.0, -1.0]}, "rollout_log_probs must hold numbers, got None"),
    ({"rollout_log_probs": [-0.5, float("-inf"), 0.0, -1.0]}, "must hold finite numbers"),
    ({"rollout_log_probs": [-0.5, float("nan"), 0.0, -1.0]}, "must hold finite numbers"),
    ({"rollout_log_probs": [-0.5, 0.5, 0.0, -1.0]}, "above 0"),
    ({"rollout_log_probs": np.zeros(4)}, "rollout_log_probs must be a list"),
    ({"teacher_log_probs": [0.0]}, "teacher_log_probs has 1 entries"),
    ({"reward": None}, "reward is None"),
    ({"reward": {"score": 1.0}}, "no reward_key is set"),
    ({"reward": float("nan")}, "reward must be a finite number"),
    ({"reward": "1"}, "reward must be a finite number"),
    ({"rollout_routed_experts": CHOSEN[:5]}, "has 5 rows for 7 tokens"),
    ({"rollout_routed_experts": np.ones((7, 2, 2), int)}, "has 7 rows for 7 tokens"),
    ({"rollout_routed_experts": np.ones((6, 4), int)}, "got int64 (6, 4)"),
    ({"rollout_routed_experts": CHOSEN.astype(float)}, "got float64"),
    ({"rollout_routed_experts": -CHOSEN}, "got a negative one"),
    ({"rollout_routed_experts": [[1], [1, 2]]}, "rollout_routed_experts must be"),
    ({"rollout_top_p_token_ids": [1]}, "must both be given"),
    ({"multimodal_inputs": {"images": ["x"]}}, "1 images without pixels"),
    (
        {
            "multimodal_inputs": {"images": ["x", "y"]},
            "multimodal_train_inputs": {"image_grid_thw": np.array([[1, 2, 4]]), "pixel_values": np.zeros((8, 3))},
        },
        "1 grids for 2 images",
    ),
    (
        {"multimodal_train_inputs": {"image_grid_thw": np.array([[1, 2, 4]]), "pixel_values": np.zeros((7, 3))}},
        "7 rows, the grids have 8 patches",
    ),
    ({"rollout_top_p_token_ids": [1], "rollout_top_p_token_offsets": [0, 1]}, "has 2 entries for 4"),
    ({"rollout_top_p_token_ids": [1], "rollout_top_p_token_offsets": [0, 1, 1, 1, 2]}, "from 0 to 1"),
    ({"status": Status.PENDING}, "pending"),
    ({"status": "completed"}, "got 'completed'"),
    ({"status": Status.ABORTED}, "remove_sample must be set"),
    ({"remove_sample": None}, "remove_sample must be a bool"),
    ({"response": None}, "response must be a str"),
    ({"metadata": None}, "metadata must be a dict"),
    ({"weight_versions": [1]}, "weight_versions"),
    ({"non_generation_time": float("inf")}, "non_generation_time"),
    ({"rollout_id": "4"}, "got '4'"),
    ({"spec_info": None}, "spec_info is None"),
    ({"prefix_cache_info": None}, "prefix_cache_info is None"),
]


@pytest.mark.parametrize(
    ("changed", "problem"), BAD, ids=[f"{next(iter(one))}-{at}" for at, (one, _) in enumerate(BAD)]
)
def test_every_problem_is_reported_once(changed: dict[str, Any], problem: str) -> None:
    found = problems_of(good(**changed), slime_args(vocab_size=100))
    assert len(found) == 1 and problem in found[0], found
    with pytest.raises(InvalidSampleError) as raised:
        validate_sample([[good()], [good(**changed)]], slime_args(vocab_size=100))
    assert raised.value.problems == (f"sample 1: {found[0]}",)


REQUESTED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"rollout_top_p": 0.9}, {}, "rollout_top_p must be 1.0"),
    ({"use_rollout_routing_replay": True}, {}, "rollout_routed_experts is None"),
    ({"use_rollout_routing_replay": True, "num_layers": 3}, {"rollout_routed_experts": CHOSEN}, "must have 3 layers"),
    ({"use_rollout_routing_replay": True}, {"rollout_routed_experts": CHOSEN * 0}, "zero everywhere in layers [0, 1]"),
    ({"rollout_max_response_len": 3}, {}, "rollout_max_response_len 3"),
    ({"rollout_max_context_len": 6}, {}, "rollout_max_context_len 6"),
    ({"reward_key": "score"}, {"reward": {"other": 1.0}}, "must have the key 'score'"),
]


@pytest.mark.parametrize(("args", "changed", "problem"), REQUESTED)
def test_requested_data_is_required(args: dict[str, Any], changed: dict[str, Any], problem: str) -> None:
    assert problems_of(good(**changed)) == []  # not known without the arguments
    [found] = problems_of(good(**changed), slime_args(**args))
    assert problem in found


def batch(**changed: Any) -> list[list[Sample]]:
    """Return two groups of two; changes apply to the last sample."""
    made = [[good(group_index=group, index=2 * group + at) for at in range(2)] for group in range(2)]
    for name, value in changed.items():
        setattr(made[1][1], name, value)
    return made


@pytest.mark.parametrize(
    ("samples", "args", "problem"),
    [
        (batch(rollout_routed_experts=CHOSEN), {}, "is None on 3 of 4 samples, first on 0: slime drops it"),
        (batch(index=None), {}, "cannot sort them"),
        (batch(group_index=0), {}, "groups are not 2 consecutive samples each"),
        ([[good(index=0), good(index=1)]] * 2, {}, "is in the batch twice"),
        (batch(), {"global_batch_size": 8}, "4 rollouts, fewer than global_batch_size 8"),
        (batch(), {"global_batch_size": 3}, "the last 1 do not fill"),
        (batch(), {"n_samples_per_prompt": 4}, "group 0 has 2 rollouts, n_samples_per_prompt is 4"),
        ([[good()], []], {}, "samples contains an empty list"),
        ([[good(), [good(rollout_id=1)]]], {}, "samples and lists of samples are mixed (depths [2, 3])"),
        ([[[good(rollout_id=1), good(rollout_id=2)]]], {}, "a rollout of 2 samples with rollout_id"),
        ([[[good(rollout_id=1)], [good(rollout_id=1)]]], {}, "rollout_id 1 is used by 2 rollouts"),
        ([[good(remove_sample=True)]], {}, "no token of the batch is trained"),
    ],
)
def test_samples_of_a_batch_must_be_consistent(samples: Any, args: dict[str, Any], problem: str) -> None:
    assert any(problem in found for found in batch_problems(samples, slime_args(**args)))


EPISODES = size(2_500, 10_000)
REWARDS = [None, 0.0, 1.0, -0.5, Reward(0.5, {"format": 1.0}), Reward(error="it hung")]


def trained_places(tree: TokenTree, samples: list[Sample]) -> Counter[tuple[int, int]]:
    """Return how often each token is trained, by turn and position among the turn's sampled tokens."""
    places: Counter[tuple[int, int]] = Counter()
    for sample in samples:
        branch = sample.metadata[METADATA_KEY]["branch"]
        assert branch is not None or not any(sample.loss_mask or ())
        if branch is None:
            continue
        owner: list[tuple[int, int] | None] = [None] * len(tree.ids(tree[branch]))
        for turn in tree.path(tree[branch]):
            owner[turn.sampled_start : turn.end] = [(turn.id, at) for at in range(len(turn.sampled))]
        start = len(sample.tokens) - sample.response_length
        for at, trained in enumerate(sample.loss_mask or ()):
            if trained:
                place = owner[start + at]
                assert place is not None, "loss on a token that was not sampled"
                places[place] += 1
                turn = tree[place[0]]
                assert turn.logprobs[place[1]] == (sample.rollout_log_probs or ())[at]
                assert turn.sampled[place[1]] == sample.tokens[start + at]
    return places


def expected_places(tree: TokenTree, off_policy: dict[int, int]) -> set[tuple[int, int]]:
    return {
        (turn.id, at)
        for turn in tree
        if turn.purpose is TurnPurpose.EPISODE and not turn.rejected
        for at in range(off_policy.get(turn.id, 0), len(turn.sampled))
    }


def samples_from(
    rng: random.Random, episode: Episode, number: int, branches: Branches, args: Any
) -> tuple[list[Sample], dict[int, int], int | None]:
    limit = rng.choice([None, None, 1, 3, 7])
    off_policy = {turn.id: rng.randrange(4) for turn in episode.tree if rng.random() < 0.2}
    episode.routed_experts = experts_of(episode.tree) if rng.random() < 0.9 else {}
    sample = Sample(index=number, group_index=number // 2, metadata={"n": number})
    made = samples_of(
        sample,
        episode,
        branches=branches,
        decode=text_of,
        response_limit=limit,
        off_policy=off_policy,
        expert_shape=(LAYERS, TOP_K) if args.use_rollout_routing_replay else None,
    )
    assert made[0] is sample
    return made, off_policy, limit


def test_thousands_of_episodes_give_valid_samples() -> None:
    began, seen = time.process_time(), Counter[str]()
    rng = random.Random(7)
    args = slime_args(
        global_batch_size=2, rollout_batch_size=10, custom_reward_post_process_path="ours", vocab_size=VOCABULARY + 1
    )
    batches: dict[Branches, list[list[Sample]]] = {branches: [] for branches in Branches}
    for number in range(EPISODES):
        args.use_rollout_routing_replay = number // 20 % 2 == 1
        episode = episode_of(grown(rng), rng.choice(ENDS), rng.choice(REWARDS))
        for branches in Branches:
            made, off_policy, limit = samples_from(rng, episode, number, branches, args)
            validate_sample(made, args, stage=Stage.RETURNED)
            places = trained_places(episode.tree, made)
            expected = expected_places(episode.tree, off_policy)
            assert set(places.values()) <= {1} and set(places) <= expected
            removed = any(one.remove_sample for one in made)
            if not removed and limit is None and branches is Branches.ALL:
                assert set(places) == expected  # each token once, and none is left out
            assert not removed or not places
            assert all(limit is None or one.response_length <= limit for one in made)
            for one in made:
                if one.rollout_routed_experts is not None and not one.remove_sample:
                    assert np.array_equal(one.rollout_routed_experts, expected_experts(one.tokens[:-1]))
                one.reward = 0.25 if one.reward is None else one.reward  # as slime's reward model would
            seen.update({f"{branches.value}/{made[0].status.name}": 1, f"samples/{len(made)}": 1})
            seen.update(str(one.metadata[METADATA_KEY]["removed"]) for one in made)
            batches[branches].append(made)
        if number % 20 == 19:
            fanned = batches[Branches.ALL]
            validate_batch([fanned[at : at + 2] for at in range(0, 20, 2)], args)
            plain = [made[0] for made in batches[Branches.MAIN]]
            validate_batch([plain[at : at + 2] for at in range(0, 20, 2)], args)
            batches = {branches: [] for branches in Branches}
    # The generator covers all kinds of episodes.
    assert {f"{b.value}/{s}" for b in Branches for s in ("COMPLETED", "TRUNCATED", "ABORTED", "FAILED")} <= set(seen)
    assert {"None", "aborted", "failed", "nothing_sampled", "not_scored", "no_experts"} <= set(seen)
    assert seen["samples/2"] > 100 and seen["samples/3"] > 8 and seen["None"] > EPISODES / 2
    assert time.process_time() - began < 60
