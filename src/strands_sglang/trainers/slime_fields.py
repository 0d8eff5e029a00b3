"""slime's `Sample`, as far as it is looked at and written here: `SlimeSample`. slime itself is never imported.

Invariant: any object with these fields will do, so that samples of slime's forks and of tests do too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from enum import Enum
from typing import Any, Protocol, TypeVar


class SlimeSample(Protocol):
    """The fields of a sample that are read or written. Its own methods are not used."""

    group_index: int | None
    """Number of the prompt: samples of one prompt form a group; None in evaluations."""
    index: int | None
    """Number of the sample in the whole training; None when nobody counted it."""
    rollout_id: int | None
    """The same for all samples made of one episode; None: the sample is the whole episode."""
    prompt: Any
    """What the dataset has: text or messages."""
    tokens: list[int]
    """Prompt and response."""
    response: str
    """The response as text."""
    response_length: int
    """How many of the last tokens are the response; at least 1 and less than all."""
    reward: float | dict[str, Any] | None
    """What it is worth; None: slime's own reward model is asked."""
    loss_mask: list[int] | None
    """One entry a response token; None: 1 on all."""
    weight_versions: list[str]
    """Versions of the weights that sampled it."""
    rollout_log_probs: list[float] | None
    """One entry a response token, 0.0 where nothing was sampled."""
    rollout_top_p_token_ids: Any
    """Tokens that top-p kept, one run a response token; None: not known."""
    rollout_top_p_token_offsets: Any
    """Where each of these runs begins, and the end; None: not known."""
    rollout_routed_experts: Any
    """Expert choices (tokens - 1, layers, top k); None: not asked for."""
    remove_sample: bool
    """Whether it is kept out of the loss."""
    teacher_log_probs: list[float] | None
    """One entry a response token, from a teacher; None: there is none."""
    status: Any
    """A member of slime's `Sample.Status`."""
    session_id: str | None
    """What the engine's router keeps together; None in evaluations."""
    label: Any
    """What a reward compares with; None: nothing."""
    metadata: dict[str, Any]
    """Whatever the dataset and hooks keep with it."""
    non_generation_time: float
    """Seconds spent on something else than sampling."""
    spec_info: Any
    """Counts of speculative decoding."""
    prefix_cache_info: Any
    """Counts of the engine's prefix cache."""


class SlimeStatus(str, Enum):
    """The members of slime's `Sample.Status`, by name."""

    PENDING = "PENDING"
    """Not sampled yet."""
    COMPLETED = "COMPLETED"
    """Came to an end of its own."""
    TRUNCATED = "TRUNCATED"
    """A limit ended it."""
    ABORTED = "ABORTED"
    """Interrupted; may come back to be finished."""
    FAILED = "FAILED"
    """Something broke."""

    def set(self, sample: SlimeSample) -> None:
        """Give a sample this status, as a member of its own enum."""
        sample.status = type(sample.status)[self.name]

    def of(self, sample: Any) -> bool:
        """Return whether a sample has this status."""
        return getattr(sample.status, "name", None) == self.name


S = TypeVar("S", bound=SlimeSample)


def copied(sample: S) -> S:
    """Return a copy that shares no list and no dict with the sample; what lies in them (images, tensors) is shared."""
    twin = copy.copy(sample)
    for name, value in vars(sample).items():
        setattr(twin, name, _fresh(value))
    return twin


def laid_out(samples: Any) -> Iterator[Any]:
    """Yield the samples in a list of any depth, in order; a single sample yields itself."""
    if isinstance(samples, (list, tuple)):
        for one in samples:
            yield from laid_out(one)
    else:
        yield samples


def reward_of(sample: Any, args: Any = None) -> Any:
    """Return what a sample is worth: its reward, or the part of it that `args.reward_key` names."""
    key = getattr(args, "reward_key", None)
    return sample.reward[key] if key else sample.reward


def _fresh(value: Any) -> Any:
    if isinstance(value, list):
        return [_fresh(one) for one in value]
    if isinstance(value, dict):
        return {key: _fresh(one) for key, one in value.items()}
    # Counts are small objects of slime's own with plain numbers in them.
    return copy.copy(value) if type(value).__name__ in ("SpecInfo", "PrefixCacheInfo") else value
