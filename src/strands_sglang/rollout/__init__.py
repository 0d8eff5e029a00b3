"""Episodes at scale: an agent on many tasks, fast, recorded, and resumed after whatever happened."""

from strands_sglang.ledger.writer import Durability
from strands_sglang.provider.published import Rollout
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode, Failure
from strands_sglang.rollout.group import Group, rewards_differ
from strands_sglang.rollout.measures import EpisodeMetrics
from strands_sglang.rollout.replay import Replayed, ReplayVerdict, replay
from strands_sglang.rollout.result import RolloutResult
from strands_sglang.rollout.reward import Reward
from strands_sglang.rollout.run import rollout
from strands_sglang.rollout.score_run import Scored, score_run
from strands_sglang.rollout.task import Task
from strands_sglang.rollout.totals import RunMetrics

__all__ = [
    "Task",
    "rollout",
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
