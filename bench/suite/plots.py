"""Bar charts with quartiles as SVG text, in the colours of the other pictures of the documentation.

Invariant: a chart refers to nothing outside of itself and has its own paper, light or dark as the reader's system asks,
so it is readable on any page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_COLOURS = ("c0", "c1", "c2", "c3", "c4")
_STYLE = """
.paper{fill:#fbfaf7}.ink{fill:#1d2733}.soft{fill:#5b6775}.line{stroke:#d5d2c9}.whisker{stroke:#1d2733}
.mark{stroke:#c2622a}.c0{fill:#3d8790}.c1{fill:#8fc3c8}.c2{fill:#d9822b}.c3{fill:#8d62b3}.c4{fill:#8a95a1}
@media (prefers-color-scheme:dark){
.paper{fill:#171c22}.ink{fill:#e7ebef}.soft{fill:#a6b1bd}.line{stroke:#36404a}.whisker{stroke:#e7ebef}
.mark{stroke:#f0a370}.c0{fill:#5fb4bd}.c1{fill:#2c666d}.c2{fill:#e39257}.c3{fill:#b48fd6}.c4{fill:#6d7986}}
text{font-family:system-ui,-apple-system,"Segoe UI",sans-serif;font-size:12.5px}.h{font-weight:650;font-size:16px}
.s{font-size:11px}
"""
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP = 860, 190, 70, 14, 12


@dataclass(frozen=True)
class Group:
    """Bars of one case, one for each series that was measured in it."""

    label: str
    bars: Mapping[str, Mapping[str, float]]
    """By name of the series: a spread as JSON (`median`, `low`, `high`)."""


def bar_chart(
    title: str, note: str, groups: Sequence[Group], series: Mapping[str, str], mark: float | None = None
) -> str:
    """Return a chart of horizontal bars with whiskers from the lower to the upper quartile.

    Args:
        title: Title, also read by screen readers.
        note: What the bars measure.
        groups: The cases, from top to bottom.
        series: Names of the series, with the text of the legend.
        mark: Value at which a line is drawn; None: no line.
    """
    bars = [(group, name) for group in groups for name in series if name in group.bars]
    most = max([bar["high"] for group in groups for bar in group.bars.values()] + [mark or 0.0, 1e-9])
    top, plot = 88, _WIDTH - _LEFT - _RIGHT
    bottom = top + len(bars) * (_BAR + 3) + len(groups) * _GAP
    height = bottom + 34

    def at(value: float) -> float:
        return _LEFT + plot * value / most

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}"><title>{escape(title)}</title><style>{_STYLE}</style>',
        f'<rect class="paper" width="{_WIDTH}" height="{height}" rx="10"/>',
        _text(24, 32, title, "ink h"),
        _text(24, 52, note, "soft"),
    ]
    x = 24.0
    for number, text in enumerate(series.values()):
        out.append(f'<rect x="{x:g}" y="63" width="10" height="10" rx="2" class="{_COLOURS[number]}"/>')
        out.append(_text(x + 15, 72, text, "ink"))
        x += 40 + 6.6 * len(text)
    for step in range(5):
        value = most * step / 4
        out.append(_rule(at(value), top, bottom, "line"))
        out.append(_text(at(value), bottom + 18, f"{value:.3g}", "soft s", "middle"))
    y = float(top)
    for group in groups:
        y += _GAP / 2
        out.append(_text(_LEFT - 10, y + 11, group.label, "ink", "end"))
        for number, name in enumerate(series):
            bar = group.bars.get(name)
            if bar is None:
                continue
            size, middle = max(1.0, at(bar["median"]) - _LEFT), y + _BAR / 2
            out.append(f'<rect x="{_LEFT}" y="{y:g}" width="{size:.1f}" height="{_BAR}" class="{_COLOURS[number]}"/>')
            out.append(
                f'<path d="M{at(bar["low"]):.1f} {middle:g}H{at(bar["high"]):.1f}" class="whisker" stroke-width="1.6"/>'
            )
            out.append(_text(at(bar["high"]) + 6, y + 11, f"{bar['median']:.2f}", "soft s"))
            y += _BAR + 3
        y += _GAP / 2
    if mark is not None:
        out.append(_rule(at(mark), top, bottom, "mark"))
    return "\n".join([*out, "</svg>\n"])


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _rule(x: float, top: float, bottom: float, kind: str) -> str:
    return f'<path d="M{x:.1f} {top:g}V{bottom:g}" class="{kind}" stroke-width="1.2" fill="none"/>'
