"""Kept sets in samples of slime and Miles: `KeptSetsForm`, `write_kept_sets`.

Both trainers renormalise their logprobs over the tokens that top-p and top-k left to choose from, if the
samples say which. slime takes flat ids with offsets, where a token that was not sampled has an empty set. Miles takes
the same two arrays as an object of its own, where such a token is alone in its set.

Invariant: a sample has sets exactly if its trainer renormalises over them, and only then are its logprobs those over
the sets. Otherwise the two sides of an importance ratio would belong to different distributions.
"""

from __future__ import annotations

import logging
import sys
from array import array
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from strands_sglang.engine.request import has_kept_sets
from strands_sglang.errors import ConfigurationError
from strands_sglang.tokens import KeptSets
from strands_sglang.tokens.kept_sets import empty_sets

logger = logging.getLogger(__name__)

_REQUEST = {"return_top_p_token_ids": True}


class KeptSetsForm(Enum):
    """The form in which samples of a trainer hold kept sets."""

    NONE = "none"
    SLIME = "slime"
    MILES = "miles"

    @classmethod
    def of(cls, args: Any, sample: Any) -> KeptSetsForm:
        """Return the form that a trainer expects; the fields of a sample tell the trainer's version."""
        top_p, top_k = getattr(args, "rollout_top_p", 1.0), getattr(args, "rollout_top_k", -1)
        if hasattr(sample, "rollout_sampling_mask"):
            return cls.MILES if top_p < 1.0 or top_k > 0 else cls.NONE
        return cls.SLIME if hasattr(sample, "rollout_top_p_token_ids") and top_p != 1.0 else cls.NONE

    def __bool__(self) -> bool:
        return self is not KeptSetsForm.NONE


def engine_sampling(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trainer's sampling parameters without slime's own request for kept sets.

    SGLang is asked for them in its own way. Custom parameters would also keep an interrupted turn from being continued.
    """
    return {name: value for name, value in sampling.items() if (name, value) != ("custom_params", _REQUEST)}


def warn_if_lost(form: KeptSetsForm, sampling: Mapping[str, Any]) -> None:
    """Log a warning, once per process, if sampling has kept sets but the trainer does not renormalise."""
    if form or not has_kept_sets(sampling) or "lost" in _logged:
        return
    _logged.add("lost")
    logger.warning(
        "top_p=<%s>, top_k=<%s>, min_p=<%s> | sampling has kept sets, but the trainer does not renormalise logprobs "
        "over the kept tokens, so importance ratios are biased: slime does if --rollout-top-p is not 1 (0.9999 is "
        "enough), Miles if its samples have a rollout_sampling_mask (logged once)",
        *(sampling.get(name) for name in ("top_p", "top_k", "min_p")),
    )


_logged: set[str] = set()


def write_kept_sets(sample: Any, kept: KeptSets | None, response_ids: Sequence[int], form: KeptSetsForm) -> None:
    """Set the kept sets of a sample, or clear those it had before. None: unknown, the sample must not be trained."""
    known = empty_sets(len(response_ids)) if kept is None else kept
    if hasattr(sample, "rollout_top_p_token_ids"):
        # slime asserts that every sample has them, also one that is not trained.
        wanted = form is KeptSetsForm.SLIME
        sample.rollout_top_p_token_ids = np.array(known.token_ids, np.int32) if wanted else None
        sample.rollout_top_p_token_offsets = np.array(known.offsets, np.int32) if wanted else None
    if hasattr(sample, "rollout_sampling_mask"):
        wanted = form is KeptSetsForm.MILES
        sample.rollout_sampling_mask = _miles_mask(sample, *_never_empty(known, response_ids)) if wanted else None


def _never_empty(kept: KeptSets, response_ids: Sequence[int]) -> tuple[array[int], array[int]]:
    """A token without a set is alone in its set."""
    ids, offsets = array("i"), array("q", [0])
    for at, token in enumerate(response_ids):
        ids += kept.at(at) or array("i", [token])
        offsets.append(len(ids))
    return ids, offsets


def _miles_mask(sample: Any, ids: array[int], offsets: array[int]) -> Any:
    kind = getattr(sys.modules.get(type(sample).__module__), "RolloutSamplingMask", None)
    if kind is None:
        raise ConfigurationError(
            "this version of Miles is not supported with kept sets: the module of its Sample has no "
            "RolloutSamplingMask. Sample with --rollout-top-p 1 and without --rollout-top-k"
        )
    return kind(ids=ids.tolist(), offsets=offsets.tolist())
