"""The pictures of the report, as SVG, from the results of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from arms import MAIN, REWARDED
from charts import COLOURS, Dot, DotRow, Panel, Series, dot_chart, panels
from compared import SWEPT, distillation_runs, held_out, label, main_runs, of_part, sweeps
from results import Run, band, interval, select


def colour_of(arm: str, arms: Sequence[str]) -> int:
    """Return the colour of an arm in a chart of some arms; the first colour is that of exact tokens alone."""
    return 0 if arm == "exact" else 1 + [one for one in arms if one != "exact"].index(arm) % (COLOURS - 1)


def _lines(runs: Sequence[Run], arms: Sequence[str], metric: str, smooth: int = 5) -> list[Series]:
    """Return a line for each arm that has runs."""
    found = [(arm, select(runs, arm=arm)) for arm in arms]
    return [Series(label(arm), band(mine, metric, smooth=smooth), colour_of(arm, arms)) for arm, mine in found if mine]


def _main_lines(runs: Sequence[Run], arms: Sequence[str], metric: str) -> list[Series]:
    """Return a line for each arm of the main comparison that has runs."""
    return _lines([run for arm in arms for run in main_runs(runs, arm)], arms, metric)


def curves(runs: Sequence[Run]) -> str:
    """Return the learning curves of the main comparison."""
    top = max([point.high for arm in MAIN for point in band(main_runs(runs, arm), "success", 5)] + [0.1])
    groups = (
        ("logprobs recomputed", ("exact", "decode", "render")),
        ("engine's logprobs by position", ("exact", "decode-engine", "render-engine")),
        ("truncated importance weight", ("exact", "decode-tis", "render-tis")),
        ("top-p 0.8", ("top-p-kept", "top-p")),
    )
    charts = [Panel(title, _main_lines(runs, arms, "success"), high=top) for title, arms in groups]
    return panels("Success in training, policy that splits digits", charts, columns=2)


def health(runs: Sequence[Run]) -> str:
    """Return what a person would watch: mismatch, gradient norm, entropy, drift."""
    arms = ("exact", "decode", "render", "decode-engine", "render-engine")
    charts = [
        Panel("NLL gap: engine's logprob minus trainer's", _main_lines(runs, arms, "nll_gap")),
        Panel("mismatch by position, k3 estimate of the KL (log)", _main_lines(runs, arms, "kl"), low=1e-8, log=True),
        Panel("gradient norm (log)", _main_lines(runs, arms, "grad_norm"), low=0.01, log=True),
        Panel("entropy of trained tokens", _main_lines(runs, arms, "entropy")),
        Panel("turns changed by decoding", _main_lines(runs, arms, "drift_decode")),
        Panel("malformed or failed calls", _main_lines(runs, arms, "failed_calls")),
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


def boundary(runs: Sequence[Run]) -> str:
    """Return the difference to exact tokens under every condition of the sweeps."""
    rows: list[DotRow] = []
    for title, conditions in sweeps(runs):
        rows.append(DotRow(title))
        for one in conditions:
            ends = interval([held_out(run) for run in one.exact]).mean
            dots = [Dot(value, colour_of(arm, SWEPT)) for arm, value in zip(SWEPT, one.differences, strict=True)]
            rows.append(DotRow(f"{one.text}, A: {ends:.2f}", dots))
    return dot_chart(
        "Where re-tokenisation begins to matter",
        "held-out success minus that of exact tokens (A: its value), same seeds; left of 0 is worse than exact tokens",
        rows,
        [(label(arm), colour_of(arm, SWEPT)) for arm in SWEPT],
        zero=True,
    )


def longer(runs: Sequence[Run]) -> str:
    """Return the curves of the runs with more steps."""
    mine, arms = of_part(runs, "steps"), ("exact", "decode")
    charts = [
        Panel("success in training", _lines(mine, arms, "success"), high=1.0),
        Panel("turns changed by decoding", _lines(mine, arms, "drift_decode"), high=1.0),
    ]
    return panels("Four times as many steps", charts, columns=2)


def smollm2(runs: Sequence[Run]) -> str:
    """Return the curves of the larger policy."""
    mine, arms = of_part(runs, "smollm2"), ("exact", "decode", "render-engine")
    charts = [
        Panel("success in training", _lines(mine, arms, "success", 3), high=1.0),
        Panel("engine's logprob minus trainer's", _lines(mine, arms, "nll_gap", 3)),
        Panel("turns changed by rendering", _lines(mine, arms, "drift_render", 1), high=1.0),
    ]
    return panels("SmolLM2-135M after a supervised warm-up", charts, columns=3)


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


PICTURES: dict[str, Callable[[Sequence[Run]], str]] = {
    "retokenization-curves.svg": curves,
    "retokenization-health.svg": health,
    "retokenization-final.svg": final,
    "retokenization-boundary.svg": boundary,
    "retokenization-longer.svg": longer,
    "retokenization-smollm2.svg": smollm2,
    "retokenization-distillation.svg": distillation,
    "retokenization-cost.svg": cost,
}
