"""`strands-sglang replay`: recorded episodes once more through the agent's code, without an engine."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout import Replayed, ReplayVerdict, replay

_SHOWN = 20  # episodes that are listed one by one


def add(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "replay",
        help="run recorded episodes again without an engine, and compare",
        description="Run recorded episodes again through your agent's code, with engine and tools answered from the "
        "ledger. Exit code 0: all trajectories are identical; 1: some are not.",
    )
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("--agent", required=True, metavar="MODULE:FUNCTION", help="the build function of the run")
    parser.add_argument("--tokenizer", required=True, help="name or path of the run's tokenizer")
    parser.add_argument("--episode", action="append", metavar="ID", help="only this one; may be given more than once")
    parser.add_argument("--model-options", type=json.loads, default={}, metavar="JSON", help="as given to rollout()")
    parser.add_argument("--json", action="store_true", help="print one JSON line for each episode")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0: all identical; 1: some are not.
    """
    replayed = asyncio.run(
        replay(
            _function(options.agent),
            options.directory,
            tokenizer=options.tokenizer,
            episodes=options.episode,
            **options.model_options,
        )
    )
    for line in _lines(replayed) if not options.json else map(_json, replayed):
        print(line)
    return int(any(one.verdict is not ReplayVerdict.IDENTICAL for one in replayed))


def _lines(replayed: list[Replayed]) -> list[str]:
    counts = Counter(one.verdict.value for one in replayed)
    others = [one for one in replayed if one.verdict is not ReplayVerdict.IDENTICAL]
    lines = [f"{len(replayed)} episodes: " + ", ".join(f"{count} {name}" for name, count in counts.most_common())]
    lines += [f"  {one.id}: {one.verdict.value}: {one.message}" for one in others[:_SHOWN]]
    if len(others) > _SHOWN:
        lines.append(f"  and {len(others) - _SHOWN} more")
    return lines


def _json(one: Replayed) -> str:
    return json.dumps({"episode": one.id, "verdict": one.verdict.value, "event": one.event, "message": one.message})


def _function(place: str) -> Callable[..., Any]:
    """Return the function that `module:name` names; modules of the working directory are found."""
    module, colon, name = place.partition(":")
    if not colon:
        raise ConfigurationError(f"--agent is MODULE:FUNCTION, such as my_agent:build, not {place!r}")
    sys.path.insert(0, "")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"cannot import {module!r}: {error}") from error
    function = getattr(found, name, None)
    if not callable(function):
        raise ConfigurationError(f"{module} has no function {name!r}")
    chosen: Callable[..., Any] = function
    return chosen
