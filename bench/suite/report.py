"""What the suite prints while it measures, and the summary of a result: the goals and the last line of JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from suite.stats import Spread, shown

_AGAINST_PUBLISHED = [
    ("plain", "plain agent", 8, 0, 0.85),
    ("plain", "plain agent", 32, 0, 1.2),
    *(
        (way, where, turns, context, bound)
        for way, where in (("fast", "in `fast_agents`"), ("rollout", "in `rollout`"))
        for turns, context, bound in ((8, 0, 1.0), (8, 8_000, 1.3), (32, 0, 2.0))
    ),
]
"""Way, its name, turns, context and goal of a ratio to the published package."""
_TURNS = ("1", "8", "32", "128")
"""Turns of the episodes in the last line."""


@dataclass
class Log:
    """Prints rows as they are measured, and collects what was left out and why."""

    left: dict[str, str] = field(default_factory=dict)
    """What was left out, with the reason."""
    began: float = field(default_factory=time.monotonic)

    def head(self, title: str) -> None:
        """Print the title of a table."""
        print(f"\n{title}  [{time.monotonic() - self.began:.0f} s]", flush=True)

    def row(self, name: str, values: Mapping[str, Spread | float | str]) -> None:
        """Print a row: each value as median and quartiles."""
        shown_values = []
        for key, value in values.items():
            text = shown(value.to_json()) if isinstance(value, Spread) else str(value)
            shown_values.append(f"{key} {text}")
        print(f"  {name}: " + ", ".join(shown_values), flush=True)

    def left_out(self, what: str, why: str) -> None:
        """Note what is not measured."""
        self.left[what] = " ".join(why.split())
        print(f"  left out: {what}: {self.left[what]}", file=sys.stdout, flush=True)


@dataclass(frozen=True)
class Goal:
    """A goal, and the value that was measured for it."""

    name: str
    bound: float
    value: dict[str, float] | None
    """Spread; None: not measured."""
    above: bool = False
    """Whether the value must be at least the bound; else at most."""
    digits: int = 2

    @property
    def met(self) -> bool | None:
        """Whether the median meets the bound; None: not measured."""
        if self.value is None:
            return None
        return self.value["median"] >= self.bound if self.above else self.value["median"] <= self.bound


def find(result: Mapping[str, Any], *path: str) -> Any:
    """Return a part of a result; None if it was not measured."""
    value: Any = result
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


def other_row(result: Mapping[str, Any], turns: int, context: int) -> dict[str, Any]:
    """Return a row of the table of others; empty if it was not measured."""
    rows = find(result, "agents", "others", "rows") or []
    return next((row for row in rows if (row["turns"], row["context"]) == (turns, context)), {})


def _cell(turns: int, context: int) -> str:
    return f"{turns} turns" + (f", {context // 1000}k context" if context else "")


def goals(result: Mapping[str, Any]) -> list[Goal]:
    """Return all goals with their measured values."""

    def layer(turns: int, name: str) -> Any:
        return find(result, "agents", "layers", str(turns), name)

    def long(name: str) -> Any:
        return find(result, "long", name)

    against_published = [
        Goal(f"0.6.2 / ours, CPU of a turn, {where}, {_cell(turns, context)}", bound, value, True)
        for way, where, turns, context, bound in _AGAINST_PUBLISHED
        for value in [find(other_row(result, turns, context), "cpu_over", f"published_over_{way}")]
    ]
    return [
        Goal("`rollout` / bare SDK, 128 turns", 0.55, layer(128, "all_over_bare")),
        *against_published,
        Goal("cached share of the possible, turns >= 2", 0.97, find(result, "engine", "cached_share"), True, 3),
        Goal("8k-token tool results, 256 episodes, loop lag p99 in ms", 50.0, long("lag_p99_ms"), digits=1),
    ]


def last_line(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the last line of the command says; None where something was not measured."""

    def median(value: Any) -> float | None:
        return round(value["median"], 3) if value else None

    rows = find(result, "agents", "others", "rows") or []
    layers = find(result, "agents", "layers") or {}
    return {
        "all_over_bare": {turns: median(find(layers, turns, "all_over_bare")) for turns in _TURNS},
        "ours_over_engine_wall": median(find(result, "engine", "ours_over_bare_wall")),
        "published_over_ours_cpu": median(find(other_row(result, 8, 8_000), "cpu_over", "published_over_plain")),
        "plain_over_bare": {turns: median(find(layers, turns, "plain_over_bare")) for turns in _TURNS},
        "layer_over_bare": {turns: median(find(layers, turns, "layer_over_bare")) for turns in _TURNS},
        "published_over_ours_cpu_cells": {
            f"{row['turns']} turns, {row['context']} tokens, {way}": median(row["cpu_over"][f"published_over_{way}"])
            for row in rows
            for way in ("plain", "fast", "rollout")
        },
        "goals": {
            goal.name: {"value": median(goal.value), "bound": goal.bound, "met": goal.met} for goal in goals(result)
        },
        "left_out": result.get("left_out", {}),
    }
