"""Advantages and dynamic filters for slime's groups, where a rollout may be several samples.

`--custom-reward-post-process-path strands_sglang.trainers.slime.grpo_by_group` and
`--dynamic-sampling-filter-path strands_sglang.trainers.slime.check_reward_nonzero_std`. slime's own
versions treat every sample as a rollout, and groups of different sizes as one large group.

Invariant: every rollout counts once in its group, however many samples it has; a rollout that is kept out of the loss
does not count. Where slime's own versions are correct, these return the same.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strands_sglang.errors import ConfigurationError
from strands_sglang.trainers.slime.types import flatten, reward_of
from strands_sglang.trainers.statuses import TrainerStatus

_CENTRED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_SCALED = ("grpo", "gspo", "cispo")
_EPSILON = 1e-6
"""As in slime; a smaller standard deviation counts as zero."""
_FILTER_MODULE = "slime.rollout.filter_hub.base_types"


@dataclass(slots=True)
class FilterOutput:
    """Result of a dynamic filter, used if slime's own class is not loaded. True if the group is kept."""

    keep: bool
    reason: str | None = None
    """A name for slime's metrics; None if the group is kept."""
    keep_when_insufficient: bool = False

    def __bool__(self) -> bool:
        return self.keep


def grpo_by_group(args: Any, samples: Any) -> tuple[list[float], list[float]]:
    """Return the rewards of samples and their advantages within each group.

    For groups of equal size with one sample per rollout this equals slime's own normalisation. Otherwise the mean and
    the standard deviation are taken over the rollouts of a group (`group_index`), each counted once. Samples that are
    kept out of the loss get 0.0, as do groups in which all rewards are equal or only one rollout counts.

    Example:
        >>> rewards, advantages = grpo_by_group(args, samples)
    """
    flat = list(flatten(samples))
    raw = [_raw(sample, at, args) for at, sample in enumerate(flat)]
    estimator = getattr(args, "advantage_estimator", "grpo")
    if estimator not in _CENTRED or not getattr(args, "rewards_normalization", True):
        return raw, list(raw)
    scaled = estimator in _SCALED and getattr(args, "grpo_std_normalization", True)
    advantages = [0.0] * len(flat)
    for places in _groups(flat, args):
        counted = [at for at in places if _counts(flat[at])]
        worth = _rollouts([flat[at] for at in counted], [raw[at] for at in counted])
        if len(worth) < 2 or len({raw[at] for at in counted}) < 2:
            continue
        mean = math.fsum(worth) / len(worth)
        divisor = statistics.stdev(worth) + _EPSILON if scaled else 1.0
        for at in counted:
            advantages[at] = (raw[at] - mean) / divisor
    return raw, advantages


def check_reward_nonzero_std(args: Any, samples: Any, **kwargs: Any) -> Any:
    """Keep a group whose rollouts do not all have the same reward. A rollout may be a sample or a list of samples.

    Returns slime's `DynamicFilterOutput` if slime is running, else a `FilterOutput`.

    Example:
        >>> check_reward_nonzero_std(args, group).keep
        True
    """
    return _output(*_keep(args, samples))


def check_reward_nonzero_std_with_fallback(args: Any, samples: Any, **kwargs: Any) -> Any:
    """Like `check_reward_nonzero_std`, but dropped groups are trained anyway if there are too few groups.

    Example:
        >>> check_reward_nonzero_std_with_fallback(args, group).keep_when_insufficient
        True
    """
    return _output(*_keep(args, samples), keep_when_insufficient=True)


def _keep(args: Any, samples: Any) -> tuple[bool, str | None]:
    counted = [sample for sample in flatten(samples) if _counts(sample) and sample.reward is not None]
    worth = _rollouts(counted, [float(reward_of(sample, args)) for sample in counted])
    if len(worth) < 2:
        return False, f"only_{len(worth)}_rollouts"
    if statistics.stdev(worth) > _EPSILON:
        return True, None
    return False, f"zero_std_{round(worth[0], 1)}"


def _output(keep: bool, reason: str | None, keep_when_insufficient: bool = False) -> Any:
    # slime has loaded the module when it calls a filter; nothing of slime is imported here.
    kind = getattr(sys.modules.get(_FILTER_MODULE), "DynamicFilterOutput", FilterOutput)
    return kind(keep=keep, reason=reason, keep_when_insufficient=keep_when_insufficient)


def _raw(sample: Any, at: int, args: Any) -> float:
    try:
        return float(reward_of(sample, args))
    except (KeyError, TypeError, ValueError) as error:
        if not _counts(sample):
            return 0.0
        raise ConfigurationError(
            f"the reward of sample {at} (index {sample.index}) must be a number, got {sample.reward!r:.100}: pass "
            "reward= to slime_rollout, give slime a reward model, or set --reward-key if rewards are dicts"
        ) from error


def _counts(sample: Any) -> bool:
    aborted = TrainerStatus.ABORTED.slime_name
    return not sample.remove_sample and getattr(sample.status, "name", None) != aborted


def _groups(flat: Sequence[Any], args: Any) -> list[list[int]]:
    """Samples without a group number are grouped as slime does it: `n_samples_per_prompt` consecutive rollouts."""
    groups: dict[Any, list[int]] = {}
    unnumbered: dict[Any, int] = {}
    size = getattr(args, "n_samples_per_prompt", None) or len(flat)
    for at, sample in enumerate(flat):
        key: Any = sample.group_index
        if key is None:
            number = unnumbered.setdefault(_rollout(sample), len(unnumbered))
            key = ("unnumbered", number // size)
        groups.setdefault(key, []).append(at)
    return list(groups.values())


def _rollout(sample: Any) -> Any:
    for known in (sample.rollout_id, sample.index):
        if known is not None:
            return known
    return "sample", id(sample)


def _rollouts(samples: Sequence[Any], rewards: Sequence[float]) -> list[float]:
    """The mean over a rollout's samples, which usually all have the same reward."""
    worth: dict[Any, list[float]] = {}
    for sample, reward in zip(samples, rewards, strict=True):
        worth.setdefault(_rollout(sample), []).append(reward)
    return [one[0] if len(set(one)) == 1 else math.fsum(one) / len(one) for one in worth.values()]
