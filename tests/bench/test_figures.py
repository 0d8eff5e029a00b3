"""Figures in the pages are those of `bench/measured.json`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import figures
from suite.page import write_page

MEASURED = json.loads((figures.ROOT / "bench" / "measured.json").read_text())


@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: str(page.relative_to(figures.ROOT)))
def test_page_states_what_was_measured(page: Path) -> None:
    text = page.read_text()
    assert figures.filled(text, MEASURED) == text, "run: python bench/figures.py --write"
    assert text.count("<!--m:") == text.count("<!--/m-->") == len(figures._MARK.findall(text)), "a mark is malformed"
    assert not [line for line in text.splitlines() if line.lstrip().startswith("<!--m:")], (
        "Markdown takes such a line for HTML"
    )


def test_speed_page_is_made_from_the_file(tmp_path: Path) -> None:
    page = figures.ROOT / "docs" / "operate" / "speed.md"
    (tmp_path / "images").mkdir()
    made = tmp_path / "operate" / "speed.md"
    made.parent.mkdir()
    made.write_text(page.read_text())
    write_page(MEASURED, made)
    assert made.read_text() == page.read_text(), (
        "run: bench/run --from bench/measured.json --page docs/operate/speed.md"
    )


def test_another_value_is_replaced_and_an_unknown_figure_raises() -> None:
    measured = {"long": {"ms": {"median": 3.14159, "low": 3}}, "calls": [{"ratio": 2}]}
    page = "It takes <!--m:long.ms .1f-->9<!--/m--> ms, <!--m:calls.0.ratio--><!--/m--> times."
    assert figures.filled(page, measured) == (
        "It takes <!--m:long.ms .1f-->3.1<!--/m--> ms, <!--m:calls.0.ratio-->2<!--/m--> times."
    )
    with pytest.raises(KeyError):
        figures.filled("<!--m:long.hours-->1<!--/m-->", measured)
