"""Returns the recorded answers and tool results of an episode again (`ReplayLog`), and tracks lost calls (`LostCalls`).

A resumed or replayed agent runs its loop from the start; its engine calls and tool calls are answered from the
`ReplayLog` until the record ends.

A lost call is an engine call that failed without tokens, or a request of a tool that its sandbox did not answer. An
agent may catch such an error, or a tool may turn it into its result; the model would then be trained on an outage.

Invariant: an answer is returned only for the prompt it was sampled for, inside the same tool calls; a tool result only
for the same call with the same arguments; an answer of another model only for the same content, inside the same tool
calls; each at most once. Answers are returned in the order in which their turns
were committed, each after the turn before it was committed, so that turns get the same ids again. Both classes can be
used from any thread. A call is lost until the same prompt or request is answered inside the same tool calls; an episode
that has a lost call at its end ends as `EndReason.ENGINE_ERROR` or `TOOL_UNAVAILABLE`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from typing import Any

from strands.types.exceptions import ContextWindowOverflowException

from strands_sglang.engine import Generation
from strands_sglang.errors import (
    CallCancelledError,
    ContextOverflowError,
    EngineError,
    RequestRejectedError,
    StrandsSGLangError,
    ToolUnavailableError,
)
from strands_sglang.ledger.event import (
    OF_OTHER_MODELS,
    CallData,
    CallErrorData,
    EngineCallData,
    Event,
    EventKind,
    ModelCallData,
    ModelErrorData,
    RollbackCause,
    RollbackData,
    SampledArrays,
    ToolData,
    ToolListData,
    arrays_of,
    data_of,
)
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.runs.recording.event_data import ToolOutcome, error_of, generation_of
from strands_sglang.tokens import Join


def got_no_tokens(error: BaseException) -> bool:
    """Return whether an error means that the engine was unavailable; a rejected or cancelled request is not that."""
    return isinstance(error, EngineError) and not isinstance(error, (RequestRejectedError, CallCancelledError))


class LostCalls:
    """The lost calls of one episode; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: dict[tuple[Hashable, tuple[str, ...]], EngineError | ToolUnavailableError] = {}

    def add(self, request: Hashable, inside: tuple[str, ...], error: BaseException) -> None:
        """Register a failed call.

        Args:
            request: Digest of its prompt, or what a sandbox was asked.
            inside: Ids of the tool calls it was made inside, outermost first.
            error: Its error; one of an engine is ignored unless `got_no_tokens(error)`.
        """
        if isinstance(error, ToolUnavailableError) or (isinstance(error, EngineError) and got_no_tokens(error)):
            with self._lock:
                self._errors[request, inside] = error

    def answered(self, request: Hashable, inside: tuple[str, ...]) -> None:
        """Register an answered call: a lost call with the same request and place is no longer lost."""
        if self._errors:
            with self._lock:
                self._errors.pop((request, inside), None)

    def inside_of(self, call_id: str) -> EngineError | ToolUnavailableError | None:
        """Return the error of a lost call made inside a tool call; None if no call inside it is lost."""
        with self._lock:
            return next((error for (_, inside), error in self._errors.items() if call_id in inside), None)

    @property
    def first(self) -> EngineError | ToolUnavailableError | None:
        """The error of the first lost call; None if no call is lost."""
        with self._lock:
            return next(iter(self._errors.values()), None)


_POLL_SECONDS = 0.002
# How often a waiting call polls without progress before it is assumed that no other call takes the recorded answers
# that are left. Polls are counted, not seconds: on a busy machine they are delayed as much as the other calls.
_MAX_POLLS = 2_500  # five seconds on an idle machine
_MAX_POLLS_ALONE = 50  # if the record has only one conversation
_MAX_POLLS_INSIDE = 30_000  # while another tool call runs: the next call may come from inside it, or after it
_MAX_REFUSALS = 10  # a hook may make the agent retry forever


class RecordEndedError(StrandsSGLangError):
    """A replayed agent continued after the end of its record: the recorded episode was interrupted there."""


