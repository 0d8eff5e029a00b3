"""Reading a ledger: `Ledger` reads the shards of a run, `resolved` builds the record of an episode from its events.

`Ledger` reads the files twice: first to index the events, then to yield each episode as soon as all its events have
been read (`grouping.py`). Memory holds the episodes that are not complete yet, and a few numbers for each of the
others.

Invariants: a `Ledger` is a snapshot from its first use; events that are written later are not in it. Damaged files and
events are reported as values and do not raise. An event is accepted only if its digest links to an accepted event. Of
competing chains, the one with the highest epoch wins, then the longest, then the one with the lowest digest, so every
reader of the same files gets the same record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import LARGEST_EPISODE, decoded, decoded_size, episode_of, first_link, link
from strands_sglang.ledger.event import Event, EventKind, ResumeData, data_of
from strands_sglang.ledger.files import FileStore
from strands_sglang.ledger.grouping import TOO_LARGE, complete_episodes
from strands_sglang.ledger.record import ChainFault, ChainProblem, EpisodeRecord
from strands_sglang.ledger.run_dir import check_format, read_run, shard_paths
from strands_sglang.ledger.shard import ShardReader, ShardState


@dataclass(slots=True)
class _Episode:
    """Index entry of an episode."""

    events: int = 0
    sections: dict[tuple[int, int], None] = field(default_factory=dict)  # shard index and section offset, in order


class Ledger:
    """The episodes of a run, read from its directory."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self._states: list[ShardState] = []
        self._problems: list[ChainProblem] = []

    @property
    def run(self) -> dict[str, Any]:
        """The content of run.json.

        Raises:
            LedgerError: The file does not exist, or cannot be read.
        """
        run = read_run(self.directory)
        if run is None:
            raise LedgerError(f"{self.directory} must be the directory of a run, but has no run.json")
        return run

    @property
    def files(self) -> list[ShardState]:
        """The condition of every shard, sorted by name."""
        _ = self._index
        return list(self._states)

    @property
    def problems(self) -> list[ChainProblem]:
        """Events whose episode cannot be determined."""
        _ = self._index
        return list(self._problems)

    def ids(self) -> list[str]:
        """Return the ids of all episodes, ordered by their first event."""
        return list(self._index)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._index)

    def __contains__(self, id: object) -> bool:
        return id in self._index

    def episodes(self) -> Iterator[EpisodeRecord]:
        """Yield all episodes, each as soon as all its events have been read."""

        def read() -> Iterator[tuple[str, bytes, Placed]]:
            for state in self._states:
                for id, place in self._events(ShardReader(state.path, stop=state.bytes)):
                    yield id, place.data, place

        for episode in complete_episodes(read, {id: one.events for id, one in self._index.items()}):
            if episode.too_large:
                problem = ChainProblem(ChainFault.UNREADABLE, episode.id, None, "", 0, TOO_LARGE)
                yield EpisodeRecord(episode.id, (), [problem], files=FileStore(self.directory))
            else:
                yield self._resolved(episode.id, episode.events)

    def episode(self, id: str) -> EpisodeRecord:
        """Read one episode. Only the sections that hold its events are read again.

        Raises:
            LedgerError: The ledger has no episode with this id.
        """
        if id not in self._index:
            raise LedgerError(f"the ledger in {self.directory} has no episode {id!r}")
        return self._resolved(id, (place for _, place in self.events([id])))

    def _resolved(self, id: str, places: Iterable[Placed]) -> EpisodeRecord:
        record = resolved(id, places)
        record.files = FileStore(self.directory)
        return record

    def events(self, ids: Collection[str]) -> Iterator[tuple[str, Placed]]:
        """Yield the encoded events of some episodes. Only the sections that hold them are read.

        Args:
            ids: Ids of the episodes; those that the ledger does not have are left out.

        Yields:
            The id of the episode and the event; events of one shard in the order of the shard.
        """
        wanted = set(ids) & self._index.keys()
        for shard, section in sorted({place for id in wanted for place in self._index[id].sections}):
            state = self._states[shard]
            reader = ShardReader(state.path, start=section, stop=state.bytes)
            yield from (found for found in self._events(reader) if found[0] in wanted)

    def read_through(self) -> Iterator[tuple[str, Placed]]:
        """Yield all encoded events while the ledger is read for the first time; a second call is an error.

        Yields:
            The id of the episode and the event, in the order of the shards.
        """
        assert "_index" not in self.__dict__
        check_format(self.directory)
        index: dict[str, _Episode] = {}
        for path in shard_paths(self.directory):
            reader = ShardReader(path)
            for block in reader:
                for event in block.events:
                    try:
                        id = episode_of(event)
                    except LedgerError as error:
                        problem = ChainProblem(ChainFault.UNREADABLE, "", None, path.name, block.at, str(error))
                        self._problems.append(problem)
                        continue
                    episode = index.setdefault(id, _Episode())
                    episode.events += 1
                    episode.sections[len(self._states), block.section] = None
                    yield id, Placed(event, path.name, block.at)
            self._states.append(reader.state)
        self._index = index

    @cached_property
    def _index(self) -> dict[str, _Episode]:
        for _ in self.read_through():
            pass
        found: dict[str, _Episode] = self.__dict__["_index"]
        return found

    def _events(self, reader: ShardReader) -> Iterator[tuple[str, Placed]]:
        name = reader.path.name
        for block in reader:
            for event in block.events:
                try:
                    yield episode_of(event), Placed(event, name, block.at)
                except LedgerError:
                    continue  # reported in `problems`


