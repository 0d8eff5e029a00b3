"""TRL: a `rollout_func` for `GRPOTrainer` from a Strands agent, on an SGLang engine; TRL and torch are not imported."""

from strands_sglang.trainers.trl.batch import LogprobDrift, logprob_drift, trl_reward
from strands_sglang.trainers.trl.engine_thread import EngineThread
from strands_sglang.trainers.trl.rollout import TrlRollout, TrlStep, trl_rollout
from strands_sglang.trainers.trl.tree_rows import tree_rows
from strands_sglang.trainers.trl.weight_sync import AdapterSync, DiskSync, WeightSync

__all__ = [
    "trl_rollout",
    "trl_reward",
    "TrlRollout",
    "TrlStep",
    "DiskSync",
    "AdapterSync",
    "WeightSync",
    "EngineThread",
    "tree_rows",
    "logprob_drift",
    "LogprobDrift",
]
