"""Writes the figures of `results.json` and `coefficients.json` into the page "Operating at scale", and its plots.

The page is written by hand except for its figures: what stands between `<!-- growth: NAME -->` and `<!-- /growth -->`
is replaced by the block of that name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from growth.model import FILE, POLICIES, Coefficients, Workload, load
from growth.plots import load_plot, policy_plot, update_plot

IMAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "images"
_BLOCK = re.compile(r"(<!-- growth: ([a-z-]+) -->\n).*?(<!-- /growth -->)", re.S)
Results = dict[str, Any]


def number(value: float) -> str:
    """Return a number with two significant digits, or as a whole number from 100 on."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def table(heads: str, rows: Iterable[Iterable[str]], numbers: bool = True) -> str:
    """Return a Markdown table; `heads` are divided by "|". Numbers, which the first column has not, align right."""
    lines = [f"| {heads} |", "|---|" + ("---:|" if numbers else "---|") * heads.count("|")]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def sizing(results: Results, known: Coefficients) -> str:
    """Return the sizing table."""
    rows = []
    for row in results["sizing"]:
        shape = f"{row['episodes']:,} × {row['turns']} × {row['tokens'] / 1000:.0f}k"
        needs = (row["turns_per_second"], max(1.0, row["cores"]), row["driver_cores"], row["memory_gb"])
        wire = f"{number(row['gbit_up'])} / {number(row['gbit_down'])}"
        disk = (number(row["ledger_tb_day"]), number(round(row["files_day"], -2)))
        rows.append([shape, f"{row['engines']:,}", *map(number, needs), wire, *disk])
    heads = "episodes × turns × tokens | engines | turns/s | rollout cores | driver cores | GB | Gbit/s up / down"
    return table(heads + " | ledger TB/day | files/day", rows)


def costs(results: Results, known: Coefficients) -> str:
    """Return the table of the measured coefficients."""
    turn = ", ".join(
        f"{known.turn_cpu_ms(turns, 2000 + (turns - 1) / 2 * (result + 300), 300, result):.1f} ms"
        for turns, result in ((8, 64), (60, 700))
    )
    return f"""| | measured |
|---|---|
| CPU of a turn, in episodes of 8 turns and 4k tokens, of 60 turns and 61k tokens | {turn} |
| request | {known.wire_up_bytes_turn:.0f} bytes, and {known.wire_up_bytes_token:.1f} per prompt token |
| response | {known.wire_down_bytes_turn:.0f} bytes, and {known.wire_down_bytes_token:.0f} per sampled token |
| ledger, per episode | {known.ledger_bytes_episode / 1024:.1f} KB, {known.ledger_bytes_turn / 1024:.1f} KB per turn, \
{known.ledger_bytes_sampled:.1f} bytes per sampled token, {known.ledger_bytes_context:.1f} per context token |
| memory of a live episode | {known.memory_kb_episode:.0f} KB, {known.memory_kb_turn:.0f} KB per turn, \
{known.memory_bytes_token:.0f} bytes per token |
| driver, per finished episode | {known.driver_ms_episode:.1f} ms of CPU, {known.driver_kb_episode:.0f} KB until you \
drop the result |
| start of a Ray worker | {known.worker_start_seconds:.0f} s |
"""


def memory(results: Results, known: Coefficients) -> str:
    """Return the table of the memory of a live episode."""
    process = json.loads((FILE.parent.parent / "measured.json").read_text())["long"]["kilobytes_each"]["median"]
    return f"""| | measured | with |
|---|---|---|
| a live episode of 3 turns, besides its tokens, as the process grows | {process:.0f} KB | `bench/run` |
| a live episode, besides its turns, as Python allocates | {known.memory_kb_episode:.0f} KB | `bench/memory.py` |
| each turn, besides its tokens | {known.memory_kb_turn:.0f} KB: messages, traces and counters of the SDK and of \
this package | `bench/memory.py` |
| each token, 30 % of them sampled | {known.memory_bytes_token:.0f} bytes: ids, logprobs, the branch, the prompt of \
the running call, the text of the messages | `bench/memory.py` |
"""


def driver(results: Results, known: Coefficients) -> str:
    """Return what one driver can take."""
    about = json.loads(FILE.read_text())["about"]["driver"]
    return f"""A driver core takes **{1e3 / known.driver_ms_episode:.0f} finished episodes per second** \
(`bench/ray_pool.py --stubs {about["workers"]}`: {about["workers"]:,} workers that answer with a recorded episode of \
{about["turns"]} turns and {about["tokens"]:,} tokens, {about["at_once"]:,} episodes at once). Two messages per \
episode, and at most 400 polls and answers per second however many workers there are.
"""


def accuracy(results: Results, known: Coefficients) -> str:
    """Return how far model, simulation and reality differ."""
    last = results["largest"]
    rows = [
        [
            f"{row['episodes']:,} / {row['engines']:,}",
            number(row["model"]["turns_per_second"]),
            number(row["simulation"]["turns_per_second"]),
            f"{row['error']:+.1%}",
        ]
        for row in [*results["growth"], {**last, "simulation": last["before_update"]}]
    ]
    check = []
    for row in results.get("check", ()):
        name = f"{row['episodes']}" + (" (limited by the core)" if row["limited_by_core"] else "")
        check.append([name, f"{row['measured']:.1f}", f"{row['simulated']:.1f}", f"{row['error']:+.1%}"])
    heads = "episodes, one process | measured, turns/s | simulated, turns/s | error of the simulation"
    text = table("episodes / engines | model, turns/s | simulation, turns/s | error of the model", rows)
    return text + "\n" + table(heads, check)


