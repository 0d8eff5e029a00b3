"""slime and its fork Miles: a generate function from a Strands agent, without importing them."""

from strands_sglang.trainers.slime.generate import miles_rollout, slime_rollout
from strands_sglang.trainers.slime.groups import (
    check_reward_nonzero_std,
    check_reward_nonzero_std_with_fallback,
    grpo_by_group,
)
from strands_sglang.trainers.slime.samples import SampleGroup
from strands_sglang.trainers.slime.trainer_values import slime_trainer_values

__all__ = [
    "slime_rollout",
    "miles_rollout",
    "grpo_by_group",
    "check_reward_nonzero_std",
    "check_reward_nonzero_std_with_fallback",
    "slime_trainer_values",
    "SampleGroup",
]
