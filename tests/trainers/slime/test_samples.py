"""Every episode becomes valid samples, however it ended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strands_sglang.engine import RoutedExperts
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode, Failure
from strands_sglang.runs.reward import Reward
from strands_sglang.tokens import TokenTree, TurnPurpose, VersionSpan
from strands_sglang.trainers.rows import Branches
from strands_sglang.trainers.slime.samples import METADATA_KEY, samples_of
from support.token_trees import forked, grow
from support.trainers.grown_episodes import LAYERS, TOP_K, episode_of, expected_experts, experts_of, text_of
from support.trainers.slime_mirror import PrefixCacheInfo, Sample, SpecInfo, Status


def tool_tree() -> TokenTree:
    """Return two turns with a tool result between them, and a context after them without an answer."""
    tree = TokenTree("t")
    first = grow(tree, None, [1, 2, 3], [10, 11], versions=[VersionSpan("1", 0, 2)], detail={"cached_tokens": 0})
    spans = [VersionSpan("1", 0, 1), VersionSpan("2", 1, 3)]
    second = grow(tree, first, [4, 5], [12, 13, 14], versions=spans, detail={"cached_tokens": 5})
    grow(tree, second, [6, 7, 8], [], detail={"cached_tokens": None})
    return tree


def filled(episode: Episode, sample: Sample | None = None, **given: Any) -> list[Sample]:
    return samples_of(Sample(index=4, group_index=1) if sample is None else sample, episode, decode=text_of, **given)


def one(episode: Episode, sample: Sample | None = None, **given: Any) -> Sample:
    [made] = filled(episode, sample, **given)
    return made


def test_episode_with_a_tool_call() -> None:
    sample = Sample(index=4, group_index=1, prompt="question", metadata={"source": "mine"}, label="7", session_id="s")
    made = one(episode_of(tool_tree()), sample)
    assert made is sample
    assert sample.tokens == [1, 2, 3, 10, 11, 4, 5, 12, 13, 14]  # without the last tool result
    assert all(type(token) is int for token in sample.tokens)
    assert (sample.response_length, sample.response) == (7, "10 11 4 5 12 13 14")
    assert sample.loss_mask == [1, 1, 0, 0, 1, 1, 1] and {type(entry) for entry in sample.loss_mask} == {int}
    assert sample.rollout_log_probs == [-1.0, -1.1, 0.0, 0.0, -1.2, -1.3, -1.4]
    assert sample.weight_versions == ["1", "1", "2"]
    assert (sample.status, sample.reward, sample.remove_sample) == (Status.COMPLETED, 1.0, False)
    assert (sample.rollout_id, sample.index, sample.group_index) == (None, 4, 1)
    assert (sample.prompt, sample.label, sample.session_id) == ("question", "7", "s")
    assert sample.prefix_cache_info == PrefixCacheInfo(cached_tokens=5, total_prompt_tokens=3 + 7 + 13)
    assert sample.spec_info == SpecInfo(completion_token_num=5) and sample.non_generation_time == 1.5
    assert sample.metadata["source"] == "mine"
    about = sample.metadata[METADATA_KEY]
    assert (about["episode"], about["end_reason"], about["turns"], about["tool_calls"]) == ("t/0", "answered", 3, 3)
    assert (about["branch"], about["branches"], about["cut_tokens"], about["removed"]) == (2, 1, 0, None)


@pytest.mark.parametrize("ended", [ended for ended in EndReason if ended.failed or ended is EndReason.NOT_NEEDED])
def test_untrained_sample_keeps_its_tokens(ended: EndReason) -> None:
    failure = Failure("ValueError", "broken")
    sample = one(episode_of(tool_tree(), ended, None, failure=failure), branches=Branches.ALL)
    assert sample.tokens == [1, 2, 3, 10, 11, 4, 5, 12, 13, 14] and sample.response_length == 7
    assert sample.loss_mask == [0] * 7 and sample.rollout_log_probs == [-1.0, -1.1, 0.0, 0.0, -1.2, -1.3, -1.4]
    assert (sample.reward, sample.remove_sample, sample.rollout_id) == (0.0, True, 4)
    assert sample.metadata[METADATA_KEY]["failure"] == "ValueError: broken"


@pytest.mark.parametrize("ended", list(EndReason))
def test_episode_without_tokens_is_a_placeholder(ended: EndReason) -> None:
    empty = TokenTree()
    grow(empty, None, [1, 2, 3], [])
    rejected = TokenTree()
    rejected.reject(grow(rejected, None, [1, 2], [3, 4]))
    for tree in (TokenTree(), empty, rejected):
        sample = one(episode_of(tree, ended), expert_shape=(LAYERS, TOP_K))
        assert (sample.tokens, sample.response_length, sample.response) == ([0, 0], 1, "")
        assert (sample.loss_mask, sample.rollout_log_probs) == ([0], [0.0])
        assert (sample.reward, sample.remove_sample) == (0.0, True)
        assert sample.rollout_routed_experts.shape == (1, LAYERS, TOP_K)
        assert np.count_nonzero(sample.rollout_routed_experts[:, 0]) and sample.rollout_routed_experts.flags.writeable


def test_resumed_sample_is_filled_as_if_it_were_new() -> None:
    sample = Sample(index=4, group_index=1, metadata={"source": "mine"})
    tree = TokenTree("t")
    grow(tree, None, [1, 2, 3], [10, 11], versions=[VersionSpan("1", 0, 2)], detail={"cached_tokens": 2})
    one(episode_of(tree, EndReason.NOT_NEEDED), sample, expert_shape=(LAYERS, TOP_K))
    assert sample.status is Status.ABORTED and sample.remove_sample
    sample.teacher_log_probs = [0.5, 0.5]
    sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets = [1, 2], [0, 1, 2]
    sample.metadata["start_rollout_id"] = 7  # as slime does

    again = one(episode_of(tool_tree()), sample)
    fresh = one(
        episode_of(tool_tree()), Sample(index=4, group_index=1, metadata={"source": "mine", "start_rollout_id": 7})
    )
    assert again == fresh


def test_every_branch_is_a_sample() -> None:
    tree, turns = forked()
    tree.main = turns["e"].id
    sample = Sample(index=4, group_index=1, prompt=[{"role": "user", "content": "q"}], metadata={"mine": [1]})
    sample.train_metadata = {"loss": "x"}
    made = filled(episode_of(tree), sample, branches=Branches.ALL)
    assert made[0] is sample and len(made) == 3
    assert [one.metadata[METADATA_KEY]["branch"] for one in made] == [turns[name].id for name in "edf"]
    assert [one.tokens for one in made] == [
        [1, 2, 3, 10, 11, 9, 40],
        [1, 2, 3, 10, 11, 4, 12, 13, 14, 5, 21, 99, 6, 7, 22, 23],
        [1, 2, 50, 51],
    ]
    assert [one.loss_mask for one in made] == [[0, 0, 0, 1], [1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1, 1], [1]]
    assert {one.rollout_id for one in made} == {4} and {one.reward for one in made} == {1.0}
    assert sum(one.spec_info.completion_token_num for one in made) == 2 + 3 + 1 + 2 + 1 + 1
    assert sum(one.prefix_cache_info.cached_tokens for one in made) == 7
    for other in made[1:]:
        for name, value in vars(other).items():
            if isinstance(value, (list, dict, SpecInfo, PrefixCacheInfo)):
                assert value is not getattr(sample, name), name
        assert other.metadata["mine"] is not sample.metadata["mine"] and other.prompt[0] is not sample.prompt[0]
        assert other.prompt == sample.prompt and other.train_metadata == {"loss": "x"}


@pytest.mark.parametrize(
    ("sample", "expected"), [(Sample(rollout_id=9, index=4), 9), (Sample(index=4), 4), (Sample(), None)]
)
def test_samples_of_an_episode_share_a_rollout_id(sample: Sample, expected: int | None) -> None:
    tree, _ = forked()
    first = {one.rollout_id for one in filled(episode_of(tree), sample, branches=Branches.ALL)}
    again = {one.rollout_id for one in filled(episode_of(tree), Sample(), branches=Branches.ALL)}
    [shared] = first
    assert isinstance(shared, int) and 0 <= shared < 2**63
    assert shared == expected if expected is not None else first == again


@pytest.mark.parametrize(
    ("limit", "length", "mask"),
    [
        (None, 7, [1, 1, 0, 0, 1, 1, 1]),
        (7, 7, [1, 1, 0, 0, 1, 1, 1]),
        (6, 6, [1, 1, 0, 0, 1, 1]),
        (4, 2, [1, 1]),
        (0, 1, [1]),
    ],
)
def test_response_is_truncated_to_its_limit(limit: int | None, length: int, mask: list[int]) -> None:
    tree = tool_tree()
    episode = episode_of(tree, routed_experts=experts_of(tree))
    sample = one(episode, response_limit=limit, expert_shape=(LAYERS, TOP_K))
    assert sample.response_length == length and sample.loss_mask == mask
    assert len(sample.rollout_log_probs or ()) == length and len(sample.tokens) == 3 + length
    assert len(sample.response.split()) == length
    assert sample.status is (Status.COMPLETED if length == 7 else Status.TRUNCATED)
    assert sample.metadata[METADATA_KEY]["cut_tokens"] == 7 - length
    assert np.array_equal(sample.rollout_routed_experts, expected_experts(sample.tokens[:-1]))
    if length <= 2:
        assert sample.weight_versions == ["1"]


def test_tokens_of_an_older_policy_are_not_trained() -> None:
    sample = one(episode_of(tool_tree()), off_policy={0: 2, 1: 1, 2: 5})
    assert sample.loss_mask == [0, 0, 0, 0, 0, 1, 1]
    whole = one(episode_of(tool_tree()), off_policy={0: 9, 1: 9})  # more than was sampled
    assert whole.loss_mask == [0] * 7 and whole.response_length == 7 and not whole.remove_sample
    assert whole.reward == 1.0  # it still counts in its group


def test_constrained_turns_are_not_trained() -> None:
    tree = TokenTree()
    first = grow(tree, None, [1, 2], [3], purpose=TurnPurpose.CONSTRAINED)
    grow(tree, first, [4], [5])
    assert [filled(episode_of(tree), branches=these)[0].loss_mask for these in Branches] == [[0, 0, 1]] * 2


def test_rewards() -> None:
    assert one(episode_of(tool_tree(), reward=None)).reward is None  # slime's own reward model scores it
    parts = Reward(0.5, {"format": 1.0})
    assert one(episode_of(tool_tree(), reward=parts)).reward == 0.5
    assert one(episode_of(tool_tree(), reward=parts), reward_key="score").reward == {"score": 0.5, "format": 1.0}
    failed = one(episode_of(tool_tree(), reward=Reward(error="it hung")), reward_key="score")
    assert (failed.reward, failed.remove_sample, failed.status) == ({"score": 0.0}, True, Status.COMPLETED)
    assert failed.metadata[METADATA_KEY]["removed"] == "not_scored" and not any(failed.loss_mask or ())
    broken = one(episode_of(tool_tree(), EndReason.ENGINE_ERROR, None), reward_key="score")
    assert broken.reward == {"score": 0.0}


@pytest.mark.parametrize(
    "known",
    [None, RoutedExperts(("!",), (12,)), RoutedExperts(("AAAA",), (12,)), RoutedExperts((), (), 0)],
    ids=["none", "not base64", "no rows", "empty"],
)
def test_sample_without_experts_is_not_trained(known: RoutedExperts | None) -> None:
    tree = tool_tree()
    known_experts = {} if known is None else {turn.id: known for turn in tree}
    sample = one(episode_of(tree, routed_experts=known_experts), expert_shape=(LAYERS, TOP_K))
    assert sample.rollout_routed_experts.shape == (9, LAYERS, TOP_K)
    assert sample.rollout_routed_experts[3, 1].tolist() == [0, 1]
    assert (sample.remove_sample, sample.reward, sample.loss_mask) == (True, 0.0, [0] * 7)
    assert sample.metadata[METADATA_KEY]["removed"] == "no_experts"


@pytest.mark.parametrize(("sampled", "tokens", "mask"), [([7], [0, 7], [0]), ([7, 8], [7, 8], [1])])
def test_branch_without_a_prompt(sampled: list[int], tokens: list[int], mask: list[int]) -> None:
    tree = TokenTree()
    grow(tree, None, [], sampled)
    sample = one(episode_of(tree))
    assert (sample.tokens, sample.loss_mask, sample.response_length) == (tokens, mask, 1)
    assert sample.rollout_log_probs == [-sampled[-1] / 10]
