"""The table of a run, kept up to date while the run is being written: `RunIndex`.

A background thread reads the ledger: it computes the row of each episode, notes where its events are, and follows files
that grow. Rows appear as they are computed, thousands a second.

Invariants: nothing is written. Every row is computed from the events of its episode, as in `run_rows`. Every change of
a row increases `version`, so a page that knows a version asks only for what changed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import episode_of
from strands_sglang.ledger.reader import Placed, resolved
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.run_dir import shard_paths
from strands_sglang.ledger.shard import Block, ShardReader
from strands_sglang.ledger.summary import SummaryBuilder, SummaryRow, row_line

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # seconds between two looks at the files of a run
_FIRST_SECONDS = 0.5  # how long the first table waits until the ledger was read
_PUBLISH_SECONDS = 0.25  # how often rows that are computed in a long pass appear
_KEPT_SECONDS = 5.0  # how long the events of an episode are kept: the page asks for them three times


@dataclass(slots=True)
class _Entry:
    builder: SummaryBuilder
    sections: dict[tuple[str, int], None] = field(default_factory=dict)  # shard name and section offset, in order


@dataclass(slots=True)
class _Follower:
    path: Path
    section: int = 0
    last: int = -1  # offset of the last block that was read
    size: int = -1

    def new_blocks(self) -> Iterator[Block]:
        size = self.path.stat().st_size
        if size == self.size:
            return
        while True:
            reader = ShardReader(self.path, start=self.section)
            for block in reader:
                if block.at > self.last:
                    self.last = block.at
                    yield block
            if reader.section == self.section or self.section == 0:
                self.section = reader.section
                break
            self.section = reader.section  # another section begins: read on
        self.size = size


class RunIndex:
    """Rows and locations of the episodes of a run. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        """Prepare; the ledger is read after `start`."""
        self.directory = directory
        self.complete = threading.Event()  # set once the whole ledger was read once
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._rows: dict[str, bytes] = {}  # as JSON, which takes a fraction of the memory
        self._changes: list[str] = []  # ids of changed rows; the version is its length
        self._entries: dict[str, _Entry] = {}
        self._followers: dict[str, _Follower] = {}
        self._touched: dict[str, None] = {}  # ids whose rows are due, in the order of their events
        self._held: dict[str, list[Placed]] = {}  # events of the episodes that `hold` has read
        self._last: tuple[tuple[str, int], float, list[Placed]] | None = None  # id and events, until when, the events

    # --- what the page asks for ---------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Number of changes of rows so far."""
        return len(self._changes)

    @property
    def events(self) -> int:
        """Number of events that were read from the ledger so far."""
        return sum(entry.builder.count for entry in list(self._entries.values()))

    def rows_since(self, version: int) -> tuple[int, list[bytes]]:
        """Return the current version, and the rows changed since as JSON. The first table waits for a small run."""
        if version == 0 and self._thread is not None:
            self.complete.wait(_FIRST_SECONDS)
        with self._lock:
            now = len(self._changes)
            changed = dict.fromkeys(self._changes[version:] if 0 <= version <= now else self._rows)
            rows = [self._rows[id] for id in changed]
        return now, rows

    def row(self, id: str) -> SummaryRow | None:
        """Return the row of an episode; None if it is unknown."""
        with self._lock:
            line = self._rows.get(id)
        return None if line is None else _row(line)

    def rows(self) -> list[SummaryRow]:
        """Return the rows of all known episodes."""
        with self._lock:
            lines = list(self._rows.values())
        return [_row(line) for line in lines]

    def ids(self) -> list[str]:
        """Return the ids of all known episodes."""
        with self._lock:
            return list(self._rows)

    def places(self, id: str, timeout: float = 60.0) -> list[Placed]:
        """Return the encoded events of an episode; waits until they were found, or the ledger was read once.

        Events that were read in the last seconds are returned again, unless there are more by now. `timeout`: seconds.
        LedgerError if the ledger has no such episode.
        """
        if id in self._held:
            return self._held[id]
        until = time.monotonic() + timeout
        while not (self.complete.wait(0.02) or self._found(id) or time.monotonic() > until):
            pass
        with self._lock:
            entry = self._entries.get(id)
            sections = [] if entry is None else list(entry.sections)
            key = (id, 0 if entry is None else entry.builder.count)
            if self._last is not None and self._last[0] == key and time.monotonic() < self._last[1]:
                return self._last[2]
        if not sections:
            raise LedgerError(f"the ledger in {self.directory} has no episode {id!r}")
        places = list(self._places(id, sections))
        self._last = (key, time.monotonic() + _KEPT_SECONDS, places)
        return places

    def hold(self, ids: Iterable[str]) -> None:
        """Read the events of many episodes in one pass and keep them: one at a time, each would read its section."""
        wanted: dict[str, list[Placed]] = {id: [] for id in ids if id in self._entries}
        sections = dict.fromkeys(section for id in wanted for section in self._entries[id].sections)
        for id, place in self._events(sections):
            if id in wanted:
                wanted[id].append(place)
        self._held = wanted

    def _found(self, id: str) -> bool:
        """Return whether the end of the episode was read."""
        row = self.row(id)
        return row is not None and row["end_reason"] is not None

    def record(self, id: str) -> EpisodeRecord:
        """Return the record of an episode, from its events (see `places`); LedgerError if there is none."""
        return resolved(id, self.places(id))

    # --- the background thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start reading the ledger in a background thread."""
        self._thread = threading.Thread(target=self._run, name="viewer-index", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the background thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def refresh(self) -> None:
        """Read everything that is new on disk, in this thread."""
        published = time.monotonic()
        for path in shard_paths(self.directory):
            follower = self._followers.setdefault(path.name, _Follower(path))
            with suppress(FileNotFoundError):
                for block in follower.new_blocks():
                    for raw in block.events:
                        self._add(raw, path.name, block.section)
                    if self._stop.is_set():
                        return
                    if time.monotonic() - published > _PUBLISH_SECONDS:
                        self._publish()
                        published = time.monotonic()
        self._publish()
        self.complete.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.refresh()
            except Exception:  # the page keeps what it has; the next pass tries again
                logger.exception("directory=<%s> | ledger cannot be read", self.directory)
                self.complete.set()
            self._stop.wait(POLL_SECONDS)

    def _add(self, raw: bytes, shard: str, section: int) -> None:
        try:
            id = episode_of(raw)
        except LedgerError:
            return  # reported by `verify`
        entry = self._entries.get(id)
        with self._lock:
            if entry is None:
                entry = self._entries[id] = _Entry(SummaryBuilder(id))
            entry.sections[shard, section] = None
        self._touched[id] = None
        entry.builder.add_encoded(raw)

    def _publish(self) -> None:
        """Make the rows of episodes that were read public."""
        for id in self._touched:
            entry = self._entries[id]
            if entry.builder.outdated:
                entry.builder = self._rebuilt(id, entry)
            line = row_line(entry.builder.row()).rstrip()
            with self._lock:
                if self._rows.get(id) != line:
                    self._rows[id] = line
                    self._changes.append(id)
        self._touched.clear()

    def _rebuilt(self, id: str, entry: _Entry) -> SummaryBuilder:
        """Return a builder with the events that were read; those written since then are added when they are read."""
        builder = SummaryBuilder(id, keep=True)
        for place in self._places(id, list(entry.sections)):
            if place.byte <= self._followers[place.shard].last:
                builder.add_encoded(place.data)
        return builder

    def _places(self, id: str, sections: list[tuple[str, int]]) -> Iterator[Placed]:
        return (place for found, place in self._events(sections) if found == id)

    def _events(self, sections: Iterable[tuple[str, int]]) -> Iterator[tuple[str, Placed]]:
        for shard, section in sections:
            path = self.directory / "ledger" / shard
            for block in ShardReader(path, start=section):
                for raw in block.events:
                    with suppress(LedgerError):
                        yield episode_of(raw), Placed(raw, shard, block.at)


def _row(line: bytes) -> SummaryRow:
    row: SummaryRow = orjson.loads(line)
    return row
