"""The figures of every run in a folder, kept up to date while runs are written: `TrainingIndex`.

A background thread reads the runs one after the other: first the newest, then ones spread over the whole training, so
that a curve has its shape early. Runs that grow are followed, each from where it was read to.

Invariants: nothing is written. Figures are computed from summary rows only, which come from the ledger; messages and
tokens of an episode are never kept. They are computed again when name, size or modification time of a file changed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strands_sglang._json import as_dict
from strands_sglang._terminal import natural_key
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.figures import Figures, by_version, version_number
from strands_sglang.ledger.folder import RunPlace, find_runs, last_steps, newest_attempts
from strands_sglang.ledger.run_dir import read_run
from strands_sglang.viewer.index import RunIndex
from strands_sglang.viewer.verdict import run_state

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # seconds between two looks at the folder
_SHARE = 5  # looking takes at most one part in so many of the time
_FOLLOWED = 4  # runs of which rows are kept, to follow them
_LIVE_SECONDS = 60.0  # after its last change, a run without a seal counts as being written


@dataclass(slots=True)
class KnownRun:
    """A run and what was read of it."""

    place: RunPlace
    state: list[list[Any]] = field(default_factory=list)  # of the files that were read
    about: dict[str, Any] = field(default_factory=dict)
    figures: Figures | None = None  # None: it was not read yet
    versions: dict[str, Figures] = field(default_factory=dict)
    error: str = ""

    @property
    def changed(self) -> int:
        """When it was changed last, in nanoseconds."""
        return max((stamp for _, _, stamp in self.state), default=0)

    @property
    def live(self) -> bool:
        """Whether it is probably being written."""
        return not self.about.get("sealed") and time.time() - self.changed / 1e9 < _LIVE_SECONDS

    def to_dict(self) -> dict[str, Any]:
        """Return a line of the page's list."""
        return {
            **{"name": self.place.name, "training": self.place.training, "step": self.place.step, **self.about},
            **{"live": self.live, "changed": self.changed, "error": self.error},
            "figures": None if self.figures is None else self.figures.to_dict(),
        }


