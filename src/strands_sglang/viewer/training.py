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
from strands_sglang.ledger.figures import Figures, by_version, evaluation_apart, version_number, version_order
from strands_sglang.ledger.folder import EVALUATION, RunPlace, find_runs, last_steps, newest_attempts
from strands_sglang.ledger.run_dir import read_run
from strands_sglang.ledger.summary import SummaryRow
from strands_sglang.viewer.index import RunIndex
from strands_sglang.viewer.verdict import run_state

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # seconds between two looks at the folder
_SHARE = 5  # looking takes at most one part in so many of the time
_FOLLOWED = 4  # runs of which rows are kept, to follow them
_LIVE_SECONDS = 60.0  # after its last change, a run without a seal counts as being written


@dataclass(slots=True)
class Part:
    """What one curve shows of a run: its training, or the evaluations within it."""

    name: str
    """That of the run, for evaluations with `EVALUATION` after it."""
    place: RunPlace
    """That of the run; `training` is the one of the curve."""
    figures: Figures | None = None  # None: it was not read yet
    versions: dict[str, Figures] = field(default_factory=dict)
    created: float = 0.0


@dataclass(slots=True)
class KnownRun:
    """A run and what was read of it."""

    place: RunPlace
    parts: list[Part]
    """Its training, or all of it; then the evaluations within it, if there are some."""
    state: list[list[Any]] = field(default_factory=list)  # of the files that were read
    about: dict[str, Any] = field(default_factory=dict)
    figures: Figures | None = None  # of all episodes; None: it was not read yet
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
            **{"live": self.live, "changed": self.changed, "error": self.error, "evaluated": len(self.parts) > 1},
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

    def chosen(self, name: str, last: int | None = None) -> list[Part]:
        """Return a run, or the steps of a training: its `last` ones, None: all. LedgerError for an unknown name."""
        known = [part for one in self.runs() for part in one.parts]
        found = [one for one in known if one.name == name]
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
        series: dict[str, list[Part]] = {}
        for part in (part for one in self.runs() for part in one.parts):
            # By weights, a run that is no step is a training of its own.
            alone = by == "weights" and part.place.step is None
            series.setdefault(part.name if alone else part.place.training, []).append(part)
        points = {name: _by_weights(parts) if by == "weights" else _by_step(parts) for name, parts in series.items()}
        return {name: found for name, found in points.items() if found}

    def usual_curves(self) -> str:
        """Return what curves run over unless one chooses: weights, if no run is a step and one has several versions."""
        runs = self.runs()
        steps = any(one.place.step is not None for one in runs)
        grows = any(len(part.versions) > 1 for one in runs for part in one.parts)
        return "weights" if grows and not steps else "step"

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
            self._runs = {
                name: self._runs.get(name) or KnownRun(place, [Part(name, place)]) for name, place in found.items()
            }
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
        figures, parts = Figures(), [Part(name, known.place, Figures())]
        try:
            created = as_dict(read_run(path)).get("created")
            about["created"] = created if type(created) in (int, float) else None
            index.refresh()
            figures, parts = _figures(known.place, index.rows(), about["created"] or 0.0)
        except (OSError, LedgerError) as problem:
            error = str(problem)
        except Exception as problem:  # whatever is wrong with a run, the others are read
            logger.exception("run=<%s> | the run cannot be read", path)
            error = f"{type(problem).__name__}: {problem}"
        with self._lock:
            known.state, known.about, known.error = state, about, error
            known.figures, known.parts = figures, parts
            self.version += 1


def _figures(place: RunPlace, rows: list[SummaryRow], created: float) -> tuple[Figures, list[Part]]:
    """Return the figures of all rows of a run, and its parts."""
    name, whole = place.name, Figures.of(place.name, rows)
    trained, evaluated = evaluation_apart(rows)
    if not evaluated:
        return whole, [Part(name, place, whole, by_version(name, rows), created)]
    apart = place._replace(training=place.training + EVALUATION)
    return whole, [
        Part(name, place, Figures.of(name, trained), by_version(name, trained), created),
        Part(name + EVALUATION, apart, Figures.of(name, evaluated), by_version(name, evaluated), created),
    ]


def _newest(parts: Iterable[Part]) -> list[Part]:
    found = {one.place: one for one in parts}
    return [found[place] for place in newest_attempts(found)]


def _point(x: float, label: str, runs: list[str], figures: Figures) -> dict[str, Any]:
    return {"x": x, "label": label, "runs": runs, **figures.to_dict()}


def _by_step(parts: list[Part]) -> list[dict[str, Any]]:
    """Return a point for each step, of all its ranks together; for runs that are no steps, in order of their begin."""
    steps: dict[int, list[Part]] = {}
    loose = []
    for one in _newest(one for one in parts if one.figures is not None and one.figures.episodes):
        if one.place.step is None:
            loose.append(one)
        else:
            steps.setdefault(one.place.step, []).append(one)
    points = []
    for step, same in sorted(steps.items()):
        figures = Figures.merged(part.figures for part in same if part.figures is not None)
        points.append(_point(step, f"step {step}", [part.place.name for part in same], figures))
    loose.sort(key=lambda one: (one.created, natural_key(one.name)))
    for number, one in enumerate(loose):
        if one.figures is not None:
            points.append(_point(number, one.place.name, [one.place.name], one.figures))
    return points


def _by_weights(parts: list[Part]) -> list[dict[str, Any]]:
    """Return a point for each weight version, at its number if the names have numbers that grow."""
    versions: dict[str, list[tuple[str, Figures]]] = {}
    for one in _newest(parts):
        for version, figures in one.versions.items():
            versions.setdefault(version, []).append((one.place.name, figures))
    ordered = sorted(versions.items(), key=lambda item: version_order(item[0]))
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
