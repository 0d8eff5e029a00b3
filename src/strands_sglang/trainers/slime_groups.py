"""Rewards of slime's groups, where a rollout may be several samples: advantages and dynamic filters.

`--custom-reward-post-process-path strands_sglang.trainers.slime.grpo_by_group` and
`--dynamic-sampling-filter-path strands_sglang.trainers.slime.check_reward_nonzero_std`. slime's own take samples for
rollouts, and groups of different sizes for one large group.

Invariant: every rollout counts once in its group however many samples it has, and one that is kept out of the loss does
not count at all. Where slime's own are right, these give the same.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strands_sglang.errors import ConfigurationError
from strands_sglang.trainers.slime_fields import SlimeStatus, laid_out, reward_of

_CENTRED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
"""Estimators for which slime takes the mean of a group off."""
_SCALED = ("grpo", "gspo", "cispo")
"""Those for which it divides by the standard deviation, too."""
_EPSILON = 1e-6
"""What slime adds to a standard deviation, and below which it takes one for zero."""
_THEIRS = "slime.rollout.filter_hub.base_types"


@dataclass(slots=True)
class FilterOutput:
    """What a dynamic filter says, where slime's own class is not at hand. True when the group is kept."""

    keep: bool
    """Whether the group is trained."""
    reason: str | None = None
    """Why not, in a word for slime's metrics; None: it is kept."""
    keep_when_insufficient: bool = False
    """Whether to train it all the same when there would be too few groups."""

    def __bool__(self) -> bool:
        return self.keep


def grpo_by_group(args: Any, samples: Any) -> tuple[list[float], list[float]]:
    """Return the rewards of samples, and what of them goes into the loss: compared within each group.

    As slime's own normalisation for groups of equal size without further branches. Otherwise the mean and the standard
    deviation are those of the rollouts of a group (`group_index`), each counted once. Samples that are kept out of the
    loss do not count and get 0.0, as do groups in which all are worth the same, or only one is left.

    Args:
        args: slime's arguments: `reward_key`, `advantage_estimator`, `rewards_normalization`, `grpo_std_normalization`.
        samples: A list of samples, flat or nested.

    Returns:
        Rewards, and advantages; both in the order of the samples.

    Raises:
        ConfigurationError: A sample that counts has no reward.
    """
    flat = list(laid_out(samples))
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
    """Keep a group whose rollouts are not all worth the same. A rollout may be a sample or a list of them.

    Args:
        args: slime's arguments; `reward_key` is looked at.
        samples: The samples of one group, flat or nested.
        kwargs: Whatever else slime passes.

    Returns:
        slime's `DynamicFilterOutput` where slime is running, else a `FilterOutput`.
    """
    return _output(*_verdict(args, samples))


def check_reward_nonzero_std_with_fallback(args: Any, samples: Any, **kwargs: Any) -> Any:
    """Keep such a group, and others when there would be too few; see `check_reward_nonzero_std`."""
    return _output(*_verdict(args, samples), keep_when_insufficient=True)


def _verdict(args: Any, samples: Any) -> tuple[bool, str | None]:
    counted = [sample for sample in laid_out(samples) if _counts(sample) and sample.reward is not None]
    worth = _rollouts(counted, [float(reward_of(sample, args)) for sample in counted])
    if len(worth) < 2:
        return False, f"only_{len(worth)}_rollouts"
    if statistics.stdev(worth) > _EPSILON:
        return True, None
    return False, f"zero_std_{round(worth[0], 1)}"


def _output(keep: bool, reason: str | None, keep_when_insufficient: bool = False) -> Any:
    # Whoever calls a filter has the module loaded; nothing of slime's is imported here.
    kind = getattr(sys.modules.get(_THEIRS), "DynamicFilterOutput", FilterOutput)
    return kind(keep=keep, reason=reason, keep_when_insufficient=keep_when_insufficient)


def _raw(sample: Any, at: int, args: Any) -> float:
    try:
        return float(reward_of(sample, args))
    except (KeyError, TypeError, ValueError) as error:
        if not _counts(sample):
            return 0.0
        raise ConfigurationError(
            f"sample {at} (index {sample.index}) has the reward {sample.reward!r:.100}, which is no number: give the "
            "rollout a reward function, slime a reward model, or --reward-key where rewards are dicts"
        ) from error


def _counts(sample: Any) -> bool:
    return not sample.remove_sample and not SlimeStatus.ABORTED.of(sample)


def _groups(flat: Sequence[Any], args: Any) -> list[list[int]]:
    """Return the places of the samples of each group.

    Where nobody numbered the groups they are what slime takes them for: so many rollouts, one behind the other.
    """
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
    """Return what samples of one rollout have in common."""
    for known in (sample.rollout_id, sample.index):
        if known is not None:
            return known
    return "sample", id(sample)


def _rollouts(samples: Sequence[Any], rewards: Sequence[float]) -> list[float]:
    """Return what each rollout is worth: the mean of its samples, which mostly is the reward of all of them."""
    worth: dict[Any, list[float]] = {}
    for sample, reward in zip(samples, rewards, strict=True):
        worth.setdefault(_rollout(sample), []).append(reward)
    return [one[0] if len(set(one)) == 1 else math.fsum(one) / len(one) for one in worth.values()]
