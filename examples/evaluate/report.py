#!/usr/bin/env python3
"""Evaluate a recorded run: pass@k with intervals, why episodes ended, and the worst episodes, as one Markdown page.

    python examples/evaluate/report.py runs/first > report.md
    python examples/evaluate/report.py runs/first runs/second      # two runs side by side

Nothing is sampled: the rewards are those on record. `strands-sglang eval --recorded RUN` prints the first table too.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from strands_sglang.ledger import Ledger
from strands_sglang.runs import EndReason, Evaluation, Task, evaluate


@dataclass(frozen=True)
class Recorded:
    """What an evaluation needs of a recorded episode."""

    id: str
    task: Task
    reward: float | None
    end_reason: EndReason
    text: str
    turns: int


def episodes_of(run: Path) -> list[Recorded]:
    """Return the episodes of a run that have ended."""
    found = []
    for record in Ledger(run).episodes():
        if record.begin is None or record.end is None:
            continue
        end, task = record.end.data, record.begin.data["task"]
        reward = None if record.reward is None else record.reward.data["value"]
        turns = end["metrics"].get("turns", 0)
        found.append(Recorded(record.id, Task(**task), reward, EndReason(end["end_reason"]), end["text"] or "", turns))
    return found


def page(run: Path, episodes: list[Recorded], evaluation: Evaluation) -> str:
    """Return the report of one run as Markdown."""
    ended = Counter(one.end_reason.value for one in episodes)
    worst = sorted((one for one in episodes if one.reward is not None), key=lambda one: (one.reward, -one.turns))[:5]
    lines = [f"# {run}", "", evaluation.markdown(), "", "## How episodes ended", ""]
    lines += [f"- {reason}: {count}" for reason, count in ended.most_common()]
    lines += ["", "## Lowest rewards", "", "| episode | reward | turns | last words |", "|---|---:|---:|---|"]
    for one in worst:
        words = " ".join(one.text.split())[:80].replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| {one.id} | {one.reward:g} | {one.turns} | {words} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Print a report for each run."""
    parser = argparse.ArgumentParser(description="Evaluate recorded runs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("-k", type=int, nargs="*", help="values of k for pass@k; default: 1, 2, 4, ...")
    parser.add_argument("--threshold", type=float, default=1.0, help="reward from which an episode passes")
    options = parser.parse_args()
    for run in options.runs:
        episodes = episodes_of(run)
        print(page(run, episodes, evaluate(episodes, ks=options.k, threshold=options.threshold)))


if __name__ == "__main__":
    main()
