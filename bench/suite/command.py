"""The command line of `bench/run`."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from scripted_agent import TOKENIZER
from suite import against_engine, agents, long_and_large, wire
from suite.environments import ROOT, own, versions
from suite.page import write_page
from suite.report import Log, goals, last_line
from suite.stats import shown

PARTS = {
    "agents": agents.measure,
    "engine": against_engine.measure,
    "wire": wire.measure,
    "long": long_and_large.measure,
}
SAVED = ROOT / "bench" / "measured.json"


def machine() -> dict[str, Any]:
    """Return what the figures depend on: date, versions, machine."""
    names = ["strands-agents", "aiohttp", "orjson", "numpy", "transformers", "tokenizers"]
    cpuinfo = Path("/proc/cpuinfo")
    models = (
        [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        if cpuinfo.exists()
        else []
    )
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cores": os.cpu_count(),
        "cpu": models[0] if models else platform.machine(),
        "system": platform.platform(),
        "versions": versions(own(), names),
    }


def main() -> int:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(
        description="Measure the speed of this package, side by side with the bare SDK, the bare engine and others. "
        "The last line of stdout is JSON."
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test: small, installs nothing, uses no engine")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, separated by commas (of {','.join(PARTS)})")
    parser.add_argument("--save", type=Path, help="write the result as JSON; parts that were not run are kept")
    parser.add_argument("--page", type=Path, help="write the result as a page with plots: docs/operate/speed.md")
    parser.add_argument("--from", dest="source", type=Path, help="measure nothing: read a saved result")
    parser.add_argument("--tokenizer", default=str(TOKENIZER), help="tokenizer of a model that writes Hermes calls")
    options = parser.parse_args()
    parts = [part for part in options.only.split(",") if part]
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only must name parts of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    if options.source is not None:
        result = json.loads(options.source.read_text())
    else:
        result = measured(parts, options)
    if options.save is not None:
        options.save.write_text(json.dumps(result, indent=1) + "\n")
    if options.page is not None:
        write_page(result, options.page)
    print("\ngoals")
    for goal in goals(result):
        verdict = {True: "met", False: "NOT met", None: "not measured"}[goal.met]
        sign = ">=" if goal.above else "<="
        print(f"  {goal.name}: {shown(goal.value, goal.digits)} ({sign} {goal.bound:g}: {verdict})")
    print(json.dumps(last_line(result)), flush=True)
    return 0


def measured(parts: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Run parts and return the result; a part that was saved before and is not run again is kept as it was."""
    result: dict[str, Any] = {}
    if options.save is not None and options.save.exists():
        result = json.loads(options.save.read_text())
    log = Log()
    result["machine"], result["quick"] = machine(), options.quick
    for part in parts:
        result.pop(part, None)
        result[part] = PARTS[part](options.tokenizer, options.quick, log)
        result[part]["date"] = result["machine"]["date"]
    # A part that is not run again keeps its reasons.
    kept = {} if set(parts) == set(PARTS) else result.get("left_out", {})
    result["left_out"] = {**kept, **log.left}
    return result


if __name__ == "__main__":
    sys.exit(main())
