"""`strands-sglang rollout`: runs an agent on the tasks of a file and records every episode.

Invariant: the same command continues an interrupted run. The exit code is 0 only if no episode and no reward failed.
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

import click

from strands_sglang.cli import _command as cli
from strands_sglang.cli._run_options import RUN, group_params, setting_params, task_params

if TYPE_CHECKING:
    from strands_sglang.runs import RunResult

DONE, FAILED, NOTHING = 0, 1, 3  # exit codes: no failure; an episode or a reward failed; no episode was kept


def run(as_json: bool, **given: Any) -> int:
    """Run an agent on every task of a JSON Lines file and record the episodes in a directory. Each line of TASKS is an
    object with "prompt", and optionally "answer", "id" and other data, or a string; - reads standard input. If the
    directory has an interrupted run, it is continued: run the same command again.

    The server's API key is read from the environment variable STRANDS_SGLANG_API_KEY.
    """
    result = perform(given)
    if result is None:
        return FAILED
    return report(result, as_json)


def perform(given: dict[str, Any]) -> RunResult | None:
    """Call `rollout`; return None, with a message, if the run was stopped because its first episodes all failed."""
    from strands_sglang.cli._run_options import rollout_arguments
    from strands_sglang.errors import RunStoppedError
    from strands_sglang.runs import rollout_sync

    arguments = rollout_arguments(given)
    build, tasks = arguments.pop("build"), arguments.pop("tasks")
    click.get_current_context().meta[cli.INTERRUPTED] = ""  # rollout itself says what is saved and how to resume
    try:
        return rollout_sync(build, tasks, **arguments)
    except RunStoppedError as error:
        cli.tell(*str(error).splitlines())
        return None


def report(result: RunResult, as_json: bool) -> int:
    """Print what came of a run; return the exit code."""
    from strands_sglang._terminal import counted, escape_for_terminal

    metrics = result.metrics
    ends = {reason.value: count for reason, count in metrics.end_reasons.items()}
    if as_json:
        numbers = {name: value for name, value in metrics.to_dict("").items() if math.isfinite(value)}
        directory = None if result.directory is None else str(result.directory)
        print(cli.json_text({"run": result.run_id, "directory": directory, "end_reasons": ends, "metrics": numbers}))
    else:
        paint = cli.Paint(cli.wants_colours())
        restored = f", {metrics.restored:,} of them from the ledger" if metrics.restored else ""
        lines = [f"{paint(counted(metrics.done, 'episode'), 'bold')}{restored}: {_listed(ends)}"]
        lines.append(f"  reward   {cli.number(metrics.reward_mean)} mean of {metrics.rewards:,}")
        if metrics.reward_errors:
            lines.append("  " + paint(f"{counted(metrics.reward_errors, 'reward')} failed", "red"))
        if result.dropped or metrics.groups_dropped:
            stale = f" ({metrics.groups_stale:,} too old)" if metrics.groups_stale else ""
            lines.append(f"  groups   {metrics.groups_kept:,} kept, {metrics.groups_dropped:,} dropped{stale}")
        speed = f"{metrics.tokens_per_second_overall:,.0f} tokens per second"
        cached = "" if metrics.cache_hit_rate is None else f", {metrics.cache_hit_rate:.0%} of prompts cached"
        lines.append(f"  engine   {metrics.turns:,} turns, {metrics.sampled_tokens:,} tokens sampled, {speed}{cached}")
        if metrics.latest_error:
            lines.append("  " + paint(escape_for_terminal(f"latest error: {metrics.latest_error}"), "red"))
        if result.directory is not None:
            folder = escape_for_terminal(shlex.quote(str(result.directory)))
            commands = [f"strands-sglang {name} {folder}" for name in ("show", "view", "verify")]
            lines += [f"  {'' if number else 'see':<8} {one}" for number, one in enumerate(commands)]
        print("\n".join(lines))
    if metrics.failures or metrics.reward_errors:
        return FAILED
    return DONE if len(result) else NOTHING


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"


command = cli.Command(
    "rollout",
    callback=run,
    params=[
        *task_params(required=True),
        *cli.section(RUN, cli.option("-d --directory", "directory of the run", metavar="DIR", required=True)),
        *group_params(),
        *setting_params(),
        cli.json_option(),
    ],
    exit_codes={
        0: "all episodes ended without a failure",
        1: "an episode or a reward failed",
        2: "invalid arguments, or the server cannot be used",
        3: "no episode was kept",
    },
    examples=[
        "rollout tasks.jsonl --agent my_agent:build --reward my_agent:reward --base-url http://localhost:30000 \\\n"
        "      --tokenizer Qwen/Qwen3-8B -n 8 --max-turns 20 -d runs/first",
        "rollout tasks.jsonl --agent my_agent:build --base-url http://localhost:30000 --tokenizer Qwen/Qwen3-8B \\\n"
        "      --workers 8 --concurrency 2048 --tracker wandb -d runs/second",
    ],
)
