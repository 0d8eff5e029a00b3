"""Groups the events of a ledger by episode: `complete_episodes`.

Invariant: the buffered events take at most `LARGEST_BUFFER` bytes, or those of one episode at most `LARGEST_EPISODE`,
also once they are decoded, whatever a few compressed bytes decompress to. Episodes that do not fit at the same time are
read again later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from strands_sglang.ledger.encoding import EVENT_OVERHEAD, LARGEST_EPISODE, decoded_size

LARGEST_BUFFER = 1 << 28
"""Maximum size of the buffered events of several episodes in bytes."""
TOO_LARGE = f"the events of the episode take more than {LARGEST_EPISODE} bytes of memory, the maximum for one episode"

EventT = TypeVar("EventT")


class Grouped(NamedTuple, Generic[EventT]):
    """The events of one episode."""

    id: str
    events: list[EventT]
    too_large: bool = False
    """Whether they exceed `LARGEST_EPISODE`; then there are none."""


def complete_episodes(
    read: Callable[[], Iterable[tuple[str, bytes, EventT]]], counts: Mapping[str, int]
) -> Iterator[Grouped[EventT]]:
    """Yield every episode as soon as all its events have been read.

    Args:
        read: Reads all events from the start: the id of the episode, the encoded event, and what is yielded for it.
        counts: Number of events of each wanted episode, by id.
    """
    remaining = dict(counts)
    while remaining:
        buffer = _Buffer[EventT](remaining)
        for id, raw, event in read():
            if (complete := buffer.add(id, raw, event)) is not None:
                yield complete
        for id, events in buffer.events.items():  # the files changed since the events were counted
            yield Grouped(id, events)
        remaining = buffer.postponed


class _Buffer(Generic[EventT]):
    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts, self._left = counts, Counter(counts)
        self.events: dict[str, list[EventT]] = {}
        self._sizes: dict[str, int] = {}  # encoded, as they are buffered
        self._decoded: dict[str, int] = {}
        self._total = 0
        self.postponed: dict[str, int] = {}  # episodes that did not fit, with their number of events

    def add(self, id: str, raw: bytes, event: EventT) -> Grouped[EventT] | None:
        """Add an event; return its episode if that is complete, or too large."""
        if id not in self._left or id in self.postponed:
            return None
        size = len(raw) + EVENT_OVERHEAD
        self.events.setdefault(id, []).append(event)
        self._sizes[id] = self._sizes.get(id, 0) + size
        self._decoded[id] = self._decoded.get(id, 0) + decoded_size(raw)
        self._total += size
        self._left[id] -= 1
        too_large = self._decoded[id] > LARGEST_EPISODE
        if too_large or not self._left[id]:
            del self._left[id]
            events = self._removed(id)
            return Grouped(id, [], too_large=True) if too_large else Grouped(id, events)
        while self._total > LARGEST_BUFFER and len(self.events) > 1:
            # Postpone the newest: episodes that begin first are complete first.
            last = next(reversed(self.events))
            self._removed(last)
            self.postponed[last] = self._counts[last]
        return None

    def _removed(self, id: str) -> list[EventT]:
        self._total -= self._sizes.pop(id)
        del self._decoded[id]
        return self.events.pop(id)
