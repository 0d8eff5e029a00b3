"""Encoding and digests of events: `encoded`, `decoded`, and `HashChain`, which appends events linked by digests.

`event.py` declares what events hold. Arrays (token ids, logprobs, raw bytes) are packed as byte planes: the lowest byte
of all values, then the next byte of all values, and so on. The high bytes of token ids and logprobs take few distinct
values, so their planes compress well.

Invariants: an event's digest covers the digest of the previous event, its position (episode, epoch, number), its kind,
its data and its arrays, as the exact bytes that are written. Changing one bit, or the order of events, changes every
later digest. Unpacking restores every value of an array bit for bit on any machine, including -0.0 and NaN; bytes that
do not match their shapes raise an error and are never misread. The digest of a trajectory covers every array and name
in it, in a fixed order and byte order, so equal digests mean equal trajectories on any machine.
"""

from __future__ import annotations

import hashlib
import re
import struct
import sys
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import orjson

from strands_sglang._json import MOST_VALUES, check_json, count_values, loads
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import Event, EventKind, TrajectorySummary
from strands_sglang.tokens import Trajectory

# Encodings: the typecode, and the bytes written per value.
_CODES: dict[str, tuple[str, int]] = {
    "i2": ("i", 2),  # ids below 2**16
    "i3": ("i", 3),  # ids below 2**24
    "i4": ("i", 4),  # any 32-bit integers
    "d4": ("d", 4),  # doubles that a 32-bit float represents exactly, such as logprobs computed in 32 bits
    "d8": ("d", 8),  # any doubles
    "B1": ("B", 1),  # bytes
    "B4": ("B", 4),  # bytes whose count is a multiple of four, such as 32-bit numbers
}
_SWAPPED = sys.byteorder == "big"
_NOTHING = {"i": "i2", "d": "d4", "B": "B1"}


def packed(arrays: Mapping[str, array[Any]]) -> tuple[bytes, list[list[Any]]]:
    """Pack arrays into bytes.

    Args:
        arrays: Arrays by name, of typecode "i", "d" or "B".

    Returns:
        The bytes, and the shape of each array: its name, its encoding and its number of values.

    Raises:
        ValueError: An array has another type.
    """
    blobs, shapes = [], []
    for name, values in arrays.items():
        if not isinstance(values, array) or values.typecode not in _NOTHING:
            raise ValueError(f"array {name!r} must be an array of 'i', 'd' or 'B', got {values!r:.100}")
        if values:
            code, blob = _WAYS[values.typecode](values)
            blobs.append(blob)
        else:
            code = _NOTHING[values.typecode]
        shapes.append([name, code, len(values)])
    return b"".join(blobs), shapes


def unpacked(blob: bytes | memoryview, shapes: Sequence[Sequence[Any]]) -> dict[str, array[Any]]:
    """Return the arrays that `packed` packed.

    Raises:
        ValueError: The bytes do not match the shapes.
    """
    arrays: dict[str, array[Any]] = {}
    at = 0
    if not isinstance(shapes, list | tuple):
        raise ValueError(f"shapes must be a list, got {shapes!r:.100}")
    for shape in shapes:
        if not isinstance(shape, list | tuple) or len(shape) != 3:
            raise ValueError(f"a shape must be [unique name, encoding, count], got {shape!r:.100}")
        name, code, count = shape
        if type(name) is not str or name in arrays or type(count) is not int or count < 0:
            raise ValueError(f"a shape must be [unique name, encoding, count], got {shape!r:.100}")
        if type(code) is not str or code not in _CODES:
            raise ValueError(f"the encoding of array {name!r} must be one of {', '.join(_CODES)}, got {code!r:.100}")
        typecode, width = _CODES[code]
        size = count if typecode == "B" else count * width
        if size % width or at + size > len(blob):
            raise ValueError(
                f"array {name!r} of {count} values as {code} does not fit in the {len(blob) - at} bytes left"
            )
        values = array(typecode)
        if count:
            values.frombytes(_joined(np.frombuffer(blob, np.uint8, size, at), code, width))
        arrays[name] = values
        at += size
    if at != len(blob):
        raise ValueError(f"{len(blob) - at} bytes after the last array")
    return arrays


