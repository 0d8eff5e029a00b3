"""What a prefill says about tokens that were sampled at a temperature, or from a kept set.

An engine computes the logprobs of a prompt at temperature 1. The logprob of a token at temperature T is
`l / T - log(sum of exp(l' / T))` over the whole vocabulary, so the sampled token's own logprob `l` is not enough. With
the K likeliest ids it is known within bounds: the ids that are not among them have the rest of the probability, and
none of them is likelier than the last one (`logprob_bounds`). Below temperature 1 the bounds are narrow for small K;
above it they are wide, unless K is nearly the vocabulary.

The logprob over a kept set is exact: it needs the ids of the set alone, and those are the likeliest ones
(`SetCheck`). So kept sets can be checked at any temperature.

Invariant: a value that the engine could have computed is never reported as wrong, up to the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strands_sglang.proof.call import KeptFacts

Floats = npt.NDArray[np.float64]

_MASS_ERROR = 1e-5
"""How far a sum of 32-bit probabilities may be from 1."""
_MASS_TOLERANCE = 1e-3
"""How far the mass of a kept set may be from top_p: the engine adds 32-bit numbers in an order of its own."""


class PrefillFacts(NamedTuple):
    """What a prefill says about some tokens, at temperature 1."""

    logprobs: Floats
    top_ids: npt.NDArray[np.int32]
    """The likeliest ids at each position, likeliest first; shape (tokens, K)."""
    top_logprobs: Floats
    """Their logprobs; shape (tokens, K)."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters that change probabilities."""

    temperature: float = 1.0
    """0: greedy, for which the engine reports logprobs at temperature 1."""
    top_p: float = 1.0
    """1.0: off."""
    top_k: int = -1
    """Below 1: off."""
    min_p: float = 0.0
    """0.0: off."""
    known: bool = True
    """Whether the values above are those of the run; if not, it is unknown how many ids a kept set must have."""

    @classmethod
    def of(cls, values: Mapping[str, Any], temperature: float | None = None) -> Sampling:
        """Return the parameters in a dictionary of sampling parameters.

        Args:
            values: The dictionary; what is missing or not a number has its default.
            temperature: Temperature to use in place of the one in it; None: that one.
        """
        known: dict[str, Any] = {}
        for name, default in (("temperature", 1.0), ("top_p", 1.0), ("top_k", -1), ("min_p", 0.0)):
            value = values.get(name)
            numeric = isinstance(value, int | float) and not isinstance(value, bool)
            known[name] = type(default)(value) if numeric and value is not None else default
        if temperature is not None:
            known["temperature"] = temperature
        return cls(**known, known=bool(values))

    @property
    def scaled(self) -> bool:
        """Whether the engine's logprobs are of scaled logits."""
        return self.temperature not in (0.0, 1.0)

    @property
    def inverse(self) -> float:
        """Factor of the logits."""
        return 1.0 / self.temperature if self.scaled else 1.0


def sum_bounds(top_logprobs: Floats, inverse: float, vocabulary: int | None) -> tuple[Floats, Floats]:
    """Return between which values the sum of `exp(inverse * logprob)` over the vocabulary is, at each position.

    Args:
        top_logprobs: Logprobs of the likeliest ids at temperature 1, shape (tokens, K), likeliest first.
        inverse: 1 / temperature.
        vocabulary: Number of ids of the model; None: unknown, then there is no upper bound above temperature 1.
    """
    kept = np.exp(top_logprobs)
    known = np.exp(inverse * top_logprobs).sum(axis=1)
    rest = 1.0 - kept.sum(axis=1)
    least, most = np.clip(rest - _MASS_ERROR, 0.0, 1.0), np.clip(rest + _MASS_ERROR, 0.0, 1.0)
    others = math.inf if vocabulary is None else float(max(vocabulary - top_logprobs.shape[1], 0))
    if others == 0.0 or inverse == 1.0:
        rest = np.zeros_like(known) if others == 0.0 else rest
        return known + np.maximum(rest, 0.0), known + np.maximum(rest, 0.0)
    # The rest is a sum of p ** inverse over ids with p <= `last`, whose p add up to the rest of the probability.
    last = np.maximum(kept[:, -1], 1e-300)
    if inverse > 1.0:
        return known + least**inverse * others ** (1.0 - inverse), known + most * last ** (inverse - 1.0)
    return known + least * last ** (inverse - 1.0), known + most**inverse * others ** (1.0 - inverse)


def logprob_bounds(
    logprobs: Floats, top_logprobs: Floats, inverse: float, vocabulary: int | None
) -> tuple[Floats, Floats]:
    """Return between which values the logprobs of tokens are at a temperature.

    Args:
        logprobs: Logprobs of the tokens at temperature 1.
        top_logprobs: Logprobs of the likeliest ids at temperature 1, shape (tokens, K), likeliest first.
        inverse: 1 / temperature.
        vocabulary: Number of ids of the model; None: unknown, then there is no lower bound above temperature 1.
    """
    smallest, largest = sum_bounds(top_logprobs, inverse, vocabulary)
    return inverse * logprobs - np.log(largest), inverse * logprobs - np.log(smallest)


