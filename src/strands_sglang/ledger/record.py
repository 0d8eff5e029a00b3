"""What is on record of one episode: `EpisodeRecord`.

Invariant: its events are numbered from 0 without a gap, and each follows from the one before it; what does not is not
among them, but a problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import Event, EventKind, first_link
from strands_sglang.ledger.shown import shown
from strands_sglang.tokens import TokenTree, Trajectory
from strands_sglang.tokens.record import RECORD_FORMAT
from strands_sglang.tokens.turn import TurnStatus


class ChainFault(str, Enum):
    """What can be wrong with the events of an episode."""

    MISSING = "missing"
    """Events before it are not there."""
    BROKEN = "broken"
    """Its digest does not follow from the event before it."""
    TAKEOVER = "takeover"
    """It changes the epoch, and is not a takeover from the event before it."""
    CONFLICT = "conflict"
    """Another event of the same epoch has its number."""
    DUPLICATE = "duplicate"
    """The very same event is there a second time."""
    ORDER = "order"
    """It stands in its shard behind a later event of its epoch."""
    UNREADABLE = "unreadable"
    """Its bytes are no event."""


@dataclass(frozen=True, slots=True)
class ChainProblem:
    """Something wrong with the events of an episode, and where."""

    kind: ChainFault
    """What is wrong."""
    episode: str
    """Id of the episode; "" when that cannot be read."""
    number: int | None
    """Number of the event; None when it cannot be read."""
    shard: str
    """Name of the file."""
    byte: int
    """Where in the file the block begins that holds the event."""
    message: str
    """In words."""

    def __str__(self) -> str:
        event = "an event" if self.number is None else f"event {self.number}"
        return shown(f"{self.shard}, block at byte {self.byte}, {event} of {self.episode or '?'}: {self.message}")


@dataclass(slots=True)
class EpisodeRecord:
    """The events of one episode that hold together, and what is wrong with the others."""

    id: str
    """Id of the episode."""
    events: tuple[Event, ...]
    """The winning chain, in order: that of the highest epoch."""
    problems: list[ChainProblem] = field(default_factory=list)
    """What is wrong; empty: nothing."""
    orphans: int = 0
    """Events of processes that wrote on after the episode was taken over; they do not count, nor are they wrong."""
    epoch: int = 0
    """The highest epoch seen. Who takes the episode over takes the next."""

    @property
    def begin(self) -> Event | None:
        """How it began; None when that is lost."""
        return self.events[0] if self.events and self.events[0].kind is EventKind.BEGIN else None

    @property
    def end(self) -> Event | None:
        """How it ended; None: it did not, or it was taken up again since. Scores may stand behind it."""
        last = next((event for event in reversed(self.events) if event.kind is not EventKind.REWARD), None)
        return last if last is not None and last.kind is EventKind.END else None

    @property
    def finished(self) -> bool:
        """Whether it has an end."""
        return self.end is not None

    @property
    def reward(self) -> Event | None:
        """How it was scored last; None: it was not, or it was taken up again since."""
        for event in reversed(self.events):
            if event.kind is EventKind.REWARD:
                return event
            if event.kind is EventKind.RESUME:  # whoever goes on scores it anew
                return None
        return None

    @property
    def head(self) -> bytes:
        """Digest of the last event: what the next one is chained to."""
        return self.events[-1].digest if self.events else first_link(self.id)

    @property
    def next_number(self) -> int:
        """Number of the next event."""
        return len(self.events)

    @property
    def calls(self) -> list[Event]:
        """Engine calls that were not cut later, in order."""
        calls: list[Event] = []
        for event in self.events:
            if event.kind is EventKind.CALL:
                calls.append(event)
            elif event.kind is EventKind.CUT:
                calls = [call for call in calls if call.data["turn"] < event.data["turns"]]
        return calls

    @property
    def faults(self) -> list[Event]:
        """Engine calls that failed."""
        return self._of(EventKind.FAULT)

    @property
    def tools(self) -> list[Event]:
        """Results of tools."""
        return self._of(EventKind.TOOL)

    def tree(self) -> TokenTree:
        """Return all turns that were not cut, those the agent threw away marked as such.

        Raises:
            RecordError: The turns do not make a tree.
            LedgerError: A call lacks something that a turn has.
        """
        try:
            rejected = set() if self.end is None else set(self.end.data.get("rejected", ()))
            turns = [_turn(call, rejected) for call in self.calls]
        except KeyError as error:
            raise LedgerError(f"a call of episode {self.id} has no {error}") from error
        except TypeError as error:
            raise LedgerError(f"a call, or the end, of episode {self.id} is not of its form: {error}") from error
        return TokenTree.from_dict({"format": RECORD_FORMAT, "id": self.id, "turns": turns})

    def trajectories(self) -> list[Trajectory]:
        """Return every branch laid flat, as `TokenTree.trajectories` does."""
        return self.tree().trajectories()

    def _of(self, kind: EventKind) -> list[Event]:
        return [event for event in self.events if event.kind is kind]


_TURN: Sequence[str] = (
    *("parent", "start", "finish", "purpose", "join"),
    *("forked_from", "caller", "versions", "detail"),
)
_ARRAYS = ("closing", "context", "sampled", "logprobs")


def _turn(call: Event, rejected: set[int]) -> dict[str, Any]:
    """Return a call as a turn of a recorded tree."""
    turn = {"id": call.data["turn"]}
    turn |= {name: call.data[name] for name in _TURN} | {name: call.arrays[name] for name in _ARRAYS}
    turn["status"] = TurnStatus.REJECTED if turn["id"] in rejected else TurnStatus.KEPT
    return turn
