"""One thing that happened in an episode: `Event`, and the digest chain that holds an episode's events together.

Invariant: an event's digest covers the digest of the event before it, its place (episode, epoch, number), its kind,
its data and its arrays, as the very bytes that are written. Change one bit, or the order, and every digest from there
on is another.
"""

from __future__ import annotations

import hashlib
import re
import struct
from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.packing import packed, unpacked
from strands_sglang.ledger.safe_files import loads

DIGEST_BYTES = 16
"""Bytes of a digest (BLAKE2b)."""

_SIZES = struct.Struct("<II")
_EPISODE = re.compile(rb'\[("[^"\\]*(?:\\.[^"\\]*)*"),')


class EventKind(str, Enum):
    """What happened. What `data` and `arrays` hold for each is written in docs/ledger.md."""

    BEGIN = "begin"
    """The episode began: its task."""
    CALL = "call"
    """The engine sampled a turn, and it was committed."""
    PART = "part"
    """The engine sampled part of a turn, and the episode was set aside: the turn goes on from there."""
    FAULT = "fault"
    """An engine call failed with an error the agent may have seen."""
    TOOL = "tool"
    """A tool gave its result."""
    RESUME = "resume"
    """Another process took the episode over; the epoch goes up by one."""
    CUT = "cut"
    """Turns from a number on are no longer part of the episode: a resumed agent went another way."""
    REWARD = "reward"
    """The episode was scored: just before its end, or anew behind it."""
    END = "end"
    """The episode ended: why, and which of its tokens are trained."""


@dataclass(slots=True)
class Event:
    """One event as it stands on disk. To be read, not changed."""

    episode: str
    """Id of the episode."""
    epoch: int
    """How often the episode was taken over before, from 0."""
    number: int
    """Place in the episode, from 0."""
    kind: EventKind
    """What happened."""
    data: dict[str, Any]
    """Plain JSON data."""
    arrays: dict[str, array[Any]] = field(default_factory=dict)
    """Flat arrays by name: typecode "i" (token ids), "d" (logprobs) or "B" (bytes)."""
    digest: bytes = b""
    """Digest of this event behind the one before it."""


def first_link(episode: str) -> bytes:
    """Return what the first event of an episode is chained to."""
    return hashlib.blake2b(episode.encode(), digest_size=DIGEST_BYTES, person=b"sglang-episode").digest()


def encoded(event: Event, previous: bytes) -> bytes:
    """Set the event's digest behind `previous` and return the bytes to be written."""
    blob, shapes = packed(event.arrays)
    head = orjson.dumps(
        [event.episode, event.epoch, event.number, event.kind.value, event.data, shapes],
        option=orjson.OPT_NON_STR_KEYS,
    )
    body = _SIZES.pack(len(head), len(blob)) + head + blob
    event.digest = hashlib.blake2b(previous + body, digest_size=DIGEST_BYTES).digest()
    return body + event.digest


def decoded(data: bytes | memoryview, at: int = 0) -> tuple[Event, bytes, int]:
    """Read one event.

    Args:
        data: Bytes that hold it.
        at: Where it begins.

    Returns:
        The event, the bytes its digest covers (behind the previous digest), and where the next one begins.

    Raises:
        LedgerError: These bytes are no event.
    """
    try:
        head_size, blob_size = _SIZES.unpack_from(data, at)
        begin = at + _SIZES.size
        end = begin + head_size + blob_size
        if end + DIGEST_BYTES > len(data):
            raise LedgerError(f"an event of {end + DIGEST_BYTES - at} bytes, but {len(data) - at} are left")
        episode, epoch, number, kind, values, shapes = loads(bytes(data[begin : begin + head_size]))
        arrays = unpacked(bytes(data[begin + head_size : end]), shapes)
        event = Event(episode, epoch, number, EventKind(kind), values, arrays, bytes(data[end : end + DIGEST_BYTES]))
    except LedgerError:
        raise
    except (struct.error, ValueError, TypeError, KeyError, IndexError) as error:
        raise LedgerError(f"not an event: {error}") from error
    return event, bytes(data[at:end]), end + DIGEST_BYTES


def frames(data: bytes) -> list[bytes]:
    """Split bytes into the events they hold, each as `encoded` made it.

    Raises:
        LedgerError: They do not come out even.
    """
    events, at = [], 0
    while at < len(data):
        if at + _SIZES.size > len(data):
            raise LedgerError(f"{len(data) - at} bytes behind the last event")
        head_size, blob_size = _SIZES.unpack_from(data, at)
        end = at + _SIZES.size + head_size + blob_size + DIGEST_BYTES
        if end > len(data):
            raise LedgerError(f"an event of {end - at} bytes, but {len(data) - at} are left")
        events.append(data[at:end])
        at = end
    return events


def first_size(data: bytes) -> int:
    """Return how many bytes the first of some events says it has; they need not all be there.

    Raises:
        LedgerError: They are too few to say so.
    """
    if len(data) < _SIZES.size:
        raise LedgerError(f"{len(data)} bytes are no event")
    head_size, blob_size = _SIZES.unpack_from(data)
    return int(_SIZES.size + head_size + blob_size + DIGEST_BYTES)


def episode_of(event: bytes) -> str:
    """Return the id of the episode an encoded event is of.

    Raises:
        LedgerError: These bytes are no event.
    """
    try:
        head_size, _ = _SIZES.unpack_from(event)
        if (name := _EPISODE.match(event, _SIZES.size, _SIZES.size + head_size)) is None:
            raise ValueError("it does not begin with the id of an episode")
        episode: str = orjson.loads(name.group(1))
        return episode
    except (struct.error, ValueError) as error:
        raise LedgerError(f"not an event: {error}") from error


def link(previous: bytes, body: bytes) -> bytes:
    """Return the digest that an event of these bytes must have behind `previous`."""
    return hashlib.blake2b(previous + body, digest_size=DIGEST_BYTES).digest()


def ids_digest(ids: Any) -> str:
    """Return the digest of token ids, as 32 hex digits: those of a prompt as it was sent."""
    whole = ids if isinstance(ids, array) and ids.typecode == "i" else array("i", list(ids))
    return hashlib.blake2b(memoryview(whole).cast("B"), digest_size=DIGEST_BYTES).hexdigest()
