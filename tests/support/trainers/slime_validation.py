"""Checks the samples that slime gets: `validate_sample`, `validate_batch`. Stricter than slime.

slime accepts many invalid samples without an error and trains something other than intended.

Invariant: a batch that passes is converted without an error, and nothing of it is dropped silently. All problems are
reported at once, and nothing is changed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np

from strands_sglang.trainers.slime.types import flatten
from support.trainers.slime_mirror import Status

_NORMALISED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_HIGHEST_LOGPROB = 1e-3
"""Highest logprob accepted: rounding may put one slightly above 0."""


class Stage(str, Enum):
    """At which point a sample is checked."""

    RETURNED = "returned"
    """As a generate function returns it: slime's reward model may still score it."""
    SHIPPED = "shipped"


class InvalidSampleError(AssertionError):
    """Samples that slime would refuse, or train differently than intended."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def validate_sample(sample: Any, args: Any = None, *, stage: Stage = Stage.SHIPPED) -> None:
    """Check a sample, or each sample in a nested list on its own."""
    found = [*_empty(sample)]
    for at, one in enumerate(flatten(sample)):
        place = f"sample {at}: " if isinstance(sample, (list, tuple)) else ""
        found += [f"{place}{problem}" for problem in problems_of(one, args, stage=stage)]
    if found:
        raise InvalidSampleError(found)


def validate_batch(samples: Any, args: Any = None) -> None:
    """Check a batch: each sample on its own, and what the samples must have in common."""
    found = batch_problems(samples, args)
    if found:
        raise InvalidSampleError(found)


def batch_problems(samples: Any, args: Any = None) -> list[str]:
    flat = list(flatten(samples))
    found = [*_empty(samples), *_shape(samples, args)]
    if not flat:
        return found or ["the batch has no samples"]
    found += [f"sample {at}: {problem}" for at, one in enumerate(flat) for problem in problems_of(one, args)]
    found += [*_first_decides(flat), *_rollouts(samples, flat, args), *_groups(flat, args)]
    if not any(any(one.loss_mask or ()) and not one.remove_sample for one in flat):
        found.append("no token of the batch is trained")
    return found


def _empty(samples: Any) -> Iterator[str]:
    """Yield a problem for each empty list: slime reads the first element of each."""
    if isinstance(samples, (list, tuple)):
        if not samples:
            yield "samples contains an empty list"
        for one in samples:
            yield from _empty(one)


def _shape(samples: Any, args: Any) -> Iterator[str]:
    depths = set(_depths(samples))
    if len(depths) > 1:
        yield f"samples and lists of samples are mixed (depths {sorted(depths)}): slime only checks the first"
    if _has_tuples(samples):
        yield "samples contains a tuple: slime only unpacks lists"
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
    """Yield fields that only some samples have, where slime checks only the first sample."""
    for name in ("rollout_log_probs", "rollout_routed_experts", "teacher_log_probs", "train_metadata"):
        missing = [at for at, one in enumerate(flat) if getattr(one, name, None) is None]
        if missing and len(missing) < len(flat):
            outcome = "slime drops it for all samples" if missing[0] == 0 else "slime fails on that sample"
            yield f"{name} is None on {len(missing)} of {len(flat)} samples, first on {missing[0]}: {outcome}"
    numbered = ["round_number" in (one.metadata or {}) for one in flat]
    if numbered[0] and not all(numbered):
        yield f"metadata has a round_number on the first sample but not on sample {numbered.index(False)}"
    shapes = {np.shape(one.rollout_routed_experts)[1:] for one in flat if one.rollout_routed_experts is not None}
    if len(shapes) > 1:
        yield f"rollout_routed_experts has different shapes: {sorted(shapes)}"
    unnumbered = [at for at, one in enumerate(flat) if one.index is None]
    if unnumbered and len(unnumbered) < len(flat):
        yield f"index is None on sample {unnumbered[0]} and a number on others: slime cannot sort them"


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
        yield f"rollout_id {shared[0]} is used in several groups: slime counts them as one rollout"
    yield from _siblings(samples)
    known = {one.rollout_id for one in flat if one.rollout_id is not None}
    count = len(known) + sum(one.rollout_id is None for one in flat)
    size = getattr(args, "global_batch_size", None)
    if size and count < size:
        yield f"{count} rollouts, fewer than global_batch_size {size}"
    elif size and count % size:
        yield f"{count} rollouts: the last {count % size} do not fill a global_batch_size of {size}, and are dropped"


def _siblings(samples: Any) -> Iterator[str]:
    """Yield rollouts of several samples that do not share one `rollout_id`."""
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
            yield f"rollout_id {id} is used by {times} rollouts: slime counts them as one"


def _groups(flat: list[Any], args: Any) -> Iterator[str]:
    """Yield a problem if slime's own normalisation would mix up the groups."""
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
            f"groups are not {wanted} consecutive samples each: slime normalises rewards over the wrong samples; "
            "set --custom-reward-post-process-path strands_sglang.trainers.slime.grpo_by_group"
        )