class TrainingIndex:
    """Figures of the runs in a folder. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Find the runs; they are read after `start`."""
        self.folder = folder
        self.version = 0  # grows with every change
        self.complete = threading.Event()  # set once every run was read once
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._followed: dict[str, RunIndex] = {}
        self._reading: RunIndex | None = None
        self._runs: dict[str, KnownRun] = {}
        self._look()

    # --- what the page asks for ---------------------------------------------------------------------------------------

    def place(self, name: str) -> RunPlace:
        """Return where a run is; LedgerError if the folder has none of this name."""
        with self._lock:
            known = self._runs.get(name)
        if known is None:
            raise LedgerError(f"{self.folder} has no run {name!r:.200}")
        return known.place

    def runs(self) -> list[KnownRun]:
        """Return all runs in natural order of their names."""
        with self._lock:
            return sorted(self._runs.values(), key=lambda one: natural_key(one.place.name))

    def chosen(self, name: str, last: int | None = None) -> list[KnownRun]:
        """Return a run, or the steps of a training: its `last` ones, None: all. LedgerError for an unknown name."""
        known = self.runs()
        found = [one for one in known if one.place.name == name]
        found = found or _newest(one for one in known if one.place.training == name)
        if not found:
            raise LedgerError(f"{self.folder} has no run and no training {name!r:.200}")
        kept = set(last_steps((one.place for one in found), last))
        return [one for one in found if one.place in kept]

    def figures(self, name: str, last: int | None = None) -> Figures:
        """Return the figures of a run, or of the steps of a training, as far as they were read."""
        return Figures.merged(one.figures for one in self.chosen(name, last) if one.figures is not None)

    def curves(self, by: str) -> dict[str, list[dict[str, Any]]]:
        """Return the points of each training, and of runs that are no steps (""), in order.

        `by`: "step": a point for each step, or run; "weights": a point for each weight version.
        """
        series: dict[str, list[KnownRun]] = {}
        for one in self.runs():  # by weights, a run that is no step is a training of its own
            alone = by == "weights" and one.place.step is None
            series.setdefault(one.place.name if alone else one.place.training, []).append(one)
        points = {name: _by_weights(runs) if by == "weights" else _by_step(runs) for name, runs in series.items()}
        return {name: found for name, found in points.items() if found}

    # --- the background thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start reading in a background thread."""
        self._thread = threading.Thread(target=self._run, name="viewer-training", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the background thread."""
        self._stop.set()
        if (reading := self._reading) is not None:
            reading.stop()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def refresh(self) -> None:
        """Read everything that is new on disk, in this thread."""
        self._look()
        changed = []
        for one in self.runs():
            if (state := run_state(one.place.path)) != one.state:
                changed.append((one, state))
        for one, state in _spread(changed):
            if self._stop.is_set():
                return
            self._read(one, state)
        self.complete.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self.refresh()
            except Exception:  # the page keeps what it has; the next pass tries again
                logger.exception("folder=<%s> | the runs cannot be read", self.folder)
                self.complete.set()
            self._stop.wait(max(POLL_SECONDS, _SHARE * (time.monotonic() - began)))

    def _look(self) -> None:
        """Take note of runs that are new or gone."""
        found = {place.name: place for place in find_runs(self.folder)}
        with self._lock:
            if list(found) == list(self._runs):
                return
            self._runs = {name: self._runs.get(name) or KnownRun(place) for name, place in found.items()}
            self.version += 1

    def _read(self, known: KnownRun, state: list[list[Any]]) -> None:
        name, path = known.place.name, known.place.path
        sizes = {file: size for file, size, _ in state}
        if any(sizes.get(file, -1) < size for file, size, _ in known.state if file.endswith(".ledger")):
            self._followed.pop(name, None)  # another run is in its place
        index = self._reading = self._followed.pop(name, None) or RunIndex(path)
        sealed = (path / "seal.json").exists()
        if not sealed:
            self._followed[name] = index
            while len(self._followed) > _FOLLOWED:
                del self._followed[next(iter(self._followed))]
        error = ""
        about: dict[str, Any] = {"sealed": sealed, "created": None}
        figures, versions = Figures(), dict[str, Figures]()
        try:
            created = as_dict(read_run(path)).get("created")
            about["created"] = created if type(created) in (int, float) else None
            index.refresh()
            rows = index.rows()
            figures, versions = Figures.of(name, rows), by_version(name, rows)
        except (OSError, LedgerError) as problem:
            error = str(problem)
        except Exception as problem:  # whatever is wrong with a run, the others are read
            logger.exception("run=<%s> | the run cannot be read", path)
            error = f"{type(problem).__name__}: {problem}"
        with self._lock:
            known.state, known.about, known.error = state, about, error
            known.figures, known.versions = figures, versions
            self.version += 1


def _newest(runs: Iterable[KnownRun]) -> list[KnownRun]:
    found = {one.place: one for one in runs}
    return [found[place] for place in newest_attempts(found)]


def _point(x: float, label: str, runs: list[str], figures: Figures) -> dict[str, Any]:
    return {"x": x, "label": label, "runs": runs, **figures.to_dict()}


def _by_step(runs: list[KnownRun]) -> list[dict[str, Any]]:
    """Return a point for each step, of all its ranks together; for runs that are no steps, in order of their begin."""
    steps: dict[int, list[KnownRun]] = {}
    loose = []
    for one in _newest(one for one in runs if one.figures is not None and one.figures.episodes):
        if one.place.step is None:
            loose.append(one)
        else:
            steps.setdefault(one.place.step, []).append(one)
    points = []
    for step, parts in sorted(steps.items()):
        figures = Figures.merged(part.figures for part in parts if part.figures is not None)
        points.append(_point(step, f"step {step}", [part.place.name for part in parts], figures))
    loose.sort(key=lambda one: (one.about.get("created") or 0, natural_key(one.place.name)))
    for number, one in enumerate(loose):
        if one.figures is not None:
            points.append(_point(number, one.place.name, [one.place.name], one.figures))
    return points


def _by_weights(runs: list[KnownRun]) -> list[dict[str, Any]]:
    """Return a point for each weight version, at its number if the names have numbers that grow."""
    parts: dict[str, list[tuple[str, Figures]]] = {}
    for one in _newest(runs):
        for version, figures in one.versions.items():
            parts.setdefault(version, []).append((one.place.name, figures))
    ordered = sorted(parts.items(), key=lambda item: natural_key(item[0]))
    numbers = [number for version, _ in ordered if (number := version_number(version)) is not None]
    if len(numbers) < len(ordered) or sorted(set(numbers)) != numbers:
        numbers = list(range(len(ordered)))
    return [
        _point(number, f"weights {version}", [name for name, _ in found], Figures.merged(one for _, one in found))
        for number, (version, found) in zip(numbers, ordered, strict=True)
    ]


def _spread(runs: list[Any]) -> list[Any]:
    """Return a list with its last item first, then every 64th from the end, every 32nd, and so on."""
    newest_first, seen, order = runs[::-1], set(), []
    for stride in (1 << bit for bit in range(len(runs).bit_length(), -1, -1)):
        for number in range(0, len(runs), stride):
            if number not in seen:
                seen.add(number)
                order.append(newest_first[number])
    return order


def tasks_of(figures: Figures) -> list[dict[str, Any]]:
    """Return the figures of every task as plain data, in natural order."""
    return [figures.tasks[id].to_dict() for id in sorted(figures.tasks, key=natural_key)]
