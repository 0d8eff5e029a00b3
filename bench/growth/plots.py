"""The plots of the page "Operating at scale", as SVG that is readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "images"
"""Folder of the plots."""

_STYLE = """
.paper{fill:#fbfaf7}.ink{fill:#1d2733}.soft{fill:#5b6775}.grid{stroke:#dcd9d0}.axis{stroke:#8a95a1}
.a{stroke:#3d8790;fill:none}.af{fill:#3d8790}.b{stroke:#c2622a;fill:none}.bf{fill:#c2622a}.band{fill:#c2622a;opacity:.12}
@media (prefers-color-scheme:dark){
.paper{fill:#171c22}.ink{fill:#e7ebef}.soft{fill:#a6b1bd}.grid{stroke:#2c343c}.axis{stroke:#6d7986}
.a{stroke:#5fb4bd}.af{fill:#5fb4bd}.b{stroke:#e39257}.bf{fill:#e39257}.band{fill:#e39257}}
text{font-family:system-ui,-apple-system,"Segoe UI",sans-serif;font-size:12.5px}.h{font-weight:650;font-size:15px}
"""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 330, 70, 24, 56, 52


def _text(x: float, y: float, text: str, kind: str = "soft", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _start(title: str, height: int = _HEIGHT) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}"><title>{escape(title)}</title><style>{_STYLE}</style>',
        f'<rect class="paper" width="{_WIDTH}" height="{height}" rx="10"/>',
        _text(_LEFT - 46, 28, title, "ink h"),
    ]


def _nice(top: float) -> float:
    """Return a round step for an axis that ends at `top`."""
    step: float = 10.0 ** math.floor(math.log10(max(top, 1e-9)))
    return next(step * part for part in (0.2, 0.5, 1, 2) if top / (step * part) <= 6)


class Chart:
    """Lines and dots over two linear axes that start at 0."""

    def __init__(self, title: str, x: str, y: str, right: float, top: float) -> None:
        self.parts, self._right, self._top = _start(title), right, top * 1.08
        for name, end, horizontal in ((x, right, True), (y, self._top, False)):
            step = _nice(end)
            for number in range(int(end / step + 1e-9) + 1):
                value = number * step
                if horizontal:
                    self.parts.append(_text(self._x(value), _HEIGHT - _BOTTOM + 18, f"{value:,g}", "soft", "middle"))
                else:
                    at = self._y(value)
                    line = f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
                    self.parts += [line, _text(_LEFT - 8, at + 4, f"{value:,g}", "soft", "end")]
            if horizontal:
                self.parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 12, name, "soft", "end"))
            else:
                self.parts.append(_text(_LEFT - 46, 46, name))
        axis = f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{self._y(0):.1f}" y2="{self._y(0):.1f}"/>'
        self.parts.append(axis)

    def _x(self, value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / self._right

    def _y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / self._top

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw a line."""
        path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline class="{kind}" stroke-width="2" points="{path}"/>')

    def dots(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw dots."""
        for x, y in points:
            self.parts.append(f'<circle class="{kind}" cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="4"/>')

    def band(self, left: float, right: float, label: str) -> None:
        """Mark a part of the horizontal axis."""
        at, width = self._x(left), self._x(right) - self._x(left)
        rect = f'<rect class="band" x="{at:.1f}" y="{_TOP}" width="{width:.1f}" height="{_HEIGHT - _TOP - _BOTTOM}"/>'
        self.parts += [rect, _text(at + width + 6, _TOP + 14, label)]

    def key(self, entries: Sequence[tuple[str, str]]) -> None:
        """Explain the colours."""
        at = _WIDTH - _RIGHT
        for kind, label in reversed(entries):
            at -= 8 * len(label) + 20
            self.parts += [f'<circle class="{kind}" cx="{at}" cy="41" r="5"/>', _text(at + 10, 45, label)]

    def svg(self) -> str:
        """Return the picture."""
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def load_plot(rows: Sequence[dict[str, Any]]) -> str:
    """Return the plot of turns per second over the episodes per engine."""
    model = [(row["episodes"] / row["engines"], row["model"]["turns_per_second"] / row["engines"]) for row in rows]
    seen = [(row["episodes"] / row["engines"], row["simulation"]["turns_per_second"] / row["engines"]) for row in rows]
    top = max(y for _, y in [*model, *seen])
    chart = Chart("Turns per second and engine", "episodes per engine", "turns/s", max(x for x, _ in model) * 1.02, top)
    chart.line([(0, 0), *model], "a")
    chart.dots(seen, "bf")
    chart.key([("af", "model"), ("bf", "simulation")])
    return chart.svg()


def update_plot(run: dict[str, Any]) -> str:
    """Return the plot of turns per second over time, around a weight update."""
    series = [(at, rate) for at, rate in run["series"] if at >= 25]
    start, pause = run["events"]["update_every"], run["events"]["update_seconds"]
    title = f"{run['episodes']:,} episodes on {run['engines']:,} engines: a weight update"
    chart = Chart(title, "seconds", "turns/s", run["seconds"], max(rate for _, rate in series))
    chart.band(start, start + pause, "paused; then all caches are cold")
    chart.line(series, "a")
    return chart.svg()


def policy_plot(rows: Sequence[dict[str, Any]], names: dict[tuple[str, str], str]) -> str:
    """Return the bars of turns per second by policy of the router."""
    rooms = sorted({row["room"] for row in rows}, reverse=True)
    found = {(row["policy"], row["by"], row["room"]): row for row in rows}
    best = max(row["turns_per_second"] for row in rows)
    height = 80 + 40 * len(names)
    parts = _start("Router policies: throughput and cached share of the prompts", height)
    for number, ((policy, by), name) in enumerate(names.items()):
        y = 62 + 40 * number
        parts.append(_text(24, y + 15, name, "ink"))
        for index, room in enumerate(rooms):
            row = found[policy, by, room]
            width, top = 260 * row["turns_per_second"] / best, y + 15 * index
            kind = "af" if index == 0 else "bf"
            parts.append(f'<rect class="{kind}" x="310" y="{top}" width="{width:.1f}" height="12" rx="2"/>')
            label = f"{row['turns_per_second'] / best:.0%}, {row['cached']:.0%} cached"
            parts.append(_text(318 + width, top + 10.5, label))
    for index, room in enumerate(rooms):
        x = 24 + 300 * index
        label = f"cache for {room:g} times the conversations"
        parts.append(f'<circle class="{"af" if index == 0 else "bf"}" cx="{x + 5}" cy="{height - 18}" r="5"/>')
        parts.append(_text(x + 16, height - 14, label))
    return "\n".join([*parts, "</svg>"]) + "\n"
