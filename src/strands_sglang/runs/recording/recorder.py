"""Record/replay proxy between an episode and its engine and tools: `EpisodeRecorder`.

It is the engine of the episode's model and the observer of its turns; `tool_recorder.py` records its tool calls here.

Invariant: everything the agent receives from outside is written as an event before the agent sees it. Events that are
already recorded are not written again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from strands_sglang._async import LoopThrottle
from strands_sglang.engine import Generation, TokenEngine
from strands_sglang.engine.protocol import PromptImage, TokenIds
from strands_sglang.errors import CallCancelledError, EngineError, StrandsSGLangError, ToolUnavailableError
from strands_sglang.ledger.encoding import HashChain, ids_digest
from strands_sglang.ledger.event import CallData, Event, EventKind, data_of
from strands_sglang.ledger.files import Put
from strands_sglang.provider.episode import EpisodeEngine
from strands_sglang.provider.token_budget import Reservation
from strands_sglang.runs.episode import EpisodeMetrics
from strands_sglang.runs.limits import MultiAgentLimits
from strands_sglang.runs.recording.clock import EngineMonitor, EpisodeClock, report_call
from strands_sglang.runs.recording.event_data import (
    PendingAnswer,
    ToolArguments,
    call_error_event,
    error_of,
    generation_of,
    partial_call_event,
)
from strands_sglang.runs.recording.event_log import EventLog
from strands_sglang.runs.recording.opened import Opened
from strands_sglang.runs.recording.pausable_engine import PartialTurn, PausableEngine, PausedError
from strands_sglang.runs.recording.replay_log import LostCalls, ReplayLog
from strands_sglang.runs.recording.seeds import TurnSeeds

logger = logging.getLogger(__name__)
_POLL_SECONDS = 0.05  # also delays an agent that ignores its cancellation and repeats its call
_FIRST_POLLS = (0.0, 0.0, 0.002, 0.005, 0.01, 0.02)  # seconds before each of the first checks of a condition
_STOP_SECONDS = 0.1  # for a tool call without a result to be cancelled with its episode
_COMMIT_SECONDS = 0.5  # for answers to become turns, once the engine calls have ended

within: ContextVar[tuple[str, ...]] = ContextVar("strands_sglang_within", default=())
"""Ids of the tool calls that this context runs inside, outermost first."""


class EpisodeRecorder(EventLog):
    """Engine and observer of one episode: answers its calls from the record or the engine, and records them."""

    def __init__(
        self,
        engine: PausableEngine | TokenEngine,
        episode: str,
        *,
        chain: HashChain | None = None,
        replay_log: ReplayLog | None = None,
        replays: bool = False,
        routing_key: str | None = None,
        loop_throttle: LoopThrottle | None = None,
        engine_monitor: EngineMonitor | None = None,
        put_file: Put | None = None,
        adapter: str | None = None,
        session: str = "",
    ) -> None:
        """Create the recorder; must be called on the event loop that runs the episode.

        Args:
            engine: Samples the turns that are not recorded.
            episode: Id of the episode.
            chain: Events are written to it; None: events are not written.
            replay_log: The recorded answers and results; None: nothing is recorded.
            replays: Whether nothing is sampled; see `EventLog`.
            routing_key: Routing key for session affinity; None: the id of the episode.
            loop_throttle: Spreads the work of episodes over iterations of the event loop; None: episodes do not wait.
            engine_monitor: Checks that the engine is alive; None: the engine counts as alive.
            put_file: Stores the images of prompts, which events refer to; None: they are not stored.
            adapter: LoRA adapter that samples the episode; None: that of the settings.
            session: Name of the episode's session of the prefix cache, for an engine that has sessions.
        """
        super().__init__(episode, chain, replay_log, replays=replays)
        self.metrics = EpisodeMetrics()
        """Counts and times so far; those that follow from the tree are set by `EpisodeMetrics.count`."""
        self.routing_key = routing_key
        self.adapter = adapter
        self.session = session or episode
        self.live_engine = engine if isinstance(engine, PausableEngine) else PausableEngine(engine)
        self.tool_arguments = ToolArguments.RECORD
        self.put_file = put_file
        self.put_data = put_file
        """Stores bytes in tool results and messages; None: events have their content."""
        self.template_time: datetime | None = None
        """The recorded time of the episode (`EpisodeTokens.time`); None: nothing is recorded."""
        self.seeds: TurnSeeds | None = None
        """The seeds of the turns; None: the engine chooses at random."""
        self.stored_images: set[str] = set()
        self._loop_throttle = loop_throttle
        self._engine_monitor = engine_monitor or EngineMonitor(None)
        self.clock = EpisodeClock()
        """Measures the time of the episode, without engine outages."""
        self._tool_clocks: dict[str, EpisodeClock] = {}
        self.lost_calls = LostCalls()
        """Engine calls that failed without tokens."""
        self.agent_limits = MultiAgentLimits()
        self._loop = asyncio.get_running_loop()
        self.outage: asyncio.Future[EngineError | ToolUnavailableError] = self._loop.create_future()
        """Set when the episode must stop because a tool call has no result: the tool is unavailable, or the engine
        failed inside it."""
        self._undelivered = 0  # answers not returned to the model yet
        self.partial_turns: list[PartialTurn] = []
        """Turns that were interrupted because the episode was paused."""
        self._ended_calls: set[str] = set()
        self.paused_calls: set[str] = set()
        """Ids of tool calls inside which a turn was refused because the episode is paused: they have no result."""
        self.unexpected_prompt: tuple[tuple[Event, ...], array[int]] | None = None
        """In a replay that diverged by its prompt: the recorded events not replayed yet, and the ids of the prompt that
        was sent instead; None otherwise."""
        self.on_agent: Callable[[Any], None] | None = None
        """Called with the agent of every turn, before its tools run; None: nothing is called."""
        self.opened = Opened()
        """What was opened for this episode; closed when it has ended."""
        self.opened_by_worker = Opened()
        """What was opened for all episodes of the worker; closed when the worker is closed."""

    @property
    def engine(self) -> EpisodeEngine:
        """The recorder itself."""
        return self

    def observe_agent(self, agent: Any) -> None:
        """Called with the agent of every turn, before its tools run."""
        if self.on_agent is not None:
            self.on_agent(agent)

    def observe_results(self, count: int) -> None:
        """Count the tool results that an agent outside this process sends for the first time."""
        with self.lock:
            self.metrics.tool_calls += count

    def tool_started(self, call_id: str, *, settled: bool) -> None:
        """Register that a tool runs, so that turns can be made inside it.

        Args:
            call_id: Id of the tool call.
            settled: Whether its result is recorded; then only recorded turns can be made inside it.
        """
        self._ended_calls.discard(call_id)
        self._settled_calls |= {call_id} if settled else set()
        self.replay_log.running_tools.add(call_id)

    def tool_ended(self, call_id: str) -> None:
        """Register that a tool call has its result; code of it that still runs can make no more turns."""
        self._ended_calls.add(call_id)
        self.replay_log.running_tools.discard(call_id)

    @contextmanager
    def timed(self, call_id: str) -> Iterator[EpisodeClock]:
        """Measure a tool call in this `with` block, without the time in which the engine fails inside it."""
        clock = self._tool_clocks[call_id] = EpisodeClock()
        try:
            here = asyncio.get_running_loop() is self._loop
            with self._engine_monitor.watching(clock) if here else nullcontext():
                yield clock
        finally:
            self._tool_clocks.pop(call_id, None)

    async def alive(self) -> bool:
        """Return whether the engine responds."""
        return await self._engine_monitor.alive()

    async def stop_on_outage(self, error: EngineError | ToolUnavailableError) -> None:
        """Stop the episode because a tool call has no result; never returns.

        Raises:
            asyncio.CancelledError: When the episode is cancelled, or a moment later; at once on another event loop.
        """

        def fail() -> None:
            if not self.outage.done():
                self.outage.set_result(error)

        self._loop.call_soon_threadsafe(fail)
        self.close()  # an agent that is not cancelled, in a graph or in another thread, makes no more turns
        if asyncio.get_running_loop() is self._loop:
            await asyncio.sleep(_STOP_SECONDS)
        raise asyncio.CancelledError("the tool call has no result")

    async def wait_for_slot(self) -> None:
        """Wait until the fair scheduler lets this episode compute."""
        if self._loop_throttle is not None:
            await self._loop_throttle.wait()

    def begin_tool(self, *, recorded: bool) -> str | None:
        """Count a tool call, unless it exceeds the limit.

        Args:
            recorded: Whether it is answered from the record; then the limit does not apply.

        Returns:
            The error message for a call that exceeds the limit; None if the tool may run.
        """
        with self.lock:
            refusal = None
            if not recorded and self.agent_limits.max_tool_calls is not None:  # counting what is left takes long
                refusal = self.agent_limits.refusal(self.metrics.tool_calls + self.replay_log.results_left)
            self.metrics.tool_calls += refusal is None
        return refusal

    async def generate(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        hold: Reservation | None = None,
        **arguments: Any,
    ) -> Generation:
        """Return the recorded answer, or sample one if none is recorded; see `EpisodeEngine`."""
        try:
            self.check_open(new_call=True)
        except CallCancelledError:
            await asyncio.sleep(_POLL_SECONDS)
            raise
        images: Sequence[PromptImage] = arguments.get("images", ())
        prompt, inside, kept = ids_digest(input_ids, [image.digest for image in images]), within.get(), None
        event = await self._from_record(prompt, input_ids)
        if event is not None and event.kind is EventKind.CALL_ERROR:
            error = error_of(event)
            self.lost_calls.add(prompt, inside, error)
            raise error
        if event is not None:
            generation, seed = generation_of(event), data_of(event, CallData).get("seed")
            self.metrics.replayed_turns += 1
        else:
            kept = self.replay_log.take_part(prompt, inside)
            self._store(images)
            try:
                with nullcontext() if self.seeds is None else self.seeds.turn(prompt) as seed:
                    sampling = {**(sampling_params or {}), **({} if seed is None else {"sampling_seed": seed})}
                    generation = await self._sample(input_ids, sampling, prompt, kept, arguments, hold)
            except BaseException:
                self.replay_log.return_part(kept, prompt, inside)
                raise
        self.lost_calls.answered(prompt, inside)
        earlier_tokens = 0
        if kept is not None and generation.token_ids[: len(kept)] == kept.token_ids:  # else it was discarded
            earlier_tokens = len(kept)
        self._undelivered += 1
        try:
            await self.wait_for_slot()
            self.check_open()
            self._pending_answers[id(generation)] = PendingAnswer(
                generation, prompt, len(input_ids), event, inside, earlier_tokens, seed
            )
        except BaseException:
            self.replay_log.settle(event)
            raise
        finally:
            self._undelivered -= 1
        return generation

    def _store(self, images: Sequence[PromptImage]) -> None:
        """Store the images of a prompt; the event of its turn refers to them."""
        if self.put_file is None:
            return
        for image in images:
            if image.digest not in self.stored_images:
                self.put_file(image.png)
                self.stored_images.add(image.digest)

    async def _sample(
        self,
        input_ids: TokenIds,
        sampling: dict[str, Any],
        prompt: str,
        kept: Generation | None,
        arguments: dict[str, Any],
        hold: Reservation | None,
    ) -> Generation:
        """Sample a turn on the engine; `kept` is the part of it that is already sampled."""
        await self.wait_while_paused()
        if hold is not None:
            await self.agent_limits.begin_turn(hold, self._counts)
            sampling["max_new_tokens"] = await hold.tokens(sampling["max_new_tokens"])
            self.check_open()
        inside, count, began = within.get(), len(input_ids), time.monotonic()
        try:
            with self.reporting():
                generation = await self.live_engine.generate(input_ids, sampling, kept, **arguments)
        except PausedError as paused:
            if paused.part is not None:
                self.partial_turns.append(PartialTurn(array("i", input_ids), paused.part, inside))
                if paused.part is not kept:
                    self.write(EventKind.PARTIAL_CALL, *partial_call_event(paused.part, prompt, count, inside))
            if hold is not None:
                hold.release()
            await self.wait_while_paused()
            raise
        except CallCancelledError:
            raise
        except StrandsSGLangError as error:
            self.check_open()
            self.lost_calls.add(prompt, inside, error)
            self.write(EventKind.CALL_ERROR, call_error_event(error, prompt, count, inside))
            raise
        finally:
            self.metrics.engine_seconds += time.monotonic() - began
        self._engine_monitor.answered()
        self.metrics.requests += generation.requests
        return generation

    async def wait_while_paused(self) -> None:
        """Wait while the episode is paused. A paused episode never continues, so the wait ends when it is closed.

        On another event loop this raises at once, because the episode's loop may be blocked waiting for it.

        Raises:
            asyncio.CancelledError: The episode is paused and closed, or this is not the episode's event loop.
        """
        while self.live_engine.paused:
            if self.closed or asyncio.get_running_loop() is not self._loop:
                self.paused_calls.update(within.get())
                raise asyncio.CancelledError("the episode is paused")
            await asyncio.sleep(_POLL_SECONDS)

    async def pause(self, seconds: float) -> None:
        """Start no more requests, and wait for the running ones.

        Args:
            seconds: How long to wait at most for the running requests.
        """
        self.live_engine.pause()
        await _until(lambda: not self.live_engine.in_flight, seconds)
        # Answers that have arrived become turns.
        await _until(lambda: not self._undelivered and not self._pending_answers, _COMMIT_SECONDS)

    async def other_answer(self, request: str, name: str) -> Event | None:
        """Return the recorded answer of another model, a `MODEL` or `MODEL_ERROR` event; None: it must be asked.

        Args:
            request: Digest of all that it is asked.
            name: Its name, for the message.

        Raises:
            DivergedError: This is a replay, and the recorded agent asked something else.
            RecordEndedError: This is a replay, and the record ends before this answer.
        """
        event = self.replay_log.other_answer(request, within.get())
        if event is None and self.replays:
            await self.replay_log.answer(request, within.get())  # no turn has this digest: other calls take theirs
            if len(self.replay_log):
                self._diverge(self.replay_log.next_event, f"the model {name!r} is asked something that is not recorded")
            raise self.replay_log.ended_error()
        return event

    async def tool_list(self, name: str) -> list[Any] | None:
        """Return the recorded tools of a server; None: it must be asked. Raises as `other_answer`."""
        tools = self.replay_log.tool_list(name, within.get())
        if tools is None and self.replays:
            if len(self.replay_log):
                self._diverge(self.replay_log.next_event, f"the tools of the server {name!r} are not recorded")
            raise self.replay_log.ended_error()
        return tools

    def reporting(self, *, stopped: bool = False) -> AbstractContextManager[None]:
        """Report a call that is made in this `with` block to the clocks of the episode and of its tool calls.

        `stopped`: they stand still until it ends.
        """
        clocks = self._tool_clocks
        return report_call([self.clock, *(clocks[call] for call in within.get() if call in clocks)], stopped=stopped)

    def check_open(self, *, new_call: bool = False) -> None:
        """Raise CallCancelledError if the episode has ended, or a tool call that this context runs inside."""
        self._check_not_closed()
        for call in within.get():
            if call in self._ended_calls or (
                new_call and call in self._settled_calls and not self.replay_log.has_calls_within(call)
            ):
                raise CallCancelledError("the tool call that makes this engine call has ended")

    def _counts(self) -> tuple[int, int]:
        """Return the number of turns made and the number of tools run."""
        return self.turns + len(self._out_of_order), self.metrics.tool_calls

    async def _from_record(self, prompt: str, input_ids: TokenIds) -> Event | None:
        event = await self.replay_log.answer(prompt, within.get())
        if event is None:
            self.agent_limits.check(*self._counts())
        if event is None and len(self.replay_log):
            if self.replays and self.unexpected_prompt is None:
                self.unexpected_prompt = (self.replay_log.pending, array("i", input_ids))
            self._diverge(self.replay_log.next_event, "the agent sends another prompt than the recorded one")
        elif event is None and self.replays:
            raise self.replay_log.ended_error()
        return event


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition is true, at most the given seconds."""
    deadline = time.monotonic() + seconds
    for delay in itertools.chain(_FIRST_POLLS, itertools.repeat(_POLL_SECONDS)):
        if condition() or time.monotonic() > deadline:
            return
        await asyncio.sleep(delay)
