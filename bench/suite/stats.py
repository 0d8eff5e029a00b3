"""Medians and quartiles of what was measured in rounds, and ratios within each round.

Invariant: a ratio is always computed within one round, whose runs follow each other at once, because other load on the
machine then affects both of its sides. Only the ratios are comparable between machines.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """A measured value: median and quartiles over the rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of the values of all rounds."""
        if not values:
            raise ValueError("values must not be empty")
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(statistics.median(values), low, high, len(values))

    def to_json(self) -> dict[str, float]:
        """Return the value as JSON."""
        return {
            "median": round(self.median, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            "rounds": self.rounds,
        }


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Return the spread of the ratio of two things that were measured in the same rounds."""
    return Spread.of([a / b for a, b in zip(over, under, strict=True)])


def alternate(
    ways: Sequence[str], rounds: int, run: Callable[[str, int], Mapping[str, float]], warm_up: bool = True
) -> dict[str, dict[str, list[float]]]:
    """Run all ways in every round, in alternating order.

    Args:
        ways: Names of what is compared.
        rounds: Number of rounds that count.
        run: Runs one way and returns its figures; its second argument is the number of the round, from 0.
        warm_up: Whether a round that does not count comes first.

    Returns:
        For each way, its figures by name, one value per round.
    """
    measured: dict[str, dict[str, list[float]]] = {way: {} for way in ways}
    for number in range(-1 if warm_up else 0, rounds):
        for way in ways if number % 2 else ways[::-1]:
            figures = run(way, max(0, number))
            if number >= 0:
                for name, value in figures.items():
                    measured[way].setdefault(name, []).append(value)
    return measured


def shown(value: Mapping[str, Any] | None, digits: int = 2, unit: str = "") -> str:
    """Return a spread that was saved as JSON as text: median and quartiles; a dash if it was not measured."""
    if not value:
        return "–"
    median, low, high = (f"{value[name]:.{digits}f}" for name in ("median", "low", "high"))
    return f"{median}{unit} ({low}–{high})" if value["rounds"] > 1 else f"{median}{unit}"
