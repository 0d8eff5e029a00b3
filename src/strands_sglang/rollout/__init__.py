"""Episodes at scale: an agent on many tasks, fast, recorded, and resumed after whatever happened.

The package can be called: `from strands_sglang import rollout` gives what is both this package and the function
`rollout`, because the published package has a module of this name.
"""

import inspect
import sys
from types import ModuleType
from typing import Any

from strands_sglang.ledger.writer import Durability
from strands_sglang.provider.published import Rollout
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.callables import BuildAgent, ScoreEpisode
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode, Failure
from strands_sglang.rollout.group import Group, rewards_differ
from strands_sglang.rollout.measures import EpisodeMetrics
from strands_sglang.rollout.replay import Replayed, ReplayVerdict, replay
from strands_sglang.rollout.result import RolloutResult
from strands_sglang.rollout.reward import Reward
from strands_sglang.rollout.run import rollout
from strands_sglang.rollout.score_run import Scored, score_run
from strands_sglang.rollout.sync import rollout_sync
from strands_sglang.rollout.task import Task
from strands_sglang.rollout.totals import RunMetrics

__all__ = [
    "Task",
    "rollout",
    "rollout_sync",
    "BuildAgent",
    "ScoreEpisode",
    "RolloutResult",
    "Rollout",
    "Episode",
    "Ended",
    "Failure",
    "Limits",
    "Reward",
    "EpisodeMetrics",
    "RunMetrics",
    "Group",
    "rewards_differ",
    "replay",
    "Replayed",
    "ReplayVerdict",
    "score_run",
    "Scored",
    "Durability",
]


class _Callable(ModuleType):
    """A module that is called as its function of the same name."""

    __signature__ = inspect.signature(rollout)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return rollout(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
