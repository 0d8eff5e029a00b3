"""What is on record of an episode, handed out once more: `Recorded`.

A resumed or replayed agent runs through its own loop again; its engine calls and tools are answered from here until
the record ends.

Invariant: an answer is given only to the very prompt it was sampled for, inside of the same tool calls, and a tool's
result only to the same call with the same arguments; each at most once; answers in the order in which their turns were
committed, each when the one before it is, so that turns get the numbers they had. From any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Collection, Sequence

from strands_sglang.engine import Generation
from strands_sglang.errors import ContextOverflowError, StrandsSGLangError
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.rollout.answer_event import error_of, generation_of
from strands_sglang.rollout.lost import got_no_tokens
from strands_sglang.rollout.tool_result import Outcome
from strands_sglang.tokens import Join

_LOOK_AGAIN = 0.002
# How often a waiting call looks without any progress before it is assumed that nobody asks for what is left. Looks are
# counted, not seconds: on a busy machine they come as late as everybody else does.
_PATIENCE = 2_500  # five seconds on an idle machine
_PATIENCE_ALONE = 50  # where the record shows one conversation only
_PATIENCE_INSIDE = 30_000  # while another tool call runs: the next may be asked for inside it, or after it
_REFUSALS = 10  # a hook may have the agent ask again for ever


class RecordEndedError(StrandsSGLangError):
    """A replayed agent asked for more than is on record: its episode was cut from outside there."""


class Recorded:
    """The answers and results of one episode that were not handed out yet."""

    def __init__(self, record: EpisodeRecord | None = None, *, trailing_faults: bool = False) -> None:
        """Take them from a record.

        Args:
            record: The episode's; None: nothing is on record.
            trailing_faults: Whether errors behind everything else, and outages, are repeated too; else whoever met
                them asks again.
        """
        events, self._anew = ([], 0) if record is None else _standing(record)
        if record is not None and not trailing_faults:
            events = _asked_again(events, record.events)
        answers = [event for event in events if event.kind is not EventKind.TOOL]
        self._answers = deque(event for event in answers if not _between_us(event, answers))
        self.turns = max((event.data["turn"] + 1 for event in answers if event.kind is EventKind.CALL), default=0)
        """Turns on record, handed out or not."""
        self._parts = {} if record is None else _parts(record)
        self._tools: dict[str, deque[Event]] = {}
        for event in events:
            if event.kind is EventKind.TOOL:
                self._tools.setdefault(event.data["id"], deque()).append(event)
        # Several conversations at once, sub-agents say, may ask in another order than they did.
        roots = sum(event.data.get("join") == Join.ROOT.value for event in answers)
        several = roots > 1 or any(event.data["within"] for event in answers)
        self._patience = _PATIENCE if several else _PATIENCE_ALONE
        self._lock = threading.Lock()
        self._progress = 0  # counts calls that came and answers that were handed out
        self._under_way: Event | None = None
        self._refusals = 0
        self.open: set[str] = set()
        """Ids of the tool calls that are being run: from inside of these somebody may yet ask."""

    def __len__(self) -> int:
        """Return the number of answers that were not handed out yet."""
        return len(self._answers)

    @property
    def pending(self) -> tuple[Event, ...]:
        """The answers that were not handed out."""
        with self._lock:
            return tuple(self._answers)

    @property
    def next_event(self) -> int | None:
        """Number of the first event that was not handed out; None when all were."""
        return self._answers[0].number if self._answers else None

    def drop(self) -> None:
        """Forget what is left: the agent went another way."""
        with self._lock:
            self._answers.clear()
            self._tools.clear()
            self._parts.clear()
            self._under_way = None

    def refused(self) -> BaseException:
        """Return the error of a replayed agent that asks for more than there is; in the end, one nobody tries again."""
        self._refusals += 1
        message = "the record of this episode ends here"
        return RecordEndedError(message) if self._refusals < _REFUSALS else asyncio.CancelledError(message)

    async def answer(self, prompt: str, within: Collection[str]) -> Event | None:
        """Return the answer to a prompt, when it is its turn.

        Args:
            prompt: Digest of the prompt.
            within: Ids of the tool calls that it is asked inside of.

        Returns:
            A call or a fault; None when no answer to this prompt is on record, or nobody asks for those before it.
        """
        looks, seen = 0, -1
        with self._lock:
            self._progress += 1
        while True:
            with self._lock:
                first = self._answers[0] if self._answers else None
                inside = [] if first is None else first.data["within"]
                mine = first is None or (first.data["prompt"] == prompt and inside == list(within))
                if mine and self._under_way is None:
                    self._progress += 1
                    if first is not None and first.kind is EventKind.CALL:
                        self._under_way = first
                    return self._answers.popleft() if self._answers else None
                # Another conversation of the same episode may be about to ask for the first one.
                awaited = any(call not in within for call in self.open)
                patience = _PATIENCE_INSIDE if awaited else self._patience
                looks, seen = (looks + 1 if seen == self._progress else 0), self._progress
                if looks > patience:
                    self._under_way = None  # what was made of it is known to nobody
                    if not mine:
                        return None
            await asyncio.sleep(_LOOK_AGAIN)

    def settle(self, event: Event | None) -> None:
        """Hear that the turn of an answer was committed, or will never be."""
        with self._lock:
            if event is not None and self._under_way is event:
                self._under_way = None

    def result(self, call_id: str, name: str, arguments: str) -> Event | None:
        """Return what is on record for a tool call; None when nothing is.

        Args:
            call_id: The call's id.
            name: The tool's name.
            arguments: Digest of the arguments.
        """
        with self._lock:
            waiting = self._tools.get(call_id)
            if not waiting or (waiting[0].data["name"], waiting[0].data["input"]) != (name, arguments):
                return None
            return waiting.popleft()

    def part(self, prompt: str, within: Collection[str]) -> Generation | None:
        """Return what was sampled of a turn before its episode was set aside; None when nothing was."""
        with self._lock:
            waiting = self._parts.get((prompt, *within))
            return waiting.pop(0) if waiting else None

    def take_back(self, part: Generation | None, prompt: str, within: Collection[str]) -> None:
        """Take a part back that a call did not go on from, because it failed: who asks again goes on from it."""
        with self._lock:
            if part is not None:
                self._parts.setdefault((prompt, *within), []).insert(0, part)

    @property
    def results_left(self) -> int:
        """Tools that were run by the record, and whose results were not handed out yet."""
        with self._lock:
            waiting = (event for events in self._tools.values() for event in events)
            return sum(event.data["outcome"] != Outcome.REFUSED.value for event in waiting)

    def began_anew(self) -> bool:
        """Hear that the agent threw its turns away; return whether it is on record that it did."""
        with self._lock:
            self._anew -= 1
            return self._anew >= 0

    def within(self, call_id: str) -> bool:
        """Return whether some answer that was not handed out was given inside of a tool call."""
        with self._lock:
            return any(call_id in event.data["within"] for event in self._answers)


def _standing(record: EpisodeRecord) -> tuple[list[Event], int]:
    """Return calls, faults and tool results that no later cut took back, in order; and how often the agent began anew.

    An agent that throws its turns away asks for them again before it does so again.
    """
    earlier: list[Event] = []
    standing: list[Event] = []
    anew = 0
    for at, event in enumerate(record.events):
        if event.kind in (EventKind.CALL, EventKind.FAULT, EventKind.TOOL):
            standing.append(event)
        elif event.kind is EventKind.RESUME:
            standing = _asked_again(standing, record.events[:at])
        elif event.kind is EventKind.CUT and event.data.get("kind") == "anew":
            earlier, standing, anew = earlier + standing, [], anew + 1
        elif event.kind is EventKind.CUT:
            cut = (number for number, one in enumerate(standing) if _cut_by(event, one))
            del standing[next(cut, len(standing)) :]
    return earlier + standing, anew


def _asked_again(events: list[Event], known: Sequence[Event]) -> list[Event]:
    """Return events without the errors that whoever takes over does not repeat: the last ones, and lost calls.

    A call is lost when nothing in all that is known answers it later, at the same place.
    """
    while events and events[-1].kind is EventKind.FAULT:
        events.pop()
    if not any(event.kind is EventKind.FAULT for event in events):
        return events
    answered = {_place(event): event.number for event in known if event.kind is EventKind.CALL}
    return [
        event
        for event in events
        if event.kind is not EventKind.FAULT
        or answered.get(_place(event), -1) > event.number
        or not got_no_tokens(error_of(event))
    ]


def _place(event: Event) -> tuple[str, ...]:
    return (event.data["prompt"], *event.data["within"])


def _parts(record: EpisodeRecord) -> dict[tuple[str, ...], list[Generation]]:
    """Return the turns that were cut and not gone on with, by their prompts and the tool calls they are inside of."""
    parts: dict[tuple[str, ...], list[Generation]] = {}
    for event in record.events:
        if event.kind is EventKind.CUT:
            parts.clear()
        elif event.kind in (EventKind.PART, EventKind.CALL):
            waiting = parts.setdefault((event.data["prompt"], *event.data["within"]), [])
            gone_on = (n for n, part in enumerate(waiting) if part.token_ids == event.arrays["sampled"][: len(part)])
            if (number := next(gone_on, None)) is not None:
                del waiting[number]
            waiting += [generation_of(event)] if event.kind is EventKind.PART else []
    return parts


def _cut_by(cut: Event, event: Event) -> bool:
    if event.kind is EventKind.CALL:
        return bool(event.data["turn"] >= cut.data["turns"])
    first = cut.data.get("event")
    return event.kind is EventKind.FAULT and first is not None and event.number >= first


def _between_us(event: Event, answers: Sequence[Event]) -> bool:
    """Return whether an error was one between model and engine: the budget was too large, and then was made smaller.

    No agent saw it. A model that knows the engine's context by now would take it for another.
    """
    data, limit = event.data, event.data.get("fields", {}).get("limit_tokens")
    if event.kind is not EventKind.FAULT or data["error"] != ContextOverflowError.__name__:
        return False
    later = (one for one in answers if one.number > event.number and one.data["prompt"] == data["prompt"])
    return limit is not None and data["sent"] < limit and next(later, event).kind is EventKind.CALL
