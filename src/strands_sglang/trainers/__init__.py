"""Adapters to each trainer's input format, and exports for your own trainer.

Each name is imported when it is first used, so that no trainer's package (slime, trl, verl, torch, ray, ...) is needed
to import this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strands_sglang.ledger.table import to_arrow as to_arrow
    from strands_sglang.trainers.areal import StrandsWorkflow as StrandsWorkflow
    from strands_sglang.trainers.exports import padded_batch as padded_batch
    from strands_sglang.trainers.exports import read_jsonl as read_jsonl
    from strands_sglang.trainers.exports import write_jsonl as write_jsonl
    from strands_sglang.trainers.rows import Branch as Branch
    from strands_sglang.trainers.rows import Branches as Branches
    from strands_sglang.trainers.rows import Row as Row
    from strands_sglang.trainers.rows import branches_of as branches_of
    from strands_sglang.trainers.skyrl import StrandsGenerator as StrandsGenerator
    from strands_sglang.trainers.slime import check_reward_nonzero_std as check_reward_nonzero_std
    from strands_sglang.trainers.slime import (
        check_reward_nonzero_std_with_fallback as check_reward_nonzero_std_with_fallback,
    )
    from strands_sglang.trainers.slime import grpo_by_group as grpo_by_group
    from strands_sglang.trainers.slime import miles_rollout as miles_rollout
    from strands_sglang.trainers.slime import slime_rollout as slime_rollout
    from strands_sglang.trainers.slime import slime_trainer_values as slime_trainer_values
    from strands_sglang.trainers.statuses import TrainerStatus as TrainerStatus
    from strands_sglang.trainers.traces import write_atif as write_atif
    from strands_sglang.trainers.traces import write_training_traces as write_training_traces
    from strands_sglang.trainers.trl import AdapterSync as AdapterSync
    from strands_sglang.trainers.trl import DiskSync as DiskSync
    from strands_sglang.trainers.trl import logprob_drift as logprob_drift
    from strands_sglang.trainers.trl import tree_rows as tree_rows
    from strands_sglang.trainers.trl import trl_reward as trl_reward
    from strands_sglang.trainers.trl import trl_rollout as trl_rollout
    from strands_sglang.trainers.verl import StrandsAgentLoop as StrandsAgentLoop

_MODULES: dict[str, tuple[str, ...]] = {
    ".slime": (
        "slime_rollout",
        "miles_rollout",
        "grpo_by_group",
        "check_reward_nonzero_std",
        "check_reward_nonzero_std_with_fallback",
        "slime_trainer_values",
    ),
    ".trl": ("trl_rollout", "trl_reward", "DiskSync", "AdapterSync", "logprob_drift", "tree_rows"),
    ".verl": ("StrandsAgentLoop",),
    ".skyrl": ("StrandsGenerator",),
    ".areal": ("StrandsWorkflow",),
    ".exports": ("padded_batch", "write_jsonl", "read_jsonl"),
    ".traces": ("write_atif", "write_training_traces"),
    "..ledger.table": ("to_arrow",),
    ".rows": ("branches_of", "Branch", "Branches", "Row"),
    ".statuses": ("TrainerStatus",),
}

__all__ = [name for names in _MODULES.values() for name in names]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