def _integers(values: array[int]) -> tuple[str, bytes]:
    numbers = np.frombuffer(values, np.uint32)  # negative values count as large
    highest = int(numbers.max())
    width = 2 if highest < 1 << 16 else 3 if highest < 1 << 24 else 4
    return f"i{width}", _planes(numbers, 4, width)


def _doubles(values: array[float]) -> tuple[str, bytes]:
    exact = np.frombuffer(values, np.float64)
    with np.errstate(all="ignore"):  # a value that overflows is found not to be equal
        short = exact.astype(np.float32)
        same = short.astype(np.float64).tobytes() == values.tobytes()
    return ("d4", _planes(short, 4, 4)) if same else ("d8", _planes(exact, 8, 8))


def _bytes(values: array[int]) -> tuple[str, bytes]:
    if len(values) % 4:
        return "B1", values.tobytes()
    return "B4", np.frombuffer(values, np.uint8).reshape(-1, 4).T.tobytes()


_WAYS: dict[str, Callable[[Any], tuple[str, bytes]]] = {"i": _integers, "d": _doubles, "B": _bytes}


def _planes(values: npt.NDArray[Any], size: int, width: int) -> bytes:
    """Return the lowest `width` of the `size` bytes of each value, as byte planes."""
    if _SWAPPED:
        values = values.byteswap()
    rows: npt.NDArray[np.uint8] = values.view(np.uint8).reshape(-1, size)
    planes: npt.NDArray[np.uint8] = rows[:, :width].T
    return planes.tobytes()


def _joined(planes: npt.NDArray[np.uint8], code: str, width: int) -> bytes:
    """Return the memory of an array from its byte planes."""
    rows: npt.NDArray[np.uint8] = planes.reshape(width, -1).T
    if code in ("B1", "B4"):
        return rows.tobytes()
    size = max(width, 4)
    whole = np.zeros((len(rows), size), np.uint8)
    whole[:, :width] = rows
    if _SWAPPED:
        whole = np.ascontiguousarray(whole[:, ::-1])
    if code == "d4":
        wide: npt.NDArray[np.float64] = whole.view(np.float32).astype(np.float64)
        return wide.tobytes()
    return whole.tobytes()


DIGEST_BYTES = 16
"""Size of a digest (BLAKE2b) in bytes."""
LARGEST_HEAD = 1 << 26
"""Maximum size of the JSON of an event in bytes. Its arrays are not part of it."""
MOST_EVENT_VALUES = 1 << 19
"""Maximum number of values in the JSON of an event; keys and containers count too, text in strings does not."""
LARGEST_EPISODE = 1 << 29
"""Maximum size of the events of an episode in bytes, encoded, and decoded as `decoded_size` estimates it."""
EVENT_OVERHEAD = 150
"""Bytes of memory that an event takes in addition to its encoded size."""

_SIZES = struct.Struct("<II")
_EPISODE = re.compile(rb'\[("[^"\\]*(?:\\.[^"\\]*)*"),')


class HashChain:
    """Appends the events of one episode, numbered and linked by digests. Thread-safe.

    An episode has one writer at a time: a process that takes it over opens a chain in a new epoch.
    """

    def __init__(
        self,
        sink: Callable[[bytes], None],
        episode: str,
        *,
        epoch: int = 0,
        number: int = 0,
        head: bytes | None = None,
    ) -> None:
        """Open a chain at its start or after a recorded event.

        Args:
            sink: Receives the bytes of each event, such as `LedgerWriter.write`.
            episode: Id of the episode.
            epoch: Epoch of the events to be written.
            number: Number of the next event.
            head: Digest of the previous event; None: the next event is the first.
        """
        self._sink = sink
        self._lock = threading.Lock()
        self._head = first_link(episode) if head is None else head
        self._number = number
        self.episode = episode
        self.epoch = epoch

    @property
    def head(self) -> bytes:
        """Digest of the last event; before the first event, the digest that the first event links to."""
        return self._head

    @property
    def number(self) -> int:
        """Number of the next event."""
        return self._number

    def append(self, kind: EventKind, data: Mapping[str, object], arrays: Mapping[str, object] | None = None) -> Event:
        """Write the next event.

        Args:
            kind: What happened.
            data: JSON data: a dict, as `event.py` declares it for the kind. Must not be changed afterwards.
            arrays: Flat arrays by name, as `event.py` declares them. Must not be changed afterwards.

        Returns:
            The event, with its digest.

        Raises:
            TypeError: The data is not JSON.
            ValueError: An array has a type that cannot be written.
            LedgerError: The sink rejected the event. After any of these errors the chain is unchanged.
        """
        with self._lock:
            values = cast("dict[str, Any]", data)
            flat = cast("dict[str, array[Any]]", dict(arrays or {}))
            event = Event(self.episode, self.epoch, self._number, kind, values, flat)
            self._sink(encoded(event, self._head))
            self._head, self._number = event.digest, self._number + 1
        return event


