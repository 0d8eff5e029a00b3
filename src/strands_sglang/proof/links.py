"""Which events of an episode follow each other, found out from their bytes alone: `linked`.

Nothing is believed here but digests: an event follows another when its digest is what its bytes give behind the other's
digest. Where none fits, that is a finding, and the event is taken for the next by its number, so that one change is
found once and not again at every event behind it.

Invariant: every event is on the winning chain, an orphan of a process that lost the episode, or part of a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import Event, EventKind, decoded, first_link, link
from strands_sglang.proof.finding import Finding, FindingKind


@dataclass(frozen=True, slots=True)
class Located:
    """The bytes of one event, and where they were read."""

    raw: bytes
    """What `encoded` made."""
    file: str | None = None
    """Name of the file; None: from memory."""
    byte: int | None = None
    """Where in the file the block begins that holds it; None: from memory."""


@dataclass(slots=True, eq=False)
class Entry:
    """One event at its place in the chain."""

    event: Event
    """What it says."""
    body: bytes
    """The bytes its digest covers."""
    file: str | None
    """Name of its file."""
    byte: int | None
    """Where in the file."""
    before: Entry | None = None
    """The event before it; None: it is the first, or those before it are missing."""

    def finding(self, kind: FindingKind, message: str, *, turn: int | None = None, token: int | None = None) -> Finding:
        """Return a finding about this event, or about a turn and token that it tells of."""
        return Finding(kind, message, self.event.episode, self.event.number, turn, token, self.file, self.byte)


@dataclass(slots=True)
class Links:
    """The events of one episode in their order."""

    chain: list[Entry] = field(default_factory=list)
    """The winning chain, first to last, up to the first event that is missing."""
    orphans: int = 0
    """Events of processes that lost the episode to another."""
    findings: list[Finding] = field(default_factory=list)
    """What is wrong with digests, numbers and epochs."""


def linked(located: Iterable[Located], *, files_lost: bool = False) -> Links:
    """Put the events of one episode in order.

    Args:
        located: All of them, those of a file in the order of the file.
        files_lost: Whether files, or tails of files, are known to be missing: then events that go on in another
            file behind a gap are a loss. Else only a process that took the episode over may leave a gap.
    """
    links = Links()
    by_number: dict[int, list[Entry]] = {}
    for entry in _readable(located, links.findings):
        by_number.setdefault(entry.event.number, []).append(entry)
    entries: list[Entry] = []
    faults: list[tuple[Entry, Finding]] = []
    for number in sorted(by_number):
        for entry in by_number[number]:
            fault = _join(entry, by_number, entries, files_lost)
            faults += [(entry, fault)] if fault is not None else ((entry, one) for one in _misplaced(entry))
        entries.extend(by_number[number])
    chain = _winner(entries)
    on_chain = {id(entry) for entry in chain}
    takeovers = [entry.event for entry in chain if _takes_over(entry.event)]
    excused = {id(entry) for entry, _ in faults if id(entry) not in on_chain and _excused(entry, by_number, takeovers)}
    links.findings.extend(_contested(entry for entry in entries if id(entry) not in excused))
    links.findings.extend(fault for entry, fault in faults if id(entry) not in excused)
    links.orphans = len(entries) - len(chain)
    end = next((number for number, entry in enumerate(chain) if _missing_before(entry)), len(chain))
    links.chain = chain[:end]
    return links


def _readable(located: Iterable[Located], findings: list[Finding]) -> Iterator[Entry]:
    """Read the events; note which cannot be read, come twice, or stand behind a later one of their process."""
    seen: dict[bytes, Located] = {}
    last: dict[tuple[str | None, int], int] = {}
    for one in located:
        entry = _read(one, findings)
        if entry is None:
            continue
        event, twin = entry.event, seen.setdefault(one.raw, one)
        if twin is not one:
            where = "" if twin.file is None else f": first in {twin.file} at byte {twin.byte}"
            findings.append(entry.finding(FindingKind.DUPLICATE, "the same event is written twice" + where))
            continue
        before = last.get((one.file, event.epoch), -1)
        if event.number < before:
            findings.append(entry.finding(FindingKind.ORDER, f"it stands behind event {before}, which comes later"))
        last[one.file, event.epoch] = max(before, event.number)
        yield entry


def _read(one: Located, findings: list[Finding]) -> Entry | None:
    try:
        event, body, end = decoded(one.raw)
        if end != len(one.raw):
            raise LedgerError(f"{len(one.raw) - end} bytes behind the event")
        for what, number in (("number", event.number), ("epoch", event.epoch)):
            if type(number) is not int or number < 0:
                raise LedgerError(f"its {what} is {number!r:.50}")
        if not isinstance(event.episode, str) or not isinstance(event.data, dict):
            raise LedgerError("it has no episode, or no data")
    except LedgerError as error:
        findings.append(Finding(FindingKind.FORM, f"an event that cannot be read: {error}").at(one.file, one.byte))
        return None
    return Entry(event, body, one.file, one.byte)


def _join(
    entry: Entry, by_number: Mapping[int, list[Entry]], earlier: Sequence[Entry], files_lost: bool
) -> Finding | None:
    """Find the event before `entry`; return what is wrong with that."""
    event = entry.event
    if event.number == 0:
        right = link(first_link(event.episode), entry.body) == event.digest
        return None if right else entry.finding(FindingKind.DIGEST, "its digest does not follow from its bytes")
    candidates = by_number.get(event.number - 1, [])
    for candidate in candidates:
        if link(candidate.event.digest, entry.body) == event.digest:
            entry.before = candidate
            return None
    # Nothing goes on from a process that came later: what looks like it has lost what it went on from.
    candidates = [one for one in candidates if one.event.epoch <= event.epoch]
    earlier = [one for one in earlier if one.event.epoch <= event.epoch]
    head = event.data.get("head") if event.kind is EventKind.RESUME else None
    likely = [c for c in candidates if c.event.digest.hex() == head] or [
        c for c in candidates or earlier if c.event.epoch == event.epoch
    ]
    entry.before = next(reversed(likely or candidates or earlier), None)
    if candidates:
        return entry.finding(
            FindingKind.DIGEST,
            f"its digest does not follow from its bytes behind event {event.number - 1}: either of the two, or the "
            "digest, was changed",
        )
    first = 0 if entry.before is None else entry.before.event.number + 1
    missing = f"event {first} is" if first == event.number - 1 else f"events {first} to {event.number - 1} are"
    elsewhere = entry.before is None or entry.before.file != entry.file
    if event.kind is EventKind.RESUME or (files_lost and elsewhere):
        return entry.finding(FindingKind.EVENTS_LOST, f"{missing} lost with the tail of a file")
    return entry.finding(FindingKind.ORDER, f"{missing} missing before it")


def _takes_over(event: Event) -> bool:
    """Whether it is the first event of a process that took the episode over, or began it anew where all was lost."""
    return event.kind is EventKind.RESUME if event.number else event.kind is EventKind.BEGIN and event.epoch > 0


def _missing_before(entry: Entry) -> bool:
    return entry.event.number != (0 if entry.before is None else entry.before.event.number + 1)


def _misplaced(entry: Entry) -> Iterable[Finding]:
    """Return what is wrong with the epoch of an event that follows from the one before it."""
    event, before = entry.event, entry.before
    epoch = 0 if before is None else before.event.epoch
    if before is None and _takes_over(event):
        return  # all that was on record of it was lost, and it began anew
    if event.kind is not EventKind.RESUME:
        if event.epoch != epoch:
            yield entry.finding(FindingKind.ORDER, f"it is of epoch {event.epoch}, the event before it of {epoch}")
        return
    if before is None or event.epoch <= epoch:
        yield entry.finding(FindingKind.ORDER, f"it takes over in epoch {event.epoch} what is in epoch {epoch}")
    elif (event.data.get("from"), event.data.get("head")) != (event.number - 1, before.event.digest.hex()):
        yield entry.finding(FindingKind.ORDER, "it says that it goes on from another event than it does")


def _contested(entries: Iterable[Entry]) -> Iterable[Finding]:
    """Return places that two events of one process have taken: only a takeover may stand beside another event."""
    taken: dict[int, Entry] = {}
    for entry in entries:
        if entry.event.kind is EventKind.RESUME:
            continue
        other = taken.setdefault(id(entry.before), entry)
        if other is not entry and entry.before is None and entry.event.number == 0:
            yield entry.finding(FindingKind.DUPLICATE, "the episode begins twice")
        elif other is not entry and other.event.number == entry.event.number:
            yield entry.finding(FindingKind.DUPLICATE, f"two different events of number {entry.event.number}")


def _winner(entries: Sequence[Entry]) -> list[Entry]:
    """Return the winning chain: that of the highest epoch, then the longest, then the one of the lowest digest."""
    if not entries:
        return []
    passed = {id(entry.before) for entry in entries}
    tips = [entry for entry in entries if id(entry) not in passed]
    at: Entry | None = min(tips, key=lambda tip: (-tip.event.epoch, -tip.event.number, tip.event.digest))
    chain: list[Entry] = []
    while at is not None:
        chain.append(at)
        at = at.before
    return chain[::-1]


def _excused(entry: Entry, by_number: Mapping[int, list[Entry]], takeovers: Iterable[Event]) -> bool:
    """Whether an event that does not follow is an orphan of which the one before it was lost: it counts for nothing."""
    event = entry.event
    alone = all(other.event.epoch != event.epoch for other in by_number.get(event.number - 1, ()))
    return alone and any(later.epoch > event.epoch and later.number <= event.number for later in takeovers)
