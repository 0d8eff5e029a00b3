"""The plots of the page "Operating at scale", as SVG that is readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from growth.model import POLICIES

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


def _dot(x: float, y: float, kind: str, radius: int = 5) -> str:
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{radius}"/>'


def _svg(title: str, parts: list[str], height: int = _HEIGHT) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}"><title>{escape(title)}</title><style>{_STYLE}</style>'
    )
    paper = f'<rect class="paper" width="{_WIDTH}" height="{height}" rx="10"/>'
    return "\n".join([head, paper, _text(_LEFT - 46, 28, title, "ink h"), *parts, "</svg>"]) + "\n"


class Chart:
    """A place for lines and dots over two linear axes that start at 0."""

    def __init__(self, x: str, y: str, right: float, top: float) -> None:
        self.right, self.top = right, top * 1.08
        self.parts = [_text(_WIDTH - _RIGHT, _HEIGHT - 12, x, "soft", "end"), _text(_LEFT - 46, 46, y)]
        for value in self._steps(right):
            self.parts.append(_text(self.at(value, 0)[0], _HEIGHT - _BOTTOM + 18, f"{value:,g}", "soft", "middle"))
        for value in self._steps(self.top):
            at, kind = self.at(0, value)[1], "grid" if value else "axis"
            line = f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            self.parts += [line, _text(_LEFT - 8, at + 4, f"{value:,g}", "soft", "end")]

    @staticmethod
    def _steps(end: float) -> list[float]:
        """Return round values from 0 to `end`."""
        power: float = 10.0 ** math.floor(math.log10(max(end, 1e-9)))
        step = next(power * part for part in (0.2, 0.5, 1, 2) if end / (power * part) <= 6)
        return [count * step for count in range(int(end / step + 1e-9) + 1)]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point."""
        across, up = (_WIDTH - _LEFT - _RIGHT) * x / self.right, (_HEIGHT - _TOP - _BOTTOM) * y / self.top
        return _LEFT + across, _HEIGHT - _BOTTOM - up

    def line(self, points: Sequence[tuple[float, float]]) -> None:
        """Draw a line."""
        path = " ".join("{:.1f},{:.1f}".format(*self.at(x, y)) for x, y in points)
        self.parts.append(f'<polyline class="a" stroke-width="2" points="{path}"/>')


def load_plot(rows: Sequence[dict[str, Any]]) -> str:
    """Return the plot of turns per second over the episodes per engine."""
    model, seen = (
        [(row["episodes"] / row["engines"], row[kind]["turns_per_second"] / row["engines"]) for row in rows]
        for kind in ("model", "simulation")
    )
    chart = Chart("episodes per engine", "turns/s", max(x for x, _ in model) * 1.02, max(y for _, y in model + seen))
    chart.line([(0, 0), *model])
    chart.parts += [_dot(round(x, 1), round(y, 1), "bf", 4) for x, y in (chart.at(*point) for point in seen)]
    chart.parts += [_dot(536, 41, "af"), _text(546, 45, "model"), _dot(596, 41, "bf"), _text(606, 45, "simulation")]
    return _svg("Turns per second and engine", chart.parts)


def update_plot(run: dict[str, Any]) -> str:
    """Return the plot of turns per second over time, around a weight update."""
    series = [(at, rate) for at, rate in run["series"] if at >= 25]
    start, pause = run["events"]["update_every"], run["events"]["update_seconds"]
    chart = Chart("seconds", "turns/s", run["seconds"], max(rate for _, rate in series))
    at, end = chart.at(start, 0)[0], chart.at(start + pause, 0)[0]
    band = f'x="{at:.1f}" y="{_TOP}" width="{end - at:.1f}" height="{_HEIGHT - _TOP - _BOTTOM}"'
    chart.parts += [f'<rect class="band" {band}/>', _text(end + 6, _TOP + 14, "paused; then all caches are cold")]
    chart.line(series)
    return _svg(f"{run['episodes']:,} episodes on {run['engines']:,} engines: a weight update", chart.parts)


def policy_plot(rows: Sequence[dict[str, Any]]) -> str:
    """Return the bars of turns per second by policy of the router."""
    best, height, parts = max(row["turns_per_second"] for row in rows), 80 + 40 * len(POLICIES), list[str]()
    for index, room in enumerate(sorted({row["room"] for row in rows}, reverse=True)):
        found, kind = {(row["policy"], row["by"]): row for row in rows if row["room"] == room}, ("af", "bf")[index]
        for number, (policy, by, name, _) in enumerate(POLICIES):
            row = found[policy, by]
            share, top = row["turns_per_second"] / best, 62 + 40 * number + 15 * index
            label = f"{share:.0%}, {row['cached']:.0%} cached"
            bar = f'<rect class="{kind}" x="310" y="{top}" width="{260 * share:.1f}" height="12" rx="2"/>'
            parts += [bar, _text(318 + 260 * share, top + 10.5, label)]
            parts += [] if index else [_text(24, top + 15, name, "ink")]
        label = f"cache for {room:g} times the conversations"
        parts += [_dot(29 + 300 * index, height - 18, kind), _text(40 + 300 * index, height - 14, label)]
    return _svg("Router policies: throughput and cached share of the prompts", parts, height)