class ReplayLog:
    """The recorded answers, also of other models, and tool results of one episode that were not returned yet."""

    def __init__(self, record: EpisodeRecord | None = None, *, replay_trailing_errors: bool = False) -> None:
        """Read the answers and results from a record.

        Args:
            record: Record of the episode; None: nothing is recorded.
            replay_trailing_errors: Whether the errors at the end of the record, and lost calls, are raised again; if
                not, these calls are made again.
        """
        self.files = None if record is None else record.files
        """The files of the recorded run; None: they are not known."""
        events, self._resets_left = ([], 0) if record is None else _not_rolled_back(record)
        if record is not None and not replay_trailing_errors:
            events = _without_retried_errors(events, record.events)
        answers = [event for event in events if event.kind in (EventKind.CALL, EventKind.CALL_ERROR)]
        self._answers = deque(event for event in answers if not _is_internal_overflow(event, answers))
        calls = [data_of(event, CallData) for event in answers if event.kind is EventKind.CALL]
        self.turns = max((call["turn"] + 1 for call in calls), default=0)
        """Number of recorded turns, returned or not."""
        self._partial_turns = {} if record is None else _partial_turns(record)
        self._tools: dict[str, deque[Event]] = {}
        for event in events:
            if event.kind is EventKind.TOOL:
                self._tools.setdefault(data_of(event, ToolData)["id"], deque()).append(event)
        self._other_answers = _other_answers(events)
        self._tool_lists: dict[tuple[str, ...], deque[Event]] = {}
        for event in events:
            if event.kind is EventKind.TOOL_LIST:
                listed = data_of(event, ToolListData)
                self._tool_lists.setdefault((listed["name"], *listed["within"]), deque()).append(event)
        # Concurrent conversations, for example of sub-agents, may make their calls in another order than recorded.
        roots = sum(call["join"] == Join.ROOT.value for call in calls)
        concurrent = roots > 1 or any(data_of(event, EngineCallData)["within"] for event in answers)
        self._max_polls = _MAX_POLLS if concurrent else _MAX_POLLS_ALONE
        self._lock = threading.Lock()
        self._progress = 0  # counts incoming calls and returned answers
        self._uncommitted: Event | None = None
        self._refusals = 0
        self.running_tools: set[str] = set()
        """Ids of the tool calls that are running; engine calls may still come from inside them."""

    def __len__(self) -> int:
        """Return the number of answers that were not returned yet."""
        return len(self._answers)

    @property
    def pending(self) -> tuple[Event, ...]:
        """The events of the answers that were not returned yet."""
        with self._lock:
            return tuple(self._answers)

    @property
    def next_event(self) -> int | None:
        """Number of the first event that was not returned; None if all were returned."""
        return self._answers[0].number if self._answers else None

    def clear(self) -> None:
        """Discard everything that is left: the agent diverged from its record."""
        with self._lock:
            self._answers.clear()
            self._tools.clear()
            self._other_answers.clear()
            self._tool_lists.clear()
            self._partial_turns.clear()
            self._uncommitted = None

    def ended_error(self) -> BaseException:
        """Return the error for a call after the end of the record.

        An agent that keeps calling gets `asyncio.CancelledError` in the end, which is not retried.
        """
        self._refusals += 1
        message = "the record of this episode ends here"
        return RecordEndedError(message) if self._refusals < _MAX_REFUSALS else asyncio.CancelledError(message)

    async def answer(self, prompt: str, within: Collection[str]) -> Event | None:
        """Return the recorded answer to a prompt; waits until the answers before it are committed.

        Args:
            prompt: Digest of the prompt.
            within: Ids of the tool calls that the call is made inside, outermost first.

        Returns:
            A `CALL` or `CALL_ERROR` event; None if no answer to this prompt is recorded, or if no other call takes the
            answers before it.
        """
        polls, last_progress = 0, -1
        with self._lock:
            self._progress += 1
        while True:
            with self._lock:
                first = self._answers[0] if self._answers else None
                matches = first is None or _call_key(first) == (prompt, *within)
                if matches and self._uncommitted is None:
                    self._progress += 1
                    if first is not None and first.kind is EventKind.CALL:
                        self._uncommitted = first
                    return self._answers.popleft() if self._answers else None
                # Another conversation of the same episode may be about to take the first answer.
                other_tool_runs = any(call not in within for call in self.running_tools)
                max_polls = _MAX_POLLS_INSIDE if other_tool_runs else self._max_polls
                polls, last_progress = (polls + 1 if last_progress == self._progress else 0), self._progress
                if polls > max_polls:
                    self._uncommitted = None  # the answer was never committed or settled
                    if not matches:
                        return None
            await asyncio.sleep(_POLL_SECONDS)

    def settle(self, event: Event | None) -> None:
        """Register that the turn of an answer was committed, or never will be."""
        with self._lock:
            if event is not None and self._uncommitted is event:
                self._uncommitted = None

    def result(self, call_id: str, name: str, arguments: str) -> Event | None:
        """Return the recorded `TOOL` event of a tool call; None if there is none.

        Args:
            call_id: Id of the call.
            name: Name of the tool.
            arguments: Digest of the arguments.
        """
        with self._lock:
            waiting = self._tools.get(call_id)
            if not waiting:
                return None
            first = data_of(waiting[0], ToolData)
            return waiting.popleft() if (first["name"], first["arguments_digest"]) == (name, arguments) else None

    def other_answer(self, request: str, within: Collection[str]) -> Event | None:
        """Return the recorded answer of another model, a `MODEL` or `MODEL_ERROR` event; None if there is none.

        Args:
            request: Digest of all that it is asked.
            within: Ids of the tool calls that it is asked inside, outermost first.
        """
        with self._lock:
            self._progress += 1
            waiting = self._other_answers.get((request, *within))
            return waiting.popleft() if waiting else None

    def tool_list(self, name: str, within: Collection[str]) -> list[Any] | None:
        """Return the recorded tools of a server, asked inside these tool calls; None if they are not recorded."""
        with self._lock:
            waiting = self._tool_lists.get((name, *within))
            return data_of(waiting.popleft(), ToolListData)["tools"] if waiting else None

    def take_part(self, prompt: str, within: Collection[str]) -> Generation | None:
        """Return the part of a turn that was sampled before its episode was paused; None if there is none."""
        with self._lock:
            waiting = self._partial_turns.get((prompt, *within))
            return waiting.pop(0) if waiting else None

    def return_part(self, part: Generation | None, prompt: str, within: Collection[str]) -> None:
        """Put a part back because the call that took it failed; the next call with this prompt continues from it."""
        with self._lock:
            if part is not None:
                self._partial_turns.setdefault((prompt, *within), []).insert(0, part)

    @property
    def results_left(self) -> int:
        """Number of tools that were run when recorded and whose results were not returned yet."""
        with self._lock:
            waiting = (event for events in self._tools.values() for event in events)
            return sum(data_of(event, ToolData)["outcome"] != ToolOutcome.REFUSED.value for event in waiting)

    def reset(self) -> bool:
        """Register that the agent was reset; return whether this reset is recorded."""
        with self._lock:
            self._resets_left -= 1
            return self._resets_left >= 0

    def has_calls_within(self, call_id: str) -> bool:
        """Return whether an answer that was not returned yet was given inside a tool call."""
        with self._lock:
            return any(call_id in data_of(event, EngineCallData)["within"] for event in self._answers)


