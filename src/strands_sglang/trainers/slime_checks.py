"""What is wrong with one of slime's samples: `problems_of`. Stricter than slime, which takes much of it in silence.

Invariant: nothing is changed and nothing is raised; a sample that has none of these problems goes through slime's
conversion and into its loss as it is meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np

from strands_sglang.trainers.slime_fields import SlimeStatus

_HIGHEST_LOGPROB = 1e-3
"""Rounding may carry a logprob a little above 0, and not further."""


class Stage(str, Enum):
    """Where a sample is on its way."""

    RETURNED = "returned"
    """As a generate function returns it: slime's reward model may still be asked."""
    SHIPPED = "shipped"
    """As it is turned into training data."""


def problems_of(sample: Any, args: Any = None, *, stage: Stage = Stage.SHIPPED) -> list[str]:
    """Return what is wrong with a sample.

    Args:
        sample: One of slime's samples.
        args: slime's arguments; None: only what does not depend on them is looked at.
        stage: Where the sample is on its way.
    """
    found = [*_tokens(sample, args)]
    if not found:  # else everything that is aligned with tokens would be reported once more
        found += [*_response(sample, args), *_experts(sample, args), *_top_p(sample, args)]
    return [*found, *_reward(sample, args, stage), *_rest(sample)]


def _tokens(sample: Any, args: Any) -> Iterator[str]:
    tokens, length = sample.tokens, sample.response_length
    if not isinstance(tokens, list) or not _all_ints(tokens):
        yield f"tokens is not a list of int but {tokens!r:.80}"
        return
    if not _is_int(length):
        yield f"response_length is not an int but {length!r:.80}"
        return
    if tokens and min(tokens) < 0:
        yield f"token {min(tokens)} is below 0"
    vocabulary = getattr(args, "vocab_size", None)
    if tokens and vocabulary and max(tokens) >= vocabulary:
        yield f"token {max(tokens)} is not in a vocabulary of {vocabulary}"
    if length < 1:
        yield f"response_length is {length}: without a response the logits of other tokens are taken"
    elif length >= len(tokens):
        yield f"response_length is {length} of {len(tokens)} tokens: the first token has no logits, a prompt is needed"


def _response(sample: Any, args: Any) -> Iterator[str]:
    length, mask, logprobs = sample.response_length, sample.loss_mask, sample.rollout_log_probs
    if mask is None:
        yield "loss_mask is None: slime would train every response token"
    elif not isinstance(mask, list) or not _all_ints(mask) or not set(mask) <= {0, 1}:
        yield f"loss_mask is not a list of 0 and 1 but {mask!r:.80}"
    elif len(mask) != length:
        yield f"loss_mask has {len(mask)} entries for {length} response tokens"
    if logprobs is None:
        yield "rollout_log_probs is None: on the first sample of a batch it drops them for all, on others it fails"
    else:
        wrong = [*_numbers("rollout_log_probs", logprobs, length)]
        yield from wrong
        if not wrong and max(logprobs) > _HIGHEST_LOGPROB:
            yield f"rollout_log_probs has {max(logprobs)}, which is above 0"
    if sample.teacher_log_probs is not None:
        yield from _numbers("teacher_log_probs", sample.teacher_log_probs, length)
    limit = getattr(args, "rollout_max_response_len", None)
    if limit is not None and length > limit:
        yield f"{length} response tokens, rollout_max_response_len is {limit}"
    context = getattr(args, "rollout_max_context_len", None)
    if context is not None and len(sample.tokens) > context:
        yield f"{len(sample.tokens)} tokens, rollout_max_context_len is {context}"


def _numbers(name: str, values: Any, length: int) -> Iterator[str]:
    if not isinstance(values, list):
        yield f"{name} is not a list but {values!r:.80}"
        return
    if len(values) != length:
        yield f"{name} has {len(values)} entries for {length} response tokens"
    if not all(_is_number_type(kind) for kind in set(map(type, values))):
        yield f"{name} holds {next(one for one in values if not _is_number(one))!r:.80}"
    elif not all(map(math.isfinite, values)):
        yield f"{name} holds a number that is not finite"


