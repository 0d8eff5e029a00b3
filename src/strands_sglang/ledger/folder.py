"""Runs in a folder: `find_runs`. Folders that a trainer writes for its steps are one training.

Invariant: only names and the presence of files are looked at; nothing is read or followed outside of the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from strands_sglang._terminal import natural_key

EVALUATION = " (eval)"
"""What the name of a training's evaluations has after that of the training."""
_DEPTH = 4  # levels of folders below the given one
_STEP = re.compile(r"(?:step|rollout|iteration|iter|update)[-_]?(\d{1,12})(-eval)?(?:-rank\d+)?(?:\.(\d{1,6}))?")


class RunPlace(NamedTuple):
    """A run in a folder."""

    name: str
    """Its path below the folder, with `/`."""
    path: Path
    training: str = ""
    """The training it is a step of; "": it is a run of its own. Steps of an evaluation have a training of their own."""
    step: int | None = None
    """Number of the step."""
    attempt: int = 0
    """How many folders of this step a trainer wrote before it: after a restart it repeats steps."""


def is_run(folder: Path) -> bool:
    """Return whether a folder has run.json or a ledger."""
    return (folder / "run.json").is_file() or next((folder / "ledger").glob("*.ledger"), None) is not None


def find_runs(folder: Path | str) -> list[RunPlace]:
    """Return the runs in a folder, without those inside of runs, in natural order of their names."""
    base = Path(folder)
    found = [_place(path, base) for path in _runs(base, _DEPTH)]
    return sorted(found, key=lambda one: natural_key(one.name))


def newest_attempts(places: Iterable[RunPlace]) -> list[RunPlace]:
    """Return the runs without those that a trainer repeated after a restart."""
    newest: dict[tuple[str, str], RunPlace] = {}
    for one in sorted(places, key=lambda place: (place.step is not None, place.step or 0, place.attempt)):
        newest[(one.training, one.name if one.step is None else one.path.name.partition(".")[0])] = one
    return list(newest.values())


def last_steps(places: Iterable[RunPlace], last: int | None) -> list[RunPlace]:
    """Return the runs of the last steps of a training, and runs that are no steps; None: of all steps."""
    found = list(places)
    steps = sorted({one.step for one in found if one.step is not None})[-(last or 0) :]
    return [one for one in found if one.step is None or one.step in steps]


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # it was removed, or must not be read
        return
    for name in inner:
        if name.startswith("."):
            continue
        path = folder / name
        try:
            found = is_run(path)
        except OSError:  # it must not be read
            continue
        if found:
            yield path
        elif depth > 1:
            yield from _runs(path, depth - 1)


def _place(path: Path, base: Path) -> RunPlace:
    name = path.relative_to(base).as_posix()
    found = _STEP.fullmatch(path.name)
    if found is None:
        return RunPlace(name, path)
    training = name.rpartition("/")[0] or base.resolve().name or "training"
    step, evaluation, attempt = found.groups()
    return RunPlace(name, path, training + (EVALUATION if evaluation else ""), int(step), int(attempt or 0))