_REPLAYED = (EventKind.CALL, EventKind.CALL_ERROR, EventKind.TOOL, EventKind.TOOL_LIST, *OF_OTHER_MODELS)
_ASKED_OUTSIDE = (EventKind.TOOL_LIST, EventKind.MODEL)
OVERFLOW = ContextWindowOverflowException.__name__
"""Error of another model that its agent handles by sending less; it would come again, so it is replayed."""


def _not_rolled_back(record: EpisodeRecord) -> tuple[list[Event], int]:
    """Return the calls, errors and tool results that no rollback removed, in order, and the number of resets.

    A replayed agent makes the turns before a reset again before it is reset, so these stay.
    """
    earlier: list[Event] = []
    remaining: list[Event] = []
    resets = 0
    for at, event in enumerate(record.events):
        if event.kind in _REPLAYED:
            remaining.append(event)
        elif event.kind is EventKind.RESUME:
            remaining = _without_retried_errors(remaining, record.events[:at])
        elif event.kind is EventKind.ROLLBACK and data_of(event, RollbackData)["cause"] == RollbackCause.RESET.value:
            earlier, remaining, resets = earlier + remaining, [], resets + 1
        elif event.kind is EventKind.ROLLBACK:
            rollback = data_of(event, RollbackData)
            removed = (number for number, one in enumerate(remaining) if _removed_by(rollback, one))
            first = next(removed, len(remaining))
            # The process that diverged may have asked other models or servers before: these answers were given in it.
            remaining[first:] = (
                [one for one in remaining[first:] if one.kind in _ASKED_OUTSIDE and one.epoch == event.epoch]
                if rollback["cause"] == RollbackCause.DIVERGED.value
                else []
            )
    return earlier + remaining, resets


