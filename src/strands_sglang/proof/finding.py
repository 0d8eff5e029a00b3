"""A problem that `verify` found, and its location: `Finding`.

Invariant: a finding states the problem and its location as exactly as it is known: file and byte, episode and event,
turn and token. Missing data (a file that ends early, an episode without an end) is never reported as a contradiction,
and a contradiction is never reported as missing data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from strands_sglang._terminal import escape_for_terminal


class Verdict(str, Enum):
    """Result of verifying an episode or a whole run, best first."""

    PROVED = "proved"
    """The record is complete and consistent."""
    EMPTY = "empty"
    """The record is complete and consistent, and has no token to train."""
    UNFINISHED = "unfinished"
    """The record is consistent so far; the end of an episode, or the run's seal, is not written yet."""
    DATA_LOST = "data_lost"
    """A file or the end of a file is missing; the rest is consistent."""
    BROKEN = "broken"
    """The record contradicts itself: it was changed after it was written, or written incorrectly."""


class FindingKind(str, Enum):
    """Category of a problem."""

    FILE_DAMAGED = "file_damaged"
    """A file contains bytes that fail its checksums."""
    FILE_CHANGED = "file_changed"
    """A file differs from the one that was sealed."""
    FORM = "form"
    """A value does not have the format described in docs/ledger.md."""
    DIGEST = "digest"
    """An event's digest does not match its bytes and the preceding event."""
    ORDER = "order"
    """The kind, number or epoch of an event is not possible at its position, or an event number is missing."""
    DUPLICATE = "duplicate"
    """Two events or episodes occupy the same position, or one engine response is recorded as two turns."""
    TASK = "task"
    """An episode does not match its task, its run, or its model."""
    PLACE = "place"
    """A turn does not fit the turns before it."""
    PROMPT = "prompt"
    """A prompt is not the branch so far plus closing and context tokens."""
    SAMPLED = "sampled"
    """Sampled tokens, logprobs and weight versions do not fit together."""
    TRAJECTORY = "trajectory"
    """A trajectory or its loss mask does not follow from the turns."""
    TEACHER = "teacher"
    """A teacher's logprobs do not fit the sampled tokens, or contradict each other."""
    STALENESS = "staleness"
    """What was decided because of the age of tokens does not follow from their weight versions."""
    METRICS = "metrics"
    """A metric differs from what the turns add up to."""
    SEAL = "seal"
    """The episodes differ from those that were sealed."""
    EXPORTED = "exported"
    """An exported trajectory differs from the recorded one."""
    TRAINER = "trainer"
    """A trainer's values do not fit the sampled tokens."""
    FILE_SHORTENED = "file_shortened"
    FILE_MISSING = "file_missing"
    """A sealed file does not exist."""
    EVENTS_LOST = "events_lost"
    """Events are missing because the end of a file was lost."""
    FILE_OPEN = "file_open"
    """A file was not closed and no seal states its length: its writer is running or died, or the file was cut."""
    FILE_ADDED = "file_added"
    """A file is not in the seal: the run continued after it was sealed."""
    UNSEALED = "unsealed"
    """The run has no seal, so missing episodes are undetectable."""
    NO_END = "no_end"
    NOT_BEGUN = "not_begun"
    NOTHING_TRAINED = "nothing_trained"
    """No sampled token of the verified episodes is trained."""

    @property
    def verdict(self) -> Verdict:
        """Best verdict that is possible with a finding of this kind."""
        if self in (FindingKind.FILE_SHORTENED, FindingKind.FILE_MISSING, FindingKind.EVENTS_LOST):
            return Verdict.DATA_LOST
        if self is FindingKind.NOTHING_TRAINED:
            return Verdict.EMPTY
        return Verdict.UNFINISHED if self in _UNFINISHED else Verdict.BROKEN


_UNFINISHED = (
    FindingKind.FILE_OPEN,
    FindingKind.FILE_ADDED,
    FindingKind.UNSEALED,
    FindingKind.NO_END,
    FindingKind.NOT_BEGUN,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. A location field is None if it is unknown or does not apply."""

    kind: FindingKind
    message: str
    episode: str | None = None
    event: int | None = None
    turn: int | None = None
    """Id of the turn, or of the last turn of a trajectory."""
    token: int | None = None
    """Position of the first affected token within its branch."""
    file: str | None = None
    byte: int | None = None
    """Offset in the file of the block that contains the problem."""

    @property
    def place(self) -> str:
        """Location as text; empty if the finding concerns the whole run."""
        parts = [f"episode {self.episode}"] if self.episode is not None else []
        parts += [
            f"{name} {value}"
            for name, value in (("event", self.event), ("turn", self.turn), ("token", self.token))
            if value is not None
        ]
        if self.file is not None:
            parts.append(self.file if self.byte is None else f"{self.file} at byte {self.byte}")
        return ", ".join(parts)

    def at(self, file: str | None, byte: int | None) -> Finding:
        """Return a copy with a location in a file."""
        return replace(self, file=file, byte=byte)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return {**asdict(self), "kind": self.kind.value}

    def text(self, others: int = 0) -> str:
        """Return the finding as one line; `others`: how many more have the same message at other locations."""
        place = f"{self.place} and {others:,} more" if others else self.place
        return escape_for_terminal(f"{self.kind.value}: {place + ': ' if place else ''}{self.message}")

    def __str__(self) -> str:
        return self.text()


SEVERITY = list(Verdict)
"""Verdicts from best to worst."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict, or PROVED if there are none."""
    return max(verdicts, key=SEVERITY.index, default=Verdict.PROVED)