def saturation(results: Results, known: Coefficients) -> str:
    """Return what the largest run uses of everything."""
    last, full = results["largest"], results["assumed_engine"]["tokens_per_second"]
    seen, needs, tokens = last["before_update"], last["needs"], Workload(**results["workload"]).tokens
    sealing = last["episodes"] * tokens / 1e6 * known.driver_seal_s_mtoken / 60
    return f"""| of a run of {last["episodes"]:,} episodes | uses | |
|---|---|---|
| engines | {seen["tokens_per_second"] / last["engines"]:,.0f} of {full:,.0f} sampled tokens/s each | more episodes \
per engine, as far as its cache has room |
| driver | {needs["driver_cores"]:.2f} cores | one process: **the first limit**; use several runs |
| rollout workers | {needs["cores"]:.0f} cores at 60 % | add workers |
| network of the rollout machines | {needs["gbit_up"]:.1f} Gbit/s up | several machines, or one fast card |
| memory of live episodes | {needs["memory_gb"]:.0f} GB | spread over the workers |
| connections | {seen["in_call"] * last["episodes"]:,.0f} open requests | router and open files must allow them |
| ledger | {needs["ledger_tb_day"] * 1e6 / 86_400:.0f} MB/s | any shared file system |
| seal, when the run has ended | {sealing:.0f} minutes of one core | the driver reads the whole ledger: use several \
runs |
"""


def failures(results: Results, known: Coefficients) -> str:
    """Return what failures and updates cost."""
    last = results["largest"]
    before, after, update = last["before_update"], last["after_update"], last["update"]
    total = {name: before[name] + after[name] for name in before}
    engines, workers = max(1, total["engine_failures"]), max(1, total["worker_failures"])
    lost = total["lost_tokens"] / engines
    return f"""| | simulated, {last["episodes"]:,} episodes, {before["turns_per_second"]:,.0f} turns/s |
|---|---|
| an engine fails | {total["failed_requests"] / engines:.0f} requests are repeated elsewhere and {lost:,.0f} sampled \
tokens are lost ({1e3 * lost / before["tokens_per_second"]:.1f} ms of the whole fleet's work); its conversations are \
computed again once |
| a rollout worker dies | {total["resumed_episodes"] / workers:.0f} episodes continue on others from their last event, \
after {known.worker_start_seconds:.0f} s; each loses at most the turn or tool call that was running, together \
{total["lost_with_workers"] / workers:,.0f} sampled tokens. Only the shards of this worker are read |
| a weight update with a pause of 20 s | {update["lost_turns"]:,.0f} turns, which is {update["lost_seconds"]:.0f} s of \
the run: 90 % of the rate is back after {update["recovered_after"] or float("nan"):.0f} s, because every engine has to \
compute all its conversations again |
| the driver dies | the run stops; the same call continues it from the ledger |
"""


def routing(results: Results, known: Coefficients) -> str:
    """Return the table of router policies."""
    best = max(row["turns_per_second"] for row in results["policies"])
    rooms = sorted({row["room"] for row in results["policies"]}, reverse=True)
    found = {(row["policy"], row["by"], row["room"]): row for row in results["policies"]}
    rows = [[name] for *_, name in POLICIES]
    for cells, (policy, by, *_) in zip(rows, POLICIES, strict=True):
        for row in (found[policy, by, room] for room in rooms):
            share, p99 = row["turns_per_second"] / best, row["engine_seconds_p99"]
            cells += [f"{share:.0%}", f"{row['cached']:.0%}", f"{p99:.0f} s"]
    return table("policy" + "".join(f" | throughput, cache {r:g}× | cached | p99 of a call" for r in rooms), rows)


def assumptions(results: Results, known: Coefficients) -> str:
    """Return the assumptions of the simulation."""
    work, engine = results["workload"], results["assumed_engine"]
    return f"""Assumed of an engine, **not measured**: {engine["tokens_per_second"]:,.0f} sampled tokens/s with a full \
batch of {engine["batch"]}, {engine["step_ms"]:g} ms per token for a single request, \
{engine["prefill_tokens_per_second"]:,.0f} prompt tokens/s, room for {engine["kv_tokens"] / 1e6:g} million tokens. \
Assumed of the episodes: {work["sampled"]} sampled and {work["result"]} new context tokens per turn (lognormal), \
{work["prompt"]:,} tokens of prompt, tools with a median of {work["tool_median"]:g} s of which one in a hundred takes \
more than {work["tool_median"] * 16.3:.0f} s, {work["samples"]} samples per task.
"""


_ALL: tuple[Callable[[Results, Coefficients], str], ...] = (
    sizing, costs, driver, memory, accuracy, saturation, failures, routing, assumptions
)  # fmt: skip
BLOCKS = {block.__name__: block for block in _ALL}


def filled(text: str, results: Results, known: Coefficients) -> str:
    """Return the text of a page with its blocks replaced; KeyError: it has a block of an unknown name."""
    return _BLOCK.sub(lambda found: found[1] + "\n" + BLOCKS[found[2]](results, known) + "\n" + found[3], text)


def write_page(page: Path, results: Results) -> None:
    """Write the page and its plots."""
    page.write_text(filled(page.read_text(), results, load()))
    (IMAGES / "scale-load.svg").write_text(load_plot(results["load"]))
    (IMAGES / "scale-update.svg").write_text(update_plot(results["largest"]))
    (IMAGES / "scale-router.svg").write_text(policy_plot(results["policies"]))
