"""Episode: the result of a finished episode."""

from __future__ import annotations

from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.reward import Reward
from strands_sglang.runs.task import Task
from strands_sglang.tokens import TokenTree
from support.rollout.finished import finished, grown


def test_remote_tree_is_fetched_once_on_first_access() -> None:
    fetched = []

    def fetch() -> TokenTree:
        fetched.append(1)
        return grown("t/0", turns=3)

    episode = Episode("t/0", Task("q", id="t"), 0, EndReason.ANSWERED, fetch)
    assert episode.reward is None and not fetched
    assert episode.tree is episode.tree
    (trajectory,) = episode.trajectories
    trajectory.validate()
    assert fetched == [1] and trajectory.num_turns == 3


def test_reward_is_the_value_of_reward_detail() -> None:
    assert finished(reward=0.5).reward == 0.5
    assert finished().reward is None
    episode = finished()
    episode.reward_detail = Reward(error="KeyError: 'x'")
    assert episode.reward is None


def test_episode_without_turns() -> None:
    episode = finished(turns=0, ended=EndReason.AGENT_ERROR)
    assert episode.trajectories == [] and not episode.tree and episode.metrics.turns == 0
    assert episode.failure is not None and episode.failure.kind == "ValueError"
