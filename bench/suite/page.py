"""Writes the tables and plots of a result into a page of the documentation, between two markers.

Invariant: every figure between the markers comes from the saved result; the text around them is written by hand and is
not touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.agents import OURS
from suite.plots import Group, bar_chart
from suite.report import find, goals
from suite.stats import shown

BEGIN, END = "<!-- measured: written by bench/run -->", "<!-- end of what was measured -->"
_SHORT = {
    "plain": "ours, plain agent",
    "fast": "ours, in `fast_agents`",
    "rollout": "ours, `rollout`",
    "published": "0.6.2",
    "openai": "OpenAIModel",
}


class PageError(Exception):
    """The page has no place for the result."""


def write_page(result: Mapping[str, Any], page: Path) -> None:
    """Replace the part of a page between the markers, and write the plots beside it.

    Raises:
        PageError: The page lacks a marker.
    """
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise PageError(f"{page} must contain {BEGIN!r} and, after it, {END!r}")
    images = page.resolve().parents[1] / "images"
    charts = plots(result)
    for name, svg in charts.items():
        (images / name).write_text(svg)
    page.write_text(f"{before}{BEGIN}\n\n{tables(result, set(charts))}\n\n{END}{after}")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def tables(result: Mapping[str, Any], charts: set[str]) -> str:
    """Return everything between the markers."""
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    dates = sorted({result[part]["date"] for part in ("agents", "engine", "wire", "long") if result.get(part)})
    sections = [
        f"Measured on {' and '.join(dates)}, {machine['cores']} cores ({machine['cpu']}), {versions}. A value is the "
        "median over the rounds, with the lower and the upper quartile in brackets.",
        "## Goals",
        _goals(result),
    ]
    for build in (_layers, _others, _engine, _wire, _long):
        sections += build(result, charts)
    if left := result.get("left_out"):
        sections += ["## Not measured", "\n".join(f"- {what}: {why}" for what, why in left.items())]
    return "\n\n".join(sections)


def _goals(result: Mapping[str, Any]) -> str:
    words = {True: "met", False: "**not met**", None: "not measured"}
    rows = [
        [goal.name, f"{'>=' if goal.above else '<='} {goal.bound:g}", shown(goal.value, goal.digits), words[goal.met]]
        for goal in goals(result)
    ]
    return table(["measurement", "goal", "measured", ""], rows)


def _picture(name: str, about: str, charts: set[str]) -> list[str]:
    return [f"![{about}](../images/{name})"] if name in charts else []


def _layers(result: Mapping[str, Any], charts: set[str]) -> list[str]:
    layers = find(result, "agents", "layers")
    if not layers:
        return []
    rows = []
    for turns, row in layers.items():
        cpu = row["cpu_ms"]
        rows.append(
            [
                turns,
                *(shown(cpu.get(way)) for way in ("bare", "sdk", "rollout", "plain")),
                shown(row.get("layer_over_bare")),
                shown(row["all_over_bare"]),
                shown(row["plain_over_bare"]),
                f"{row['calls']['bare']} / {row['calls']['rollout']} / {row['calls']['plain']}",
            ]
        )
    heads = ["turns", "bare SDK, ms", "SDK as driven, ms", "`rollout`, ms", "plain agent, ms", "our layer / bare"]
    heads += ["`rollout` / bare", "plain / bare", "Python calls a turn: bare / `rollout` / plain"]
    return [
        "## A turn, by layer",
        "CPU of a turn with 64 sampled tokens and one tool call, 32 episodes at once. *Bare SDK* is a Strands `Agent` "
        "whose model yields ready-made events: no tokens, no engine, no HTTP. `rollout` and *plain agent* include "
        "HTTP. *Our layer* is `rollout` on an engine within the process, minus the SDK as `rollout` drives it.",
        *_picture("speed-layers.svg", "CPU of a turn over the bare SDK", charts),
        table(heads, rows),
    ]


def _others(result: Mapping[str, Any], charts: set[str]) -> list[str]:
    rows = find(result, "agents", "others", "rows")
    if not rows:
        return []
    body = [
        [
            str(row["turns"]),
            f"{row['context']:,}",
            *(shown(row["cpu_ms"][way]) for way in _SHORT),
            *(shown(row[f"{figure}_over"][f"published_over_{way}"]) for figure in ("cpu", "wall") for way in OURS),
        ]
        for row in rows
    ]
    heads = ["turns", "context", *(f"{name}, ms" for name in _SHORT.values())]
    heads += [f"{figure}0.6.2 / {way}" for figure in ("", "wall: ") for way in OURS]
    theirs, ours = (find(result, "agents", "others", name) for name in ("published", "ours"))
    same = f"Python {ours['python']}, strands-agents {ours['strands-agents']}, transformers {ours['transformers']}"
    return [
        "## Against others",
        f"The same agent, the same episodes, the same server, the same versions ({same}): CPU of a turn in "
        f"milliseconds. 0.6.2 is the published strands-sglang {theirs['strands-sglang']}; OpenAIModel is the SDK's "
        f"own, with openai {ours['openai']}. *Context* is the number of tokens in front of the first question. Where a "
        "ratio is above 1, ours costs less. Wall times include the server and are noisier.",
        *_picture("speed-others.svg", "CPU of a turn, ours and others", charts),
        table(heads, body),
    ]


def _engine(result: Mapping[str, Any], charts: set[str]) -> list[str]:
    ways = find(result, "engine", "ways")
    if not ways:
        return []
    names = {"bare": "prepared bytes", **_SHORT}
    rows = [
        [
            names[way],
            shown(row["wall_s"], 2),
            shown(row.get("wall_over_bare"), 3),
            shown(row.get("cpu_ms"), 2),
            shown(row["sampled"], 0),
            *(f"{row[name]:.3f}" if name in row else "–" for name in ("cached_share", "sibling_share")),
        ]
        for way, row in ways.items()
    ]
    rows.sort(key=lambda row: list(names.values()).index(row[0]))
    heads = ["client", "wall, s", "over prepared bytes", "CPU of a turn, ms", "sampled tokens"]
    heads += ["cached share, turns >= 2", "cached share, siblings' first turn"]
    bodies = "; ".join(f"{name}: `{text}`" for name, text in result["engine"]["compressed_bodies"].items())
    return [
        "## Against the bare engine",
        f"64 greedy episodes at once (16 tasks, 4 samples each), {result['engine']['requests']} turns in total, on the "
        "lab's SGLang server with the tool policy: two tool calls for the first question, then three more questions. "
        "The exact requests of a run were recorded; *prepared bytes* is a client that only posts them again, each "
        "after the previous one of its conversation is answered. The prefix cache is emptied before each run. Cached "
        "shares are of what is possible: all tokens of the turn before but the last.",
        table(heads, rows),
        f"Compressed request bodies on this engine: {bodies}.",
    ]


def _wire(result: Mapping[str, Any], charts: set[str]) -> list[str]:
    calls = find(result, "wire", "calls")
    if not calls:
        return []
    rows = [
        [
            f"{row['tokens']:,}",
            str(row["sampled"]),
            f"{row['bytes']:,}",
            *(shown(row["cpu_ms"].get(client)) for client in ("ours", "bare", "published")),
            shown(row["ours_over_bare"]),
            shown(row.get("published_over_ours")),
        ]
        for row in calls
    ]
    heads = ["context", "sampled", "bytes of a request", "ours, ms", "bare client, ms", "0.6.2, ms", "ours / bare"]
    packed = [
        [f"{one['tokens']:,}", name, f"{way['share']:.2f}", f"{way['cpu_ms']:.2f}", f"{way['pays_below_mbit_s']}"]
        for one in result["wire"]["compression"]
        for name, way in one["ways"].items()
    ]
    return [
        "## The wire",
        "One call of the client, with random ids of a vocabulary of 150,000. The bare client is aiohttp with orjson.",
        table([*heads, "0.6.2 / ours"], rows),
        "What compressing the ids would cost the client, and the bandwidth below which it would save time:",
        table(["context", "compression", "size", "CPU, ms", "pays below, Mbit/s"], packed),
    ]


def _long(result: Mapping[str, Any], charts: set[str]) -> list[str]:
    long = result.get("long")
    if not long:
        return []
    rows = [
        ["response of 8,192 tokens with logprobs, CPU ms of a call", shown(long["response_8k_ms"])],
        ["the same for a bare client (aiohttp, orjson), ms", shown(long["response_8k_bare_ms"])],
        ["the same, the whole turn of a plain agent, ms", shown(long["turn_8k_ms"])],
        [f"episode of {long['long_turns']:,} turns, first tenth, CPU ms of a turn", shown(long["first_ms"])],
        ["last tenth, ms", shown(long["last_ms"])],
        ["last tenth / first tenth", shown(long["last_over_first"])],
        [
            f"the bare SDK with {long['bare_turns']:,} turns, last tenth / first tenth",
            shown(long["bare_last_over_first"]),
        ],
        [
            f"event loop lag, 8k-token tool results, {long['lag_episodes']} episodes, p50, ms",
            shown(long["lag_p50_ms"], 1),
        ],
        ["p99, ms", shown(long["lag_p99_ms"], 1)],
        ["p99 without the time in which its thread waited for a CPU, ms", shown(long["lag_own_p99_ms"], 1)],
        ["ledger's share of the CPU of a turn", shown(long["ledger_share"], 3)],
    ]
    if "kilobytes_each" in long:
        each = shown(long["kilobytes_each"], 1)
        rows.append([f"KB of a live episode besides its tokens, {long['live_episodes']:,} at once", each])
    return ["## Long and large", table(["measurement", "measured"], rows)]


def plots(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the plots by file name."""
    charts = {}
    if layers := find(result, "agents", "layers"):
        groups = [
            Group(f"{turns} turns", {"rollout": row["all_over_bare"], "plain": row["plain_over_bare"]})
            for turns, row in layers.items()
        ]
        series = {"rollout": "in rollout, with HTTP", "plain": "in a plain agent, with HTTP"}
        note = "CPU of a turn over that of the bare SDK (line: equal); whiskers: quartiles"
        charts["speed-layers.svg"] = bar_chart("A turn over the bare SDK", note, groups, series, 1.0)
    if rows := find(result, "agents", "others", "rows"):
        groups = [
            Group(
                f"{row['turns']} turns, {row['context'] // 1000}k context", {way: row["cpu_ms"][way] for way in _SHORT}
            )
            for row in rows
        ]
        note = "CPU milliseconds of a turn, same agent and server; whiskers: quartiles"
        charts["speed-others.svg"] = bar_chart("A turn, ours and others", note, groups, _SHORT)
    return charts
