#!/usr/bin/env python3
"""Measured figures in the pages: every one is written from `bench/measured.json`.

    python bench/figures.py            # check: print what a page states otherwise, and exit with 1
    python bench/figures.py --write    # fill the pages

A figure in a page has a mark, which no reader sees: `<!--m:long.last_ms .1f-->10.6<!--/m-->`. It names a path into
`measured.json`, and a format (`g` if there is none); of a measurement with quartiles, the median is shown. The part
`apart` of the file has the figures of single benches and is entered by hand; `bench/run --save` writes all others.

`bench/run --page` and `bench/growth --page` write whole tables; their pages are not checked here.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_MARK = re.compile(r"(<!--m:([\w.-]+)(?: (\S+?))?-->)(.*?)(<!--/m-->)", re.DOTALL)


def pages() -> list[Path]:
    """Return every page that may have figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def figure(measured: Any, path: str, form: str) -> str:
    """Return a figure as a page shows it; KeyError: it was not measured."""
    for name in path.split("."):
        measured = measured[int(name)] if isinstance(measured, list) else measured[name]
    value = measured["median"] if isinstance(measured, dict) else measured
    return format(value, form)


def filled(text: str, measured: Any) -> str:
    """Return a page with all its figures."""
    return _MARK.sub(lambda mark: mark[1] + figure(measured, mark[2], mark[3] or "g") + mark[5], text)


def main() -> int:
    """Check the pages, or write them."""
    measured, wrong = json.loads((ROOT / "bench" / "measured.json").read_text()), 0
    for page in pages():
        text = page.read_text()
        should = filled(text, measured)
        if text == should:
            continue
        if "--write" in sys.argv:
            page.write_text(should)
            continue
        for found, right in zip(_MARK.finditer(text), _MARK.finditer(should), strict=True):
            if found[4] != right[4]:
                wrong += 1
                print(f"{page.relative_to(ROOT)}: {found[2]} is {right[4]}, the page says {found[4]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
