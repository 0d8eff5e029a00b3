"""A drift report as one HTML page: figures, charts, examples. It has no scripts and loads nothing.

Invariant: text of models, tools and files is escaped wherever it is written; a policy in the page forbids scripts and
requests, so that an error here could not be exploited either.
"""

from __future__ import annotations

from strands_sglang._terminal import counted
from strands_sglang.drift.compare import Cause
from strands_sglang.drift.plots import PALETTE, Line, Row, bars, escape_for_html, lines
from strands_sglang.drift.report import DriftReport, Method, MethodDrift

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1f24; --faint: #7b828d; --paper: #ffffff; --rule: #e3e6ea;
  --old: #fde8e8; --new: #e3f4e6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --faint: #949ba6; --paper: #16191d; --rule: #2c3138;
  --old: #4a2328; --new: #1f3d29; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 900px; padding: 24px 16px 64px; }
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere } h2 { font-size: 17px; margin: 36px 0 8px }
p.note { color: var(--faint); margin: 0 0 16px }
.figures { display: flex; flex-wrap: wrap; gap: 12px } .figure { border: 1px solid var(--rule); border-radius: 8px;
  padding: 10px 16px; flex: 1 1 200px } .figure b { display: block; font-size: 24px }
.figure span { color: var(--faint) }
svg .ink { fill: var(--ink) } svg .faint { fill: var(--faint) } svg .paper { fill: var(--paper) }
svg .rule { stroke: var(--faint) }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: 14px }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--rule); white-space: nowrap }
th:first-child, td:first-child { text-align: left }
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
        f'<p class="note">{escape_for_html(_summary(report))}</p>',
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


def _summary(report: DriftReport) -> str:
    counts = [
        counted(report.conversations, "conversation"),
        counted(report.turns, "turn"),
        counted(report.tokens, "sampled token"),
    ]
    return f"{', '.join(counts)}; tokenizer {report.tokenizer}"


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
    head = "".join(f"<th>{escape_for_html(method.label)}, turns</th><th>tokens</th>" for method, _ in measured)
    out = [f'<div class="scroll"><table><thead><tr><th>cause</th>{head}</tr></thead><tbody>']
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