def first_link(episode: str) -> bytes:
    """Return the digest that the first event of an episode links to."""
    return hashlib.blake2b(episode.encode(), digest_size=DIGEST_BYTES, person=b"sglang-episode").digest()


def encoded(event: Event, previous: bytes) -> bytes:
    """Set the digest of an event that follows `previous` and return the bytes to be written.

    Raises:
        LedgerError: Its data is larger than what is read.
    """
    blob, shapes = packed(event.arrays)
    head = orjson.dumps(
        [event.episode, event.epoch, event.number, event.kind.value, event.data, shapes],
        option=orjson.OPT_NON_STR_KEYS,
    )
    try:
        _check_size(len(head))
        check_json(head, MOST_EVENT_VALUES)
    except ValueError as error:
        raise LedgerError(f"an event of episode {event.episode} cannot be recorded: {error}") from error
    body = _SIZES.pack(len(head), len(blob)) + head + blob
    event.digest = hashlib.blake2b(previous + body, digest_size=DIGEST_BYTES).digest()
    return body + event.digest


def decoded(data: bytes | memoryview, at: int = 0) -> tuple[Event, bytes, int]:
    """Decode one event.

    Args:
        data: Bytes that contain the event.
        at: Offset of its first byte.

    Returns:
        The event, the bytes that its digest covers after the previous digest, and the offset of the next event.

    Raises:
        LedgerError: The bytes are not an event.
    """
    try:
        head_size, blob_size = _SIZES.unpack_from(data, at)
        _check_size(head_size)
        begin = at + _SIZES.size
        end = begin + head_size + blob_size
        if end + DIGEST_BYTES > len(data):
            raise LedgerError(
                f"an event of {end + DIGEST_BYTES - at} bytes must fit in the {len(data) - at} bytes left"
            )
        episode, epoch, number, kind, values, shapes = loads(bytes(data[begin : begin + head_size]), MOST_EVENT_VALUES)
        arrays = unpacked(bytes(data[begin + head_size : end]), shapes)
        event = Event(episode, epoch, number, EventKind(kind), values, arrays, bytes(data[end : end + DIGEST_BYTES]))
    except LedgerError:
        raise
    except (struct.error, ValueError, TypeError, KeyError, IndexError) as error:
        raise LedgerError(f"not an event: {error}") from error
    return event, bytes(data[at:end]), end + DIGEST_BYTES


class EventHead(NamedTuple):
    """An event without its arrays."""

    episode: str
    epoch: int
    number: int
    kind: EventKind
    data: dict[str, Any]
    counts: dict[str, int]
    """Number of values of each array, by name."""


def decoded_head(event: bytes) -> EventHead:
    """Decode an encoded event without unpacking its arrays, which is much faster than `decoded` for long turns.

    Raises:
        LedgerError: The bytes are not an event.
    """
    try:
        head_size, _ = _SIZES.unpack_from(event)
        _check_size(head_size)
        episode, epoch, number, kind, data, shapes = loads(
            event[_SIZES.size : _SIZES.size + head_size], MOST_EVENT_VALUES
        )
        if type(episode) is not str or type(epoch) is not int or type(number) is not int or type(data) is not dict:
            raise ValueError("its head must be an id, two numbers, a kind and an object")
        counts = {name: count for name, _, count in shapes if type(name) is str and type(count) is int}
        return EventHead(episode, epoch, number, EventKind(kind), data, counts)
    except (struct.error, ValueError, TypeError) as error:
        raise LedgerError(f"not an event: {error}") from error


