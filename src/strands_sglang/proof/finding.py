"""Something `verify` found in a ledger, and where: `Finding`.

Invariant: a finding says what is wrong in plain words and as exactly as can be known: the file and byte, the episode
and event, the turn and token. A loss (a file that ends early, an episode without an end) is never called a
contradiction, and a contradiction never a loss.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from strands_sglang.ledger.shown import shown


class Verdict(str, Enum):
    """What can be said of an episode, or of a whole run."""

    PROVED = "proved"
    """Everything is there, and everything follows from everything else."""
    UNFINISHED = "unfinished"
    """What is there is good; episodes without an end, or the run's seal, are still to come."""
    TRUNCATED = "truncated"
    """The tail of a file is missing, or a file; nothing that is there contradicts anything else."""
    BROKEN = "broken"
    """Something contradicts something else: it was changed after it was written, or written wrong."""


class FindingKind(str, Enum):
    """What is wrong."""

    FILE_DAMAGED = "file_damaged"
    """Bytes inside a file are not what was written there."""
    FILE_CHANGED = "file_changed"
    """A file is not the one that was sealed."""
    FORM = "form"
    """Something is not of the form that docs/ledger.md gives it."""
    DIGEST = "digest"
    """An event does not have the digest that follows from its bytes and the event before it."""
    ORDER = "order"
    """An event of a kind, number or epoch that cannot be at its place, or a number that is not there."""
    DUPLICATE = "duplicate"
    """The same place is taken twice (an event, an episode), or one answer of the engine is two turns."""
    TASK = "task"
    """An episode that is not of its task, its run, or its model."""
    PLACE = "place"
    """A turn that does not hang together with the turns before it."""
    PROMPT = "prompt"
    """A prompt that is not the branch so far, closing and context."""
    SAMPLED = "sampled"
    """Sampled tokens, logprobs and weight versions that do not fit together."""
    TRAJECTORY = "trajectory"
    """A trajectory, or its loss mask, that does not follow from the turns."""
    METRICS = "metrics"
    """A count that is not what is on record."""
    SEAL = "seal"
    """The episodes are not those that were sealed."""
    EXPORTED = "exported"
    """An exported trajectory that is not the one on record."""
    FILE_TRUNCATED = "file_truncated"
    """A file ends early."""
    FILE_MISSING = "file_missing"
    """A file that was sealed is not there."""
    EVENTS_LOST = "events_lost"
    """Events are missing where the tail of a file was lost."""
    FILE_OPEN = "file_open"
    """A file was not closed, and no seal says how long it was: its writer still writes, or died, or it was cut."""
    FILE_ADDED = "file_added"
    """A file that the seal does not know: the run went on behind its seal."""
    UNSEALED = "unsealed"
    """The run has no seal: whether whole episodes are missing cannot be known."""
    NO_END = "no_end"
    """An episode has not come to its end."""
    NOT_BEGUN = "not_begun"
    """A sample of a task has not begun."""

    @property
    def verdict(self) -> Verdict:
        """The best that can be said of whatever this was found in."""
        if self in (FindingKind.FILE_TRUNCATED, FindingKind.FILE_MISSING, FindingKind.EVENTS_LOST):
            return Verdict.TRUNCATED
        return Verdict.UNFINISHED if self in _TO_COME else Verdict.BROKEN


_TO_COME = (
    FindingKind.FILE_OPEN,
    FindingKind.FILE_ADDED,
    FindingKind.UNSEALED,
    FindingKind.NO_END,
    FindingKind.NOT_BEGUN,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    kind: FindingKind
    """What is wrong."""
    message: str
    """The same in words."""
    episode: str | None = None
    """Id of the episode; None: it is not about one."""
    event: int | None = None
    """Number of the event in the episode; None: it is not about one."""
    turn: int | None = None
    """Id of the turn, or of the last turn of a trajectory; None: it is not about one."""
    token: int | None = None
    """Position of the first token concerned, counted in its branch; None: it is not about one, or not known."""
    file: str | None = None
    """Name of the file; None: unknown, or the ledger is not in files."""
    byte: int | None = None
    """Where in the file the block begins that holds it; None: unknown."""

    @property
    def place(self) -> str:
        """Where it is, in words; "" when it is about the run as a whole."""
        told = [f"episode {self.episode}"] if self.episode is not None else []
        told += [
            f"{name} {value}"
            for name, value in (("event", self.event), ("turn", self.turn), ("token", self.token))
            if value is not None
        ]
        if self.file is not None:
            told.append(self.file if self.byte is None else f"{self.file} at byte {self.byte}")
        return ", ".join(told)

    def at(self, file: str | None, byte: int | None) -> Finding:
        """Return the same finding with the place in a file."""
        return replace(self, file=file, byte=byte)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "kind": self.kind.value}

    def __str__(self) -> str:
        return shown(f"{self.kind.value}: {self.place + ': ' if self.place else ''}{self.message}")


_ORDER = [Verdict.PROVED, Verdict.UNFINISHED, Verdict.TRUNCATED, Verdict.BROKEN]


def worst(verdicts: Any) -> Verdict:
    """Return the worst of some verdicts; of none, that all is proved."""
    return max(verdicts, key=_ORDER.index, default=Verdict.PROVED)
