#!/usr/bin/env python3
"""Make all pictures and tables of docs/drift-training.md from the results in the repository.

    python examples/retokenization/plot.py                                  # from results/runs.jsonl
    python examples/retokenization/plot.py --collect runs/retokenization    # first gather the runs of a queue

What stands between `<!-- results: NAME -->` and `<!-- /results -->` in the page is replaced; the rest is written by
hand. Needs numpy.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from arms import ARMS, MAIN, REWARDED
from figures import COLOURS, Dot, DotRow, Panel, Series, dot_chart, panels
from results import ENOUGH, FILE, Run, band, collect, interval, load, paired, permutation_p, select, start_of
from settings import ROOT

PAGE, IMAGES = ROOT / "docs" / "drift-training.md", ROOT / "docs" / "images"
_BLOCK = re.compile(r"(<!-- results: ([a-z0-9-]+) -->\n).*?(<!-- /results -->)", re.S)
MISSING = "*Not measured yet.*\n"


def main_runs(runs: Sequence[Run], arm: str, policy: str = "noncanonical") -> list[Run]:
    """Return the runs of an arm with the settings of the main comparison."""
    return select(runs, arm=arm, **(_base(runs) | {"policy": policy}))


def _base(runs: Sequence[Run]) -> dict[str, object]:
    """Return the settings of the main comparison."""
    return {
        "policy": "noncanonical", "learning_rate": 3e-4, "temperature": 1.0, "operations": 2, "token_cost": 0.0,
        "steps": _steps(runs), "groups": 8, "samples": 8, "held_out": 256,
    }  # fmt: skip


def _steps(runs: Sequence[Run]) -> int:
    return next((run.settings.steps for run in runs if run.settings.part == "main"), 30)


def held_out(run: Run) -> float:
    """Return held-out success after training."""
    return float(run.summary["end"])


def label(arm: str) -> str:
    """Return the letter of an arm and what it trains on."""
    return f"{ARMS[arm].letter}: {ARMS[arm].about}"


def colour_of(arm: str, number: int) -> int:
    """Return the colour of an arm that is the n-th in a chart; the first colour is that of exact tokens alone."""
    return 0 if arm == "exact" else 1 + (max(number, 1) - 1) % (COLOURS - 1)


def _series(runs: Sequence[Run], arms: Sequence[str], metric: str, policy: str = "noncanonical") -> list[Series]:
    found = []
    for number, arm in enumerate(arms):
        mine = main_runs(runs, arm, policy)
        if mine:
            found.append(Series(label(arm), band(mine, metric, smooth=5), colour_of(arm, number)))
    return found


def curves(runs: Sequence[Run]) -> str:
    """Return the learning curves of the main comparison."""
    top = max([point.high for arm in MAIN for point in band(main_runs(runs, arm), "success", 5)] + [0.1])
    groups = (
        ("logprobs recomputed", ("exact", "decode", "render")),
        ("engine's logprobs by position", ("exact", "decode-engine", "render-engine")),
        ("truncated importance weight", ("exact", "decode-tis", "render-tis")),
        ("top-p 0.8", ("top-p-kept", "top-p")),
    )
    charts = [Panel(title, _series(runs, arms, "success"), high=top) for title, arms in groups]
    return panels("Success in training, policy that splits digits", charts, columns=2)


def health(runs: Sequence[Run]) -> str:
    """Return what a person would watch: mismatch, gradient norm, entropy, drift."""
    arms = ("exact", "decode", "render", "decode-engine", "render-engine")
    charts = [
        Panel("NLL gap: engine's logprob minus trainer's", _series(runs, arms, "nll_gap")),
        Panel("mismatch by position, k3 estimate of the KL (log)", _series(runs, arms, "kl"), low=1e-8, log=True),
        Panel("gradient norm (log)", _series(runs, arms, "grad_norm"), low=0.01, log=True),
        Panel("entropy of trained tokens", _series(runs, arms, "entropy")),
        Panel("turns changed by decoding", _series(runs, arms, "drift_decode")),
        Panel("malformed or failed calls", _series(runs, arms, "failed_calls")),
    ]
    return panels("What the metrics show", charts, columns=2)


def final(runs: Sequence[Run]) -> str:
    """Return held-out success after training, by arm and start."""
    rows: list[DotRow] = []
    for policy, title in (("noncanonical", "policy that splits digits"), ("canonical", "canonical policy")):
        mine = [(arm, main_runs(runs, arm, policy)) for arm in REWARDED]
        if any(found for _, found in mine):
            rows.append(DotRow(title))
            rows += [
                DotRow(label(arm), [Dot(interval([held_out(run) for run in found]), 0 if arm == "exact" else 1)])
                for arm, found in mine
                if found
            ]
    return dot_chart(
        "Success on held-out questions after training",
        "large dots: mean over seeds, with 95 % bootstrap interval (five seeds) or range (fewer); small dots: seeds",
        rows,
    )


def _conditions(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, dict[str, object]]]]]:
    """Return the conditions of the sweeps: by heading, a label and the settings that select its runs."""
    base = _base(runs)
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


_SWEPT = (("decode", 1), ("render", 2), ("render-engine", 3))


def boundary(runs: Sequence[Run]) -> str:
    """Return the difference to exact tokens under every condition of the sweeps."""
    rows: list[DotRow] = []
    for title, conditions in _conditions(runs):
        lines = []
        for text, wanted in conditions:
            exact = select(runs, arm="exact", **wanted)
            dots = [Dot(paired(select(runs, arm=arm, **wanted), exact, held_out), colour) for arm, colour in _SWEPT]
            if any(dot.value.count for dot in dots):
                lines.append(DotRow(text, dots))
        if len(lines) > 1:
            rows += [DotRow(title), *lines]
    return dot_chart(
        "Where re-tokenisation begins to matter",
        "held-out success minus that of exact tokens, same seeds; left of 0 is worse than exact tokens",
        rows,
        [(label(arm), colour) for arm, colour in _SWEPT],
        zero=True,
    )


def _lines(runs: Sequence[Run], arms: Sequence[str], metric: str, smooth: int = 5) -> list[Series]:
    """Return a line for each arm that has runs."""
    found = [(arm, select(runs, arm=arm)) for arm in arms]
    return [
        Series(label(arm), band(mine, metric, smooth=smooth), colour_of(arm, number))
        for number, (arm, mine) in enumerate(found)
        if mine
    ]


def of_part(runs: Sequence[Run], part: str) -> list[Run]:
    """Return the runs of a part of the report."""
    return [run for run in runs if run.settings.part == part]


def smollm2(runs: Sequence[Run]) -> str:
    """Return the curves of the larger policy."""
    mine, arms = of_part(runs, "smollm2"), ("exact", "decode", "render-engine")
    charts = [
        Panel("success in training", _lines(mine, arms, "success", 3)),
        Panel("NLL gap: engine's logprob minus trainer's", _lines(mine, arms, "nll_gap", 3)),
    ]
    return panels("SmolLM2-135M after a supervised warm-up", charts, columns=2)


def distillation_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with a teacher, and those with rewards that have the same seeds."""
    taught = select(runs, arm="distill")
    seeds = {run.settings.seed for run in taught}
    return [*taught, *(run for run in main_runs(runs, "exact") if run.settings.seed in seeds)]


