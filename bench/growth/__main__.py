"""Measures, simulates and writes what a run of any size needs.

    python bench/growth --page docs/operate/scale.md     # the page, from the stored figures
    python bench/growth --simulate [--quick]             # simulate again: a few minutes of CPU; needs SimPy
    python bench/growth --check [--quick]                # compare the simulation with real runs on this machine
    python bench/growth --measure [--quick]              # measure the coefficients again
    python bench/growth --episodes 20000 --turns 40 --engines 300 --engine-tokens-per-second 9000

The last form only prints what such a run needs. Everything about engines is an assumption that you can change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the folder of the benchmarks

from growth.coefficients import load
from growth.model import Engines, Workload, predict, size
from growth.page import write_page

_RESULTS = Path(__file__).resolve().parent / "results.json"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("measure", "simulate", "check"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--quick", action="store_true", help="smaller and shorter; results are printed, not stored")
    parser.add_argument("--page", type=Path, default=None, help="page to write, with its plots")
    parser.add_argument("--tokenizer", default=None, help="tokenizer folder (default: the fixture of Qwen3)")
    for prefix, group in (("", Workload), ("engine-", Engines)):
        for one in fields(group):
            name = one.name.replace("_", "-")
            name = name if name in ("engines", "tokens") else prefix + name
            parser.add_argument(f"--{name}", dest=f"{group.__name__}.{one.name}", type=float, default=None)
    return parser.parse_args()


def _given(kind: type[Any], options: argparse.Namespace) -> Any:
    """Return the workload or the engines with the given values."""
    values: dict[str, Any] = {}
    for one in fields(kind):
        value = getattr(options, f"{kind.__name__}.{one.name}")
        if value is not None:
            values[one.name] = int(value) if isinstance(one.default, int) else value
    return kind(**values)


def main() -> None:
    """Do what the options say."""
    options = _options()
    logging.disable(logging.WARNING)
    work, engines = _given(Workload, options), _given(Engines, options)
    if options.measure:
        from growth.measure import measure_all

        asyncio.run(measure_all(options.tokenizer, quick=options.quick))
    known = load()
    results: dict[str, Any] = json.loads(_RESULTS.read_text()) if _RESULTS.exists() else {}
    if options.simulate:
        from growth.scenarios import everything

        results = {**results, **everything(work, engines, known, quick=options.quick)}
    if options.check:
        from growth.check import check
        from growth.measure import default_tokenizer

        rows = asyncio.run(check(options.tokenizer or default_tokenizer(), known, quick=options.quick))
        results["check"] = rows
    if (options.simulate or options.check) and not options.quick:
        _RESULTS.write_text(json.dumps(results, separators=(",", ":")).replace('},{"', '},\n{"') + "\n")
    if options.page is not None:
        write_page(options.page, results)
    if not (options.measure or options.simulate or options.check or options.page):
        predicted = predict(work, engines, known)
        in_call = min(1.0, predicted.turns_per_second * predicted.engine_seconds / work.episodes)
        needs = size(work, predicted.turns_per_second, known, in_call)
        print(json.dumps({"prediction": asdict(predicted), "needs": asdict(needs)}, indent=1))
    elif options.quick:
        print(json.dumps({name: value for name, value in results.items() if name != "largest"}))


if __name__ == "__main__":
    main()
