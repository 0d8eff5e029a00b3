"""What a user gives to `rollout` as functions, as types: `BuildAgent`, `ScoreEpisode`.

Invariant: what these types allow is what is understood; they are for type checkers and editors, and are not looked at
when a run begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from strands_sglang.model import SGLangModel
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.reward import Reward
from strands_sglang.rollout.task import Task

if TYPE_CHECKING:
    from strands import Agent
    from strands.multiagent.base import MultiAgentBase

Built: TypeAlias = "Agent | MultiAgentBase | Callable[[], Any]"
"""What does the work of an episode: an agent, a graph or swarm of them, or a function without arguments."""

Score: TypeAlias = float | Mapping[str, Any] | Sequence[Any] | Reward | None
"""A number; a dict with "reward" and further numbers; one number for each turn; None: no reward."""


class BuildAgent(Protocol):
    """Makes the agent of an episode."""

    def __call__(self, task: Task, model: SGLangModel, /) -> Built | Awaitable[Built]:
        """Return what does the work on a task, with this model; may be async."""


class ScoreOfEpisode(Protocol):
    """Scores an episode."""

    def __call__(self, episode: Episode, /) -> Score | Awaitable[Score]:
        """Return what an episode earned; may be async."""


class ScoreOfTask(Protocol):
    """Scores an episode, and is handed its task too."""

    def __call__(self, task: Task, episode: Episode, /) -> Score | Awaitable[Score]:
        """Return what an episode earned; may be async."""


ScoreEpisode: TypeAlias = ScoreOfEpisode | ScoreOfTask
"""Scores an episode: of the episode alone, or of its task and the episode."""
