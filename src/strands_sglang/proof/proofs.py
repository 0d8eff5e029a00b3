"""The episodes of a ledger, proved one after the other: `proved`.

Invariant: an episode is proved when all its events were seen; until then only their bytes are held, and of these no
more than there is room for, whatever a few compressed bytes unpack to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import episode_of
from strands_sglang.proof.finding import Finding, FindingKind
from strands_sglang.proof.links import Located, linked
from strands_sglang.proof.prove import EpisodeProof, prove
from strands_sglang.proof.sealed_files import SealedFiles

HELD_BYTES = 1 << 29
"""Bytes of events that are held at a time, and the most of one episode. What there is no room for is read once more."""
_EVENT_BYTES = 150  # what an event takes besides its own bytes


class EventSource(Protocol):
    """Where events are."""

    counts: Counter[str]
    """Events of each episode."""

    def __iter__(self) -> Iterator[Located]:
        """Go through all events, as often as asked."""
        ...


class Memory:
    """Events in memory."""

    def __init__(self, events: Iterable[bytes]) -> None:
        self._events = [Located(event) for event in events]
        self.counts: Counter[str] = Counter()
        """Events of each episode."""
        self.findings: list[Finding] = []
        """Events of which not even the episode can be told."""
        for one in self._events:
            try:
                self.counts[episode_of(one.raw)] += 1
            except LedgerError as error:
                self.findings.append(Finding(FindingKind.FORM, str(error)))

    def __iter__(self) -> Iterator[Located]:
        return iter(self._events)


def proved(
    source: EventSource,
    run: Mapping[str, Any] | None,
    wanted: Collection[str] | None,
    files_lost: bool,
) -> Iterator[EpisodeProof]:
    """Prove every episode, as soon as all its events were seen.

    Args:
        source: All events.
        run: What run.json says.
        wanted: Ids of the only episodes to look at; None: all.
        files_lost: Whether files, or tails of files, are known to be missing.
    """
    left = {id: count for id, count in source.counts.items() if wanted is None or id in wanted}
    while left:
        held = _Held(left)
        for one in source:
            try:
                id = episode_of(one.raw)
            except LedgerError:
                continue
            if (found := held.take(id, one)) is not None:
                yield prove(id, linked(found, files_lost=files_lost), run)
        for id in held.too_large:
            why = f"its events have more than {HELD_BYTES} bytes, more than are looked at together"
            yield EpisodeProof(id, findings=[Finding(FindingKind.FORM, why, id)])
        left = held.put_off


class _Held:
    """The events of episodes that are not complete yet, as far as there is room for them."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts, self._left = counts, Counter(counts)
        self._waiting: dict[str, list[Located]] = {}
        self._sizes: dict[str, int] = {}
        self._total = 0
        self.put_off: dict[str, int] = {}
        """Episodes for which there was no room, with the number of their events: for another time."""
        self.too_large: list[str] = []
        """Episodes for which there never is."""

    def take(self, id: str, one: Located) -> list[Located] | None:
        """Take an event; return all of its episode when it is the last."""
        if id not in self._left or id in self.put_off:
            return None
        size = len(one.raw) + _EVENT_BYTES
        self._waiting.setdefault(id, []).append(one)
        self._sizes[id] = self._sizes.get(id, 0) + size
        self._total += size
        self._left[id] -= 1
        if self._sizes[id] > HELD_BYTES:
            self._drop(id)
            self.too_large.append(id)
            del self._left[id]
        elif not self._left[id]:
            found = self._waiting[id]
            self._drop(id)
            del self._left[id]
            return found
        while self._total > HELD_BYTES:  # those that began first are complete first
            last = next(reversed(self._waiting))
            self._drop(last)
            self.put_off[last] = self._counts[last]
        return None

    def _drop(self, id: str) -> None:
        self._total -= self._sizes.pop(id)
        del self._waiting[id]


def proofs(
    directory: Path, episodes: Collection[str] | None = None
) -> tuple[Mapping[str, Any] | None, Iterator[EpisodeProof]]:
    """Return what run.json says, and every episode of a ledger as it was proved.

    Args:
        directory: The run's directory.
        episodes: Ids of the only episodes to look at; None: all.

    Raises:
        LedgerError: There is no ledger to look at.
    """
    files = SealedFiles(directory)
    return files.run, proved(files, files.run, episodes, files.lost)
