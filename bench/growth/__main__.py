"""Simulates and writes what a run of any size needs.

    python bench/growth --page docs/operate/scale.md     # the page, from the stored figures
    python bench/growth --simulate [--quick]             # simulate again: a few minutes of CPU; needs SimPy
    python bench/growth --episodes 20000 --turns 40 --engines 300 --engine-tokens-per-second 9000

The last form only prints what such a run needs. Everything about engines is an assumption that you can change.
`bench/costs.py` measures the coefficients, and compares the simulation with real runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the folder of the benchmarks

from growth.model import Engines, Workload, load, predict, size
from growth.page import write_page

_RESULTS = Path(__file__).resolve().parent / "results.json"


def _given(kind: type[Any], prefix: str, parser: argparse.ArgumentParser) -> Any:
    """Return the workload or the engines with the values of the command line."""
    for one in fields(kind):
        name = one.name if one.name == "engines" else prefix + one.name
        parser.add_argument(
            "--" + name.replace("_", "-"), dest=prefix + one.name, type=type(one.default), default=one.default
        )
    options = parser.parse_known_args()[0]
    return kind(**{one.name: getattr(options, prefix + one.name) for one in fields(kind)})


def store(found: dict[str, Any]) -> None:
    """Add figures to those of the page."""
    results = {**json.loads(_RESULTS.read_text()), **found}
    _RESULTS.write_text(json.dumps(results, separators=(",", ":")).replace('},{"', '},\n{"') + "\n")


def main() -> None:
    """Do what the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--quick", action="store_true", help="smaller and shorter; results are printed, not stored")
    parser.add_argument("--page", type=Path, default=None, help="page to write, with its plots")
    work, engines, known = _given(Workload, "", parser), _given(Engines, "engine_", parser), load()
    options = parser.parse_args()
    if options.simulate:
        from growth.scenarios import everything

        found = everything(work, engines, known, quick=options.quick)
        if options.quick:
            print(json.dumps(found))
        else:
            store(found)
    if options.page is not None:
        write_page(options.page, json.loads(_RESULTS.read_text()))
    if not (options.simulate or options.page):
        predicted = predict(work, engines, known)
        in_call = min(1.0, predicted.turns_per_second * predicted.engine_seconds / work.episodes)
        needs = size(work, predicted.turns_per_second, known, in_call)
        print(json.dumps({"prediction": predicted._asdict(), "needs": needs._asdict()}, indent=1))


if __name__ == "__main__":
    main()
