"""Branches as JSON lines: `write_jsonl`, `read_jsonl`. For trainers and scripts of one's own, in any language.

A line has the fields of `Trajectory.to_dict` and those of a `Branch`: it is what `strands-sglang verify --exported`
holds against the ledger.

Invariant: what is read is what was written, logprobs bit by bit; a file is there whole or not at all; one line is in
memory at a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from strands_sglang.errors import RecordError
from strands_sglang.rollout.episode import Episode
from strands_sglang.tokens import Trajectory
from strands_sglang.trainers.branch import Branch, Source, branches_of
from strands_sglang.trainers.row import Branches

_FIELDS = ("episode", "task_id", "sample", "reward", "ended", "main", "parts", "agent")


def write_jsonl(
    source: Source,
    path: Path | str,
    *,
    branches: Branches = Branches.ALL,
    keep: Callable[[Episode], bool] | None = None,
) -> int:
    """Write a line for each branch, in the place of a file that may be there.

    Args:
        source: A run, any episodes, a ledger, or the directory of a run.
        path: The file; it is there whole, or not at all.
        branches: Which branches of each episode.
        keep: Which episodes to take; None: all.

    Returns:
        The number of lines.
    """
    target = Path(path)
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    lines = 0
    try:
        with fresh.open("wb") as file:
            for branch in branches_of(source, branches=branches, keep=keep):
                file.write(orjson.dumps(_plain(branch), option=orjson.OPT_APPEND_NEWLINE))
                lines += 1
        fresh.replace(target)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise
    return lines


def read_jsonl(path: Path | str) -> Iterator[Branch]:
    """Read what `write_jsonl` wrote, a line at a time.

    Raises:
        RecordError: A line that is not a branch, or does not fit together; it names the file and the line.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                branch = _branch(orjson.loads(line))
            except (orjson.JSONDecodeError, KeyError, TypeError, RecordError) as error:
                raise RecordError(f"{path}, line {number}: {error}") from error
            yield branch


def _plain(branch: Branch) -> dict[str, Any]:
    return {**{name: getattr(branch, name) for name in _FIELDS}, **branch.trajectory.to_dict()}


def _branch(line: dict[str, Any]) -> Branch:
    trajectory = Trajectory.from_dict(line)
    known: dict[str, Any] = {name: line[name] for name in _FIELDS if name != "agent"}
    known["agent"] = line.get("agent")  # older files have none
    if not isinstance(known["main"], bool) or not isinstance(known["reward"], (int, float, type(None))):
        raise RecordError(f"not a branch: main is {known['main']!r:.50}, reward {known['reward']!r:.50}")
    return Branch(trajectory, **known)
