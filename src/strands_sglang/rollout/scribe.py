"""Turns of one episode, written down as they are committed: `Scribe`.

Invariant: turns are written in the order of their ids, and those on record are not written again; where a resumed
agent goes another way than recorded, that is written first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from strands_sglang.engine import Generation
from strands_sglang.errors import DivergedError
from strands_sglang.ledger.chain import Chain
from strands_sglang.ledger.event import EventKind
from strands_sglang.rollout.answer_event import Sent, call_event, same_place
from strands_sglang.rollout.pen import Pen
from strands_sglang.rollout.recorded import Recorded
from strands_sglang.tokens import Turn

logger = logging.getLogger(__name__)


class Mode(str, Enum):
    """What happens where the record ends, or does not fit."""

    LIVE = "live"
    """The engine is asked; what does not fit the record is cut off, declared."""
    REPLAY = "replay"
    """Nothing is asked: the episode ends there, or has diverged."""


class Scribe:
    """Writes down the turns of one episode."""

    def __init__(self, episode: str, chain: Chain | None, recorded: Recorded | None, mode: Mode) -> None:
        """Begin; see `Journal`."""
        self._episode, self._pen, self._mode = episode, Pen(episode, chain), mode
        self.write, self.close = self._pen.write, self._pen.close
        """Write an event; nothing happens where no ledger is kept. And answer and write nothing more."""
        self.recorded = Recorded() if recorded is None else recorded
        """What is on record and was not handed out yet."""
        self.diverged: DivergedError | None = None
        """Where a resumed or replayed agent went another way than recorded; None when it did not."""
        self._sent: dict[int, Sent] = {}
        self._early: dict[int, tuple[Turn, Sent]] = {}
        self._settled: set[str] = set()
        self.turns = 0
        """Turns on record; what a tree has beyond them came too late."""
        self.earlier: dict[int, int] = {}
        """Tokens of each turn that are from the record, not from now, by the turn's id."""
        self.calls_within: dict[str, int] = {}
        """How many turns were made inside of each tool call."""
        self.ending = False
        """Whether its end is being written: from here on it is over."""
        self.on_turn: Callable[[Turn], None] | None = None
        """Called with every turn that was sampled now."""

    @property
    def replays(self) -> bool:
        """Whether nothing but the record is asked."""
        return self._mode is Mode.REPLAY

    def _diverge(self, first: int | None, why: str) -> None:
        """Go on live from here, or end the replay. `first`: number of the first event that is not repeated."""
        with self._pen.lock:
            before = self.diverged  # in another thread, just now
            message = f"episode {self._episode} diverges from its record at event {first}: {why}"
            self.diverged = before or DivergedError(message, episode=self._episode, event=first)
            self.recorded.drop()
            self._settled.clear()
            if self.replays:
                raise self.diverged
            if before is not None:
                return
            logger.warning("episode=<%s> | goes on live from turn %d: %s", self._episode, self.turns, self.diverged)
            self.write(
                EventKind.CUT, {"turns": self.turns, "kind": "diverged", "event": first, "reason": str(self.diverged)}
            )

    def began_anew(self) -> None:
        """Hear that all turns so far were thrown away."""
        with self._pen.lock:
            self._cut_back(self.turns if self._pen.closed else 0)

    def _cut_back(self, turns: int) -> None:
        if turns < self.turns:
            if not self.recorded.began_anew():
                self.write(EventKind.CUT, {"turns": turns, "kind": "anew", "reason": "the agent began anew"})
            self.turns = turns

    def committed(self, turn: Turn, generation: Generation) -> None:
        """Write a turn down, unless it is on record. Turns of several threads are written in the order of their ids."""
        with self._pen.lock:
            self._pen.check_open()
            sent = self._sent.pop(id(generation))
            try:
                if turn.id < self.turns:
                    self.write(EventKind.CUT, {"turns": turn.id, "reason": "the agent began anew"})
                    self.turns, self.recorded.turns = turn.id, 0
                self._early[turn.id] = (turn, sent)
                while self.turns in self._early:
                    self._write_turn(*self._early.pop(self.turns))
            except BaseException:
                self.close()  # the turns behind one that cannot be written cannot be, either
                raise

    def _write_turn(self, turn: Turn, sent: Sent) -> None:
        event = sent.event
        data, arrays = call_event(turn, sent.generation, sent.prompt, sent.sent, sent.within)
        if event is not None and self.diverged is None and not same_place(event, data, arrays):
            self._diverge(event.number, f"turn {turn.id} stands at another place of the conversation than recorded")
        if event is None and self.diverged is None and turn.id < self.recorded.turns:
            self._diverge(self.recorded.next_event, f"turn {turn.id} was made before the one on record")
        if event is None or self.diverged is not None:
            self.write(EventKind.CALL, data, arrays)
        for call in sent.within:
            self.calls_within[call] = self.calls_within.get(call, 0) + 1
        self.turns = turn.id + 1
        self.earlier[turn.id] = sent.earlier if event is None else len(turn.sampled)
        self.recorded.settle(event)
        if event is None and self.on_turn is not None:
            self.on_turn(turn)
