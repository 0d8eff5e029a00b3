"""Charts as SVG text, in the colours of the other pictures of the documentation; no plotting library is needed.

Invariant: a chart refers to nothing outside of itself and has its own paper, light or dark as the reader's system asks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from results import Interval

_STYLE = """
.paper{fill:#fbfaf7}.ink{fill:#1d2733}.soft{fill:#5b6775}.grid{stroke:#dcd9d0}.axis{stroke:#8a95a1}
.l0{stroke:#3d8790}.f0{fill:#3d8790}.l1{stroke:#c2622a}.f1{fill:#c2622a}.l2{stroke:#7a5fa8}.f2{fill:#7a5fa8}
.l3{stroke:#b5485d}.f3{fill:#b5485d}.l4{stroke:#8a6d3b}.f4{fill:#8a6d3b}
@media (prefers-color-scheme:dark){
.paper{fill:#171c22}.ink{fill:#e7ebef}.soft{fill:#a6b1bd}.grid{stroke:#2c343c}.axis{stroke:#6d7986}
.l0{stroke:#5fb4bd}.f0{fill:#5fb4bd}.l1{stroke:#e39257}.f1{fill:#e39257}.l2{stroke:#b48fd6}.f2{fill:#b48fd6}
.l3{stroke:#e58496}.f3{fill:#e58496}.l4{stroke:#cbaa72}.f4{fill:#cbaa72}}
text{font-family:system-ui,-apple-system,"Segoe UI",sans-serif;font-size:12px}.h{font-weight:650;font-size:15px}
.t{font-weight:600;font-size:12.5px}.line{fill:none;stroke-width:2}.band{opacity:.15}.seed{opacity:.45}
"""
_WIDTH, _GAP, _LEFT, _TOP, _PANEL, _BELOW = 860, 26, 46, 66, 190, 48
COLOURS = 5
"""Number of colours of series."""


@dataclass(frozen=True)
class Series:
    """A line with a band."""

    name: str
    points: Sequence[Interval]
    """Values at steps 1, 2, 3, ..."""
    colour: int
    """Number of its colour, from 0."""


@dataclass(frozen=True)
class Panel:
    """One chart of several side by side."""

    title: str
    series: Sequence[Series]
    low: float = 0.0
    """Lower end of the vertical axis."""
    high: float | None = None
    """Upper end; None: the largest value."""
    log: bool = False
    """Whether the axis is logarithmic; `low` must then be above 0."""


def panels(title: str, charts: Sequence[Panel], columns: int = 3) -> str:
    """Return line charts side by side, with a legend below each, or one at the top if it holds for all."""
    width = (_WIDTH - 24 - columns * (_LEFT + 4) - (columns - 1) * _GAP / 2) / columns
    names = [[(series.name, series.colour) for series in chart.series] for chart in charts]
    longest = max(names, key=len, default=[])
    shared = bool(longest) and all(set(one) <= set(longest) for one in names)
    head, top = _legend_line(longest) if shared else ([], 0)
    legend = 0 if shared else 17 * max([len(one) for one in names] + [1])
    tall = 22 + _PANEL + 36 + legend + 12
    rows = -(-len(charts) // columns)
    height = int(_TOP - 20 + top + rows * tall)
    out = _open(title, height) + head
    for number, chart in enumerate(charts):
        x = 12 + _LEFT + (number % columns) * (width + _LEFT + _GAP / 2)
        y = _TOP - 6 + top + (number // columns) * tall
        out += _panel(chart, x, y, width, legend=not shared)
    return "\n".join([*out, "</svg>"]) + "\n"


def _legend_line(names: Sequence[tuple[str, int]]) -> tuple[list[str], int]:
    """Return a legend from left to right below the title, and its height."""
    out, x, y = [], 24.0, 52.0
    for name, colour in names:
        length = 40 + 6.4 * len(name)
        if x + length > _WIDTH - 12 and x > 24:
            x, y = 24.0, y + 18
        out.append(f'<rect class="f{colour}" x="{x:.1f}" y="{y - 6:.1f}" width="14" height="4" rx="2"/>')
        out.append(_text(x + 20, y, name, "ink"))
        x += length
    return out, int(y - 52 + 22)


def _panel(chart: Panel, x: float, y: float, width: float, *, legend: bool) -> list[str]:
    points = [point for series in chart.series for point in series.points if math.isfinite(point.mean)]
    high = chart.high if chart.high is not None else max([point.high for point in points] + [chart.low + 1e-6])
    step_up = _step(high - chart.low, 5)
    if not chart.log:  # the axis ends at a mark
        high = chart.low + step_up * math.ceil((high - chart.low) / step_up - 1e-9)
    count = max([len(series.points) for series in chart.series] + [2])
    bottom = y + 22 + _PANEL

    def scaled(value: float) -> float:
        return math.log10(max(value, chart.low)) if chart.log else value

    low_end, high_end = scaled(chart.low), max(scaled(high), scaled(chart.low) + 1e-6)

    def at_y(value: float) -> float:
        share = (scaled(min(max(value, chart.low), high)) - low_end) / (high_end - low_end)
        return bottom - _PANEL * share

    def at_x(step: int) -> float:
        return x + width * step / (count - 1)

    out = [_text(x - _LEFT + 8, y + 6, chart.title, "ink t")]
    marks = [chart.low + step_up * part for part in range(round((high - chart.low) / step_up) + 1)]
    if chart.log:  # powers of ten, at most six of them
        every = max(1, math.ceil((high_end - low_end) / 6))
        marks = [float(power) for power in range(math.ceil(low_end), math.floor(high_end) + 1, every)]
    for mark in marks:
        value = 10**mark if chart.log else mark
        level = bottom - _PANEL * (mark - low_end) / (high_end - low_end)
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x + width:.1f}" y1="{level:.1f}" y2="{level:.1f}"/>')
        out.append(_text(x - 6, level + 4, f"{value:g}" if chart.log else f"{value:.2g}", "soft", "end"))
    for step in sorted({0, count // 3, 2 * count // 3, count - 1}):
        out.append(_text(at_x(step), bottom + 16, str(step + 1), "soft", "middle"))
    out.append(_text(x + width, bottom + 31, "step", "soft", "end"))
    for series in chart.series:
        known = [(step, point) for step, point in enumerate(series.points) if math.isfinite(point.mean)]
        if not known:
            continue
        if any(point.count > 1 for _, point in known):
            edge = [f"{at_x(step):.1f},{at_y(point.high):.1f}" for step, point in known]
            edge += [f"{at_x(step):.1f},{at_y(point.low):.1f}" for step, point in reversed(known)]
            out.append(f'<polygon class="band f{series.colour}" points="{" ".join(edge)}"/>')
        path = " ".join(f"{at_x(step):.1f},{at_y(point.mean):.1f}" for step, point in known)
        out.append(f'<polyline class="line l{series.colour}" points="{path}"/>')
    for number, series in enumerate(chart.series if legend else ()):
        level = bottom + 36 + 17 * number
        out.append(f'<rect class="f{series.colour}" x="{x:.1f}" y="{level - 1:.1f}" width="14" height="4" rx="2"/>')
        out.append(_text(x + 20, level + 5, series.name, "ink"))
    return out


@dataclass(frozen=True)
class Dot:
    """A value with its interval."""

    value: Interval
    colour: int


@dataclass(frozen=True)
class DotRow:
    """A row of a chart of dots; without dots it is a heading."""

    label: str
    dots: Sequence[Dot] = ()


def dot_chart(
    title: str, note: str, rows: Sequence[DotRow], names: Sequence[tuple[str, int]] = (), *, zero: bool = False
) -> str:
    """Return dots with intervals, a row for each condition.

    Args:
        title: Title, also read by screen readers.
        note: What the horizontal axis measures.
        rows: The rows, from top to bottom.
        names: Names of the series with their colours, for the legend; empty: no legend.
        zero: Whether the axis has a line at 0 and may have values below it.
    """
    values = [dot.value for row in rows for dot in row.dots if dot.value.count]
    low = min([min(value.values) for value in values] + [0.0]) if zero else 0.0
    high = max([max(value.values) for value in values] + [low + 0.05, 0.0])
    low, high = (low - 0.02 if zero else 0.0), high + 0.02
    longest = max([len(row.label) for row in rows if row.dots] + [0])
    left, right, top, step = max(300.0, 50 + 6.3 * longest), 40, 88 if names else 70, 24
    bottom = top + step * len(rows)
    out = _open(title, bottom + 40)
    out.append(_text(24, 52, note, "soft"))
    x = 24.0
    for name, colour in names:
        out.append(f'<circle class="f{colour}" cx="{x + 5:.1f}" cy="68" r="5"/>')
        out.append(_text(x + 16, 72, name, "ink"))
        x += 36 + 6.6 * len(name)

    def at(value: float) -> float:
        return left + (_WIDTH - left - right) * (value - low) / (high - low)

    for value in _ticks(low, high):
        out.append(f'<line class="grid" x1="{at(value):.1f}" x2="{at(value):.1f}" y1="{top - 8}" y2="{bottom - 8}"/>')
        out.append(_text(at(value), bottom + 10, f"{value:.2g}", "soft", "middle"))
    if zero:
        out.append(f'<line class="axis" x1="{at(0):.1f}" x2="{at(0):.1f}" y1="{top - 8}" y2="{bottom - 8}"/>')
    for number, row in enumerate(rows):
        y = top + step * number + 4
        out.append(_text(24 if not row.dots else left - 14, y + 4, row.label, "ink t" if not row.dots else "ink",
                         "start" if not row.dots else "end"))  # fmt: skip
        shown = [dot for dot in row.dots if dot.value.count]
        for place, dot in enumerate(shown):
            level = y + (place - (len(shown) - 1) / 2) * 7
            out.append(
                f'<line class="l{dot.colour}" stroke-width="2" x1="{at(dot.value.low):.1f}" '
                f'x2="{at(dot.value.high):.1f}" y1="{level:.1f}" y2="{level:.1f}"/>'
            )
            for value in dot.value.values:
                out.append(f'<circle class="f{dot.colour} seed" cx="{at(value):.1f}" cy="{level:.1f}" r="3"/>')
            out.append(f'<circle class="f{dot.colour}" cx="{at(dot.value.mean):.1f}" cy="{level:.1f}" r="4.5"/>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _ticks(low: float, high: float) -> list[float]:
    """Return round values of an axis."""
    step = _step(high - low, 9)
    return [round(number * step, 6) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _step(length: float, most: int) -> float:
    """Return the smallest round step that divides a length into at most so many parts."""
    unit = 10.0 ** math.floor(math.log10(length / most))
    return next(unit * size for size in (1, 2, 5, 10) if length / (unit * size) <= most + 1e-9)


def _open(title: str, height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}"><title>{escape(title)}</title><style>{_STYLE}</style>',
        f'<rect class="paper" width="{_WIDTH}" height="{height}" rx="10"/>',
        _text(24, 30, title, "ink h"),
    ]


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
