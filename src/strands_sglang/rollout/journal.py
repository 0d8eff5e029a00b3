"""One episode's connection to the world, written down: `Journal`.

It stands between the episode and the engine, and hears of every turn and tool result.

Invariant: an event is written for everything the agent saw from outside, before the agent sees it; nothing that is on
record already is written again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from strands_sglang.engine import Generation, TokenEngine
from strands_sglang.engine.protocol import TokenIds
from strands_sglang.errors import CallCancelledError, EngineError, StrandsSGLangError
from strands_sglang.ledger.chain import Chain
from strands_sglang.ledger.event import Event, EventKind, ids_digest
from strands_sglang.provider.reserve import Hold
from strands_sglang.rollout.answer_event import (
    Sent,
    error_of,
    fault_event,
    generation_of,
    part_event,
)
from strands_sglang.rollout.asker import Asker, HaltedError
from strands_sglang.rollout.clock import Clock, counted
from strands_sglang.rollout.half_turn import HalfTurn
from strands_sglang.rollout.lost import LostCalls
from strands_sglang.rollout.measures import EpisodeMetrics
from strands_sglang.rollout.pace import Pace
from strands_sglang.rollout.pulse import Pulse
from strands_sglang.rollout.quota import Quota
from strands_sglang.rollout.recorded import Recorded
from strands_sglang.rollout.scribe import Mode, Scribe
from strands_sglang.rollout.tool_result import ToolArguments

logger = logging.getLogger(__name__)
_PAUSE = 0.05  # seconds: an agent that does not listen may ask again and again
_LOOKS = (0.0, 0.0, 0.002, 0.005, 0.01, 0.02)  # seconds between two looks, at first
_MOMENT = 0.5  # seconds

within: ContextVar[tuple[str, ...]] = ContextVar("strands_sglang_within", default=())
"""Ids of the tool calls that this context is inside of, outermost first."""


class Journal(Scribe):
    """Answers and watches one episode. It is the episode's engine and its witness."""

    def __init__(
        self,
        asker: Asker | TokenEngine,
        episode: str,
        *,
        chain: Chain | None = None,
        recorded: Recorded | None = None,
        mode: Mode = Mode.LIVE,
        routing_key: str | None = None,
        pace: Pace | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        """Begin.

        Args:
            asker: Who is asked for what is not on record.
            episode: Id of the episode.
            chain: Where events are written; None: nowhere.
            recorded: What is on record already; None: nothing.
            mode: What happens where the record ends.
            routing_key: What the engine's router keeps together; None: the episode alone.
            pace: Lets episodes go on one after the other; None: at once.
            pulse: Knows whether the engine is alive; None: that is not asked.
        """
        super().__init__(episode, chain, recorded, mode)
        self.metrics = EpisodeMetrics()
        """What was used so far; see `EpisodeMetrics.count` for the rest."""
        self.routing_key = routing_key
        self.asker = asker if isinstance(asker, Asker) else Asker(asker)
        """Who is asked for what is not on record."""
        self.tool_arguments = ToolArguments.RECORD
        """What is on record of the arguments of tool calls."""
        self._pace = pace
        self._pulse = pulse or Pulse(None)
        self.clock = Clock()
        """Seconds of the episode."""
        self._tool_clocks: dict[str, Clock] = {}
        self.lost = LostCalls()
        """Turns that it got no tokens for."""
        self.quota = Quota()
        """What its agents may do together."""
        self._home = asyncio.get_running_loop()
        self.abandoned: asyncio.Future[EngineError] = self._home.create_future()
        """Done when a tool has no result because a turn inside of it got no tokens."""
        self._answered = 0  # answers that nobody was given yet
        self.halves: list[HalfTurn] = []
        """Turns that were cut because the episode is halted."""
        self._over: set[str] = set()
        self.refused: set[str] = set()
        """Ids of tool calls inside of which a turn was refused, because the episode is halted: they have no result."""
        self.other_prompt: tuple[tuple[Event, ...], array[int]] | None = None
        """Where a replayed agent asked for another prompt: what it could have asked for, and what it did."""
        self.on_agent: Callable[[Any], None] | None = None
        """Called with the agent of every turn, before its tools are run."""

    @property
    def engine(self) -> TokenEngine:
        """This journal."""
        return self

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

    @contextmanager
    def timed(self, call_id: str) -> Iterator[Clock]:
        """Count the seconds of a tool call in this block, without those in which the engine fails inside of it."""
        clock = self._tool_clocks[call_id] = Clock()
        try:
            if asyncio.get_running_loop() is self._home:
                with self._pulse.watching(clock):
                    yield clock
            else:
                yield clock
        finally:
            self._tool_clocks.pop(call_id, None)

    async def alive(self) -> bool:
        """Return whether the engine gives a sign of life."""
        return await self._pulse.alive()

    async def abandon(self, error: EngineError) -> None:
        """End the episode because the engine could not be had; whoever calls this goes no further."""

        def end() -> None:
            if not self.abandoned.done():
                self.abandoned.set_result(error)

        self._home.call_soon_threadsafe(end)
        if asyncio.get_running_loop() is self._home:
            await self._home.create_future()  # until it is cancelled
        raise asyncio.CancelledError("the engine could not be had")

    async def breathe(self) -> None:
        """Wait for this episode's turn to compute."""
        if self._pace is not None:
            await self._pace.turn()

    def begin_tool(self, *, known: bool) -> str | None:
        """Count a tool before it is run, or answered from the record (`known`); return why it is not to be, if so."""
        with self._pen.lock:
            refused = None
            if not known and self.quota.tool_calls is not None:
                refused = self.quota.refusal(self.metrics.tool_calls + self.recorded.results_left)
            self.metrics.tool_calls += refused is None
        return refused

    async def generate(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        hold: Hold | None = None,
        **asked: Any,
    ) -> Generation:
        """Answer from the record, else ask the engine; see `TokenEngine` and `Witness`."""
        try:
            self._check_open(asks=True)
        except CallCancelledError:
            await asyncio.sleep(_PAUSE)
            raise
        prompt, inside, kept = ids_digest(input_ids), within.get(), None
        event = await self._from_record(prompt, input_ids)
        if event is not None and event.kind is EventKind.FAULT:
            error = error_of(event)
            self.lost.note(prompt, inside, error)
            raise error
        if event is not None:
            generation = generation_of(event)
            self.metrics.replayed_turns += 1
        else:
            kept = self.recorded.part(prompt, inside)
            try:
                generation = await self._live(input_ids, dict(sampling_params or {}), prompt, kept, asked, hold)
            except BaseException:
                self.recorded.take_back(kept, prompt, inside)
                raise
        self.lost.answered(prompt, inside)
        earlier = 0
        if kept is not None and generation.token_ids[: len(kept)] == kept.token_ids:  # else it was given up
            earlier = len(kept)
        self._answered += 1
        try:
            await self.breathe()
            self._check_open()
            self._sent[id(generation)] = Sent(generation, prompt, len(input_ids), event, inside, earlier)
        except BaseException:
            self.recorded.settle(event)
            raise
        finally:
            self._answered -= 1
        return generation

    async def _live(
        self,
        input_ids: TokenIds,
        sampling: dict[str, Any],
        prompt: str,
        kept: Generation | None,
        asked: dict[str, Any],
        hold: Hold | None,
    ) -> Generation:
        """Ask the engine, behind what is kept of the turn."""
        await self.go_ahead()
        if hold is not None:
            await self.quota.begin_turn(hold, self._done)
            sampling["max_new_tokens"] = await hold.tokens(sampling["max_new_tokens"])
            self._check_open()
        inside, count, began = within.get(), len(input_ids), time.monotonic()
        clocks = [self.clock, *(self._tool_clocks[call] for call in inside if call in self._tool_clocks)]
        try:
            with counted(clocks):
                generation = await self.asker.ask(input_ids, sampling, kept, **asked)
        except HaltedError as halted:
            if halted.part is not None:
                self.halves.append(HalfTurn(array("i", input_ids), halted.part, inside))
                if halted.part is not kept:
                    self.write(EventKind.PART, *part_event(halted.part, prompt, count, inside))
            if hold is not None:
                hold.release()
            await self.go_ahead()
            raise
        except CallCancelledError:
            raise
        except StrandsSGLangError as error:
            self._check_open()
            self.lost.note(prompt, inside, error)
            self.write(EventKind.FAULT, fault_event(error, prompt, count, inside))
            raise
        finally:
            self.metrics.engine_seconds += time.monotonic() - began
        self._pulse.answered()
        self.metrics.requests += generation.requests
        return generation

    async def go_ahead(self) -> None:
        """Wait while the episode is halted: until it is over, for whoever asks from now on.

        Who asks from another event loop is refused at once: the episode's own may be waiting for it, blocked.
        """
        while self.asker.halted:
            if self._pen.closed or asyncio.get_running_loop() is not self._home:
                self.refused.update(within.get())
                raise asyncio.CancelledError("the episode was set aside")
            await asyncio.sleep(_PAUSE)

    async def halt(self, seconds: float) -> None:
        """Begin nothing more, and wait until what the engine was asked for is answered, so long at most."""
        self.asker.stop()
        await _until(lambda: not self.asker.under_way, seconds)
        await _until(lambda: not self._answered and not self._sent, _MOMENT)  # what was answered becomes a turn

    def _check_open(self, *, asks: bool = False) -> None:
        self._pen.check_open()
        for call in within.get():
            if call in self._over or (asks and call in self._settled and not self.recorded.within(call)):
                raise CallCancelledError("the tool call that this is asked inside of is over")

    def _done(self) -> tuple[int, int]:
        """Return how many turns were made, and tools run."""
        return self.turns + len(self._early), self.metrics.tool_calls

    async def _from_record(self, prompt: str, input_ids: TokenIds) -> Event | None:
        event = await self.recorded.answer(prompt, within.get())
        if event is None:
            self.quota.check(*self._done())
        if event is None and len(self.recorded):
            if self.replays and self.other_prompt is None:
                self.other_prompt = (self.recorded.pending, array("i", input_ids))
            self._diverge(self.recorded.next_event, "the agent asks for another prompt than the one on record")
        elif event is None and self.replays:
            raise self.recorded.refused()
        return event


async def _until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds, so long at most."""
    end = time.monotonic() + seconds
    for pause in itertools.chain(_LOOKS, itertools.repeat(_PAUSE)):
        if holds() or time.monotonic() > end:
            return
        await asyncio.sleep(pause)
