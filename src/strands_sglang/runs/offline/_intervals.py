"""Estimates with confidence intervals: `pass_at_k`, `mean_interval` (Student's t), `wilson_interval`.

Invariant: an interval is None where the data does not determine one (a single value, or no spread), never a width of 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

Interval = tuple[float, float]
"""Lower and upper bound."""


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of `k` samples passes.

    It is the share of all subsets of `k` of the samples that contain one that passed: 1 - C(n-c, k) / C(n, k). Raising
    the pass rate to a power instead, 1 - (1 - c/n)^k, is biased.

    Args:
        passed: How many of them passed.
        k: Size of a subset, at most `samples`.
    """
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(f"passed must be 0 to {samples} and k 1 to {samples}, got {passed} and {k}")
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return the interval of the mean of independent values, by Student's t distribution.

    Returns None if there are fewer than two values, or all are equal.

    Args:
        confidence: Probability that the interval covers the mean, between 0 and 1.
    """
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    if variance <= 0:
        return None
    half = t_quantile(confidence, count - 1) * math.sqrt(variance / count)
    return mean - half, mean + half


def wilson_interval(passed: float, count: int, confidence: float = 0.95) -> Interval | None:
    """Return Wilson's score interval of a proportion, which is right for few samples and at 0 and 1.

    Returns None without trials.

    Args:
        confidence: Probability that the interval covers the proportion, between 0 and 1.
    """
    if count < 1:
        return None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, square = passed / count, z * z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = z / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def t_quantile(confidence: float, freedom: int) -> float:
    """Return the t for which a Student variable is between -t and t with a probability.

    The distribution function of an integer number of degrees of freedom is a finite sum (Abramowitz and Stegun 26.7.3
    and 26.7.4), which is inverted by bisection.

    Args:
        confidence: The probability, between 0 and 1.
        freedom: Degrees of freedom, from 1 up.
    """
    if not 0 < confidence < 1 or freedom < 1:
        raise ValueError(f"confidence must be between 0 and 1 and freedom at least 1, got {confidence} and {freedom}")
    if freedom > _NORMAL:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _covered(middle, freedom) < confidence else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


_NORMAL = 4000  # degrees of freedom from which the quantile is the normal one to four digits


def _covered(angle: float, freedom: int) -> float:
    """Return P(-t < T < t) for t = tan(angle) * sqrt(freedom)."""
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for number in range(1 + odd, freedom, 2):
        total += term
        term *= square * number / (number + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
