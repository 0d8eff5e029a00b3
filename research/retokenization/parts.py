"""Which runs the experiment has, in parts, and in which order. Needs only the standard library.

Invariant: a run that belongs to several parts occurs once, and whenever a queue stops, its results are balanced: all
arms of one seed come before all arms of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from arms import MAIN
from settings import Settings

SMOLLM2 = Settings(
    policy="smollm2-tools",
    steps=8,
    groups=4,
    samples=8,
    learning_rate=2e-5,
    held_out=64,
    micro_batch=4,
    part="smollm2",
)
"""The larger run: 135 million parameters, 32 episodes per step."""


def _runs(part: str, seeds: int, arms: Sequence[str], *variants: dict[str, Any]) -> list[Settings]:
    """Return the runs of a part: for each seed, each variant, each arm."""
    return [
        Settings(**{"arm": arm, "seed": seed, "part": part, **variant})
        for seed in range(seeds)
        for variant in variants or ({},)
        for arm in arms
    ]


QUESTION = ("exact", "decode", "render", "render-engine")
"""The arms that answer the question of the report."""
PARTS: dict[str, Callable[[int, int], list[Settings]]] = {
    "main": lambda seeds, _: _runs("main", seeds, QUESTION),
    "variants": lambda _, few: _runs("variants", few, ("exact-masked", *(arm for arm in MAIN if arm not in QUESTION))),
    # Without "decode", which changes nothing that this policy writes.
    "canonical": lambda _, few: _runs("canonical", few, ("exact", "render", "render-engine"), {"policy": "canonical"}),
    "distillation": lambda _, few: _runs("distillation", few, ("distill",), {"teacher": "canonical"}),
    "ambiguity": lambda _, few: _runs(
        "ambiguity", few, ("exact", "decode"), *({"policy": f"split-{share:02d}"} for share in (0, 1, 2, 5, 40))
    ),
    "cost": lambda _, few: _runs("cost", few, ("exact", "render"), {"policy": "canonical", "token_cost": 0.01}),
    "learning-rate": lambda _, few: _runs(
        "learning-rate",
        min(few, 2),
        ("exact", "decode", "render-engine"),
        *({"learning_rate": rate} for rate in (1e-4, 1e-3)),
    ),
    "control": lambda _, few: _runs("control", few, ("exact-engine", "exact-tis")),
    "smollm2": lambda _, few: [
        replace(SMOLLM2, arm=arm, seed=seed)
        for seed in range(min(few, 1))
        for arm in ("exact", "render-engine", "decode")
    ],
    "turns": lambda _, few: _runs(
        "turns",
        min(few, 2),
        ("exact", "decode"),
        *({"policy": f"operations-{count}", "operations": count} for count in (1, 4)),
    ),
    "temperature": lambda _, few: _runs(
        "temperature", min(few, 2), ("exact", "decode"), *({"temperature": value} for value in (0.6, 1.3))
    ),
    "steps": lambda _, few: _runs("steps", min(few, 1), ("exact", "decode"), {"steps": 120}),
}
"""The parts of the experiment, in the order in which they run."""


SHORT = _runs("main", 2, QUESTION, {"steps": 20})
"""What `run.py --short` runs: the four arms of the question, two seeds, 20 steps, the rest as in the report."""
CHECK = [
    Settings(arm=arm, steps=3, groups=4, held_out=32, micro_batch=32, teacher=teacher, part="check")
    for arm, teacher in (
        ("exact", ""),
        ("decode", ""),
        ("render-engine", ""),
        ("top-p-kept", ""),
        ("distill", "canonical"),
    )
]
"""What `run.py --check` runs: a few steps, which say whether tokens and logprobs are exact and nothing of learning."""


def plan(parts: Sequence[str], seeds: int, few: int = 1) -> list[Settings]:
    """Return the runs of some parts, in order; a run that belongs to several parts occurs once.

    Args:
        parts: Names of the parts.
        seeds: Seeds of the main comparison.
        few: Seeds of the sweeps.
    """
    found: dict[str, Settings] = {}
    for part in parts:
        for settings in PARTS[part](seeds, few):
            found.setdefault(settings.name, settings)
    return list(found.values())


def finished(settings: Settings, results: Path) -> bool:
    """Return whether the results of a run are complete."""
    return (results / f"{settings.name}.jsonl").exists()
