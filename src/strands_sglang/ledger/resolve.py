"""From the events of an episode, as they are found in any number of files, to its record: `resolved`.

Invariant: an event is believed only where its digest follows from an event that is believed; of chains that compete
the one of the highest epoch wins, then the longest, then the one of the lowest digest: whoever reads the same files
comes to the same record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import Event, EventKind, decoded, first_link, link
from strands_sglang.ledger.record import ChainFault, ChainProblem, EpisodeRecord


class Placed(NamedTuple):
    """An encoded event, and where it was found."""

    data: bytes
    """The event as it was written."""
    shard: str
    """Name of the file."""
    byte: int
    """Where in the file the block begins that holds it."""


@dataclass(slots=True, eq=False)
class _Node:
    """An event that can be read."""

    event: Event
    body: bytes
    place: Placed
    before: _Node | None = None  # the event it follows from
    follows: bool = False  # whether it follows from that one, or is the first
    believed: bool = False  # whether that goes on to the first event

    def problem(self, kind: ChainFault, message: str) -> ChainProblem:
        return ChainProblem(kind, self.event.episode, self.event.number, self.place.shard, self.place.byte, message)

    @property
    def takes_over(self) -> bool:
        """Whether it is the first event of an epoch."""
        return self.event.kind is EventKind.RESUME or self.event.number == 0


def resolved(id: str, places: Iterable[Placed]) -> EpisodeRecord:
    """Return the record of an episode.

    Args:
        id: Of the episode.
        places: All its events, those of a file in the order of the file.
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
    left_behind, others = _off_chain(nodes, chain)
    problems += _broken(others, by_number)
    problems.sort(key=lambda problem: (problem.shard, problem.byte, problem.number or 0))
    return EpisodeRecord(id, tuple(node.event for node in chain), problems, len(left_behind), epoch)


def _read(id: str, places: Iterable[Placed], problems: list[ChainProblem]) -> Iterator[_Node]:
    """Read the events; say which cannot be read, come twice or not in their order."""
    seen: dict[bytes, Placed] = {}
    last: dict[tuple[str, int], int] = {}
    for place in places:
        try:
            event, body, end = decoded(place.data)
            if end != len(place.data) or (event.episode, type(event.data)) != (id, dict):
                raise LedgerError("not an event: it is of another episode, or has no data")
            if not (type(event.epoch) is type(event.number) is int and min(event.epoch, event.number) >= 0):
                raise LedgerError(f"not an event: epoch {event.epoch!r:.50}, number {event.number!r:.50}")
        except LedgerError as error:
            problems.append(ChainProblem(ChainFault.UNREADABLE, id, None, place.shard, place.byte, str(error)))
            continue
        node = _Node(event, body, place)
        first = seen.setdefault(place.data, place)
        if first is not place:
            message = f"the same event is there before, in {first.shard}, block at byte {first.byte}"
            problems.append(node.problem(ChainFault.DUPLICATE, message))
            continue
        before = last.get((place.shard, event.epoch), -1)
        if event.number < before:
            problems.append(node.problem(ChainFault.ORDER, f"it stands behind event {before}"))
        last[place.shard, event.epoch] = max(before, event.number)
        yield node


def _join(node: _Node, candidates: Iterable[_Node]) -> None:
    """Find the event that another follows from."""
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
    named = (event.data.get("from"), event.data.get("head"))
    return event.epoch > before.event.epoch and named == (before.event.number, before.event.digest.hex())


def _chain(tip: _Node) -> list[_Node]:
    chain, node = [], tip
    while True:
        chain.append(node)
        if node.before is None:
            return chain[::-1]
        node = node.before


def _off_chain(nodes: list[_Node], chain: list[_Node]) -> tuple[list[_Node], list[_Node]]:
    """Return the events of processes that lost the episode to another, and those that have no such excuse."""
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
    """Say why events do not count; those that only stand behind such an event are not named again."""
    nodes = list(nodes)
    named = {id(node) for node in nodes}
    for node in nodes:
        event, before = node.event, node.before
        if not node.follows:
            behind = sum(1 for other in nodes if other.event.number > event.number)
            rest = f"; with it {behind} later events do not count" if behind else ""
            if event.number and event.number - 1 not in by_number:
                yield node.problem(ChainFault.MISSING, f"event {event.number - 1} is not there{rest}")
            else:
                yield node.problem(ChainFault.BROKEN, f"its digest does not follow from the event before it{rest}")
        elif before is not None and id(before) in named:
            continue
        elif node.believed:
            yield node.problem(ChainFault.CONFLICT, f"another event {event.number} of epoch {event.epoch} counts")
        else:
            yield node.problem(ChainFault.TAKEOVER, "it changes the epoch, but takes nothing over from the one before")