class Placed(NamedTuple):
    """An encoded event and its location."""

    data: bytes
    shard: str
    byte: int
    """Offset in the shard of the block that holds it, in bytes."""


@dataclass(slots=True, eq=False)
class _Node:
    """A decoded event and its link to the previous event."""

    event: Event
    body: bytes
    place: Placed
    before: _Node | None = None  # the event that its digest links to
    follows: bool = False  # whether its digest links to an event, or it is a valid first event
    believed: bool = False  # whether the links lead to a valid first event

    def problem(self, kind: ChainFault, message: str) -> ChainProblem:
        return ChainProblem(kind, self.event.episode, self.event.number, self.place.shard, self.place.byte, message)

    @property
    def takes_over(self) -> bool:
        """Whether it is the first event of an epoch."""
        return self.event.kind is EventKind.RESUME or self.event.number == 0


def resolved(id: str, places: Iterable[Placed]) -> EpisodeRecord:
    """Return the record of an episode.

    Args:
        id: Id of the episode.
        places: All its events; those of one shard in the order of the shard.
    """
    problems: list[ChainProblem] = []
    nodes = list(_read(id, places, problems))
    by_number: dict[int, list[_Node]] = {}
    for node in nodes:
        by_number.setdefault(node.event.number, []).append(node)
    for number in sorted(by_number):
        for node in by_number[number]:
            _join(node, by_number.get(number - 1, ()))
    believed = [node for node in nodes if node.believed]
    epoch = max((node.event.epoch for node in nodes), default=0)
    if not believed:
        problems += _broken(nodes, by_number)
        return EpisodeRecord(id, (), problems, 0, epoch)
    tip = min(believed, key=lambda node: (-node.event.epoch, -node.event.number, node.event.digest))
    chain = _chain(tip)
    orphans, others = _off_chain(nodes, chain)
    problems += _broken(others, by_number)
    problems.sort(key=lambda problem: (problem.shard, problem.byte, problem.number or 0))
    return EpisodeRecord(id, tuple(node.event for node in chain), problems, len(orphans), epoch)


