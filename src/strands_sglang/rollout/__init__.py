"""Episodes at scale: runs an agent on many tasks, records every episode, and resumes interrupted runs.

The package itself is callable: `from strands_sglang import rollout` imports this package, and calling it calls the
function `rollout`. The published package has a module of this name, so both must work.

Example:
    ```python
    from strands_sglang import Task, rollout

    run = await rollout(build, [Task("2 + 2?", answer=4)], base_url="http://localhost:30000", tokenizer="Qwen/Qwen3-8B")
    ```
"""

import inspect
import sys
from types import ModuleType
from typing import Any

from strands_sglang.ledger.writer import Durability
from strands_sglang.provider.published_rollout import Rollout
from strands_sglang.rollout.end_reason import EndReason
from strands_sglang.rollout.episode import Episode, EpisodeMetrics, Failure
from strands_sglang.rollout.groups import Group, RunResult, rewards_differ
from strands_sglang.rollout.limits import Limits
from strands_sglang.rollout.monitoring.metrics import RunMetrics
from strands_sglang.rollout.monitoring.trackers import Tracker
from strands_sglang.rollout.offline.evaluation import Evaluation, evaluate
from strands_sglang.rollout.offline.replay import ReplayResult, ReplayVerdict, replay
from strands_sglang.rollout.offline.score_run import ScoreRunResult, score_run
from strands_sglang.rollout.offline.teacher import TeacherReport, teacher_logprobs
from strands_sglang.rollout.options import RunOptions
from strands_sglang.rollout.reward import Reward
from strands_sglang.rollout.runner import rollout, rollout_sync
from strands_sglang.rollout.task import Task
from strands_sglang.rollout.workers.spec import BuildAgent, ScoreEpisode

__all__ = [
    "Task",
    "rollout",
    "rollout_sync",
    "BuildAgent",
    "ScoreEpisode",
    "RunResult",
    "Rollout",
    "Episode",
    "EndReason",
    "Failure",
    "Limits",
    "RunOptions",
    "Reward",
    "EpisodeMetrics",
    "RunMetrics",
    "Group",
    "rewards_differ",
    "replay",
    "ReplayResult",
    "ReplayVerdict",
    "score_run",
    "ScoreRunResult",
    "teacher_logprobs",
    "TeacherReport",
    "evaluate",
    "Evaluation",
    "Tracker",
    "Durability",
]


class _Callable(ModuleType):
    """A module that can be called like its function `rollout`."""

    __signature__ = inspect.signature(rollout)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return rollout(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
