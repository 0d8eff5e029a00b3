"""The tables and sentences of the report that are made from the results of runs, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from arms import ARMS, REWARDED
from compared import SWEPT, distillation_runs, held_out, main_runs, main_steps, of_part, sweeps
from results import ENOUGH, Run, interval, paired, permutation_p, select, start_of

MISSING = "*Not measured yet.*\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 2)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def arms_table(runs: Sequence[Run], policy: str) -> str:
    """Return the table of an arm per row."""
    exact, rows = main_runs(runs, "exact", policy), []
    for arm in REWARDED:
        mine = main_runs(runs, arm, policy)
        if not mine:
            continue
        compared = arm != "exact" and ARMS[arm].top_p == 1
        chance = permutation_p([held_out(run) for run in mine], [held_out(run) for run in exact]) if compared else None
        collapses = [run.collapse for run in mine if run.collapse is not None]
        rows.append(
            [
                *(ARMS[arm].letter, ARMS[arm].about, str(len(mine)), f"{start_of(runs, mine[0]):.2f}"),
                interval([held_out(run) for run in mine]).text(),
                paired(mine, exact, held_out).text(sign=True) if compared else "–",
                f"{chance:.3f}" if chance is not None and len(mine) >= ENOUGH else "–",
                f"{len(collapses)} of {len(mine)}" + (f", step {min(collapses)}–{max(collapses)}" if collapses else ""),
                f"{start_of(runs, mine[0], 'drift_decode'):.0%} → {_over(mine, 'drift_decode', Run.last):.0%}",
            ]
        )
    heads = ["", "trained", "seeds", "before", "after", "minus A", "p", "collapsed", "drift"]
    return _table(heads, rows) if rows else MISSING


def metrics_table(runs: Sequence[Run]) -> str:
    """Return what the metrics say of each arm of the main comparison."""
    rows = []
    for arm in REWARDED:
        mine = main_runs(runs, arm)
        if not mine:
            continue
        norms = [float(np.nanmax(run.values("grad_norm"))) for run in mine]
        zero = sum(run.without_gradient for run in mine)
        rows.append(
            [
                *(ARMS[arm].letter, ARMS[arm].about),
                f"{interval([float(np.nanmean(run.values('nll_gap'))) for run in mine]).mean:.1g}",
                f"{interval([float(np.nanmean(run.values('far'))) for run in mine]).mean:.1%}",
                f"{max(norms):.2g}",
                f"{zero} of {sum(len(run.values('grad_norm')) for run in mine)}",
                f"{_over(mine, 'entropy', Run.first):.2f} → {_over(mine, 'entropy', Run.last):.2f}",
                _share_text(mine, "clip_share"),
                f"{_over(mine, 'failed_calls', Run.first):.1%} → {_over(mine, 'failed_calls', Run.last):.1%}",
            ]
        )
    heads = [
        "", "trained", "NLL gap", "far tokens", "largest gradient norm", "steps without gradient", "entropy", "clipped",
        "failed calls",
    ]  # fmt: skip
    return _table(heads, rows) if rows else MISSING


def _share_text(runs: Sequence[Run], metric: str) -> str:
    """Return the mean of a share over all steps; a dash if the arm has none."""
    values = [float(np.nanmean(run.values(metric))) for run in runs if np.isfinite(run.values(metric)).any()]
    return f"{interval(values).mean:.1%}" if values and any(values) else "–"


def sweep_table(runs: Sequence[Run]) -> str:
    """Return the table of the sweeps."""
    rows: list[list[str]] = []
    for title, conditions in sweeps(runs):
        for one in conditions:
            before, after = start_of(runs, one.exact[0]), interval([held_out(run) for run in one.exact]).text()
            differences = (value.text(sign=True) for value in one.differences)
            rows.append([title, one.text, str(len(one.exact)), f"{before:.2f}", after, *differences])
    heads = ["sweep", "condition", "seeds", "before", "A after", *(f"{ARMS[arm].letter} minus A" for arm in SWEPT)]
    return _table(heads, rows) if rows else MISSING


def proof(runs: Sequence[Run]) -> str:
    """Return a sentence about verified episodes and the difference between trainer and engine."""
    checked = [run.summary["verified"] for run in runs if "verified" in run.summary]
    if not checked:
        return MISSING
    episodes, proved = sum(one["episodes"] for one in checked), sum(one["proved"] for one in checked)
    exact = [run for run in runs if run.settings.arm == "exact"]
    largest = max(float(run.values("exact_difference_max").max()) for run in exact)
    sampled = max(float(run.values("engine_difference").max()) for run in runs)
    return (
        f"{proved:,} of {episodes:,} episodes of the exact arm were proved, in {len(checked)} runs. The largest "
        f"absolute difference between the trainer's logprob of a trained token and the engine's was {largest:.1e} over "
        f"all tokens of all steps of the exact arm. Over four episodes of each step of all arms, scored on their "
        f"sampled tokens, it was {sampled:.1e}.\n"
    )


def times(runs: Sequence[Run]) -> str:
    """Return a sentence about wall times."""
    small = [run for run in runs if run.settings.part != "smollm2"]
    if not small:
        return MISSING
    steps = [value for run in small for value in run.steps["seconds"] if value is not None]
    total = sum(run.summary["seconds"] for run in runs)
    whole = [run.summary["seconds"] for run in small if run.settings.steps == main_steps(runs)]
    text = (
        f"{len(runs)} runs took {total / 3600:.1f} hours. A step of the tool policy took "
        f"{sorted(steps)[len(steps) // 2]:.1f} s (median), a run of {main_steps(runs)} steps "
        f"{interval(whole).mean:.0f} s with its evaluation."
    )
    large = [run for run in runs if run.settings.part == "smollm2"]
    if large:
        text += f" A run of SmolLM2 took {interval([run.summary['seconds'] for run in large]).mean / 60:.0f} minutes."
    return text + "\n"


def smollm2_part(runs: Sequence[Run]) -> str:
    """Return the picture and the table of the larger policy."""
    mine, rows = of_part(runs, "smollm2"), []
    exact = select(mine, arm="exact")
    for arm, found in ((arm, select(mine, arm=arm)) for arm in ARMS):
        if found:
            rows.append(
                [
                    *(ARMS[arm].letter, ARMS[arm].about, str(len(found)), f"{start_of(runs, found[0]):.2f}"),
                    interval([held_out(run) for run in found]).text(),
                    "–" if arm == "exact" else paired(found, exact, held_out).text(sign=True),
                    f"{_over(found, 'nll_gap', Run.last):.1g}",
                    f"{_over(found, 'drift_decode', Run.last):.1%}",
                    f"{_over(found, 'drift_render', Run.first):.0%} → {_over(found, 'drift_render', Run.final):.0%}",
                    f"{_over(found, 'failed_calls', Run.first):.1%} → {_over(found, 'failed_calls', Run.last):.1%}",
                ]
            )
    if not rows:
        return MISSING
    heads = [
        "", "trained", "seeds", "before", "after", "minus A", "NLL gap", "changed by decoding", "by rendering",
        "failed calls",
    ]  # fmt: skip
    alt = "Success in training, mismatch and drift of SmolLM2 by what is trained"
    return f"![{alt}](images/retokenization-smollm2.svg)\n\n{_table(heads, rows)}"


def _over(runs: Sequence[Run], metric: str, when: Callable[[Run, str], float]) -> float:
    """Return the mean over seeds of a metric at the beginning or the end of training."""
    return interval([when(run, metric) for run in runs]).mean


def distillation_part(runs: Sequence[Run]) -> str:
    """Return the picture and the table of learning from a teacher."""
    mine, rows = distillation_runs(runs), []
    if not select(mine, arm="distill"):
        return MISSING
    for arm, found in ((arm, select(mine, arm=arm)) for arm in ("exact", "distill")):
        if not found:
            continue
        gap = "–"
        if arm == "distill":
            gap = f"{_over(found, 'teacher_gap', Run.first):.3f} → {_over(found, 'teacher_gap', Run.last):.3f}"
        rows.append(
            [
                *(ARMS[arm].letter, ARMS[arm].about, str(len(found)), f"{start_of(runs, found[0]):.2f}"),
                interval([held_out(run) for run in found]).text(),
                f"{_over(found, 'drift_decode', Run.first):.1%} → {_over(found, 'drift_decode', Run.last):.1%}",
                gap,
            ]
        )
    for run in main_runs(runs, "exact", "canonical")[:1]:
        rows.append(["", "the teacher itself", "–", f"{start_of(runs, run):.2f}", "–", "–", "–"])
    heads = ["", "trained", "seeds", "before", "after", "drift", "student minus teacher"]
    alt = "Success, drift and distance to the teacher over the steps of training"
    return f"![{alt}](images/retokenization-distillation.svg)\n\n{_table(heads, rows)}"


def cost_part(runs: Sequence[Run]) -> str:
    """Return the picture and the table of the runs in which tokens cost something."""
    mine, rows = of_part(runs, "cost"), []
    for arm, found in ((arm, select(mine, arm=arm)) for arm in ARMS):
        if found:
            rows.append(
                [
                    *(ARMS[arm].letter, ARMS[arm].about, str(len(found)), f"{start_of(runs, found[0]):.2f}"),
                    interval([held_out(run) for run in found]).text(),
                    f"{_over(found, 'compact_calls', Run.first):.0%} → "
                    + interval([100 * run.last("compact_calls") for run in found]).text(0)
                    + " %",
                    f"{_over(found, 'sampled_tokens', Run.first):.1f} → "
                    + interval([run.last("sampled_tokens") for run in found]).text(1),
                ]
            )
    if not rows:
        return MISSING
    heads = ["", "trained", "seeds", "before", "after", "compact calls", "sampled tokens"]
    alt = "Share of compact calls, sampled tokens and success over the steps of training with a cost per token"
    return f"![{alt}](images/retokenization-cost.svg)\n\n{_table(heads, rows)}"


TABLES: dict[str, Callable[[Sequence[Run]], str]] = {
    "noncanonical": lambda runs: arms_table(runs, "noncanonical"),
    "canonical": lambda runs: arms_table(runs, "canonical"),
    "metrics": metrics_table,
    "sweep": sweep_table,
    "smollm2": smollm2_part,
    "distillation": distillation_part,
    "cost": cost_part,
    "proof": proof,
    "times": times,
}
