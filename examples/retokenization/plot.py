#!/usr/bin/env python3
"""Make all pictures and tables of docs/drift-training.md from the results in the repository.

    python examples/retokenization/plot.py                                  # from results/runs.jsonl
    python examples/retokenization/plot.py --collect runs/retokenization    # first gather the runs of a queue

What stands between `<!-- results: NAME -->` and `<!-- /results -->` in the page is replaced; the rest is written by
hand. Needs numpy alone.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from arms import ARMS, MAIN
from figures import Dot, DotRow, Panel, Series, dot_chart, panels
from results import FILE, Run, band, collect, interval, load, paired, select
from settings import ROOT

PAGE, IMAGES = ROOT / "docs" / "drift-training.md", ROOT / "docs" / "images"
_BLOCK = re.compile(r"(<!-- results: ([a-z0-9-]+) -->\n).*?(<!-- /results -->)", re.S)
MISSING = "*Not measured yet.*\n"


def main_runs(runs: Sequence[Run], arm: str, policy: str = "noncanonical") -> list[Run]:
    """Return the runs of an arm with the settings of the main comparison."""
    return select(runs, arm=arm, policy=policy, learning_rate=3e-4, temperature=1.0, operations=2, steps=_steps(runs))


def _steps(runs: Sequence[Run]) -> int:
    return next((run.settings.steps for run in runs if run.settings.part == "main"), 30)


def held_out(run: Run) -> float:
    """Return held-out success after training."""
    return float(run.summary["end"])


def label(arm: str) -> str:
    """Return the letter of an arm and what it trains on."""
    return f"{ARMS[arm].letter}: {ARMS[arm].about}"


def _series(runs: Sequence[Run], arms: Sequence[str], metric: str, policy: str = "noncanonical") -> list[Series]:
    found = []
    for number, arm in enumerate(arms):
        mine = main_runs(runs, arm, policy)
        if mine:
            found.append(Series(label(arm), band(mine, metric, smooth=5), 0 if arm == "exact" else number % 5))
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
        Panel("trainer minus engine: mean NLL gap", _series(runs, arms, "nll_gap")),
        Panel("KL estimate, engine to trainer (log)", _series(runs, arms, "kl"), low=1e-8, log=True),
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
        mine = [(arm, main_runs(runs, arm, policy)) for arm in ARMS]
        if any(found for _, found in mine):
            rows.append(DotRow(title))
            rows += [
                DotRow(label(arm), [Dot(interval([held_out(run) for run in found]), 0 if arm == "exact" else 1)])
                for arm, found in mine
                if found
            ]
    return dot_chart("Success on held-out questions after training", "mean over seeds, 95 % bootstrap interval", rows)


def _conditions(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, dict[str, object]]]]]:
    """Return the conditions of the sweeps: by heading, a label and the settings that select its runs."""
    base: dict[str, object] = {
        "policy": "noncanonical", "learning_rate": 3e-4, "temperature": 1.0, "operations": 2, "steps": _steps(runs)
    }  # fmt: skip
    policies = sorted({run.settings.policy for run in runs if run.settings.policy.startswith("split-")})
    ambiguity = []
    for policy in ("canonical", *policies, "noncanonical"):
        wanted = base | {"policy": policy}
        exact = select(runs, arm="exact", **wanted)
        if exact:
            share = interval([run.first("drift_decode") for run in exact]).mean
            ambiguity.append((share, f"{share:.1%} of turns drift ({policy})", wanted))
    found = [
        ("vocabulary ambiguity", [(text, wanted) for _, text, wanted in sorted(ambiguity, key=lambda one: one[0])])
    ]
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


_SWEPT = (("decode", 1), ("render", 2))


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
        if lines:
            rows += [DotRow(title), *lines]
    return dot_chart(
        "Where re-tokenisation begins to matter",
        "held-out success minus that of exact tokens, same seeds; left of 0 is worse than exact tokens",
        rows,
        [(label(arm), colour) for arm, colour in _SWEPT],
        zero=True,
    )


def smollm2(runs: Sequence[Run]) -> str:
    """Return the curves of the larger policy."""
    mine = [run for run in runs if run.settings.part == "smollm2"]
    arms = [arm for arm in ARMS if select(mine, arm=arm)]

    def lines(metric: str) -> list[Series]:
        return [
            Series(label(arm), band(select(mine, arm=arm), metric, smooth=3), 0 if arm == "exact" else number % 5)
            for number, arm in enumerate(arms)
        ]

    charts = [
        Panel("success in training", lines("success")),
        Panel("trainer minus engine: mean NLL gap", lines("nll_gap")),
    ]
    return panels("SmolLM2-135M after a supervised warm-up", charts, columns=2)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 2)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def arms_table(runs: Sequence[Run], policy: str) -> str:
    """Return the table of an arm per row."""
    exact, rows = main_runs(runs, "exact", policy), []
    for arm in ARMS:
        mine = main_runs(runs, arm, policy)
        if not mine:
            continue
        rows.append(
            [
                ARMS[arm].letter,
                ARMS[arm].about,
                str(len(mine)),
                f"{mine[0].summary['start']:.2f}",
                interval([held_out(run) for run in mine]).text(),
                "–" if arm == "exact" or ARMS[arm].top_p < 1 else paired(mine, exact, held_out).text(sign=True),
                f"{interval([run.last('nll_gap') for run in mine]).mean:.1g}",
                f"{max(float(run.values('grad_norm').max()) for run in mine):.2g}",
                f"{interval([run.last('entropy') for run in mine]).mean:.2f}",
                f"{interval([run.last('clip_share') for run in mine]).mean:.1%}",
                f"{interval([run.first('drift_decode') for run in mine]).mean:.0%} → "
                f"{interval([run.last('drift_decode') for run in mine]).mean:.0%}",
                f"{interval([run.last('failed_calls') for run in mine]).mean:.1%}",
            ]
        )
    heads = [
        "", "trained", "seeds", "before", "after", "minus A", "NLL gap", "largest gradient norm", "entropy", "clipped",
        "drift", "failed calls",
    ]  # fmt: skip
    return _table(heads, rows) if rows else MISSING


def sweep_table(runs: Sequence[Run]) -> str:
    """Return the table of the sweeps."""
    rows = []
    for title, conditions in _conditions(runs):
        for text, wanted in conditions:
            exact = select(runs, arm="exact", **wanted)
            others = [paired(select(runs, arm=arm, **wanted), exact, held_out) for arm, _ in _SWEPT]
            if exact and any(other.count for other in others):
                before = f"{exact[0].summary['start']:.2f}"
                after = interval([held_out(run) for run in exact]).text()
                rows.append([title, text, str(len(exact)), before, after, *(other.text(sign=True) for other in others)])
    heads = ["sweep", "condition", "seeds", "before", "A after", "B minus A", "C minus A"]
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
    rows = []
    for arm in ARMS:
        for run in select([one for one in runs if one.settings.part == "smollm2"], arm=arm):
            drift = f"{run.first('drift_decode'):.1%}, {run.first('drift_render'):.1%}"
            cells = [f"{run.summary['start']:.2f}", f"{held_out(run):.2f}", f"{run.first('success'):.2f}"]
            cells += [f"{run.last('success'):.2f}", f"{run.last('nll_gap'):.1g}", drift]
            rows.append([ARMS[arm].letter, ARMS[arm].about, str(run.settings.steps), *cells])
    if not rows:
        return MISSING
    heads = [
        "", "trained", "steps", "before", "after", "first steps", "last steps", "NLL gap", "drift: decode, render"
    ]  # fmt: skip
    alt = "Success in training and mismatch of SmolLM2 by what is trained"
    return f"![{alt}](images/retokenization-smollm2.svg)\n\n{_table(heads, rows)}"


PICTURES: dict[str, Callable[[Sequence[Run]], str]] = {
    "retokenization-curves.svg": curves,
    "retokenization-health.svg": health,
    "retokenization-final.svg": final,
    "retokenization-boundary.svg": boundary,
    "retokenization-smollm2.svg": smollm2,
}
TABLES: dict[str, Callable[[Sequence[Run]], str]] = {
    "noncanonical": lambda runs: arms_table(runs, "noncanonical"),
    "canonical": lambda runs: arms_table(runs, "canonical"),
    "sweep": sweep_table,
    "smollm2": smollm2_part,
    "proof": proof,
    "times": times,
}


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
        if name != "retokenization-smollm2.svg" or any(run.settings.part == "smollm2" for run in runs):
            (options.images / name).write_text(draw(runs))
    options.page.write_text(fill(options.page.read_text(), runs))


if __name__ == "__main__":
    main()
