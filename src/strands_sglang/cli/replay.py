"""`strands-sglang replay`: recorded episodes once more through the agent's code, without an engine.

Invariant: the exit code is 0 only when something was replayed and all of it is identical.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from strands_sglang.cli.named import function_named
from strands_sglang.cli.run_settings import run_settings
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.ledger.run_file import read_run
from strands_sglang.ledger.shard import shard_paths
from strands_sglang.ledger.shown import counted, shown
from strands_sglang.rollout import Replayed, ReplayVerdict, replay

IDENTICAL, DIFFERENT, NOTHING = 0, 1, 3
"""Exit codes: all trajectories are identical; some are not; there was nothing to replay."""

_SHOWN = 10  # ways to differ that are listed


def add(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "replay",
        help="run recorded episodes again without an engine, and compare",
        description="Run recorded episodes again through your agent's code, with engine and tools answered from the "
        "ledger. Exit code 0: all trajectories are identical; 1: some are not; 2: wrong usage, no run or no such "
        "episode; 3: there was nothing to replay.",
    )
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("--agent", required=True, metavar="MODULE:FUNCTION", help="the build function of the run")
    parser.add_argument("--tokenizer", required=True, help="name or path of the run's tokenizer")
    parser.add_argument("--episode", action="append", metavar="ID", help="only this one; may be given more than once")
    parser.add_argument(
        "--model-options",
        type=_json_object,
        default={},
        metavar="JSON",
        help="as given to rollout(); those not given here are taken from run.json, where it has them as plain data",
    )
    parser.add_argument(
        "--limits", type=_json_object, metavar="JSON", help="as given to rollout() (default: those in run.json)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line for each episode")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Replay a run; return the exit code.

    Raises:
        LedgerError: There is no run, or no such episode.
        ConfigurationError: What was given cannot work.
    """
    directory: Path = options.directory
    about = read_run(directory) if directory.is_dir() else None
    if about is None and not shard_paths(directory):
        raise LedgerError(f"{directory} is no directory of a run: it has no run.json and no ledger")
    missing = sorted(set(options.episode or ()) - set(Ledger(directory).ids() if options.episode else ()))
    if missing:
        raise LedgerError(f"the ledger in {directory} has no episode {', '.join(map(repr, missing))}")
    settings = run_settings(about, options.limits, options.model_options)
    for name in settings.left_out:
        told = f"run.json has {name!r} in words only: it is left out, unless given with --model-options"
        print(f"strands-sglang: {told}", file=sys.stderr)
    replayed = asyncio.run(
        replay(
            function_named(options.agent, "--agent", "my_agent:build"),
            directory,
            tokenizer=options.tokenizer,
            episodes=options.episode,
            limits=settings.limits,
            **settings.model_options,
        )
    )
    if not replayed:
        print(f"strands-sglang: nothing to replay in {shown(str(directory))}", file=sys.stderr)
        return NOTHING
    for line in _lines(replayed) if not options.json else map(_json, replayed):
        print(line)
    return IDENTICAL if all(one.verdict is ReplayVerdict.IDENTICAL for one in replayed) else DIFFERENT


def _lines(replayed: list[Replayed]) -> list[str]:
    counts = Counter(one.verdict.value for one in replayed)
    told = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    lines = [f"{counted(len(replayed), 'episode')}: {told} (answered from the record: no tool was run)"]
    alike: dict[tuple[str, str], list[Replayed]] = {}
    for one in replayed:
        if one.verdict is not ReplayVerdict.IDENTICAL:
            alike.setdefault((one.verdict.value, one.why), []).append(one)
    groups = sorted(alike.items(), key=lambda group: -len(group[1]))
    for (verdict, why), group in groups[:_SHOWN]:
        first = group[0]
        place = "" if first.event is None else f", at event {first.event}"
        lines.append(f"  {len(group):,} {verdict}: {why}")
        lines.append(f"    {'first' if len(group) > 1 else 'it is'} {first.id}{place}")
        if (differs := first.difference) is not None:
            lines.append(f"    from token {differs.token} on, behind {_quoted(differs.before)}")
            lines.append(f"    on record: {_quoted(differs.recorded)}")
            lines.append(f"    now:       {_quoted(differs.now)}")
    if len(groups) > _SHOWN:
        lines.append(f"  and {counted(len(groups) - _SHOWN, 'other way', 'other ways')} to differ: see --json")
    return [shown(line) for line in lines]


def _quoted(text: str) -> str:
    """Return a text of a prompt in one line; nothing where the prompt is over."""
    return f'"{text}"'.replace("\n", "\\n") if text else "nothing: the prompt ends there"


def _json(one: Replayed) -> str:
    told = {"episode": one.id, "verdict": one.verdict.value, "event": one.event, "message": one.message}
    return json.dumps({**told, "difference": None if one.difference is None else one.difference.to_dict()})


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"not a JSON object: {text}")
    return value
