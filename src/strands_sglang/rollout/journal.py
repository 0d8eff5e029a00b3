"""One episode's connection to the world, written down: `Journal`.

It stands between the episode and the engine, and hears of every turn and tool result.

Invariant: an event is written for everything the agent saw from outside, before the agent sees it; nothing that is on
record already is written again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import Enum
from typing import Any

from strands_sglang.engine import AbortPolicy, Generation, TokenEngine
from strands_sglang.engine.protocol import CancelSignal, TokenIds
from strands_sglang.errors import CallCancelledError, DivergedError, StrandsSGLangError
from strands_sglang.ledger.chain import Chain
from strands_sglang.ledger.event import Event, EventKind, ids_digest
from strands_sglang.rollout.answer_event import Sent, call_event, error_of, fault_event, generation_of, same_place
from strands_sglang.rollout.measures import EpisodeMetrics
from strands_sglang.rollout.pace import Pace
from strands_sglang.rollout.pen import Pen
from strands_sglang.rollout.quota import Quota
from strands_sglang.rollout.recorded import Recorded
from strands_sglang.tokens import Turn

logger = logging.getLogger(__name__)
_PAUSE = 0.05  # seconds: an agent that does not listen may ask again and again

within: ContextVar[tuple[str, ...]] = ContextVar("strands_sglang_within", default=())
"""Ids of the tool calls that this context is inside of, outermost first."""


class Mode(str, Enum):
    """What happens where the record ends, or does not fit."""

    LIVE = "live"
    """The engine is asked; what does not fit the record is cut off, declared."""
    REPLAY = "replay"
    """Nothing is asked: the episode ends there, or has diverged."""


class Journal:
    """Answers and watches one episode. It is the episode's engine and its witness."""

    def __init__(
        self,
        engine: TokenEngine | None,
        episode: str,
        *,
        chain: Chain | None = None,
        recorded: Recorded | None = None,
        mode: Mode = Mode.LIVE,
        routing_key: str | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Begin.

        Args:
            engine: Who is asked for what is not on record; None: nobody, in a replay.
            episode: Id of the episode.
            chain: Where events are written; None: nowhere.
            recorded: What is on record already; None: nothing.
            mode: What happens where the record ends.
            routing_key: What the engine's router keeps together; None: the episode alone.
            pace: Lets episodes go on one after the other; None: at once.
        """
        self.metrics = EpisodeMetrics()
        """What was used so far; see `EpisodeMetrics.count` for the rest."""
        self.routing_key = routing_key
        self.diverged: DivergedError | None = None
        """Where a resumed or replayed agent went another way than recorded; None when it did not."""
        self._engine, self._episode, self._pen = engine, episode, Pen(episode, chain)
        self.write, self.close = self._pen.write, self._pen.close
        """Write an event; nothing happens where no ledger is kept. And answer and write nothing more."""
        self._mode, self._pace = mode, pace
        self.recorded = Recorded() if recorded is None else recorded
        """What is on record and was not handed out yet."""
        self._sent: dict[int, Sent] = {}
        self._early: dict[int, tuple[Turn, Sent]] = {}
        self.quota = Quota()
        """What its agents may do together."""
        self._over: set[str] = set()
        self._settled: set[str] = set()
        self.turns = 0
        """Turns on record; what a tree has beyond them came too late."""
        self.calls_within: dict[str, int] = {}
        """How many turns were made inside of each tool call."""
        self.on_turn: Callable[[Turn], None] | None = None
        """Called with every turn that was sampled now."""
        self.on_agent: Callable[[Any], None] | None = None
        """Called with the agent of every turn, before its tools are run."""

    @property
    def engine(self) -> TokenEngine:
        """This journal."""
        return self

    @property
    def replays(self) -> bool:
        """Whether nothing but the record is asked."""
        return self._mode is Mode.REPLAY

    def calls(self, agent: Any) -> None:
        """Hear of an agent that made a turn."""
        if self.on_agent is not None:
            self.on_agent(agent)

    def opened(self, call_id: str, *, settled: bool) -> None:
        """Hear that a tool is run: turns may be made inside of it; where its result is settled, those on record."""
        self._over.discard(call_id)
        self._settled |= {call_id} if settled else set()
        self.recorded.open.add(call_id)

    def ended(self, call_id: str) -> None:
        """Hear that a tool call has its result: whatever still runs of it makes no more turns."""
        self._over.add(call_id)
        self.recorded.open.discard(call_id)

    async def breathe(self) -> None:
        """Wait for this episode's turn to compute."""
        if self._pace is not None:
            await self._pace.turn()

    async def generate(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        routing_key: str | None = None,
        deadline: float | None = None,
        cancel_signal: CancelSignal | None = None,
        on_abort: AbortPolicy = AbortPolicy.CONTINUE,
        routed_experts_start: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Generation:
        """Answer from the record, else ask the engine."""
        try:
            self._check_open(asks=True)
        except CallCancelledError:
            await asyncio.sleep(_PAUSE)
            raise
        self.quota.check(self.turns, self.metrics.tool_calls)
        prompt, count, inside = ids_digest(input_ids), len(input_ids), within.get()
        event = await self._from_record(prompt)
        if event is not None and event.kind is EventKind.FAULT:
            raise error_of(event)
        if event is not None:
            generation = generation_of(event)
            self.metrics.replayed_turns += 1
        else:
            assert self._engine is not None, "a replay asks nobody"
            began = time.monotonic()
            try:
                generation = await self._engine.generate(
                    input_ids,
                    sampling_params,
                    routing_key=routing_key,
                    deadline=deadline,
                    cancel_signal=cancel_signal,
                    on_abort=on_abort,
                    routed_experts_start=routed_experts_start,
                    extra=extra,
                )
            except CallCancelledError:
                raise
            except StrandsSGLangError as error:
                self._check_open()
                self.write(EventKind.FAULT, fault_event(error, prompt, count, inside))
                raise
            finally:
                self.metrics.engine_seconds += time.monotonic() - began
            self.metrics.requests += generation.requests
        try:
            await self.breathe()
            self._check_open()
        except BaseException:
            self.recorded.settle(event)
            raise
        self._sent[id(generation)] = Sent(generation, prompt, count, event, inside)
        return generation

    def _check_open(self, *, asks: bool = False) -> None:
        self._pen.check_open()
        for call in within.get():
            if call in self._over or (asks and call in self._settled and not self.recorded.within(call)):
                raise CallCancelledError("the tool call that this is asked inside of is over")

    async def _from_record(self, prompt: str) -> Event | None:
        event = await self.recorded.answer(prompt, within.get())
        if event is None and len(self.recorded):
            self._diverge(self.recorded.next_event, "the agent asks for another prompt than the one on record")
        elif event is None and self.replays:
            raise self.recorded.refused()
        return event

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
        self.recorded.settle(event)
        if event is None and self.on_turn is not None:
            self.on_turn(turn)