def _without_retried_errors(events: list[Event], known: Sequence[Event]) -> list[Event]:
    """Return events without the errors that a resumed episode does not repeat: the last ones, and lost calls.

    Args:
        events: The events.
        known: All events of the record; a call is lost if none of them answers it later, with the same key.
    """
    while events and events[-1].kind in (EventKind.CALL_ERROR, EventKind.MODEL_ERROR):
        events.pop()
    events = [event for event in events if event.kind is not EventKind.MODEL_ERROR or _is_overflow(event)]
    if not any(event.kind is EventKind.CALL_ERROR for event in events):
        return events
    answered = {_call_key(event): event.number for event in known if event.kind is EventKind.CALL}
    return [
        event
        for event in events
        if event.kind is not EventKind.CALL_ERROR
        or answered.get(_call_key(event), -1) > event.number
        or not got_no_tokens(error_of(event))
    ]


def _is_overflow(event: Event) -> bool:
    return data_of(event, ModelErrorData)["error"] == OVERFLOW


def _other_answers(events: Sequence[Event]) -> dict[tuple[str, ...], deque[Event]]:
    """Return the answers of other models in order, by request and tool calls; no errors that were answered later."""
    found: dict[tuple[str, ...], deque[Event]] = {}
    for event in events:
        if event.kind in OF_OTHER_MODELS:
            call = data_of(event, ModelCallData)
            waiting = found.setdefault((call["request_digest"], *call["within"]), deque())
            if waiting and waiting[-1].kind is EventKind.MODEL_ERROR:
                waiting.pop()  # the resumed episode asked again
            waiting.append(event)
    return found


def _call_key(event: Event) -> tuple[str, ...]:
    """Return the prompt digest of an engine call and the ids of the tool calls it was made inside."""
    call = data_of(event, EngineCallData)
    return (call["prompt_digest"], *call["within"])


def _partial_turns(record: EpisodeRecord) -> dict[tuple[str, ...], list[Generation]]:
    """Return the interrupted turns that were not continued, by `_call_key`."""
    parts: dict[tuple[str, ...], list[Generation]] = {}
    for event in record.events:
        if event.kind is EventKind.ROLLBACK:
            parts.clear()
        elif event.kind in (EventKind.PARTIAL_CALL, EventKind.CALL):
            waiting, arrays = parts.setdefault(_call_key(event), []), arrays_of(event, SampledArrays)
            continued = (n for n, part in enumerate(waiting) if part.token_ids == arrays["sampled"][: len(part)])
            if (number := next(continued, None)) is not None:
                del waiting[number]
            waiting += [generation_of(event)] if event.kind is EventKind.PARTIAL_CALL else []
    return parts


def _removed_by(rollback: RollbackData, event: Event) -> bool:
    if event.kind is EventKind.CALL:
        return data_of(event, CallData)["turn"] >= rollback["turns"]
    first = rollback["event"]
    return event.kind is EventKind.CALL_ERROR and first is not None and event.number >= first


def _is_internal_overflow(event: Event, answers: Sequence[Event]) -> bool:
    """Return whether an error is a context overflow that the model handled itself, by reducing the token budget.

    The agent never saw it. It is not replayed, because a model that has learned the engine's context length since does
    not make this call again.
    """
    if event.kind is not EventKind.CALL_ERROR:
        return False
    data = data_of(event, CallErrorData)
    limit = data["fields"].get("limit_tokens")
    if data["error"] != ContextOverflowError.__name__ or not isinstance(limit, (int, float)):
        return False
    prompt = data["prompt_digest"]
    after = (one for one in answers if one.number > event.number)
    later = (one for one in after if data_of(one, EngineCallData)["prompt_digest"] == prompt)
    return data["prompt_tokens"] < limit and next(later, event).kind is EventKind.CALL
