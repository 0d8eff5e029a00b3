#!/usr/bin/env python3
"""Measures what a change costs: the benchmarks of a turn, the client and the ledger, before and after it.

    python bench/against_commit.py COMMIT [--rounds 5]

COMMIT's source and benchmarks are written to a temporary folder. Each commit is measured by its own benchmarks, because
names change between commits; both alternate, in processes of their own. Every figure is a ratio to something that the
change does not touch (the bare client, a run without a ledger) or the lower quartile of many short measurements; a
round gives one quotient of after to before, and the median over the rounds is shown with its range.

Prints a table, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from suite.environments import SOURCE

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("src", "bench", "lab")
"""What the benchmarks use of a commit."""
POLICY = str(ROOT / "lab" / "tool_policy" / "canonical")


def figures(root: Path) -> dict[str, float]:
    """Return the figures of one checkout, lower is better."""
    turn = _run(root, "turn.py", POLICY, "--turns", "48", "--episodes", "15")
    client = _run(root, "client.py", "--quick", "--no-published")
    ledger = _run(root, "ledger.py", "--quick")
    rollout = _run(root, "rollout.py", "--quick", "--no-collector")
    found = {"turn, early": turn["early_ms"], "turn, late": turn["late_ms"]}
    found |= {f"client / bare, {shape}": ratio for shape, ratio in client["ours_over_bare"].items()}
    found |= {f"with / without ledger, {row['turns']:g} turns": row["cpu_ratio"] for row in ledger["rows"]}
    found |= {f"rollout / bare SDK, {row['turns']:g} turns": row["over_bare"] for row in rollout["rows"]}
    return found


def _run(root: Path, name: str, *arguments: str) -> Any:
    """Run a benchmark of one checkout; return its JSON line."""
    source, bench = root / "src", root / "bench"
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(bench)]), SOURCE: str(source)}
    done = subprocess.run(
        [sys.executable, str(bench / name), *arguments],
        env=variables,
        cwd=root,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what a change costs.")
    parser.add_argument("commit", metavar="COMMIT", help="the commit before the change")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="before-") as folder:
        archive = subprocess.run(["git", "archive", options.commit, *PARTS], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        rounds = []
        for number in range(options.rounds):
            # The order alternates, so that a machine that gets slower or faster favours neither.
            both = [Path(folder), ROOT]
            order = both if number % 2 == 0 else both[::-1]
            measured = {root: figures(root) for root in order}
            rounds.append((measured[both[0]], measured[both[1]]))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    result = {}
    print(f"{'figure':<40}{'before':>9}{'after':>9}{'after/before':>14}{'range':>16}")
    for name in rounds[0][0]:
        before, after = ([one[place][name] for one in rounds] for place in (0, 1))
        quotients = [last / first for first, last in zip(before, after, strict=True)]
        typical = statistics.median(quotients)
        result[name] = round(typical, 4)
        print(
            f"{name:<40}{statistics.median(before):>9.3f}{statistics.median(after):>9.3f}{typical:>14.3f}"
            f"{min(quotients):>9.3f}..{max(quotients):.3f}"
        )
    print(json.dumps({"after_over_before": result}))


if __name__ == "__main__":
    main()
