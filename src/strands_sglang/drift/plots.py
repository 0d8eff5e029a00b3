"""Bar charts and lines as SVG text, without a plotting library.

Invariant: every text is escaped, and a chart refers to nothing outside of itself. Text, rules and background have
classes (`ink`, `faint`, `rule`, `paper`), so that a page can change their colours for a dark background.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from strands_sglang._terminal import escape_for_terminal

PALETTE = ("#3b6fb6", "#d9822b", "#4f9d69", "#b5485d", "#7a5fa8", "#8a6d3b", "#3f9aa8", "#c06c9b", "#8c8c8c")
"""Colours of series, in order; distinguishable in print and for colour-blind readers as far as nine colours can be."""
_FONT = "font-family:system-ui,sans-serif"
_INK, _FAINT, _PAPER, _RULE = ("ink", "#222222"), ("faint", "#777777"), ("paper", "#ffffff"), ("rule", "#888888")
"""Colours that a page can change: name of the class, and the default."""


def escape_for_html(text: str) -> str:
    """Return a text for HTML or SVG: markup is escaped, and so are invisible characters and changes of direction."""
    return escape(escape_for_terminal(text), quote=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One bar."""

    label: str
    parts: tuple[float, ...]
    """Lengths of its parts, one per series, as shares from 0 to 1; they add up to the length of the bar."""
    note: str = ""


def bars(
    title: str,
    rows: Sequence[Row],
    series: Sequence[str] = (),
    *,
    width: int = 860,
    label_width: int = 190,
    colors: Sequence[str] = PALETTE,
    scale: float | None = None,
) -> str:
    """Return a chart of horizontal stacked bars; widths in pixels.

    `series`: names of the parts, for the legend. `scale`: share at the right end of the axis; None: the longest bar.
    """
    note_width, bar, top = 96, 16, 54 + 18 * ((len(series) + 3) // 4 if series else 0)
    plot = width - label_width - note_width
    longest = scale or max([sum(row.parts) for row in rows] + [0.01])
    height = top + len(rows) * (bar + 6) + 30
    out = [_open(title, width, height), _text(8, 22, title, 15, weight=600)]
    for number, name in enumerate(series):
        left, y = 8 + (number % 4) * 205, 44 + 18 * (number // 4)
        out.append(
            f'<rect x="{left}" y="{y - 9}" width="10" height="10" rx="2" fill="{colors[number % len(colors)]}"/>'
        )
        out.append(_text(left + 15, y, name, 12))
    bottom = top + len(rows) * (bar + 6)
    for step in range(5):
        x = label_width + plot * step / 4
        out.append(_rule(x, top - 6, x, bottom))
        out.append(_text(x, bottom + 16, f"{100 * longest * step / 4:.3g} %", 11, anchor="middle", fill=_FAINT))
    for number, row in enumerate(rows):
        y, x = top + number * (bar + 6), float(label_width)
        out.append(_text(label_width - 8, y + 12, row.label, 12, anchor="end"))
        for at, part in enumerate(row.parts):
            size = plot * part / longest
            if size > 0:
                out.append(
                    f'<rect x="{x:.2f}" y="{y}" width="{max(size, 0.5):.2f}" height="{bar}" '
                    f'fill="{colors[at % len(colors)]}"/>'
                )
                x += size
        out.append(_text(x + 6, y + 12, row.note, 11, fill=_FAINT))
    return "\n".join([*out, "</svg>"])


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart."""

    name: str
    points: tuple[float | None, ...]
    """Shares from 0 to 1 at 0, 1, 2, ...; None: unknown."""


def lines(title: str, data: Sequence[Line], axis: str, *, width: int = 860, height: int = 260) -> str:
    """Return a line chart; width and height are in pixels."""
    left, right, top, bottom = 56, 16, 58, 40
    most = max([point for line in data for point in line.points if point is not None] + [0.01])
    count = max([len(line.points) for line in data] + [2])
    out = [_open(title, width, height), _text(8, 22, title, 15, weight=600)]
    for step in range(5):
        y = top + (height - top - bottom) * (1 - step / 4)
        out.append(_rule(left, y, width - right, y))
        out.append(_text(left - 6, y + 4, f"{100 * most * step / 4:.3g} %", 11, anchor="end", fill=_FAINT))
    for number, line in enumerate(data):
        color = PALETTE[number % len(PALETTE)]
        places = [
            (
                left + (width - left - right) * at / (count - 1),
                top + (height - top - bottom) * (1 - point / most),
            )
            for at, point in enumerate(line.points)
            if point is not None
        ]
        if len(places) > 1:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"/>' for x, y in places]
        out.append(f'<rect x="{8 + number * 230}" y="35" width="10" height="10" rx="2" fill="{color}"/>')
        out.append(_text(23 + number * 230, 44, line.name, 12))
    for at in range(0, count, max(1, count // 8)):
        x = left + (width - left - right) * at / (count - 1)
        out.append(_text(x, height - bottom + 16, str(at + 1), 11, anchor="middle", fill=_FAINT))
    out.append(_text(width / 2, height - 6, axis, 12, anchor="middle", fill=_FAINT))
    return "\n".join([*out, "</svg>"])


def _open(title: str, width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape_for_html(title)}" style="max-width:100%;height:auto;{_FONT}">'
        f'<rect width="100%" height="100%" {_paint("fill", _PAPER)}/>'
    )


def _paint(what: str, color: tuple[str, str]) -> str:
    """Return the attributes that set a colour; style sheets override them."""
    name, default = color
    return f'class="{name}" {what}="{default}"'


def _rule(x: float, y: float, to_x: float, to_y: float) -> str:
    color = _paint("stroke", _RULE)
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" {color} stroke-opacity=".35"/>'


def _text(
    x: float,
    y: float,
    text: str,
    size: int,
    *,
    anchor: str = "start",
    fill: tuple[str, str] = _INK,
    weight: int = 400,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
        f"{_paint('fill', fill)}>{escape_for_html(text)}</text>"
    )
