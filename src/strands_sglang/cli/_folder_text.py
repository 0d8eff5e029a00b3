"""`show`'s list of a folder of runs: a line per run, or a JSON object per run and line.

Invariant: figures are those of the viewer (`ledger/figures.py`), computed from the summary rows of each run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strands_sglang._terminal import counted, escape_for_terminal, table
from strands_sglang.cli._command import Paint, number, shorten
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.figures import Figures
from strands_sglang.ledger.folder import RunPlace
from strands_sglang.ledger.run_dir import check_format
from strands_sglang.ledger.summary import run_rows
from strands_sglang.proof.verify import verify

_COLUMNS = ("run", "episodes", "reward", "std", "passed", "equal", "turns", "sampled", "truncated", "failed", "cached")
_VERDICT = "verdict"


def read_runs(places: Sequence[RunPlace], *, proved: bool = False) -> Iterator[dict[str, Any]]:
    """Yield name, training, step and figures of each run; `error` in place of figures if it cannot be read.

    `proved`: also the verdict of `verify`, which reads every token.
    """
    for place in places:
        about = {"run": place.name, "training": place.training or None, "step": place.step}
        try:
            check_format(place.path)
            figures = Figures.of(place.name, run_rows(place.path)).to_dict()
            yield {**about, **figures, **({_VERDICT: verify(place.path).verdict.value} if proved else {})}
        except (OSError, LedgerError) as error:
            yield {**about, "error": str(error)}


def folder_lines(
    name: str, places: Sequence[RunPlace], most: int | None, paint: Paint, *, proved: bool = False
) -> list[str]:
    """Return a line about the folder, and a table of its last `most` runs, None: of all; the others are not read."""
    trainings = {place.training for place in places if place.training}
    shown = list(read_runs(places if most is None else places[-most:], proved=proved))
    parts = [counted(len(places), "run"), *([counted(len(trainings), "training")] if trainings else [])]
    if len(shown) == len(places):
        parts.append(counted(sum(run.get("episodes", 0) for run in shown), "episode"))
    lines = [f"{paint(escape_for_terminal(name), 'bold')}  {', '.join(parts)}", ""]
    head = (*_COLUMNS, *([_VERDICT] if proved else []))
    cells = [head, *(_cells(run) for run in shown if "error" not in run)]
    first, *rest = table(cells, right=range(1, len(_COLUMNS)))
    lines += [paint(first, "dim"), *rest]
    lines += [
        paint(f"{shorten(run['run'], 60)}: {shorten(run['error'], 200)}", "red") for run in shown if "error" in run
    ]
    if len(shown) < len(places):
        lines += ["", f"and {len(places) - len(shown):,} before them: --limit 0 shows all"]
    return lines


def _cells(run: Mapping[str, Any]) -> tuple[str, ...]:
    shares = {name: "-" if run[name] is None else f"{100 * run[name]:.0f}%" for name in _COLUMNS[4:6] + _COLUMNS[8:]}
    means = ["-" if run[name] is None else f"{run[name]:.1f}" for name in ("turns", "sampled")]
    rewards = number(run["reward"]), number(run["std"]), shares["passed"], shares["equal"]
    known = shorten(run["run"], 60), f"{run['episodes']:,}", *rewards, *means, *(shares[one] for one in _COLUMNS[8:])
    return (*known, *([run[_VERDICT]] if _VERDICT in run else []))
