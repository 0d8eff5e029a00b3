"""Charts are well-formed SVG, whatever the texts and numbers are."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.drift.page import Line, Row, bars, lines


@pytest.mark.parametrize("parts", [(), (0.0, 0.0), (0.2, 0.3), (1.0,)])
def test_bars(parts: tuple[float, ...]) -> None:
    svg = bars("a <title> & more", [Row("<b>", parts, '"note"'), Row("\u202ex", parts)], ["one", "two"])
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.iter() if element.text and element.text.strip()]
    assert "a <title> & more" in texts and "<b>" in texts and "\\u202ex" in texts
    drawn = [element for element in root.iter() if element.tag.endswith("rect") and element.get("height") == "16"]
    assert len(drawn) == 2 * sum(part > 0 for part in parts)


def test_lines() -> None:
    svg = lines("share", [Line("a", (0.1, None, 0.3)), Line("b", ()), Line("c", (0.0,))], "turn")
    root = ElementTree.fromstring(svg)
    assert len([element for element in root.iter() if element.tag.endswith("polyline")]) == 1


@given(st.floats(1e-6, 1.0))
def test_ticks_are_round_numbers_and_hold_everything(most: float) -> None:
    for svg in (bars("title", [Row("a", (most,), "note")]), lines("title", [Line("a", (0.0, most))], "turn")):
        texts = [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]
        ticks = [float(text[:-2]) for text in texts if text.endswith(" %")]
        assert len(ticks) == 5 and ticks[0] == 0 and ticks[-1] >= 100 * max(most, 0.01) * (1 - 1e-6)
        assert ticks[-1] <= 250 * max(most, 0.01), "the chart is used"
        step = ticks[1]
        assert ticks == pytest.approx([step * number for number in range(5)])
        assert f"{step:e}".partition("e")[0].rstrip("0").rstrip(".") in ("1", "2", "2.5", "5")
