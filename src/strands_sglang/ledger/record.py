"""The record of one episode: `EpisodeRecord`, and `PortableRecord`, which carries it outside of the ledger.

Invariants: the events of a record are numbered from 0 without gaps, and each links to the previous one; events that do
not are reported as problems. A portable record is restored event by event as it was packed, and changed bytes raise an
error.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from strands_sglang._terminal import escape_for_terminal
from strands_sglang.chat.image_files import image_file
from strands_sglang.errors import ConfigurationError, CountMismatchError, LedgerError, UnsupportedContentError
from strands_sglang.ledger.encoding import decoded, encoded, first_link, frames, link
from strands_sglang.ledger.event import (
    AFTER_END,
    OF_OTHER_MODELS,
    BeginData,
    CallData,
    EndData,
    Event,
    EventKind,
    RollbackData,
    StalenessData,
    TeacherArrays,
    TeacherData,
    arrays_of,
    data_of,
)
from strands_sglang.ledger.files import FileStore, contents_in
from strands_sglang.ledger.fingerprint import earlier_in, fingerprint_in
from strands_sglang.ledger.shard import LARGEST_BLOCK
from strands_sglang.tokens import TeacherLogprobs, TokenTree, Trajectory, TurnStatus
from strands_sglang.tokens.serialization import RECORD_FORMAT

_PORTABLE_MAGIC = b"sgep2"


class ChainFault(str, Enum):
    """What can be wrong with an event of an episode."""

    MISSING = "missing"
    BROKEN = "broken"
    TAKEOVER = "takeover"
    """Its epoch differs from that of the previous event, and it is not a valid takeover from it."""
    CONFLICT = "conflict"
    """Another event of the same epoch has the same number."""
    DUPLICATE = "duplicate"
    """The same event occurs twice."""
    ORDER = "order"
    """It comes after a later event of its epoch in its shard."""
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class ChainProblem:
    """Something wrong with an event, and where."""

    kind: ChainFault
    episode: str
    """Id of the episode; "" if it cannot be read."""
    number: int | None
    """Number of the event; None if it cannot be read."""
    shard: str
    byte: int
    """Offset in the shard of the block that holds the event, in bytes."""
    message: str

    def __str__(self) -> str:
        event = "an event" if self.number is None else f"event {self.number}"
        return escape_for_terminal(
            f"{self.shard}, block at byte {self.byte}, {event} of {self.episode or '?'}: {self.message}"
        )


@dataclass(slots=True)
class EpisodeRecord:
    """The valid events of one episode, and what is wrong with the others."""

    id: str
    events: tuple[Event, ...]
    """The events of the valid chain with the highest epoch, in order."""
    problems: list[ChainProblem] = field(default_factory=list)
    """What is wrong with events that were not accepted; empty: nothing."""
    orphans: int = 0
    """Number of events that other processes wrote after the episode was taken over; ignored, not an error."""
    epoch: int = 0
    """The highest epoch on disk. A process that takes over the episode uses the next one."""
    files: FileStore | None = field(default=None, compare=False)
    """The files of its run, such as images; None: the run is not known."""

    @property
    def begin(self) -> Event | None:
        """Its `BEGIN` event; None: it is lost."""
        return self.events[0] if self.events and self.events[0].kind is EventKind.BEGIN else None

    @property
    def template_time(self) -> datetime | None:
        """The local time that its chat template writes; None: unknown, or not a time."""
        recorded = None if self.begin is None else data_of(self.begin, BeginData).get("template_time")
        try:
            return None if recorded is None else datetime.fromisoformat(recorded)
        except (TypeError, ValueError):
            return None

    @property
    def end(self) -> Event | None:
        """Its `END` event, which only scores may follow; None: it has not ended, or was resumed since."""
        last = next((event for event in reversed(self.events) if event.kind not in AFTER_END), None)
        return last if last is not None and last.kind is EventKind.END else None

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.end is not None

    @property
    def reward(self) -> Event | None:
        """Its last `REWARD` event; None: it was not scored, or was resumed since."""
        return self._newest(EventKind.REWARD)

    @property
    def teacher(self) -> Event | None:
        """Its last `TEACHER` event; None: no teacher scored it, or it was resumed since."""
        return self._newest(EventKind.TEACHER)

    @property
    def staleness(self) -> Event | None:
        """Its last `STALENESS` event; None: nothing was decided, or it was resumed since."""
        return self._newest(EventKind.STALENESS)

    @property
    def dropped(self) -> bool:
        """Whether it is not trained because its group became too old."""
        return self.staleness is not None and self.staleness.data.get("decision") in ("dropped", "retried")

    def teacher_logprobs(self) -> dict[int, TeacherLogprobs]:
        """Return the teacher's logprobs of the sampled tokens, by turn id; empty if no teacher scored it.

        Raises:
            LedgerError: The event does not have the declared form.
        """
        if self.teacher is None:
            return {}
        data, arrays = data_of(self.teacher, TeacherData), arrays_of(self.teacher, TeacherArrays)
        try:
            whole = TeacherLogprobs(arrays["logprobs"], arrays["top_ids"], arrays["top_logprobs"], data["top"])
            found, at = {}, 0
            for turn, count in data["turns"]:
                found[turn] = whole.part(at, at + count)
                at += count
        except (KeyError, TypeError, ValueError, CountMismatchError) as error:
            raise LedgerError(f"the teacher event of episode {self.id} is malformed: {error!r}") from error
        return found

    def _newest(self, kind: EventKind) -> Event | None:
        for event in reversed(self.events):
            if event.kind is kind:
                return event
            if event.kind is EventKind.RESUME:  # a resumed episode is scored again
                return None
        return None

    @property
    def fingerprint(self) -> dict[str, str]:
        """What identifies the experiment it was run as: of the call that ran it last, and of its newest score."""
        return fingerprint_in(self.events)

    @property
    def earlier_fingerprints(self) -> list[dict[str, str]]:
        """In what earlier calls of the run, of which it still has turns, differ from the one that ran it last."""
        return earlier_in(self.events)

    @property
    def head(self) -> bytes:
        """Digest of the last event, which the next event links to."""
        return self.events[-1].digest if self.events else first_link(self.id)

    @property
    def next_number(self) -> int:
        """Number of the next event."""
        return len(self.events)

    @property
    def calls(self) -> list[Event]:
        """`CALL` events that no later `ROLLBACK` removed, in order."""
        calls: list[Event] = []
        for event in self.events:
            if event.kind is EventKind.CALL:
                calls.append(event)
            elif event.kind is EventKind.ROLLBACK:
                turns = data_of(event, RollbackData)["turns"]
                calls = [call for call in calls if data_of(call, CallData)["turn"] < turns]
        return calls

    @property
    def call_errors(self) -> list[Event]:
        """`CALL_ERROR` events, in order."""
        return self._of(EventKind.CALL_ERROR)

    @property
    def tools(self) -> list[Event]:
        """`TOOL` events, in order."""
        return self._of(EventKind.TOOL)

    def tree(self) -> TokenTree:
        """Return the tree of all turns that were not rolled back. Turns that the agent discarded are rejected.

        Raises:
            RecordError: The turns do not form a tree.
            LedgerError: A call event, or the end event, does not have the declared form.
        """
        try:
            end = None if self.end is None else data_of(self.end, EndData)
            rejected = set() if end is None else set(end.get("rejected", ()))
            main = None if end is None else end.get("main")
            scores = self.teacher_logprobs()
            turns = [_turn(call, rejected, scores) for call in self.calls]
        except KeyError as error:
            raise LedgerError(f"a call event of episode {self.id} has no {error}") from error
        except TypeError as error:
            raise LedgerError(f"a call event, or the end event, of episode {self.id} is malformed: {error}") from error
        return TokenTree.from_dict({"format": RECORD_FORMAT, "id": self.id, "turns": turns, "main": main})

    def trajectories(self) -> list[Trajectory]:
        """Return the trajectory of every branch, as `TokenTree.trajectories` does, without loss on too old tokens."""
        tree = self.tree()
        tree.untrained_versions = self.too_old
        return tree.trajectories()

    @property
    def too_old(self) -> frozenset[str | None]:
        """The weight versions whose tokens are not trained because they are too old; empty unless they are masked."""
        if self.staleness is None or self.staleness.data.get("decision") != "masked":
            return frozenset()
        decided = data_of(self.staleness, StalenessData)
        return frozenset(version for version, age in decided["ages"] if age is not None and age > decided["limit"])

    @property
    def image_digests(self) -> list[str]:
        """Digests of the images of its turns, sorted. Nothing is read."""
        return sorted({image[2] for call in self.calls for image in data_of(call, CallData).get("images", ())})

    def images(self, known: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
        """Return the images of its turns as PNG files, by digest.

        They are read from the files of the run. A record that travels without them has the images in its task and its
        tool results, and they are converted again.

        Args:
            known: Images that need not be read, by digest.

        Raises:
            LedgerError: A file is missing or was changed, or the run is not known and the record does not have it.
        """
        found = {digest: known[digest] for digest in self.image_digests if known is not None and digest in known}
        missing = [digest for digest in self.image_digests if digest not in found]
        if missing and (self.files is None or any(self.files.find(digest) is None for digest in missing)):
            found.update(self._carried_images(missing))
        for digest in missing:
            if digest not in found:
                if self.files is None:
                    raise LedgerError(
                        f"image {digest} of episode {self.id} cannot be read: the run that has it is not known"
                    )
                found[digest] = self.files.read(digest)
        return found

    def _carried_images(self, wanted: Collection[str]) -> dict[str, bytes]:
        """Return those of some images that the events themselves have, by digest."""
        found: dict[str, bytes] = {}
        for event in self.events:
            name = {EventKind.BEGIN: "task", EventKind.TOOL: "result"}.get(event.kind)
            for content in contents_in(None if name is None else event.data.get(name)):
                with suppress(UnsupportedContentError, ConfigurationError):
                    file = image_file(content)
                    if file.digest in wanted:
                        found[file.digest] = file.png
        return found

    @property
    def other_models(self) -> list[Event]:
        """Its `MODEL` and `MODEL_ERROR` events, in order."""
        return self._of(*OF_OTHER_MODELS)

    def _of(self, *kinds: EventKind) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]


def _turn(event: Event, rejected: set[int], scores: Mapping[int, TeacherLogprobs]) -> dict[str, Any]:
    """Return a call event as a turn of `TokenTree.to_dict`."""
    call, arrays = event.data, event.arrays
    scored = scores.get(call["turn"])
    kept = ("token_ids", "kept"), ("offsets", "kept_offsets"), ("logprobs", "kept_logprobs")
    return {
        **{name: call[name] for name in _SAME_DATA},
        **{name: arrays[name] for name in ("closing", "context", "sampled", "logprobs")},
        "id": call["turn"],
        "status": TurnStatus.REJECTED if call["turn"] in rejected else TurnStatus.KEPT,
        "images": call.get("images", ()),
        "kept": {name: arrays[ours] for name, ours in kept} if "kept" in arrays else None,
        "teacher": None if scored is None else scored.to_dict(),
    }


# Fields of `CallData` that a turn of `TokenTree.to_dict` has under the same name.
_SAME_DATA = ("parent", "start", "finish_reason", "purpose", "join", "forked_from", "caller", "versions", "detail")


class PortableRecord:
    """The record of a paused episode, to be kept outside of the ledger, such as in a trainer's buffer.

    It is packed into bytes only when it is pickled. Copies of it are the same object. Images of its task and its tool
    results are part of the events, or named by digest: then the pickle also says where the files of the run are.
    """

    __slots__ = ("record",)

    def __init__(self, record: EpisodeRecord) -> None:
        self.record = record
        """The record. Must not be changed."""

    def to_bytes(self) -> bytes:
        """Return the events of the record as bytes."""
        previous, parts = first_link(self.record.id), []
        for event in self.record.events:
            parts.append(encoded(event, previous))
            previous = event.digest
        return _PORTABLE_MAGIC + zlib.compress(b"".join(parts), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> PortableRecord:
        """Return the record that `to_bytes` packed.

        Raises:
            LedgerError: The bytes are not a portable record, or were changed.
        """
        if not isinstance(data, bytes) or not data.startswith(_PORTABLE_MAGIC):
            raise LedgerError(f"a portable record must be bytes that start with {_PORTABLE_MAGIC!r}, got {data!r:.50}")
        try:
            events, previous = [], b""
            stream = zlib.decompressobj()
            content = stream.decompress(data[len(_PORTABLE_MAGIC) :], LARGEST_BLOCK)
            if stream.unconsumed_tail:
                raise LedgerError(f"the portable record of an episode has more than {LARGEST_BLOCK} bytes")
            if not stream.eof or stream.unused_data:
                raise LedgerError(
                    "the portable record of an episode is damaged: its compressed data has a wrong length"
                )
            for frame in frames(content):
                event, body, _ = decoded(frame)
                if link(previous or first_link(event.episode), body) != event.digest:
                    raise LedgerError(f"event {event.number} of the portable record of an episode was changed")
                events.append(event)
                previous = event.digest
        except zlib.error as error:
            raise LedgerError(f"the portable record of an episode is damaged: {error}") from error
        if not events:
            raise LedgerError("the portable record of an episode is empty")
        return cls(EpisodeRecord(events[0].episode, tuple(events), epoch=events[-1].epoch))

    def __reduce__(self) -> tuple[Callable[..., PortableRecord], tuple[bytes, FileStore | None]]:
        return _unpickled, (self.to_bytes(), self.record.files)

    def __deepcopy__(self, memo: dict[int, Any]) -> PortableRecord:
        return self

    def __copy__(self) -> PortableRecord:
        return self


def _unpickled(data: bytes, files: FileStore | None) -> PortableRecord:
    """Return the record that was pickled, with the place of the files of its run."""
    portable = PortableRecord.from_bytes(data)
    portable.record.files = files
    return portable
