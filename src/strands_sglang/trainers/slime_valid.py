"""Samples looked over before slime takes them: `validate_sample`, `validate_batch`.

Invariant: a batch that passes is converted without an error and without something being dropped in silence. All
problems are named at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from strands_sglang.errors import StrandsSGLangError
from strands_sglang.trainers.slime_checks import Stage, problems_of
from strands_sglang.trainers.slime_fields import laid_out

_MOST_SHOWN = 20
_NORMALISED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")


class InvalidSampleError(StrandsSGLangError, ValueError):
    """Samples that slime would refuse, or train otherwise than meant."""

    def __init__(self, message: str, *, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems
        """Everything that is wrong, one line each."""

    @classmethod
    def of(cls, problems: list[str]) -> InvalidSampleError:
        """Return the error for these problems."""
        shown = "; ".join(problems[:_MOST_SHOWN])
        more = f"; and {len(problems) - _MOST_SHOWN} more" if len(problems) > _MOST_SHOWN else ""
        return cls(f"slime cannot train this: {shown}{more}", problems=tuple(problems))


def validate_sample(sample: Any, args: Any = None, *, stage: Stage = Stage.SHIPPED) -> None:
    """Check a sample, or every one in a list of any depth, each for itself.

    Args:
        sample: What a generate function returned, or a batch.
        args: slime's arguments; None: only what does not depend on them is looked at.
        stage: Where the samples are on their way.

    Raises:
        InvalidSampleError: Something is wrong; its `problems` say all of it.
    """
    found = [*_empty(sample)]
    for at, one in enumerate(laid_out(sample)):
        place = f"sample {at}: " if isinstance(sample, (list, tuple)) else ""
        found += [f"{place}{problem}" for problem in problems_of(one, args, stage=stage)]
    if found:
        raise InvalidSampleError.of(found)


def validate_batch(samples: Any, args: Any = None) -> None:
    """Check a batch: every sample for itself, and what they must have in common.

    Args:
        samples: A list of samples, or nested as a rollout function returns it: groups of rollouts, or groups of
            rollouts of samples.
        args: slime's arguments; None: only what does not depend on them is looked at.

    Raises:
        InvalidSampleError: Something is wrong; its `problems` say all of it.
    """
    found = batch_problems(samples, args)
    if found:
        raise InvalidSampleError.of(found)


def batch_problems(samples: Any, args: Any = None) -> list[str]:
    """Return what is wrong with a batch; see `validate_batch`."""
    flat = list(laid_out(samples))
    found = [*_empty(samples), *_shape(samples, args)]
    if not flat:
        return found or ["there are no samples"]
    found += [f"sample {at}: {problem}" for at, one in enumerate(flat) for problem in problems_of(one, args)]
    found += [*_first_decides(flat), *_rollouts(samples, flat, args), *_groups(flat, args)]
    if not any(any(one.loss_mask or ()) and not one.remove_sample for one in flat):
        found.append("no token of the batch is trained")
    return found


def _empty(samples: Any) -> Iterator[str]:
    """Yield lists without a sample: slime looks at the first of each."""
    if isinstance(samples, (list, tuple)):
        if not samples:
            yield "an empty list in the place of samples"
        for one in samples:
            yield from _empty(one)


def _shape(samples: Any, args: Any) -> Iterator[str]:
    depths = set(_depths(samples))
    if len(depths) > 1:
        yield f"samples and lists of samples are mixed (depths {sorted(depths)}): slime looks at the first only"
    if _has_tuples(samples):
        yield "a tuple in the place of a list: slime does not look into it"
    wanted = getattr(args, "n_samples_per_prompt", None)
    if wanted is None or depths not in ({2}, {3}):
        return
    for number, group in enumerate(samples):
        if len(group) != wanted:
            yield f"group {number} has {len(group)} rollouts, n_samples_per_prompt is {wanted}"
    batch = getattr(args, "rollout_batch_size", None)
    if batch is not None and len(samples) != batch:
        yield f"{len(samples)} groups, rollout_batch_size is {batch}"


def _depths(samples: Any, depth: int = 0) -> Iterator[int]:
    if isinstance(samples, (list, tuple)):
        for one in samples:
            yield from _depths(one, depth + 1)
    else:
        yield depth


def _has_tuples(samples: Any) -> bool:
    return isinstance(samples, tuple) or (isinstance(samples, list) and any(map(_has_tuples, samples)))


def _first_decides(flat: list[Any]) -> Iterator[str]:
    """Yield fields that some samples have and others not, where slime looks at the first sample only."""
    for name in ("rollout_log_probs", "rollout_routed_experts", "teacher_log_probs", "train_metadata"):
        missing = [at for at, one in enumerate(flat) if getattr(one, name, None) is None]
        if missing and len(missing) < len(flat):
            outcome = "all would lose it" if missing[0] == 0 else "slime would fail on it"
            yield f"{name} is None on {len(missing)} of {len(flat)} samples, first on {missing[0]}: {outcome}"
    numbered = ["round_number" in (one.metadata or {}) for one in flat]
    if numbered[0] and not all(numbered):
        yield f"metadata has a round_number on the first sample, and none on sample {numbered.index(False)}"
    shapes = {np.shape(one.rollout_routed_experts)[1:] for one in flat if one.rollout_routed_experts is not None}
    if len(shapes) > 1:
        yield f"rollout_routed_experts of different shapes: {sorted(shapes)}"
    unnumbered = [at for at, one in enumerate(flat) if one.index is None]
    if unnumbered and len(unnumbered) < len(flat):
        yield f"index is None on sample {unnumbered[0]} and a number on others: they cannot be sorted"


def _rollouts(samples: Any, flat: list[Any], args: Any) -> Iterator[str]:
    seen = Counter(map(id, flat))
    twice = [at for at, one in enumerate(flat) if seen[id(one)] > 1]
    if twice:
        yield f"sample {twice[0]} is in the batch twice"
    groups: dict[int, set[Any]] = {}
    for one in flat:
        if one.rollout_id is not None:
            groups.setdefault(one.rollout_id, set()).add(one.group_index)
    shared = [rollout for rollout, of in groups.items() if len(of) > 1]
    if shared:
        yield f"rollout_id {shared[0]} is used in several groups: they would count as one rollout"
    yield from _siblings(samples)
    known = {one.rollout_id for one in flat if one.rollout_id is not None}
    count = len(known) + sum(one.rollout_id is None for one in flat)
    size = getattr(args, "global_batch_size", None)
    if size and count < size:
        yield f"{count} rollouts, fewer than global_batch_size {size}"
    elif size and count % size:
        yield f"{count} rollouts: the last {count % size} do not fill a global_batch_size of {size}, and are dropped"


def _siblings(samples: Any) -> Iterator[str]:
    """Yield rollouts of several samples whose `rollout_id` does not say so."""
    if set(_depths(samples)) != {3}:
        return
    used: Counter[int] = Counter()
    for number, group in enumerate(samples):
        for rollout in group:
            ids = {one.rollout_id for one in rollout}
            if len(rollout) > 1 and (None in ids or len(ids) > 1):
                yield f"group {number} has a rollout of {len(rollout)} samples with rollout_id {sorted(map(str, ids))}"
            used.update(id for id in ids if id is not None)
    for id, times in used.items():
        if times > 1:
            yield f"rollout_id {id} is used by {times} rollouts: they would count as one"


def _groups(flat: list[Any], args: Any) -> Iterator[str]:
    """Yield groups that slime's own normalisation would take apart."""
    wanted = getattr(args, "n_samples_per_prompt", None)
    if (
        wanted is None
        or getattr(args, "advantage_estimator", None) not in _NORMALISED
        or not getattr(args, "rewards_normalization", False)
        or getattr(args, "custom_reward_post_process_path", None)
    ):
        return
    places = [flat[at : at + wanted] for at in range(0, len(flat), wanted)]
    whole = len(flat) == wanted * getattr(args, "rollout_batch_size", len(flat) // wanted)
    if not whole or any(len({one.group_index for one in place}) > 1 for place in places):
        yield (
            f"groups are not {wanted} samples each, one behind the other: slime normalises rewards over wrong samples; "
            "set --custom-reward-post-process-path strands_sglang.trainers.slime.grpo_by_group"
        )
