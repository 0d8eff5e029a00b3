"""Orders the events of an episode into its hash chain: `build_chain`.

Only digests are trusted: an event follows another if its digest equals the digest of its bytes chained to the other's
digest. If no event matches, that is a finding, and the event is attached by its number, so that one change is reported
once and not again for every later event.

Invariant: every event is on the winning chain, is an orphan of a process that lost the episode, or has a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import decoded, first_link, link
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.proof.finding import Finding, FindingKind


@dataclass(frozen=True, slots=True)
class RawEvent:
    """Bytes of one event and the location they were read from."""

    raw: bytes
    file: str | None = None
    """Name of the file; None for events in memory."""
    byte: int | None = None
    """Offset in the file of the block that contains the event; None for events in memory."""


@dataclass(slots=True, eq=False)
class ChainEntry:
    """One decoded event and its predecessor."""

    event: Event
    body: bytes
    file: str | None
    byte: int | None
    before: ChainEntry | None = None
    """Preceding event; None if this is the first event or all events before it are missing."""

    def finding(self, kind: FindingKind, message: str, *, turn: int | None = None, token: int | None = None) -> Finding:
        """Return a finding about this event, or about a turn and token that it records."""
        return Finding(kind, message, self.event.episode, self.event.number, turn, token, self.file, self.byte)


@dataclass(slots=True)
class EventChain:
    """Events of one episode in order."""

    entries: list[ChainEntry] = field(default_factory=list)
    """The winning chain, up to the first missing event."""
    orphans: int = 0
    """Number of events written by processes that lost the episode to another."""
    findings: list[Finding] = field(default_factory=list)
    """Problems with digests, numbers and epochs."""


def build_chain(events: Iterable[RawEvent], *, files_lost: bool = False) -> EventChain:
    """Order the events of one episode.

    Args:
        events: All events of the episode; those of one file in the order of the file.
        files_lost: Whether files, or ends of files, are known to be missing. If so, a gap before events in another
            file is reported as lost events; otherwise only a takeover by another process may leave a gap.
    """
    chain = EventChain()
    by_number: dict[int, list[ChainEntry]] = {}
    for entry in _decode_all(events, chain.findings):
        by_number.setdefault(entry.event.number, []).append(entry)
    entries: list[ChainEntry] = []
    faults: list[tuple[ChainEntry, Finding]] = []
    for number in sorted(by_number):
        for entry in by_number[number]:
            fault = _attach(entry, by_number, entries, files_lost)
            faults += [(entry, fault)] if fault is not None else ((entry, one) for one in _epoch_faults(entry))
        entries.extend(by_number[number])
    winner = _winning_chain(entries)
    on_chain = {id(entry) for entry in winner}
    takeovers = [entry.event for entry in winner if _takes_over(entry.event)]
    ignored = {
        id(entry) for entry, _ in faults if id(entry) not in on_chain and _lost_orphan(entry, by_number, takeovers)
    }
    chain.findings.extend(_duplicates(entry for entry in entries if id(entry) not in ignored))
    chain.findings.extend(fault for entry, fault in faults if id(entry) not in ignored)
    chain.orphans = len(entries) - len(winner)
    end = next((number for number, entry in enumerate(winner) if _has_gap_before(entry)), len(winner))
    chain.entries = winner[:end]
    return chain


def _decode_all(events: Iterable[RawEvent], findings: list[Finding]) -> Iterator[ChainEntry]:
    """Decode events; report those that are unreadable, duplicated, or written after a later event of their process."""
    seen: dict[bytes, RawEvent] = {}
    last: dict[tuple[str | None, int], int] = {}
    for one in events:
        entry = _decode(one, findings)
        if entry is None:
            continue
        event, twin = entry.event, seen.setdefault(one.raw, one)
        if twin is not one:
            where = "" if twin.file is None else f": first in {twin.file} at byte {twin.byte}"
            findings.append(entry.finding(FindingKind.DUPLICATE, "the same event is written twice" + where))
            continue
        before = last.get((one.file, event.epoch), -1)
        if event.number < before:
            message = f"the event is written after event {before}, which has a higher number"
            findings.append(entry.finding(FindingKind.ORDER, message))
        last[one.file, event.epoch] = max(before, event.number)
        yield entry


def _decode(one: RawEvent, findings: list[Finding]) -> ChainEntry | None:
    try:
        event, body, end = decoded(one.raw)
        if end != len(one.raw):
            raise LedgerError(f"{len(one.raw) - end} bytes after the event")
        for what, number in (("number", event.number), ("epoch", event.epoch)):
            if type(number) is not int or number < 0:
                raise LedgerError(f"{what} must be an int >= 0, got {number!r:.50}")
        if not isinstance(event.episode, str) or not isinstance(event.data, dict):
            raise LedgerError("episode or data is missing")
    except LedgerError as error:
        findings.append(Finding(FindingKind.FORM, f"unreadable event: {error}").at(one.file, one.byte))
        return None
    return ChainEntry(event, body, one.file, one.byte)


def _attach(
    entry: ChainEntry, by_number: Mapping[int, list[ChainEntry]], earlier: Sequence[ChainEntry], files_lost: bool
) -> Finding | None:
    """Set the predecessor of `entry`; return a finding if its digest does not follow from it."""
    event = entry.event
    if event.number == 0:
        matches = link(first_link(event.episode), entry.body) == event.digest
        return None if matches else entry.finding(FindingKind.DIGEST, "the digest does not match the event's bytes")
    candidates = by_number.get(event.number - 1, [])
    for candidate in candidates:
        if link(candidate.event.digest, entry.body) == event.digest:
            entry.before = candidate
            return None
    # No event continues one of a higher epoch: if it seems to, its real predecessor is lost.
    candidates = [one for one in candidates if one.event.epoch <= event.epoch]
    head = event.data.get("head") if event.kind is EventKind.RESUME else None
    named = [one for one in candidates if one.event.digest.hex() == head]
    entry.before = named[-1] if named else _latest(candidates or earlier, event.epoch)
    if candidates:
        return entry.finding(
            FindingKind.DIGEST,
            f"the digest does not match the event's bytes chained to event {event.number - 1}: one of the two events, "
            "or the digest, was changed",
        )
    first = 0 if entry.before is None else entry.before.event.number + 1
    missing = f"event {first} is" if first == event.number - 1 else f"events {first} to {event.number - 1} are"
    elsewhere = entry.before is None or entry.before.file != entry.file
    if event.kind is EventKind.RESUME or (files_lost and elsewhere):
        return entry.finding(FindingKind.EVENTS_LOST, f"{missing} lost with the end of a file")
    return entry.finding(FindingKind.ORDER, f"{missing} missing before this event")


def _latest(entries: Sequence[ChainEntry], epoch: int) -> ChainEntry | None:
    """Return the last entry of an epoch, else the last one of an earlier epoch; None if there is neither."""
    older = None
    for one in reversed(entries):
        if one.event.epoch == epoch:
            return one
        if older is None and one.event.epoch < epoch:
            older = one
    return older


def _takes_over(event: Event) -> bool:
    """Return whether a process took over the episode with this event, or restarted it because all events were lost."""
    return event.kind is EventKind.RESUME if event.number else event.kind is EventKind.BEGIN and event.epoch > 0


def _has_gap_before(entry: ChainEntry) -> bool:
    return entry.event.number != (0 if entry.before is None else entry.before.event.number + 1)


def _epoch_faults(entry: ChainEntry) -> Iterable[Finding]:
    """Return findings about the epoch of an event whose digest follows from its predecessor."""
    event, before = entry.event, entry.before
    epoch = 0 if before is None else before.event.epoch
    if before is None and _takes_over(event):
        return  # all earlier events were lost and the episode was restarted
    if event.kind is not EventKind.RESUME:
        if event.epoch != epoch:
            message = f"the event has epoch {event.epoch}, the event before it has epoch {epoch}"
            yield entry.finding(FindingKind.ORDER, message)
        return
    if before is None or event.epoch <= epoch:
        message = f"a takeover must raise the epoch, got {event.epoch} after {epoch}"
        yield entry.finding(FindingKind.ORDER, message)
    elif (event.data.get("from_event"), event.data.get("head")) != (event.number - 1, before.event.digest.hex()):
        yield entry.finding(FindingKind.ORDER, "the takeover names another event than the one it continues")


def _duplicates(entries: Iterable[ChainEntry]) -> Iterable[Finding]:
    """Return findings for two events with the same predecessor; only a takeover may share one."""
    taken: dict[int, ChainEntry] = {}
    for entry in entries:
        if entry.event.kind is EventKind.RESUME:
            continue
        other = taken.setdefault(id(entry.before), entry)
        if other is not entry and entry.before is None and entry.event.number == 0:
            yield entry.finding(FindingKind.DUPLICATE, "the episode begins twice")
        elif other is not entry and other.event.number == entry.event.number:
            yield entry.finding(FindingKind.DUPLICATE, f"two different events of number {entry.event.number}")


def _winning_chain(entries: Sequence[ChainEntry]) -> list[ChainEntry]:
    """Return the chain with the highest epoch, then the most events, then the lowest digest."""
    if not entries:
        return []
    inner = {id(entry.before) for entry in entries}
    tips = [entry for entry in entries if id(entry) not in inner]
    at: ChainEntry | None = min(tips, key=lambda tip: (-tip.event.epoch, -tip.event.number, tip.event.digest))
    chain: list[ChainEntry] = []
    while at is not None:
        chain.append(at)
        at = at.before
    return chain[::-1]


def _lost_orphan(entry: ChainEntry, by_number: Mapping[int, list[ChainEntry]], takeovers: Iterable[Event]) -> bool:
    """Return whether an event that fails to chain is only an orphan whose predecessor was lost."""
    event = entry.event
    alone = all(other.event.epoch != event.epoch for other in by_number.get(event.number - 1, ()))
    return alone and any(later.epoch > event.epoch and later.number <= event.number for later in takeovers)
