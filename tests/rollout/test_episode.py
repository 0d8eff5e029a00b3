"""Finished episodes."""

from __future__ import annotations

from rollout.finished import finished, grown
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.reward import Reward
from strands_sglang.rollout.task import Task
from strands_sglang.tokens import TokenTree


def test_a_tree_that_is_elsewhere_is_fetched_once_and_when_it_is_needed() -> None:
    fetched = []

    def fetch() -> TokenTree:
        fetched.append(1)
        return grown("t/0", turns=3)

    episode = Episode("t/0", Task("q", id="t"), 0, Ended.ANSWERED, fetch)
    assert episode.reward is None and not fetched
    assert episode.tree is episode.tree
    (trajectory,) = episode.trajectories
    trajectory.validate()
    assert fetched == [1] and trajectory.num_turns == 3


def test_its_reward_is_the_value_of_its_score() -> None:
    assert finished(reward=0.5).reward == 0.5
    assert finished().reward is None
    episode = finished()
    episode.score = Reward(error="KeyError: 'x'")
    assert episode.reward is None


def test_an_episode_without_a_turn() -> None:
    episode = finished(turns=0, ended=Ended.AGENT)
    assert episode.trajectories == [] and not episode.tree and episode.metrics.turns == 0
    assert episode.failure is not None and episode.failure.kind == "ValueError"