def problems_of(sample: Any, args: Any = None, *, stage: Stage = Stage.SHIPPED) -> list[str]:
    """Return the problems of a sample."""
    found = [*_tokens(sample, args)]
    if not found:  # otherwise everything aligned with the tokens would be reported again
        found += [*_response(sample, args), *_experts(sample, args), *_top_p(sample, args), *_images(sample)]
    return [*found, *_reward(sample, args, stage), *_rest(sample)]


def _tokens(sample: Any, args: Any) -> Iterator[str]:
    tokens, length = sample.tokens, sample.response_length
    if not isinstance(tokens, list) or not _all_ints(tokens):
        yield f"tokens must be a list of int, got {tokens!r:.80}"
        return
    if not _is_int(length):
        yield f"response_length must be an int, got {length!r:.80}"
        return
    if tokens and min(tokens) < 0:
        yield f"token ids must be 0 or more, got {min(tokens)}"
    vocabulary = getattr(args, "vocab_size", None)
    if tokens and vocabulary and max(tokens) >= vocabulary:
        yield f"token ids must be below the vocabulary size of {vocabulary}, got {max(tokens)}"
    if length < 1:
        yield f"response_length must be at least 1, got {length}: slime would use the logits of other tokens"
    elif length >= len(tokens):
        yield f"response_length must be below the {len(tokens)} tokens, got {length}: the first token has no logits"


def _response(sample: Any, args: Any) -> Iterator[str]:
    length, mask, logprobs = sample.response_length, sample.loss_mask, sample.rollout_log_probs
    if mask is None:
        yield "loss_mask is None: slime trains every response token"
    elif not isinstance(mask, list) or not _all_ints(mask) or not set(mask) <= {0, 1}:
        yield f"loss_mask must be a list of 0 and 1, got {mask!r:.80}"
    elif len(mask) != length:
        yield f"loss_mask has {len(mask)} entries for {length} response tokens"
    if logprobs is None:
        yield "rollout_log_probs is None: slime drops them for the whole batch, or fails if other samples have them"
    else:
        wrong = [*_numbers("rollout_log_probs", logprobs, length)]
        yield from wrong
        if not wrong and max(logprobs) > _HIGHEST_LOGPROB:
            yield f"rollout_log_probs must not be above 0, got {max(logprobs)}"
    if sample.teacher_log_probs is not None:
        yield from _numbers("teacher_log_probs", sample.teacher_log_probs, length)
    limit = getattr(args, "rollout_max_response_len", None)
    if limit is not None and length > limit:
        yield f"{length} response tokens exceed rollout_max_response_len {limit}"
    context = getattr(args, "rollout_max_context_len", None)
    if context is not None and len(sample.tokens) > context:
        yield f"{len(sample.tokens)} tokens exceed rollout_max_context_len {context}"


def _numbers(name: str, values: Any, length: int) -> Iterator[str]:
    if not isinstance(values, list):
        yield f"{name} must be a list, got {values!r:.80}"
        return
    if len(values) != length:
        yield f"{name} has {len(values)} entries for {length} response tokens"
    if not all(_is_number_type(kind) for kind in set(map(type, values))):
        yield f"{name} must hold numbers, got {next(one for one in values if not _is_number(one))!r:.80}"
    elif not all(map(math.isfinite, values)):
        yield f"{name} must hold finite numbers, got nan or inf"


def _experts(sample: Any, args: Any) -> Iterator[str]:
    experts, replayed = sample.rollout_routed_experts, bool(getattr(args, "use_rollout_routing_replay", False))
    if experts is None:
        if replayed:
            yield "rollout_routed_experts is None, but use_rollout_routing_replay is on"
        return
    try:
        chosen = np.asarray(experts)
    except (TypeError, ValueError) as error:
        yield f"rollout_routed_experts must be an array: {error}"
        return
    if chosen.ndim != 3 or not np.issubdtype(chosen.dtype, np.integer):
        yield f"rollout_routed_experts must be int (tokens - 1, layers, top k), got {chosen.dtype} {chosen.shape}"
        return
    if len(chosen) != len(sample.tokens) - 1:
        yield f"rollout_routed_experts has {len(chosen)} rows for {len(sample.tokens)} tokens, must have one fewer"
    if chosen.size and chosen.min() < 0:
        yield "rollout_routed_experts must hold numbers of 0 or more, got a negative one"
    layers, top_k = getattr(args, "num_layers", None), getattr(args, "moe_router_topk", None)
    if not replayed or layers is None or top_k is None:
        return
    if chosen.shape[1:] != (layers, top_k):
        yield f"rollout_routed_experts must have {layers} layers and {top_k} experts, got shape {chosen.shape}"
    elif top_k > 1 and chosen.size:
        empty = [layer for layer in _expert_layers(args, layers) if not chosen[:, layer].any()]
        if empty:
            yield f"rollout_routed_experts is zero everywhere in layers {empty}: slime takes that for a failed capture"


