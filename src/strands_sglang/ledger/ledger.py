"""A run's ledger, read back: `Ledger`.

Files are read twice: once to see which events there are, and again to hand out each episode as soon as all its events
were read. Memory holds the episodes that are not complete yet, and a few numbers for each of the others.

Invariant: it is the ledger as it was when it was first asked: what is written meanwhile is not seen. Whatever is wrong
with files or events is a value; reading does not raise for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import episode_of
from strands_sglang.ledger.record import ChainFault, ChainProblem, EpisodeRecord
from strands_sglang.ledger.resolve import Placed, resolved
from strands_sglang.ledger.run_file import read_run
from strands_sglang.ledger.shard import ShardReader, ShardState, shard_paths


@dataclass(slots=True)
class _Episode:
    """Where the events of an episode are."""

    events: int = 0
    sections: dict[tuple[int, int], None] = field(default_factory=dict)  # shard and first byte, in order


class Ledger:
    """The episodes of a run, from its directory."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        """Of the run."""
        self._states: list[ShardState] = []
        self._problems: list[ChainProblem] = []

    @property
    def run(self) -> dict[str, Any]:
        """What run.json says.

        Raises:
            LedgerError: There is none, or it cannot be read.
        """
        run = read_run(self.directory)
        if run is None:
            raise LedgerError(f"no run has begun in {self.directory}: there is no run.json")
        return run

    @property
    def files(self) -> list[ShardState]:
        """The shards, by name, and what became of each."""
        _ = self._index
        return list(self._states)

    @property
    def problems(self) -> list[ChainProblem]:
        """Events of which not even the episode can be told."""
        _ = self._index
        return list(self._problems)

    def ids(self) -> list[str]:
        """Return the ids of all episodes, by their first event."""
        return list(self._index)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._index)

    def __contains__(self, id: object) -> bool:
        return id in self._index

    def episodes(self) -> Iterator[EpisodeRecord]:
        """Read all episodes, each as soon as it is complete."""
        left = {id: episode.events for id, episode in self._index.items()}
        held: dict[str, list[Placed]] = {}
        for state in self._states:
            for id, place in self._events(ShardReader(state.path, stop=state.bytes)):
                held.setdefault(id, []).append(place)
                left[id] = left.get(id, 0) - 1
                if left[id] == 0:
                    yield resolved(id, held.pop(id))
        for id, places in held.items():  # files were changed since they were first read
            yield resolved(id, places)

    def episode(self, id: str) -> EpisodeRecord:
        """Read one episode, without reading all files again.

        Raises:
            LedgerError: There is none of this id.
        """
        if id not in self._index:
            raise LedgerError(f"the ledger in {self.directory} has no episode {id!r}")
        places = []
        for shard, section in self._index[id].sections:
            state = self._states[shard]
            reader = ShardReader(state.path, start=section, stop=state.bytes)
            places += [place for other, place in self._events(reader) if other == id]
        return resolved(id, places)

    @cached_property
    def _index(self) -> dict[str, _Episode]:
        index: dict[str, _Episode] = {}
        for path in shard_paths(self.directory):
            reader = ShardReader(path)
            for block in reader:
                for event in block.events:
                    try:
                        episode = index.setdefault(episode_of(event), _Episode())
                    except LedgerError as error:
                        problem = ChainProblem(ChainFault.UNREADABLE, "", None, path.name, block.at, str(error))
                        self._problems.append(problem)
                        continue
                    episode.events += 1
                    episode.sections[len(self._states), block.section] = None
            self._states.append(reader.state)
        return index

    def _events(self, reader: ShardReader) -> Iterator[tuple[str, Placed]]:
        name = reader.path.name
        for block in reader:
            for event in block.events:
                try:
                    yield episode_of(event), Placed(event, name, block.at)
                except LedgerError:
                    continue  # told in `problems`