def _read(id: str, places: Iterable[Placed], problems: list[ChainProblem]) -> Iterator[_Node]:
    """Decode the events; report those that are unreadable, duplicated or out of order."""
    seen: dict[bytes, Placed] = {}
    last: dict[tuple[str, int], int] = {}
    size = 0
    for place in places:
        size += decoded_size(place.data)
        if size > LARGEST_EPISODE:
            problems.append(ChainProblem(ChainFault.UNREADABLE, id, None, place.shard, place.byte, TOO_LARGE))
            return
        try:
            event, body, end = decoded(place.data)
            if end != len(place.data) or (event.episode, type(event.data)) != (id, dict):
                raise LedgerError("not an event: it belongs to another episode, or its data is not an object")
            if not (type(event.epoch) is type(event.number) is int and min(event.epoch, event.number) >= 0):
                raise LedgerError(f"not an event: its epoch is {event.epoch!r:.50} and its number {event.number!r:.50}")
        except LedgerError as error:
            problems.append(ChainProblem(ChainFault.UNREADABLE, id, None, place.shard, place.byte, str(error)))
            continue
        node = _Node(event, body, place)
        first = seen.setdefault(place.data, place)
        if first is not place:
            message = f"it is a copy of an event in {first.shard}, block at byte {first.byte}"
            problems.append(node.problem(ChainFault.DUPLICATE, message))
            continue
        before = last.get((place.shard, event.epoch), -1)
        if event.number < before:
            problems.append(node.problem(ChainFault.ORDER, f"it comes after event {before}"))
        last[place.shard, event.epoch] = max(before, event.number)
        yield node


def _join(node: _Node, candidates: Iterable[_Node]) -> None:
    """Find the event that a node links to."""
    event = node.event
    if event.number == 0:
        node.follows = node.believed = link(first_link(event.episode), node.body) == event.digest
        return
    for before in candidates:
        if link(before.event.digest, node.body) == event.digest:
            node.before, node.follows = before, True
            node.believed = before.believed and _epochs_fit(node, before)
            return


def _epochs_fit(node: _Node, before: _Node) -> bool:
    event = node.event
    if event.kind is not EventKind.RESUME:
        return event.epoch == before.event.epoch
    resume = data_of(event, ResumeData)
    named = (resume.get("from_event"), resume.get("head"))
    return event.epoch > before.event.epoch and named == (before.event.number, before.event.digest.hex())


def _chain(tip: _Node) -> list[_Node]:
    chain = [tip]
    while (before := chain[-1].before) is not None:
        chain.append(before)
    return chain[::-1]


def _off_chain(nodes: list[_Node], chain: list[_Node]) -> tuple[list[_Node], list[_Node]]:
    """Split the events that are not on the chain: orphans of processes that lost the episode, and all others."""
    takeovers = [node.event for node in chain if node.takes_over and node.event.epoch > 0]
    on_chain = {id(node) for node in chain}
    orphans: list[_Node] = []
    others: list[_Node] = []
    for node in nodes:
        if id(node) in on_chain:
            continue
        taken = any(later.epoch > node.event.epoch and later.number <= node.event.number for later in takeovers)
        competed = False
        at: _Node | None = node
        while not taken and node.believed and at is not None and id(at) not in on_chain:
            competed, at = competed or at.event.kind is EventKind.RESUME, at.before
        (orphans if taken or competed else others).append(node)
    return orphans, others


def _broken(nodes: Iterable[_Node], by_number: dict[int, list[_Node]]) -> Iterator[ChainProblem]:
    """Report why events were not accepted; events that only follow such an event are not reported again."""
    nodes = list(nodes)
    named, numbers = {id(node) for node in nodes}, sorted(node.event.number for node in nodes)
    for node in nodes:
        event, before = node.event, node.before
        if not node.follows:
            later = len(numbers) - bisect_right(numbers, event.number)
            rest = f"; {later} later events are not accepted either" if later else ""
            if event.number and event.number - 1 not in by_number:
                yield node.problem(ChainFault.MISSING, f"event {event.number - 1} is missing{rest}")
            else:
                yield node.problem(ChainFault.BROKEN, f"its digest does not match the previous event{rest}")
        elif before is not None and id(before) in named:
            continue
        elif node.believed:
            yield node.problem(ChainFault.CONFLICT, f"another event {event.number} of epoch {event.epoch} was accepted")
        else:
            yield node.problem(
                ChainFault.TAKEOVER,
                "its epoch differs from that of the previous event, but it is not a takeover from it",
            )
