"""What a prefill says about tokens sampled at a temperature or from a kept set, against exact arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.proof.call import KeptFacts
from strands_sglang.proof.tempered import PrefillFacts, Sampling, check_sets, logprob_bounds, outside

TOKENS = 6
RNG_SEEDS = st.integers(0, 2**32 - 1)


def log_softmax(logits: Any) -> Any:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def prefill_of(logits: Any, sampled: Any, top: int) -> PrefillFacts:
    """Return what an engine answers, in 32 bits."""
    full = log_softmax(logits).astype(np.float32).astype(np.float64)
    ids = np.argsort(-full, axis=1, kind="stable")[:, :top]
    rows = np.arange(len(full))[:, None]
    return PrefillFacts(full[rows[:, 0], sampled], ids.astype(np.int32), full[rows, ids])


@settings(max_examples=300, deadline=None)
@given(
    seed=RNG_SEEDS,
    vocabulary=st.integers(2, 80),
    share=st.floats(0.05, 1.0),
    temperature=st.floats(0.2, 4.0),
    spread=st.floats(0.1, 8.0),
)
def test_bounds_contain_the_exact_logprob(
    seed: int, vocabulary: int, share: float, temperature: float, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, spread, (TOKENS, vocabulary))
    sampled = rng.integers(0, vocabulary, TOKENS)
    top = max(1, int(share * vocabulary))
    found = prefill_of(logits, sampled, top)
    exact = log_softmax(logits / temperature)[np.arange(TOKENS), sampled]
    low, high = logprob_bounds(found.logprobs, found.top_logprobs, 1.0 / temperature, vocabulary)
    assert outside(exact, low, high).max() < 1e-4
    assert (high >= low - 1e-12).all()
    if top == vocabulary:
        assert (high - low).max() < 1e-9
    unknown_low, unknown_high = logprob_bounds(found.logprobs, found.top_logprobs, 1.0 / temperature, None)
    assert outside(exact, unknown_low, unknown_high).max() < 1e-4


def test_bounds_are_narrow_below_temperature_one_and_wide_above() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0.0, 4.0, (50, 20_000))
    sampled = logits.argmax(axis=1)
    found = prefill_of(logits, sampled, 512)
    cold = logprob_bounds(found.logprobs, found.top_logprobs, 1.0 / 0.6, 20_000)
    hot = logprob_bounds(found.logprobs, found.top_logprobs, 1.0 / 1.5, 20_000)
    assert np.median(cold[1] - cold[0]) < 1e-2 < np.median(hot[1] - hot[0])


def sampled_sets(rng: np.random.Generator, logits: Any, sampling: Sampling, top_k_first: bool) -> tuple[KeptFacts, Any]:
    """Return kept sets, and tokens sampled from them."""
    probabilities = np.exp(log_softmax(logits * sampling.inverse))
    ids, offsets, logprobs, sampled = [], [0], [], []
    for row in probabilities:
        order = np.argsort(-row, kind="stable")
        if sampling.top_k >= 1:
            order = order[: sampling.top_k]
        base = row[order] / row[order].sum() if top_k_first else row[order]
        order = order[np.cumsum(base) - base <= sampling.top_p] if sampling.top_p < 1 else order
        order = order[row[order] >= sampling.min_p * row.max()]
        inside = row[order] / row[order].sum()
        choice = rng.choice(len(order), p=inside)
        ids += order.tolist()
        offsets.append(len(ids))
        sampled.append(int(order[choice]))
        logprobs.append(float(np.log(inside[choice])))
    kept = KeptFacts(np.array(ids, np.int32), np.array(offsets, np.int32), np.array(logprobs))
    return kept, np.array(sampled, np.int32)


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0.3, 2.0),
    top_p=st.sampled_from([1.0, 0.95, 0.8, 0.3]),
    top_k=st.sampled_from([-1, 1, 5, 40, 200]),
    min_p=st.sampled_from([0.0, 0.05, 0.3]),
)


@settings(max_examples=300, deadline=None)
@given(seed=RNG_SEEDS, sampling=SAMPLINGS, top_k_first=st.booleans(), whole=st.booleans())
def test_sets_that_sampling_keeps_are_accepted(seed: int, sampling: Sampling, top_k_first: bool, whole: bool) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, 3.0, (TOKENS, 60))
    kept, sampled = sampled_sets(rng, logits, sampling, top_k_first)
    top = 60 if whole else min(60, int(np.diff(kept.offsets).max()) + 1)
    result = check_sets(kept, sampled, prefill_of(logits, sampled, top), sampling, 60)
    assert result.differences.max() < 1e-4
    assert not result.wrong.any()


@settings(max_examples=300, deadline=None)
@given(seed=RNG_SEEDS, change=st.sampled_from(["foreign", "swapped", "shorter", "longer", "logprob"]))
def test_changed_sets_are_found(seed: int, change: str) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, 3.0, (TOKENS, 60))
    sampling = Sampling(temperature=1.3, top_p=0.8, top_k=40)
    kept, sampled = sampled_sets(rng, logits, sampling, False)
    at = int(np.diff(kept.offsets).argmax())
    sets = [kept.token_ids[kept.offsets[n] : kept.offsets[n + 1]].tolist() for n in range(TOKENS)]
    logprobs = kept.logprobs.copy()
    order = np.argsort(-logits[at]).tolist()
    if change == "foreign":
        sets[at].append(order[-1])
    elif change == "swapped":
        sets[at][-1] = order[-1]
    elif change == "shorter":
        if len(sets[at]) < 3:
            return
        sets[at] = sets[at][: len(sets[at]) // 2]
    elif change == "longer":
        sets[at] = order[: min(len(sets[at]) + 8, 40)]
    else:
        logprobs[at] -= 0.01
    changed = KeptFacts(
        np.array([id for one in sets for id in one], np.int32),
        np.array([0, *np.cumsum([len(one) for one in sets])], np.int32),
        logprobs,
    )
    top = min(60, max(map(len, sets)) + 1)
    result = check_sets(changed, sampled, prefill_of(logits, sampled, top), sampling, 60)
    assert result.wrong[at] or result.differences[at] > 1e-3


def test_greedy_sets_have_one_id() -> None:
    logits = np.random.default_rng(1).normal(0.0, 3.0, (3, 20))
    best = logits.argmax(axis=1).astype(np.int32)
    kept = KeptFacts(best, np.arange(4, dtype=np.int32), np.zeros(3))
    found = prefill_of(logits, best, 2)
    assert not check_sets(kept, best, found, Sampling(temperature=0.0), 20).wrong.any()
    assert check_sets(kept, best, found, Sampling(temperature=0.0), 20).differences.max() < 1e-6


def test_values_that_are_not_numbers_are_outside() -> None:
    assert outside(np.array([np.nan, -1.0]), np.array([-2.0, -2.0]), np.array([0.0, 0.0])).tolist() == [np.inf, 0.0]


def test_sampling_parameters_are_read() -> None:
    assert not Sampling.of({}).known
    assert Sampling.of({"temperature": 1, "top_k": 20, "min_p": None, "top_p": True}) == Sampling(1.0, 1.0, 20, 0.0)
    assert Sampling.of({"temperature": 0.7}, 1.0).temperature == 1.0
    assert Sampling(0.0).inverse == 1.0
    assert Sampling(0.5).inverse == pytest.approx(2.0)