def outside(values: Floats, low: Floats, high: Floats) -> Floats:
    """Return how far values are outside of their bounds; 0.0 inside."""
    with np.errstate(invalid="ignore"):
        distance = np.maximum(np.maximum(low - values, values - high), 0.0)
    return np.where(np.isnan(values), np.inf, distance)


@dataclass(slots=True)
class SetCheck:
    """Kept sets, derived again from a prefill: one entry per token."""

    differences: Floats
    """Difference between the recorded logprob over the set and the recomputed one; infinity if an id of the set is not
    among the likeliest."""
    wrong: npt.NDArray[np.bool_]
    """Whether sampling would have kept another set."""


def check_sets(
    kept: KeptFacts, sampled: npt.NDArray[np.int32], found: PrefillFacts, sampling: Sampling, vocabulary: int | None
) -> SetCheck:
    """Compare kept sets with those that follow from a prefill.

    Args:
        kept: The recorded sets, one per token, none empty.
        sampled: The sampled ids.
        found: The engine's logprobs of the same tokens, with more likeliest ids than the largest set has, or with the
            whole vocabulary.
        sampling: How the tokens were sampled.
        vocabulary: Number of ids of the model; None: unknown.
    """
    count = len(sampled)
    sizes = np.diff(kept.offsets)
    owner = np.repeat(np.arange(count), sizes)
    inside = np.zeros(found.top_ids.shape, bool)
    # Where each id of a set is among the likeliest ids of its token: both as one sorted list of (token, id).
    keys = (np.arange(count, dtype=np.int64)[:, None] << 32) + found.top_ids
    order = np.argsort(keys, axis=None)
    listed = keys.ravel()[order]
    wanted = (owner.astype(np.int64) << 32) + kept.token_ids
    at = np.minimum(np.searchsorted(listed, wanted), len(listed) - 1)
    present = listed[at] == wanted
    inside.ravel()[order[at[present]]] = True
    complete = np.bincount(owner[present], minlength=count) == sizes
    weights = np.exp(sampling.inverse * found.top_logprobs)
    mass = np.where(inside, weights, 0.0).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        differences = np.abs(sampling.inverse * found.logprobs - np.log(mass) - kept.logprobs)
    differences[~complete | np.isnan(differences)] = np.inf
    if sampling.temperature == 0.0:
        return SetCheck(differences, sizes != 1)
    whole = sum_bounds(found.top_logprobs, sampling.inverse, vocabulary)[1]
    everything = sizes == vocabulary if vocabulary is not None else np.zeros(count, bool)
    return SetCheck(differences, ~complete | _wrong_sets(weights, inside, whole, sizes, everything, sampling))


def _wrong_sets(
    weights: Floats,
    inside: npt.NDArray[np.bool_],
    whole: Floats,
    sizes: npt.NDArray[Any],
    everything: npt.NDArray[np.bool_],
    sampling: Sampling,
) -> npt.NDArray[np.bool_]:
    """Return which sets sampling cannot have kept: not the likeliest ids, too many of them, or too few.

    Some engines apply top_p to all ids, others to those that top_k kept: a set is accepted if either gives it.

    Args:
        weights: Probabilities of the likeliest ids, up to a factor, shape (tokens, K).
        inside: Which of them are in the set.
        whole: The largest value that the sum over the vocabulary can have.
        sizes: Number of ids of each set.
        everything: Which sets are the whole vocabulary.
        sampling: How the tokens were sampled.
    """
    slack = 1.0 + _MASS_TOLERANCE
    least = np.where(inside, weights, np.inf).min(axis=1)
    next_out = np.where(inside, 0.0, weights).max(axis=1)
    mass = np.where(inside, weights, 0.0).sum(axis=1)
    wrong: npt.NDArray[np.bool_] = next_out > least * slack
    if not sampling.known:
        return wrong
    limited = sampling.top_k >= 1 or sampling.top_p < 1.0 or sampling.min_p > 0.0
    enough = np.full(len(sizes), True) if not limited else everything.copy()
    if sampling.top_k >= 1:
        wrong |= sizes > sampling.top_k
        enough |= sizes == sampling.top_k
    if sampling.top_p < 1.0:
        # The last id that is kept is the one with which top_p is reached.
        wrong |= (mass - least) / whole > sampling.top_p + _MASS_TOLERANCE
        candidates = weights[:, : sampling.top_k] if sampling.top_k >= 1 else weights
        enough |= mass / candidates.sum(axis=1) >= sampling.top_p - _MASS_TOLERANCE
    if sampling.min_p > 0.0:
        wrong |= least < sampling.min_p * weights[:, 0] / slack
        enough |= next_out < sampling.min_p * weights[:, 0] * slack
    wrong |= ~enough
    return wrong
