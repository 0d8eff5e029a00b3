"""The episodes of a ledger, proved one after the other: `proved`.

Invariant: an episode is proved when all its events were seen; until then only their bytes are held.
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
    left = Counter(source.counts)
    waiting: dict[str, list[Located]] = {}
    for one in source:
        try:
            id = episode_of(one.raw)
        except LedgerError:
            continue
        if wanted is not None and id not in wanted:
            continue
        waiting.setdefault(id, []).append(one)
        left[id] -= 1
        if not left[id]:
            yield prove(id, linked(waiting.pop(id), files_lost=files_lost), run)


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
