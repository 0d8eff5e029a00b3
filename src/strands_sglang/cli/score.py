"""`strands-sglang score`: a recorded run scored anew.

Invariant: the exit code is 0 only when something was scored and every reward could be had.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from strands_sglang.cli.named import function_named
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.run_file import read_run
from strands_sglang.ledger.shown import counted, shown
from strands_sglang.proof.signature import SIGNATURE
from strands_sglang.rollout.score_run import Scored, score_run

SCORED, FAILED, NOTHING = 0, 1, 3
"""Exit codes: all were scored; some rewards failed; there was nothing to score."""

_SHOWN = 10  # kinds of error that are listed


def add(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "score",
        help="score a recorded run anew, without sampling",
        description="Ask a reward function once more for the episodes of a recorded run, without an engine. The scores "
        "are added to the ledger and count from now on; those before stay on record. Exit code 0: all were scored; 1: "
        "some rewards failed; 2: wrong usage, no run or no such episode; 3: there was nothing to score.",
    )
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("--reward", required=True, metavar="MODULE:FUNCTION", help="as given to rollout()")
    parser.add_argument("--unscored", action="store_true", help="only those without a score, or whose reward failed")
    parser.add_argument("--episode", action="append", metavar="ID", help="only this one; may be given more than once")
    parser.add_argument("--reward-seconds", type=float, metavar="N", help="seconds that scoring an episode may take")
    parser.add_argument("--json", action="store_true", help="print one JSON line for each episode")
    parser.set_defaults(run=run, interrupted="scores that were had by then are in the ledger, and count")


def run(options: argparse.Namespace) -> int:
    """Score a run; return the exit code.

    Raises:
        LedgerError: There is no run, or no such episode.
        ConfigurationError: What was given cannot work.
    """
    directory: Path = options.directory
    if not directory.is_dir() or read_run(directory) is None:
        raise LedgerError(f"{directory} is no directory of a run: it has no run.json")
    scored = asyncio.run(
        score_run(
            function_named(options.reward, "--reward", "my_rewards:reward"),
            directory,
            episodes=options.episode,
            unscored_only=options.unscored,
            reward_seconds=options.reward_seconds,
        )
    )
    for line in map(_json, scored) if options.json else lines(scored, signed=(directory / SIGNATURE).exists()):
        print(line)
    if not scored:
        return NOTHING
    return SCORED if all(one.now.error is None for one in scored) else FAILED


def lines(scored: list[Scored], *, signed: bool) -> list[str]:
    """Return what is shown of a scoring.

    Args:
        scored: What came out.
        signed: Whether somebody has signed the run as it was before.
    """
    if not scored:
        return ["nothing to score: no episode has come to an end of its own, or all have a score"]
    values = [one.now.value for one in scored if one.now.value is not None]
    failed = [one for one in scored if one.now.error is not None]
    changed = sum(one.before.value != one.now.value for one in scored)
    mean = f", mean {math.fsum(values) / len(values):.4g}" if values else ""
    found = [f"{counted(len(scored), 'episode')} scored: {len(values)} with a value{mean}, {len(failed)} failed"]
    found.append(f"  {counted(changed, 'value')} changed; scores from before stay on record, the newest counts")
    causes = Counter(str(one.now.error) for one in failed)
    found += [f"  {counted(count, 'time')}: {cause}" for cause, count in causes.most_common(_SHOWN)]
    if signed:
        found.append("  signature.json is of the run as it was: sign it again with `strands-sglang sign`")
    return [shown(line) for line in found]


def _json(one: Scored) -> str:
    told = {"episode": one.id, "reward": one.now.value, "error": one.now.error, "before": one.before.value}
    return json.dumps(told)
