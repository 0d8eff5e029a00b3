"""Adapters to each trainer's input format, and exports for your own trainer.

Each name is imported when it is first used, so that no trainer's package (slime, trl, verl, torch, ray, ...) is needed
to import this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strands_sglang.ledger.table import to_arrow
    from strands_sglang.trainers.areal import StrandsWorkflow
    from strands_sglang.trainers.exports import padded_batch, read_jsonl, write_jsonl
    from strands_sglang.trainers.rows import Branch, Branches, Row, branches_of
    from strands_sglang.trainers.skyrl import StrandsGenerator
    from strands_sglang.trainers.slime import (
        check_reward_nonzero_std,
        check_reward_nonzero_std_with_fallback,
        grpo_by_group,
        miles_rollout,
        slime_rollout,
    )
    from strands_sglang.trainers.statuses import TrainerStatus
    from strands_sglang.trainers.trl import DiskSync, logprob_drift, trl_reward, trl_rollout
    from strands_sglang.trainers.verl import StrandsAgentLoop

__all__ = [
    "slime_rollout",
    "miles_rollout",
    "grpo_by_group",
    "check_reward_nonzero_std",
    "check_reward_nonzero_std_with_fallback",
    "trl_rollout",
    "trl_reward",
    "DiskSync",
    "logprob_drift",
    "StrandsAgentLoop",
    "StrandsGenerator",
    "StrandsWorkflow",
    "padded_batch",
    "write_jsonl",
    "read_jsonl",
    "to_arrow",
    "branches_of",
    "Branch",
    "Branches",
    "Row",
    "TrainerStatus",
]

_MODULES: dict[str, tuple[str, ...]] = {
    ".areal": ("StrandsWorkflow",),
    "..ledger.table": ("to_arrow",),
    ".exports": ("padded_batch", "read_jsonl", "write_jsonl"),
    ".rows": ("Branch", "Branches", "Row", "branches_of"),
    ".skyrl": ("StrandsGenerator",),
    ".slime": (
        "check_reward_nonzero_std",
        "check_reward_nonzero_std_with_fallback",
        "grpo_by_group",
        "miles_rollout",
        "slime_rollout",
    ),
    ".statuses": ("TrainerStatus",),
    ".trl": ("DiskSync", "logprob_drift", "trl_reward", "trl_rollout"),
    ".verl": ("StrandsAgentLoop",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