def distillation(runs: Sequence[Run]) -> str:
    """Return the curves of learning from a teacher, beside those of learning from rewards."""
    mine, arms = distillation_runs(runs), ("exact", "distill")
    charts = [
        Panel("success in training", _lines(mine, arms, "success")),
        Panel("turns changed by decoding", _lines(mine, arms, "drift_decode")),
        Panel("student minus teacher (logprob)", _lines(mine, ("distill",), "teacher_gap")),
    ]
    return panels("A teacher instead of rewards", charts, columns=3)


def cost(runs: Sequence[Run]) -> str:
    """Return what is learned when tokens cost something, and when they do not."""
    free = [run for arm in ("exact", "render") for run in main_runs(runs, arm, "canonical")]

    def lines(metric: str) -> list[Series]:
        priced = _lines(of_part(runs, "cost"), ("exact", "render"), metric)
        without = _lines(free, ("exact", "render"), metric)
        return [
            *(replace(one, name=f"{one.name}, cost") for one in priced),
            *(replace(one, name=f"{one.name}, no cost", colour=one.colour + 2) for one in without),
        ]

    charts = [
        Panel("calls in compact JSON", lines("compact_calls"), high=1.0),
        Panel("sampled tokens per episode", lines("sampled_tokens"), low=40.0),
        Panel("success in training", lines("success"), high=1.0),
    ]
    return panels("A canonical policy, with and without a cost per token", charts, columns=3)


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
    for title, conditions in _conditions(runs):
        lines = []
        for text, wanted in conditions:
            exact = select(runs, arm="exact", **wanted)
            others = [paired(select(runs, arm=arm, **wanted), exact, held_out) for arm, _ in _SWEPT]
            if exact and any(other.count for other in others):
                seeds, before = str(len(exact)), f"{start_of(runs, exact[0]):.2f}"
                after = interval([held_out(run) for run in exact]).text()
                lines.append([title, text, seeds, before, after, *(other.text(sign=True) for other in others)])
        rows += lines if len(lines) > 1 else []
    heads = ["sweep", "condition", "seeds", "before", "A after", *(f"{ARMS[arm].letter} minus A" for arm, _ in _SWEPT)]
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
    whole = [run.summary["seconds"] for run in small if run.settings.steps == _steps(runs)]
    text = (
        f"{len(runs)} runs took {total / 3600:.1f} hours. A step of the tool policy took "
        f"{sorted(steps)[len(steps) // 2]:.1f} s (median), a run of {_steps(runs)} steps {interval(whole).mean:.0f} s "
        "with its evaluation."
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
                    f"{_over(found, 'drift_decode', Run.first):.1%}, {_over(found, 'drift_render', Run.first):.1%}",
                    f"{_over(found, 'failed_calls', Run.first):.1%} → {_over(found, 'failed_calls', Run.last):.1%}",
                ]
            )
    if not rows:
        return MISSING
    heads = [
        "", "trained", "seeds", "before", "after", "minus A", "NLL gap", "drift: decode, render", "failed calls"
    ]  # fmt: skip
    alt = "Success in training and mismatch of SmolLM2 by what is trained"
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


