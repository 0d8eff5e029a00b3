"""A drift report as one HTML page: figures, charts as SVG, examples. It has no scripts and loads nothing.

Invariant: text of models, tools and files is escaped wherever it is written; a policy in the page forbids scripts and
requests, so that an error here could not be exploited either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from strands_sglang._terminal import escape_for_terminal
from strands_sglang.drift.compare import Cause
from strands_sglang.drift.report import DriftReport, Method, MethodDrift

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1f24; --faint: #7b828d; --paper: #ffffff; --rule: #e3e6ea;
  --old: #fde8e8; --new: #e3f4e6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --faint: #949ba6; --paper: #16191d; --rule: #2c3138;
  --old: #4a2328; --new: #1f3d29; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 1100px; padding: 24px 16px 64px; }
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere } h2 { font-size: 17px; margin: 36px 0 8px }
p.note { color: var(--faint); margin: 0 0 16px }
.figures { display: flex; flex-wrap: wrap; gap: 12px } .figure { border: 1px solid var(--rule); border-radius: 8px;
  padding: 10px 16px; flex: 1 1 200px } .figure b { display: block; font-size: 24px }
.figure span { color: var(--faint) }
svg .ink { fill: var(--ink) } svg .faint { fill: var(--faint) } svg .paper { fill: var(--paper) }
svg .rule { stroke: var(--faint) }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: 14px }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--rule); white-space: nowrap }
tr:first-child th:first-child, td:first-child { text-align: left } th { white-space: normal; vertical-align: bottom }
@media (max-width: 700px) { table { font-size: 12px } th, td { padding: 4px 2px }
  td:first-child { white-space: normal } }
.example { border: 1px solid var(--rule); border-radius: 8px; padding: 10px 12px; margin: 10px 0 }
.example small { color: var(--faint) } code { font: 13px/1.7 ui-monospace, monospace; overflow-wrap: anywhere }
.token { border-radius: 4px; padding: 1px 3px; margin: 0 1px; border: 1px solid var(--rule); white-space: pre-wrap }
.old .token { background: var(--old) } .new .token { background: var(--new) } .around { color: var(--faint) }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_page(report: DriftReport) -> str:
    """Return a report as one self-contained HTML page."""
    measured = [(method, drift) for method, drift in report.methods.items() if drift.turns]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Drift of {escape_for_html(report.source)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Drift of {escape_for_html(report.source)}</h1>",
        f'<p class="note">{escape_for_html(report.size)}; tokenizer {escape_for_html(report.tokenizer)}</p>',
        '<div class="figures">',
        *(_figure(method, drift) for method, drift in measured),
        "</div>",
    ]
    if report.estimated:
        parts.append(
            '<p class="note">Some turns have no recorded tokens: the template’s own rendering stands for them.</p>'
        )
    if measured:
        parts += ["<h2>By cause</h2>", _causes_chart(measured), _table(measured)]
        parts += ["<h2>By turn of the conversation</h2>", _depth_chart(measured)]
    parts += _examples(report)
    if report.problems:
        parts.append("<h2>Not read</h2><ul>")
        parts += [f"<li>{escape_for_html(problem)}</li>" for problem in report.problems]
        parts.append("</ul>")
    return "\n".join([*parts, "</body></html>", ""])


def _figure(method: Method, drift: MethodDrift) -> str:
    return (
        f'<div class="figure"><b>{drift.share:.2%}</b>of turns differ<br><span>{escape_for_html(method.label)}: '
        f"{drift.drifted:,} of {drift.turns:,}; {drift.token_share:.2%} of tokens</span></div>"
    )


def _causes_chart(measured: list[tuple[Method, MethodDrift]]) -> str:
    rows = []
    for method, drift in measured:
        # A turn with several causes is divided among them, so that the bar is as long as the share of drifted turns.
        total = sum(count.turns for count in drift.causes.values()) or 1
        parts = tuple(drift.share * count.turns / total for count in drift.causes.values())
        rows.append(Row(method.label, parts, f"{drift.share:.2%}"))
    return bars("Turns that differ, by cause", rows, [cause.label for cause in Cause], label_width=220)


def _table(measured: list[tuple[Method, MethodDrift]]) -> str:
    head = "".join(f'<th colspan="2">{escape_for_html(method.label)}</th>' for method, _ in measured)
    units = "<th>turns</th><th>tokens</th>" * len(measured)
    out = [
        f'<div class="scroll"><table><thead><tr><th rowspan="2">cause</th>{head}</tr><tr>{units}</tr></thead><tbody>'
    ]
    for cause in Cause:
        if any(drift.causes[cause].places for _, drift in measured):
            cells = "".join(
                f"<td>{drift.causes[cause].turns:,}</td><td>{drift.causes[cause].tokens:,}</td>"
                for _, drift in measured
            )
            out.append(f"<tr><td>{escape_for_html(cause.label)}</td>{cells}</tr>")
    cells = "".join(f"<td>{drift.drifted:,}</td><td>{drift.tokens_changed:,}</td>" for _, drift in measured)
    out.append(f"<tr><td><b>any cause</b></td>{cells}</tr></tbody></table></div>")
    return "".join(out)


def _depth_chart(measured: list[tuple[Method, MethodDrift]]) -> str:
    deepest = max((at for _, drift in measured for at, count in enumerate(drift.depth_turns) if count), default=0)
    data = [
        Line(
            method.label,
            tuple(
                drift.depth_drifted[at] / drift.depth_turns[at] if drift.depth_turns[at] else None
                for at in range(deepest + 1)
            ),
        )
        for method, drift in measured
    ]
    return lines("Share of turns that differ, by their number", data, "number of the turn")


def _examples(report: DriftReport) -> list[str]:
    if not report.examples:
        return []
    out = ["<h2>Examples</h2>"]
    for example in report.examples:
        color = PALETTE[list(Cause).index(example.cause) % len(PALETTE)]
        place = f"{example.cause.label} · {example.method.label} · {example.conversation}, turn {example.turn}"
        out += [
            f'<div class="example" style="border-left:4px solid {color}"><small>{escape_for_html(place)}</small><br>',
            f'<code class="old"><span class="around">{escape_for_html(example.before)}</span>{_tokens(example.sampled)}'
            f'<span class="around">{escape_for_html(example.after)}</span></code><br>',
            f'<code class="new"><span class="around">→ </span>{_tokens(example.became)}</code></div>',
        ]
    return out


def _tokens(tokens: tuple[tuple[int, str], ...]) -> str:
    if not tokens:
        return '<span class="around">(nothing)</span>'
    return "".join(f'<span class="token" title="id {id}">{escape_for_html(text)}</span>' for id, text in tokens)


PALETTE = ("#3b6fb6", "#d9822b", "#4f9d69", "#b5485d", "#7a5fa8", "#8a6d3b", "#3f9aa8", "#c06c9b", "#8c8c8c")
"""Colours of series, in order; distinguishable in print and for colour-blind readers as far as nine colours can be."""
_STEPS = 4  # of an axis
_WIDTH = 860  # of a chart, in pixels
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
    label_width: int = 190,
    scale: float | None = None,
) -> str:
    """Return a chart of horizontal stacked bars; `label_width` is in pixels.

    `series`: names of the parts, for the legend. `scale`: share at the right end of the axis; None: the longest bar.
    """
    note_width, bar, top = 96, 16, 54 + 18 * ((len(series) + 3) // 4 if series else 0)
    plot = _WIDTH - label_width - note_width
    longest = scale or _round_up(max([sum(row.parts) for row in rows] + [0.01]))
    height = top + len(rows) * (bar + 6) + 30
    out = [_open(title, height), _text(8, 22, title, 15, weight=600)]
    for number, name in enumerate(series):
        left, y = 8 + (number % 4) * 205, 44 + 18 * (number // 4)
        out.append(
            f'<rect x="{left}" y="{y - 9}" width="10" height="10" rx="2" fill="{PALETTE[number % len(PALETTE)]}"/>'
        )
        out.append(_text(left + 15, y, name, 12))
    bottom = top + len(rows) * (bar + 6)
    for step in range(_STEPS + 1):
        x = label_width + plot * step / _STEPS
        out.append(_rule(x, top - 6, x, bottom))
        out.append(_text(x, bottom + 16, f"{100 * longest * step / _STEPS:.3g} %", 11, anchor="middle", fill=_FAINT))
    for number, row in enumerate(rows):
        y, x = top + number * (bar + 6), float(label_width)
        out.append(_text(label_width - 8, y + 12, row.label, 12, anchor="end"))
        for at, part in enumerate(row.parts):
            size = plot * part / longest
            if size > 0:
                out.append(
                    f'<rect x="{x:.2f}" y="{y}" width="{max(size, 0.5):.2f}" height="{bar}" '
                    f'fill="{PALETTE[at % len(PALETTE)]}"/>'
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


def lines(title: str, data: Sequence[Line], axis: str) -> str:
    """Return a line chart."""
    width, height, left, right, top, bottom = _WIDTH, 260, 56, 16, 58, 40
    most = _round_up(max([point for line in data for point in line.points if point is not None] + [0.01]))
    count = max([len(line.points) for line in data] + [2])
    out = [_open(title, height), _text(8, 22, title, 15, weight=600)]
    for step in range(_STEPS + 1):
        y = top + (height - top - bottom) * (1 - step / _STEPS)
        out.append(_rule(left, y, width - right, y))
        out.append(_text(left - 6, y + 4, f"{100 * most * step / _STEPS:.3g} %", 11, anchor="end", fill=_FAINT))
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


def _round_up(most: float) -> float:
    """Return the end of an axis with four steps, each 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(most / _STEPS))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power * _STEPS >= most * (1 - 1e-9))
    return step * _STEPS


def _open(title: str, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
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