def _expert_layers(args: Any, layers: int) -> list[int]:
    often = getattr(args, "moe_layer_freq", None)
    return [at for at in range(layers) if not isinstance(often, (list, tuple)) or (at < len(often) and int(often[at]))]


def _top_p(sample: Any, args: Any) -> Iterator[str]:
    ids = getattr(sample, "rollout_top_p_token_ids", None)
    offsets = getattr(sample, "rollout_top_p_token_offsets", None)
    if ids is None or offsets is None:
        top_p = getattr(args, "rollout_top_p", 1.0)
        if top_p != 1.0:
            yield f"rollout_top_p must be 1.0 if the tokens that it kept are unknown, got {top_p}"
        if (ids is None) != (offsets is None):
            yield "rollout_top_p_token_ids and rollout_top_p_token_offsets must both be given, got one"
        return
    places = [int(at) for at in offsets]
    if len(places) != sample.response_length + 1:
        yield f"rollout_top_p_token_offsets has {len(places)} entries for {sample.response_length} response tokens"
    if not places or places[0] != 0 or places[-1] != len(ids) or sorted(places) != places:
        yield f"rollout_top_p_token_offsets must rise from 0 to {len(ids)}"


def _images(sample: Any) -> Iterator[str]:
    images = (getattr(sample, "multimodal_inputs", None) or {}).get("images") or ()
    inputs = getattr(sample, "multimodal_train_inputs", None)
    if inputs is None:
        if len(images):
            yield f"multimodal_train_inputs is None: slime trains placeholders of {len(images)} images without pixels"
        return
    grids, pixels = inputs.get("image_grid_thw"), inputs.get("pixel_values")
    if grids is None or pixels is None:
        return  # a model with other inputs
    if len(images) and len(grids) != len(images):
        yield f"image_grid_thw has {len(grids)} grids for {len(images)} images"
    patches = sum(math.prod(grid) for grid in grids.tolist())
    if patches != len(pixels):
        yield f"pixel_values has {len(pixels)} rows, the grids have {patches} patches"


def _reward(sample: Any, args: Any, stage: Stage) -> Iterator[str]:
    reward, key = sample.reward, getattr(args, "reward_key", None)
    if reward is None:
        if stage is Stage.SHIPPED:
            yield "reward is None"
        elif _status(sample) == "ABORTED":
            yield "reward is None on an aborted sample: slime does not score it, but converts it"
        return
    category = getattr(args, "log_reward_category", None)
    if category is not None and (not isinstance(reward, dict) or category not in reward):
        yield f"reward must have the key {category!r}, which log_reward_category names"
    if isinstance(reward, dict):
        if args is not None and not key:
            yield "reward is a dict, but no reward_key is set"
            return
        if key and key not in reward:
            yield f"reward must have the key {key!r}, which reward_key names"
            return
        numbers = [reward[key]] if key else []
    elif key:
        yield f"reward must be a dict with the reward_key {key!r}, got {reward!r:.80}"
        return
    else:
        numbers = [reward]
    if not all(_is_number(one) and math.isfinite(one) for one in numbers):
        yield f"reward must be a finite number, got {numbers[0]!r:.80}"


def _status(sample: Any) -> Any:
    return getattr(sample.status, "name", None)


def _rest(sample: Any) -> Iterator[str]:
    if _status(sample) not in Status.__members__:
        yield f"status must be a member of Sample.Status, got {sample.status!r:.80}"
    elif _status(sample) == "PENDING":
        yield "status must not be pending"
    elif _status(sample) == "ABORTED" and not sample.remove_sample:
        yield "remove_sample must be set on an aborted sample: slime would train it"
    if not isinstance(sample.remove_sample, bool):
        yield f"remove_sample must be a bool, got {sample.remove_sample!r:.80}"
    if not isinstance(sample.response, str):
        yield f"response must be a str, got {sample.response!r:.80}"
    if not isinstance(sample.metadata, dict):
        yield f"metadata must be a dict, got {sample.metadata!r:.80}"
    versions = sample.weight_versions
    if not isinstance(versions, list) or not all(isinstance(version, str) for version in versions):
        yield f"weight_versions must be a list of str, got {versions!r:.80}"
    spent = sample.non_generation_time
    if not _is_number(spent) or not math.isfinite(spent) or spent < 0:
        yield f"non_generation_time must be a finite number of 0 or more, got {spent!r:.80}"
    if sample.rollout_id is not None and not _is_int(sample.rollout_id):
        yield f"rollout_id must be an int or None, got {sample.rollout_id!r:.80}"
    for name in ("spec_info", "prefix_cache_info"):
        if getattr(sample, name) is None:
            yield f"{name} is None"


def _all_ints(values: list[Any]) -> bool:
    return set(map(type, values)) <= {int}  # no Python loop over the tokens


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return _is_number_type(type(value))


def _is_number_type(kind: type) -> bool:
    return issubclass(kind, (int, float, np.floating)) and kind is not bool
