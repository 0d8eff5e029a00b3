"""Episodes at scale: runs an agent on many tasks, records every episode, and resumes interrupted runs."""

from strands_sglang.ledger.writer import Durability
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode, EpisodeMetrics, Failure
from strands_sglang.runs.groups import Group, RunResult, rewards_differ
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.monitoring.metrics import RunMetrics
from strands_sglang.runs.monitoring.trackers import Tracker
from strands_sglang.runs.offline.evaluation import Evaluation, evaluate
from strands_sglang.runs.offline.replay import ReplayResult, ReplayVerdict, replay
from strands_sglang.runs.offline.score_run import ScoreRunResult, score_run
from strands_sglang.runs.offline.teacher import TeacherReport, teacher_logprobs
from strands_sglang.runs.recording.mcp_tools import MCPTools
from strands_sglang.runs.reward import Reward
from strands_sglang.runs.runner import RunOptions, rollout, rollout_sync
from strands_sglang.runs.staleness import MaxStaleness
from strands_sglang.runs.task import Task
from strands_sglang.runs.workers.spec import BuildAgent, ScoreEpisode

__all__ = [
    "Task",
    "rollout",
    "rollout_sync",
    "BuildAgent",
    "ScoreEpisode",
    "RunResult",
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
    "MCPTools",
    "MaxStaleness",
    "Durability",
]
