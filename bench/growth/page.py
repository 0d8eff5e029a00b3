"""Writes the figures of `results.json` and `coefficients.json` into the page "Operating at scale", and its plots.

The page is written by hand except for its figures: what stands between `<!-- growth: NAME -->` and `<!-- /growth -->`
is replaced by the block of that name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from growth.coefficients import FILE, Coefficients, load
from growth.model import POLICIES, Workload
from growth.plots import IMAGES, load_plot, policy_plot, update_plot

_BLOCK = re.compile(r"(<!-- growth: ([a-z-]+) -->\n).*?(<!-- /growth -->)", re.S)

Results = dict[str, Any]


def number(value: float) -> str:
    """Return a number with two significant digits, or as a whole number from 100 on."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.0f}"
    return f"{value:.2g}"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table whose columns, except the first, are aligned to the right."""
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def sizing(results: Results, known: Coefficients) -> str:
    """Return the sizing table."""
    rows = [
        [
            f"{row['episodes']:,} × {row['turns']} × {row['tokens'] / 1000:.0f}k",
            f"{row['engines']:,}",
            number(row["turns_per_second"]),
            number(max(1.0, row["cores"])),
            number(row["driver_cores"]),
            number(row["memory_gb"]),
            f"{number(row['gbit_up'])} / {number(row['gbit_down'])}",
            number(row["ledger_tb_day"]),
            number(round(row["files_day"], -2)),
        ]
        for row in results["sizing"]
    ]
    heads = [
        "episodes × turns × tokens",
        "engines",
        "turns/s",
        "rollout cores",
        "driver cores",
        "GB",
        "Gbit/s up / down",
    ]
    return table([*heads, "ledger TB/day", "files/day"], rows)


def costs(results: Results, known: Coefficients) -> str:
    """Return the table of the measured coefficients."""
    one, long = (8, 64, 300), (60, 700, 300)
    turn = ", ".join(
        f"{known.turn_cpu_ms(turns, 2000 + (turns - 1) / 2 * (result + sampled), sampled, result):.1f} ms"
        for turns, result, sampled in (one, long)
    )
    ledger = (
        f"{known.ledger_bytes_episode / 1024:.1f} KB, {known.ledger_bytes_turn / 1024:.1f} KB per turn, "
        f"{known.ledger_bytes_sampled:.1f} bytes per sampled token, {known.ledger_bytes_context:.1f} per context token"
    )
    rows = [
        ["CPU of a turn, in episodes of 8 turns and 4k tokens, of 60 turns and 61k tokens", turn],
        ["request", f"{known.wire_up_bytes_turn:.0f} bytes, and {known.wire_up_bytes_token:.1f} per prompt token"],
        [
            "response",
            f"{known.wire_down_bytes_turn:.0f} bytes, and {known.wire_down_bytes_token:.0f} per sampled token",
        ],
        ["ledger, per episode", ledger],
        [
            "memory of a live episode",
            f"{known.memory_kb_episode:.0f} KB, {known.memory_kb_turn:.0f} KB per turn, "
            f"{known.memory_bytes_token:.0f} bytes per token",
        ],
        [
            "driver, per finished episode",
            f"{known.driver_ms_episode:.1f} ms of CPU, {known.driver_kb_episode:.0f} KB until you drop the result",
        ],
        ["start of a Ray worker", f"{known.worker_start_seconds:.0f} s"],
    ]
    return "\n".join(["| | measured |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]) + "\n"


def memory(results: Results, known: Coefficients) -> str:
    """Return the table of the memory of a live episode."""
    rows = [
        ["a live episode of 3 turns, besides its tokens, as the process grows", "110 KB", "scale"],
        [
            "a live episode, besides its turns, as Python allocates",
            f"{known.memory_kb_episode:.0f} KB",
            "memory",
        ],
        [
            "each turn, besides its tokens",
            f"{known.memory_kb_turn:.0f} KB: messages, traces and counters of the SDK and of this package",
            "memory",
        ],
        [
            "each token, 30 % of them sampled",
            f"{known.memory_bytes_token:.0f} bytes: ids, logprobs, the branch, the prompt of the running call, the "
            "text of the messages",
            "memory",
        ],
    ]
    lines = [f"| {name} | {value} | `bench/{bench}.py` |" for name, value, bench in rows]
    return "\n".join(["| | measured | with |", "|---|---|---|", *lines]) + "\n"


def driver(results: Results, known: Coefficients) -> str:
    """Return what one driver can take."""
    about = json.loads(FILE.read_text())["about"]["driver"]
    rate = 1e3 / known.driver_ms_episode
    return (
        f"A driver core takes **{rate:.0f} finished episodes per second** (`bench/ray_pool.py --stubs "
        f"{about['workers']}`: {about['workers']:,} workers that answer with a recorded episode of "
        f"{about['turns']} turns and {about['tokens']:,} tokens, {about['at_once']:,} episodes at once). Two messages "
        "per episode, and at most 400 polls and answers per second however many workers there are.\n"
    )


def accuracy(results: Results, known: Coefficients) -> str:
    """Return how far model, simulation and reality differ."""
    rows = [
        [
            f"{row['episodes']:,} / {row['engines']:,}",
            number(row["model"]["turns_per_second"]),
            number(row["simulation"]["turns_per_second"]),
            f"{row['error']:+.1%}",
        ]
        for row in results["growth"]
    ]
    last = results["largest"]
    seen = last["before_update"]
    row = [f"{last['episodes']:,} / {last['engines']:,}", number(last["model"]["turns_per_second"])]
    rows.append([*row, number(seen["turns_per_second"]), f"{last['error']:+.1%}"])
    text = table(["episodes / engines", "model, turns/s", "simulation, turns/s", "error of the model"], rows)
    check = [
        [
            f"{row['episodes']}" + (" (limited by the core)" if row["limited_by_core"] else ""),
            f"{row['measured']:.1f}",
            f"{row['simulated']:.1f}",
            f"{row['error']:+.1%}",
        ]
        for row in results.get("check", ())
    ]
    heads = ["episodes, one process", "measured, turns/s", "simulated, turns/s", "error of the simulation"]
    return text + "\n" + table(heads, check)


def saturation(results: Results, known: Coefficients) -> str:
    """Return what the largest run uses of everything."""
    last = results["largest"]
    seen, needs, full = last["before_update"], last["needs"], results["assumed_engine"]["tokens_per_second"]
    calls, work = seen["in_call"] * last["episodes"], Workload(**results["workload"])
    rows = [
        [
            "engines",
            f"{seen['tokens_per_second'] / last['engines']:,.0f} of {full:,.0f} sampled tokens/s each",
            "more episodes per engine, as far as its cache has room",
        ],
        ["driver", f"{needs['driver_cores']:.2f} cores", "one process: **the first limit**; use several runs"],
        ["rollout workers", f"{needs['cores']:.0f} cores at 60 %", "add workers"],
        ["network of the rollout machines", f"{needs['gbit_up']:.1f} Gbit/s up", "several machines, or one fast card"],
        ["memory of live episodes", f"{needs['memory_gb']:.0f} GB", "spread over the workers"],
        ["connections", f"{calls:,.0f} open requests", "router and open files must allow them"],
        ["ledger", f"{needs['ledger_tb_day'] * 1e6 / 86_400:.0f} MB/s", "any shared file system"],
        [
            "seal, when the run has ended",
            f"{last['episodes'] * work.tokens / 1e6 * known.driver_seal_s_mtoken / 60:.0f} minutes of one core",
            "the driver reads the whole ledger: use several runs",
        ],
    ]
    lines = [f"| {name} | {value} | {then} |" for name, value, then in rows]
    return "\n".join([f"| of a run of {last['episodes']:,} episodes | uses | |", "|---|---|---|", *lines]) + "\n"


def failures(results: Results, known: Coefficients) -> str:
    """Return what failures and updates cost."""
    last = results["largest"]
    both = [last["before_update"], last["after_update"]]
    engines, workers = (sum(part[name] for part in both) for name in ("engine_failures", "worker_failures"))
    update, rate = last["update"], last["before_update"]["turns_per_second"]
    lost = sum(part["lost_tokens"] for part in both) / max(1, engines)
    requests = sum(part["failed_requests"] for part in both) / max(1, engines)
    resumed = sum(part["resumed_episodes"] for part in both) / max(1, workers)
    wasted = sum(part["lost_with_workers"] for part in both) / max(1, workers)
    second = last["before_update"]["tokens_per_second"]
    rows = [
        [
            "an engine fails",
            f"{requests:.0f} requests are repeated elsewhere and {lost:,.0f} sampled tokens are lost "
            f"({1e3 * lost / second:.1f} ms of the whole fleet's work); its conversations are computed again once",
        ],
        [
            "a rollout worker dies",
            f"{resumed:.0f} episodes continue on others from their last event, after "
            f"{known.worker_start_seconds:.0f} s; each loses at most the turn or tool call that was running, "
            f"together {wasted:,.0f} sampled tokens. Only the shards of this worker are read",
        ],
        [
            "a weight update with a pause of 20 s",
            f"{update['lost_turns']:,.0f} turns, which is {update['lost_seconds']:.0f} s of the run: "
            f"90 % of the rate is back after {update['recovered_after'] or float('nan'):.0f} s, because every engine "
            "has to compute all its conversations again",
        ],
        ["the driver dies", "the run stops; the same call continues it from the ledger"],
    ]
    head = f"simulated, {last['episodes']:,} episodes, {rate:,.0f} turns/s"
    return "\n".join([f"| | {head} |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]) + "\n"


def routing(results: Results, known: Coefficients) -> str:
    """Return the table of router policies."""
    best = max(row["turns_per_second"] for row in results["policies"])
    rooms = sorted({row["room"] for row in results["policies"]}, reverse=True)
    found = {(row["policy"], row["by"], row["room"]): row for row in results["policies"]}
    rows = []
    for policy, by, name in POLICIES:
        cells = [name]
        for room in rooms:
            row = found[policy, by, room]
            cells += [
                f"{row['turns_per_second'] / best:.0%}",
                f"{row['cached']:.0%}",
                f"{row['engine_seconds_p99']:.0f} s",
            ]
        rows.append(cells)
    heads = ["policy"]
    for room in rooms:
        heads += [f"throughput, cache {room:g}×", "cached", "p99 of a call"]
    return table(heads, rows)


def assumptions(results: Results, known: Coefficients) -> str:
    """Return the assumptions of the simulation."""
    work, engine = results["workload"], results["assumed_engine"]
    return (
        f"Assumed of an engine, **not measured**: {engine['tokens_per_second']:,.0f} sampled tokens/s with a full "
        f"batch of {engine['batch']}, {engine['step_ms']:g} ms per token for a single request, "
        f"{engine['prefill_tokens_per_second']:,.0f} prompt tokens/s, room for {engine['kv_tokens'] / 1e6:g} million "
        f"tokens. Assumed of the episodes: {work['sampled']} sampled and {work['result']} new context tokens per turn "
        f"(lognormal), {work['prompt']:,} tokens of prompt, tools with a median of {work['tool_median']:g} s of which "
        f"one in a hundred takes more than {work['tool_median'] * 16.3:.0f} s, {work['samples']} samples per task.\n"
    )


BLOCKS: dict[str, Callable[[Results, Coefficients], str]] = {
    "sizing": sizing,
    "costs": costs,
    "driver": driver,
    "memory": memory,
    "accuracy": accuracy,
    "saturation": saturation,
    "failures": failures,
    "routing": routing,
    "assumptions": assumptions,
}
"""The blocks by name."""


def filled(text: str, results: Results, known: Coefficients) -> str:
    """Return the text of a page with its blocks replaced.

    Raises:
        KeyError: The page has a block of an unknown name.
    """
    return _BLOCK.sub(lambda found: found[1] + "\n" + BLOCKS[found[2]](results, known) + "\n" + found[3], text)


def write_page(page: Path, results: Results) -> None:
    """Write the page and its plots."""
    page.write_text(filled(page.read_text(), results, load()))
    names = {(policy, by): name.replace("`", "").partition(":")[0].partition(",")[0] for policy, by, name in POLICIES}
    names["least", "episode"] = "the same, a key per episode"
    names["least", "task"] = "manual, min_group"
    names["random key", "task"] = "manual as it comes"
    names["scatter", "task"] = "random, round_robin"
    (IMAGES / "scale-load.svg").write_text(load_plot(results["load"]))
    (IMAGES / "scale-update.svg").write_text(update_plot(results["largest"]))
    (IMAGES / "scale-router.svg").write_text(policy_plot(results["policies"], names))
