"""The record of an episode as bytes that travel with it: `carry`, `carried`, and `Carried`, which packs when it must.

For an episode that is set aside: whoever keeps it meanwhile, a trainer's buffer say, knows nothing of our files.

Invariant: a record that was carried is the one that was packed, event by event; bytes in which something was changed
are refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import decoded, encoded, first_link, frames, link
from strands_sglang.ledger.layout import LARGEST_BLOCK
from strands_sglang.ledger.record import EpisodeRecord

_MARK = b"sgep1"


class Carried:
    """A record that is packed only when it leaves the process: by pickling. Copies are the same object."""

    __slots__ = ("record",)

    def __init__(self, record: EpisodeRecord) -> None:
        self.record = record
        """What is carried; not to be changed."""

    def __reduce__(self) -> tuple[Callable[[bytes], Carried], tuple[bytes]]:
        return _unpacked, (carry(self.record),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Carried:
        return self

    def __copy__(self) -> Carried:
        return self


def _unpacked(data: bytes) -> Carried:
    return Carried(carried(data))


def carry(record: EpisodeRecord) -> bytes:
    """Return the events of a record as bytes."""
    link_before, parts = first_link(record.id), []
    for event in record.events:
        parts.append(encoded(event, link_before))
        link_before = event.digest
    return _MARK + zlib.compress(b"".join(parts), 1)


def carried(data: bytes) -> EpisodeRecord:
    """Return the record that `carry` packed.

    Raises:
        LedgerError: These bytes are none, or something in them was changed.
    """
    if not isinstance(data, bytes) or not data.startswith(_MARK):
        raise LedgerError("these bytes are not the record of an episode that was set aside")
    try:
        events, previous = [], b""
        unpacking = zlib.decompressobj()
        whole = unpacking.decompress(data[len(_MARK) :], LARGEST_BLOCK)
        if unpacking.unconsumed_tail:
            raise LedgerError(f"the record of an episode that was set aside has more than {LARGEST_BLOCK} bytes")
        if not unpacking.eof or unpacking.unused_data:
            raise LedgerError("the record of an episode that was set aside is damaged: it ends early, or late")
        for frame in frames(whole):
            event, body, _ = decoded(frame)
            if link(previous or first_link(event.episode), body) != event.digest:
                raise LedgerError(f"event {event.number} of the record that was set aside was changed")
            events.append(event)
            previous = event.digest
    except zlib.error as error:
        raise LedgerError(f"the record of an episode that was set aside is damaged: {error}") from error
    if not events:
        raise LedgerError("the record of an episode that was set aside is empty")
    return EpisodeRecord(events[0].episode, tuple(events), epoch=events[-1].epoch)