PICTURES: dict[str, Callable[[Sequence[Run]], str]] = {
    "retokenization-curves.svg": curves,
    "retokenization-health.svg": health,
    "retokenization-final.svg": final,
    "retokenization-boundary.svg": boundary,
    "retokenization-smollm2.svg": smollm2,
    "retokenization-distillation.svg": distillation,
    "retokenization-cost.svg": cost,
}
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


def write_report(runs: Sequence[Run], folder: Path) -> Path:
    """Write a page with the tables and pictures of some runs into a folder; return the page."""
    picked = ("retokenization-final.svg", "retokenization-curves.svg", "retokenization-health.svg")
    for name in picked:
        (folder / name).write_text(PICTURES[name](runs))
    pictures = "\n\n".join(f"![{name}]({name})" for name in picked)
    tables = "\n".join(f"{TABLES[name](runs)}" for name in ("proof", "noncanonical", "metrics", "times"))
    page = folder / "report.md"
    page.write_text(f"# Training on re-tokenised text: {len(runs)} runs\n\n{tables}\n{pictures}\n")
    return page


def fill(page: str, runs: Sequence[Run]) -> str:
    """Return a page with its blocks replaced."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found[2]](runs)}\n{found[3]}", page)


def main() -> None:
    """Collect results if asked, then write pictures and tables."""
    parser = argparse.ArgumentParser(description="Make the pictures and tables of docs/drift-training.md.")
    parser.add_argument("--collect", type=Path, nargs="+", metavar="FOLDER", help="gather the finished runs of folders")
    parser.add_argument("--results", type=Path, default=FILE, help="the results file")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--images", type=Path, default=IMAGES)
    options = parser.parse_args()
    if options.collect:
        print(f"{collect(options.collect, options.results)} runs in {options.results}")
    runs = load(options.results)
    options.images.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (options.images / name).write_text(draw(runs))
    options.page.write_text(fill(options.page.read_text(), runs))


if __name__ == "__main__":
    main()