def decoded_size(event: bytes) -> int:
    """Return about how many bytes of memory an encoded event takes once it is decoded, at least its own size."""
    head_size = _SIZES.unpack_from(event)[0] if len(event) >= _SIZES.size else 0
    values = count_values(event[_SIZES.size : _SIZES.size + min(head_size, LARGEST_HEAD)], MOST_EVENT_VALUES)
    return len(event) + EVENT_OVERHEAD + values * (LARGEST_EPISODE // MOST_VALUES)


def _check_size(head_size: int) -> None:
    if head_size > LARGEST_HEAD:
        raise ValueError(f"the JSON of an event must have at most {LARGEST_HEAD} bytes, got {head_size}")


def frames(data: bytes) -> list[bytes]:
    """Split bytes into encoded events.

    Raises:
        LedgerError: The bytes are not a whole number of events.
    """
    events, at = [], 0
    while at < len(data):
        if at + _SIZES.size > len(data):
            raise LedgerError(f"{len(data) - at} bytes after the last event")
        head_size, blob_size = _SIZES.unpack_from(data, at)
        end = at + _SIZES.size + head_size + blob_size + DIGEST_BYTES
        if end > len(data):
            raise LedgerError(f"an event of {end - at} bytes must fit in the {len(data) - at} bytes left")
        events.append(data[at:end])
        at = end
    return events


def first_size(data: bytes) -> int:
    """Return the declared size of the first event in bytes. The data may end before the event does.

    Raises:
        LedgerError: The data is too short to contain a size.
    """
    if len(data) < _SIZES.size:
        raise LedgerError(f"{len(data)} bytes are too short for an event")
    head_size, blob_size = _SIZES.unpack_from(data)
    return int(_SIZES.size + head_size + blob_size + DIGEST_BYTES)


def episode_of(event: bytes) -> str:
    """Return the episode id of an encoded event, without decoding the rest.

    Raises:
        LedgerError: The bytes are not an event.
    """
    try:
        head_size, _ = _SIZES.unpack_from(event)
        if (name := _EPISODE.match(event, _SIZES.size, _SIZES.size + head_size)) is None:
            raise ValueError("it does not start with an episode id")
        episode: str = orjson.loads(name.group(1))
        return episode
    except (struct.error, ValueError) as error:
        raise LedgerError(f"not an event: {error}") from error


def link(previous: bytes, body: bytes) -> bytes:
    """Return the digest of an event with this body that follows `previous`."""
    return hashlib.blake2b(previous + body, digest_size=DIGEST_BYTES).digest()


def ids_digest(ids: Any, images: Iterable[str] = ()) -> str:
    """Return the digest of token ids, such as a prompt as it was sent, as 32 hex digits.

    Args:
        ids: The ids, with a placeholder for every position of an image.
        images: Digests of the images among them, in order.
    """
    whole = ids if isinstance(ids, array) and ids.typecode == "i" else array("i", list(ids))
    state = hashlib.blake2b(memoryview(whole).cast("B"), digest_size=DIGEST_BYTES)
    for image in images:
        state.update(bytes.fromhex(image))
    return state.hexdigest()


def trajectory_digest(trajectory: Trajectory) -> str:
    """Return the digest of everything in a trajectory that training uses, as 32 hex digits."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for values, kind in (
        (trajectory.token_ids, "<i4"),
        (trajectory.loss_mask, "i1"),
        (trajectory.logprobs, "<f8"),
        (trajectory.versions, "<i4"),
        (trajectory.turns, "<i4"),
        (trajectory.origins, "i1"),
    ):
        digest.update(values.astype(kind, copy=False).tobytes())
    digest.update(orjson.dumps([trajectory.version_names, trajectory.turn_ids]))
    if trajectory.kept is not None:
        for name, kind in (("token_ids", "<i4"), ("offsets", "<i4"), ("logprobs", "<f8")):
            digest.update(np.asarray(getattr(trajectory.kept, name)).astype(kind, copy=False).tobytes())
    if trajectory.images:
        digest.update(orjson.dumps([list(image) for image in trajectory.images]))
    return digest.hexdigest()


def trajectory_summary(trajectory: Trajectory) -> TrajectorySummary:
    """Return the entry of a trajectory in `EndData.trajectories`."""
    trained = np.unique(trajectory.turns[trajectory.loss_mask == 1])
    return {
        "branch": trajectory.branch,
        "trained_turns": [trajectory.turn_ids[number] for number in trained],
        "tokens": len(trajectory),
        "trained_tokens": int(trajectory.loss_mask.sum(dtype=np.int64)),
        "digest": trajectory_digest(trajectory),
    }
