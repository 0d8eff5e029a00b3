"""Which results are compared: the main comparison, the conditions of the sweeps, and the other parts of the report.

Invariant: two runs that are compared differ in the arm and the seed, and in nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from arms import ARMS
from results import Interval, Run, paired, select, start_of

SWEPT = ("decode", "render", "render-engine")
"""Arms that the sweeps compare with exact tokens."""


def main_runs(runs: Sequence[Run], arm: str, policy: str = "noncanonical") -> list[Run]:
    """Return the runs of an arm with the settings of the main comparison."""
    return select(runs, arm=arm, **(base_settings(runs) | {"policy": policy}))


def base_settings(runs: Sequence[Run]) -> dict[str, object]:
    """Return the settings of the main comparison."""
    return {
        "policy": "noncanonical", "learning_rate": 3e-4, "temperature": 1.0, "operations": 2, "token_cost": 0.0,
        "steps": main_steps(runs), "groups": 8, "samples": 8, "held_out": 256,
    }  # fmt: skip


def main_steps(runs: Sequence[Run]) -> int:
    """Return the number of steps of the main comparison."""
    return next((run.settings.steps for run in runs if run.settings.part == "main"), 30)


def held_out(run: Run) -> float:
    """Return held-out success after training."""
    return float(run.summary["end"])


def label(arm: str) -> str:
    """Return the letter of an arm and what it trains on."""
    return f"{ARMS[arm].letter}: {ARMS[arm].about}"


def of_part(runs: Sequence[Run], part: str) -> list[Run]:
    """Return the runs of a part of the report."""
    return [run for run in runs if run.settings.part == part]


def distillation_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with a teacher, and those with rewards that have the same seeds."""
    taught = select(runs, arm="distill")
    seeds = {run.settings.seed for run in taught}
    return [*taught, *(run for run in main_runs(runs, "exact") if run.settings.seed in seeds)]


def _conditions(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, dict[str, object]]]]]:
    """Return the conditions of the sweeps: by heading, a label and the settings that select its runs."""
    base = base_settings(runs)
    policies = sorted({run.settings.policy for run in runs if run.settings.policy.startswith("split-")})
    ambiguity = []
    for policy in (*policies, "noncanonical"):
        wanted = base | {"policy": policy}
        exact = select(runs, arm="exact", **wanted)
        if exact:
            share = start_of(runs, exact[0], "drift_decode")
            ambiguity.append((share, f"{share:.1%} of turns drift ({policy})", wanted))
    ambiguity.sort(key=lambda one: one[0])
    found = [("vocabulary ambiguity", [(text, wanted) for _, text, wanted in ambiguity])]
    for title, name, form in (
        ("learning rate", "learning_rate", "{:g}"),
        ("temperature", "temperature", "{:g}"),
        ("steps", "steps", "{} steps"),
    ):
        values = sorted({getattr(run.settings, name) for run in runs if run.settings.policy == "noncanonical"})
        found.append((title, [(form.format(value), base | {name: value}) for value in values]))
    turns = [(2, base)] + [
        (count, base | {"policy": f"operations-{count}", "operations": count})
        for count in sorted({run.settings.operations for run in runs} - {2})
    ]
    found.append(
        ("calls per episode", [(f"{count}", wanted) for count, wanted in sorted(turns, key=lambda one: one[0])])
    )
    return found


@dataclass(frozen=True)
class Condition:
    """A condition of a sweep, with the runs of exact tokens and the difference of the other arms to them."""

    text: str
    exact: list[Run]
    differences: list[Interval]
    """Held-out success minus that of exact tokens, for each arm of `SWEPT`; without values if the arm was not run."""


def sweeps(runs: Sequence[Run]) -> list[tuple[str, list[Condition]]]:
    """Return the sweeps that were run: by heading, their conditions, of which there are at least two."""
    found = []
    for title, conditions in _conditions(runs):
        measured = []
        for text, wanted in conditions:
            exact = select(runs, arm="exact", **wanted)
            differences = [paired(select(runs, arm=arm, **wanted), exact, held_out) for arm in SWEPT]
            if any(difference.count for difference in differences):
                measured.append(Condition(text, exact, differences))
        if len(measured) > 1:
            found.append((title, measured))
    return found
