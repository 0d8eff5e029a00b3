#!/usr/bin/env python3
"""Make all pictures and tables of docs/drift-training.md from the results in the repository.

    python research/retokenization/plot.py                                  # from results/runs.jsonl
    python research/retokenization/plot.py --collect runs/retokenization    # first gather the runs of a queue

What stands between `<!-- results: NAME -->` and `<!-- /results -->` in the page is replaced; the rest is written by
hand. Needs numpy.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pictures import PICTURES
from results import FILE, Run, collect, load
from settings import ROOT
from tables import TABLES

PAGE, IMAGES = ROOT / "docs" / "drift-training.md", ROOT / "docs" / "images"
_BLOCK = re.compile(r"(<!-- results: ([a-z0-9-]+) -->\n).*?(<!-- /results -->)", re.S)


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
