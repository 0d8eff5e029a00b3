"""The end of an episode's record that is being written: `Chain`.

Invariant: events come out in the order of their numbers, each behind the digest of the one before it, whichever
threads they come from.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from strands_sglang.ledger.event import Event, EventKind, encoded, first_link


class Chain:
    """Where an episode's next event goes. One writer at a time: whoever takes an episode over opens a new epoch."""

    def __init__(
        self,
        sink: Callable[[bytes], None],
        episode: str,
        *,
        epoch: int = 0,
        number: int = 0,
        head: bytes | None = None,
    ) -> None:
        """Open a chain, from its beginning or behind an event on record.

        Args:
            sink: Takes the bytes of each event: `LedgerWriter.write`.
            episode: Id of the episode.
            epoch: How often the episode was taken over, this time included.
            number: Number of the next event.
            head: Digest of the event before it; None: there is none.
        """
        self._sink = sink
        self._lock = threading.Lock()
        self._head = first_link(episode) if head is None else head
        self._number = number
        self.episode = episode
        """Id of the episode."""
        self.epoch = epoch
        """Epoch of the events to come."""

    @property
    def head(self) -> bytes:
        """Digest of the last event; before the first one, what that is chained to."""
        return self._head

    @property
    def number(self) -> int:
        """Number of the next event."""
        return self._number

    def append(self, kind: EventKind, data: dict[str, Any], arrays: Mapping[str, array[Any]] | None = None) -> Event:
        """Write an event behind the last one.

        Args:
            kind: What happened.
            data: Plain JSON data; not to be changed afterwards.
            arrays: Flat arrays by name; not to be changed afterwards.

        Returns:
            The event, with its digest.

        Raises:
            TypeError: The data is not plain JSON.
            ValueError: An array of a type that is not written.
            LedgerError: The sink can take no more. After any of these the chain is as it was.
        """
        with self._lock:
            event = Event(self.episode, self.epoch, self._number, kind, data, dict(arrays or {}))
            self._sink(encoded(event, self._head))
            self._head, self._number = event.digest, self._number + 1
        return event