def _experts(sample: Any, args: Any) -> Iterator[str]:
    experts, replayed = sample.rollout_routed_experts, bool(getattr(args, "use_rollout_routing_replay", False))
    if experts is None:
        if replayed:
            yield "rollout_routed_experts is None, and use_rollout_routing_replay is on"
        return
    try:
        chosen = np.asarray(experts)
    except (TypeError, ValueError) as error:
        yield f"rollout_routed_experts is not an array: {error}"
        return
    if chosen.ndim != 3 or not np.issubdtype(chosen.dtype, np.integer):
        yield f"rollout_routed_experts is {chosen.dtype} of shape {chosen.shape}, not int (tokens - 1, layers, top k)"
        return
    if len(chosen) != len(sample.tokens) - 1:
        yield f"rollout_routed_experts has {len(chosen)} rows for {len(sample.tokens)} tokens, not one less"
    if chosen.size and chosen.min() < 0:
        yield "rollout_routed_experts holds a number below 0"
    layers, top_k = getattr(args, "num_layers", None), getattr(args, "moe_router_topk", None)
    if not replayed or layers is None or top_k is None:
        return
    if chosen.shape[1:] != (layers, top_k):
        yield f"rollout_routed_experts has shape {chosen.shape}: not {layers} layers and {top_k} experts"
    elif top_k > 1 and chosen.size:
        empty = [layer for layer in _expert_layers(args, layers) if not chosen[:, layer].any()]
        if empty:
            yield f"rollout_routed_experts is zero everywhere in layers {empty}: slime takes it for a broken capture"


def _expert_layers(args: Any, layers: int) -> list[int]:
    often = getattr(args, "moe_layer_freq", None)
    return [at for at in range(layers) if not isinstance(often, (list, tuple)) or (at < len(often) and int(often[at]))]


def _top_p(sample: Any, args: Any) -> Iterator[str]:
    ids = getattr(sample, "rollout_top_p_token_ids", None)
    offsets = getattr(sample, "rollout_top_p_token_offsets", None)
    if ids is None or offsets is None:
        top_p = getattr(args, "rollout_top_p", 1.0)
        if top_p != 1.0:
            yield f"rollout_top_p is {top_p}, and the tokens it kept are not known: sample with 1.0"
        if (ids is None) != (offsets is None):
            yield "one of rollout_top_p_token_ids and rollout_top_p_token_offsets is None"
        return
    places = [int(at) for at in offsets]
    if len(places) != sample.response_length + 1:
        yield f"rollout_top_p_token_offsets has {len(places)} entries for {sample.response_length} response tokens"
    if not places or places[0] != 0 or places[-1] != len(ids) or sorted(places) != places:
        yield f"rollout_top_p_token_offsets do not go from 0 to {len(ids)}"


def _reward(sample: Any, args: Any, stage: Stage) -> Iterator[str]:
    reward, key = sample.reward, getattr(args, "reward_key", None)
    if reward is None:
        if stage is Stage.SHIPPED:
            yield "reward is None"
        elif SlimeStatus.ABORTED.of(sample):
            yield "reward is None on an aborted sample: nobody scores it, and it is shipped"
        return
    category = getattr(args, "log_reward_category", None)
    if category is not None and (not isinstance(reward, dict) or category not in reward):
        yield f"reward has no {category!r}, which log_reward_category asks for"
    if isinstance(reward, dict):
        if args is not None and not key:
            yield "reward is a dict, and there is no reward_key"
            return
        if key and key not in reward:
            yield f"reward has no {key!r}, which is the reward_key"
            return
        numbers = [reward[key]] if key else []
    elif key:
        yield f"reward is {reward!r:.80}, not a dict with the reward_key {key!r}"
        return
    else:
        numbers = [reward]
    if not all(_is_number(one) and math.isfinite(one) for one in numbers):
        yield f"reward is {numbers[0]!r:.80}, not a finite number"


def _rest(sample: Any) -> Iterator[str]:
    if getattr(sample.status, "name", None) not in SlimeStatus.__members__:
        yield f"status is {sample.status!r:.80}"
    elif SlimeStatus.PENDING.of(sample):
        yield "status is still pending"
    elif SlimeStatus.ABORTED.of(sample) and not sample.remove_sample:
        yield "an aborted sample would be trained as it is: it needs remove_sample"
    if not isinstance(sample.remove_sample, bool):
        yield f"remove_sample is {sample.remove_sample!r:.80}"
    if not isinstance(sample.response, str):
        yield f"response is not text but {sample.response!r:.80}"
    if not isinstance(sample.metadata, dict):
        yield f"metadata is not a dict but {sample.metadata!r:.80}"
    versions = sample.weight_versions
    if not isinstance(versions, list) or not all(isinstance(version, str) for version in versions):
        yield f"weight_versions is not a list of text but {versions!r:.80}"
    spent = sample.non_generation_time
    if not _is_number(spent) or not math.isfinite(spent) or spent < 0:
        yield f"non_generation_time is {spent!r:.80}"
    if sample.rollout_id is not None and not _is_int(sample.rollout_id):
        yield f"rollout_id is {sample.rollout_id!r:.80}"
    for name in ("spec_info", "prefix_cache_info"):
        if getattr(sample, name) is None:
            yield f"{name} is None"


def _all_ints(values: list[Any]) -> bool:
    return set(map(type, values)) <= {int}  # without a step of Python for each token


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return _is_number_type(type(value))


def _is_number_type(kind: type) -> bool:
    return issubclass(kind, (int, float, np.floating)) and kind is not bool
