"""Writes the events of one episode: `EventLog` writes any event, and the turns as they are committed.

Invariant: turns are written in the order of their ids, and recorded turns are not written again. If a resumed agent
diverges from its record, a `ROLLBACK` event is written first. After `EventLog.close` only the events that end the
episode are written, even if code of the episode still runs. An event is never dropped because its data is not valid
JSON: it is written with the nearest JSON data.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from strands_sglang._json import jsonable
from strands_sglang.engine import Generation
from strands_sglang.errors import CallCancelledError, DivergedError
from strands_sglang.ledger.encoding import HashChain
from strands_sglang.ledger.event import EventKind, RollbackCause, RollbackData
from strands_sglang.runs.recording.event_data import PendingAnswer, call_event, same_position
from strands_sglang.runs.recording.replay_log import ReplayLog
from strands_sglang.tokens import Turn

logger = logging.getLogger(__name__)


class EventLog:
    """Writes the events of one episode, from any thread, and records its turns."""

    def __init__(
        self,
        episode: str,
        chain: HashChain | None,
        replay_log: ReplayLog | None = None,
        *,
        replays: bool = False,
    ) -> None:
        """Create an open log.

        Args:
            episode: Id of the episode.
            chain: Events are written to it; None: events are not written.
            replay_log: The recorded answers and results; None: nothing is recorded.
            replays: What to do where the record ends, or where the agent does not match it. False: continue on the
                engine; the rest of a record that does not match is rolled back with a `ROLLBACK` event. True: sample
                nothing; the episode ends there, or has diverged.
        """
        self._episode, self._chain = episode, chain
        self.lock = threading.RLock()
        """Held while an event is written; hold it to write several events together."""
        self.closed = False
        self.replays = replays
        """Whether all calls are answered from the record and nothing is sampled."""
        self.replay_log = ReplayLog() if replay_log is None else replay_log
        """Recorded answers and results that were not returned yet."""
        self.diverged: DivergedError | None = None
        """Where a resumed or replayed agent diverged from its record; None if it did not."""
        self._pending_answers: dict[int, PendingAnswer] = {}
        self._out_of_order: dict[int, tuple[Turn, PendingAnswer]] = {}
        self._settled_calls: set[str] = set()
        self.turns = 0
        """Number of recorded turns; further turns of the tree were committed too late to be recorded."""
        self.earlier: dict[int, int] = {}
        """By turn id: the number of the turn's tokens that are from the record and were not sampled in this run."""
        self.calls_within: dict[str, int] = {}
        """By tool call id: the number of turns made inside the call."""
        self.ending = False
        """Whether the end of the episode is being written; it can no longer be paused."""
        self.on_turn: Callable[[Turn], None] | None = None
        """Called with every turn that was sampled in this run, not with recorded ones; None: nothing is called."""

    def close(self) -> None:
        """Close the log; later writes raise, except those that end the episode."""
        with self.lock:
            self.closed = True

    @property
    def chain_end(self) -> tuple[int, int, bytes] | None:
        """Epoch, number and previous digest of the next event; None: events are not written."""
        return None if self._chain is None else (self._chain.epoch, self._chain.number, self._chain.head)

    def _check_not_closed(self) -> None:
        """Raise CallCancelledError if the log is closed."""
        if self.closed:
            raise CallCancelledError(f"episode {self._episode} has ended")

    def write(
        self,
        kind: EventKind,
        data: Mapping[str, object],
        arrays: Mapping[str, object] | None = None,
        *,
        ends: bool = False,
    ) -> None:
        """Write an event.

        Args:
            kind: Kind of the event.
            data: Its data, as `ledger/event.py` declares it for the kind.
            arrays: Its arrays, as `ledger/event.py` declares them.
            ends: Whether the event belongs to the end of the episode, and is written even after `close`.

        Raises:
            CallCancelledError: The log is closed, and the event does not belong to the end of the episode.
            LedgerError: The event cannot be written to the ledger.
        """
        with self.lock:
            if not ends and kind not in (EventKind.REWARD, EventKind.END):
                self._check_not_closed()
            if self._chain is None:
                return
            try:
                self._chain.append(kind, data, arrays)
            except TypeError:
                self._chain.append(kind, jsonable(data), arrays)

    def _diverge(self, first: int | None, why: str) -> None:
        """Discard the rest of the record: continue on the engine, or end the replay.

        Args:
            first: Number of the first recorded event that is not repeated; None if all were repeated.
            why: The reason, for the message.

        Raises:
            DivergedError: This is a replay.
        """
        with self.lock:
            before = self.diverged  # set by another thread in the meantime
            message = f"episode {self._episode} diverges from its record at event {first}: {why}"
            self.diverged = before or DivergedError(message, episode=self._episode, event=first)
            self.replay_log.clear()
            self._settled_calls.clear()
            if self.replays:
                raise self.diverged
            if before is not None:
                return
            logger.warning(
                "episode=<%s>, turn=<%d> | continues on the engine from this turn: %s",
                self._episode,
                self.turns,
                self.diverged,
            )
            reason = str(self.diverged)
            self.write(
                EventKind.ROLLBACK,
                RollbackData(turns=self.turns, cause=RollbackCause.DIVERGED.value, event=first, reason=reason),
            )

    def restart(self) -> None:
        """Discard the record of a resumed episode, so that all its turns are sampled again; no effect in a replay."""
        with self.lock:
            if len(self.replay_log) and not self.replays:
                self._diverge(self.replay_log.next_event, "its agent is started again from the beginning")

    def episode_reset(self) -> None:
        """Called on reset: discards all turns."""
        with self.lock:
            if self.turns and not self.closed:
                if not self.replay_log.reset():
                    self._write_rollback(0, RollbackCause.RESET)
                self.turns = 0

    def _write_rollback(self, turns: int, cause: RollbackCause) -> None:
        data = RollbackData(turns=turns, cause=cause.value, event=None, reason="the agent was reset")
        self.write(EventKind.ROLLBACK, data)

    def committed(self, turn: Turn, generation: Generation) -> None:
        """Write a committed turn unless it is recorded; turns of several threads are written in the order of ids."""
        with self.lock:
            self._check_not_closed()
            answer = self._pending_answers.pop(id(generation))
            try:
                if turn.id < self.turns:
                    self._write_rollback(turn.id, RollbackCause.REPLACED)
                    self.turns, self.replay_log.turns = turn.id, 0
                self._out_of_order[turn.id] = (turn, answer)
                while self.turns in self._out_of_order:
                    self._write_turn(*self._out_of_order.pop(self.turns))
            except BaseException:
                self.close()  # if a turn cannot be written, later turns cannot be written either
                raise

    def _write_turn(self, turn: Turn, answer: PendingAnswer) -> None:
        event = answer.event
        data, arrays = call_event(turn, answer)
        if event is not None and self.diverged is None and not same_position(event, data, arrays):
            self._diverge(event.number, f"turn {turn.id} has another position in the conversation than recorded")
        if event is None and self.diverged is None and turn.id < self.replay_log.turns:
            self._diverge(self.replay_log.next_event, f"turn {turn.id} was made before the recorded one")
        if event is None or self.diverged is not None:
            self.write(EventKind.CALL, data, arrays)
        for call in answer.within:
            self.calls_within[call] = self.calls_within.get(call, 0) + 1
        self.turns = turn.id + 1
        self.earlier[turn.id] = answer.earlier_tokens if event is None else len(turn.sampled)
        self.replay_log.settle(event)
        if event is None and self.on_turn is not None:
            self.on_turn(turn)
