"""The fields of slime's `Sample` that are read or written here: `SlimeSample`.

Invariant: slime is never imported. Any object with these fields works, such as the samples of slime's forks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar


class SlimeSample(Protocol):
    """The fields of a sample that are read or written. Its methods are not used."""

    group_index: int | None
    """Number of the prompt; samples of one prompt form a group. None in evaluations."""
    index: int | None
    """Number of the sample in the whole training; None if it was not numbered."""
    rollout_id: int | None
    """The same for all samples of one episode; None if the sample is the whole episode."""
    prompt: Any
    multimodal_inputs: Any
    """`{"images": [...]}`, the images among the tokens as images of Pillow; None without images."""
    multimodal_train_inputs: Any
    """For the images, such as `pixel_values` and `image_grid_thw`; None without images."""
    tokens: list[int]
    response: str
    response_length: int
    """Number of tokens at the end that are the response; at least 1 and fewer than all."""
    reward: float | dict[str, Any] | None
    """None lets slime's reward model score the sample."""
    loss_mask: list[int] | None
    """One entry per response token; None means 1 on all."""
    weight_versions: list[str]
    rollout_log_probs: list[float] | None
    """One entry per response token; 0.0 on tokens that were not sampled."""
    rollout_top_p_token_ids: Any
    """Tokens that top-p kept, one run per response token; None if unknown."""
    rollout_top_p_token_offsets: Any
    """Start of each of these runs, and the end of the last; None if unknown."""
    rollout_routed_experts: Any
    """Routed experts of shape (tokens - 1, layers, top k); None if not requested."""
    remove_sample: bool
    teacher_log_probs: list[float] | None
    """One entry per response token, from a teacher model; None if there is none."""
    status: Any
    """A member of the sample's own enum; `TrainerStatus.slime_name` has the names that are set here."""
    session_id: str | None
    """Routing key for session affinity; None in evaluations."""
    label: Any
    metadata: dict[str, Any]
    non_generation_time: float
    """Seconds spent on anything but sampling."""
    spec_info: Any
    prefix_cache_info: Any


S = TypeVar("S", bound=SlimeSample)


def copy_sample(sample: S) -> S:
    """Return a copy that shares no list and no dict with the sample; their contents (images, tensors) are shared."""
    twin = copy.copy(sample)
    for name, value in vars(sample).items():
        setattr(twin, name, _fresh(value))
    return twin


def flatten(samples: Any) -> Iterator[Any]:
    """Yield the samples in a list of any depth, in order; a single sample yields itself."""
    if isinstance(samples, (list, tuple)):
        for one in samples:
            yield from flatten(one)
    else:
        yield samples


def reward_of(sample: Any, args: Any = None) -> Any:
    """Return the reward of a sample, or the entry of it that `args.reward_key` names."""
    key = getattr(args, "reward_key", None)
    return sample.reward[key] if key else sample.reward


def _fresh(value: Any) -> Any:
    if isinstance(value, list):
        return [_fresh(one) for one in value]
    if isinstance(value, dict):
        return {key: _fresh(one) for key, one in value.items()}
    # Counters are small objects of slime's that hold plain numbers.
    return copy.copy(value) if type(value).__name__ in ("SpecInfo", "PrefixCacheInfo") else value
