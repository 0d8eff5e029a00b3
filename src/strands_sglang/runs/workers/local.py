"""Runs episodes in this process, on the running event loop: `LocalWorker`.

Invariant: each episode runs in its own asyncio task and episode scope, and everything that happens in it is reported
in the returned `Episode`. An episode is returned only after its end is written to the ledger.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from secrets import token_hex
from typing import Any

from strands_sglang._async import LoopThrottle
from strands_sglang._strands_compat.fast_agents import fast_agents
from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.engine import has_sessions
from strands_sglang.engine.protocol import CancelSignal, in_run
from strands_sglang.errors import EngineError, EngineUnreachableError, ToolUnavailableError
from strands_sglang.gateway.process import Gateways
from strands_sglang.ledger.encoding import HashChain
from strands_sglang.ledger.event import BeginData, EventKind, ResumeData, data_of
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.runs.agent_runner import AgentOutcome, EpisodeRun, outcome_of, quiet_logs
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode, OnTurn, TurnCounts
from strands_sglang.runs.finalizer import EpisodeFinalizer, RewardRunner
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.monitoring.telemetry import episode_ended, episode_span
from strands_sglang.runs.recording.clock import EngineMonitor, EpisodeClock, wait_in_time
from strands_sglang.runs.recording.opened import Opened
from strands_sglang.runs.recording.other_models import made_models
from strands_sglang.runs.recording.pausable_engine import PausableEngine
from strands_sglang.runs.recording.recorder import EpisodeRecorder
from strands_sglang.runs.recording.replay_log import ReplayLog
from strands_sglang.runs.recording.seeds import TurnSeeds
from strands_sglang.runs.resume import restored
from strands_sglang.runs.workers.spec import EpisodeSpec, ModelCache, RunSpec, fingerprint
from strands_sglang.tokens import TokenTree

_GRACE = 5.0  # seconds that a cancelled agent has to finish
ABORT_TIMEOUT = 30.0  # seconds that an engine has to answer after its requests were aborted


class LocalWorker:
    """Runs episodes of one run, any number at once."""

    def __init__(self, run_spec: RunSpec, worker: str = "0") -> None:
        """Create the default model and open a ledger shard, whose name contains `worker`."""
        self.run_spec = run_spec = replace(run_spec, tokenizer=load_tokenizer(run_spec.tokenizer))
        self.models = ModelCache(run_spec)
        self.model = self.models.default  # the model of episodes without sampling parameters and limits of their own
        self._worker = worker
        self._loop_throttle, self._engine_monitor = LoopThrottle(), EngineMonitor(self.model.client)
        self._writer: LedgerWriter | None = None
        if run_spec.directory is not None:
            self._writer = LedgerWriter(run_spec.directory, worker=worker, durability=run_spec.durability)
        scorer = None if run_spec.reward is None else RewardRunner(run_spec.reward, timeout=run_spec.reward_timeout)
        self.fingerprint = fingerprint(self.model, run_spec)
        """What identifies the experiment; see `spec.fingerprint`."""
        self._other_models = made_models(run_spec.models)
        self._finalizer = EpisodeFinalizer(scorer, self._writer, self.fingerprint, self._other_models)
        self._pauses: dict[str, asyncio.Future[float]] = {}  # by episode; the result is the seconds to wait
        self._gateways = Gateways()
        self._opened = Opened()
        self._closing: set[asyncio.Future[None]] = set()  # what single episodes opened
        quiet_logs()

    async def run(
        self,
        spec: EpisodeSpec,
        *,
        on_turn: OnTurn | None = None,
        stop: asyncio.Event | None = None,
        pause: CancelSignal | None = None,
    ) -> Episode:
        """Run an episode to its end.

        Args:
            spec: The episode to run. One that is recorded completely and only has no reward is scored, not run.
            on_turn: Called with the counts of every sampled turn; None: nothing is called.
            stop: If it is set when `run` is cancelled, the episode ends as `NOT_NEEDED`; otherwise, and if it is None,
                cancelling leaves the episode unfinished.
            pause: Once it is set, the episode makes no further engine calls; the caller that sets it must call `pause`
                soon after. None: there is no such signal.
        """
        token = in_run.set(True)  # also for a judge that the reward asks
        try:
            if spec.unscored and spec.record is not None:
                return await self._score(spec.record, stop)
            run, trace = self.run_spec.run, self.run_spec.trace
            # For each episode: workers of a trainer are never closed, and the SDK must not stay changed for their sake.
            agents = fast_agents() if self.run_spec.fast_agents else nullcontext()
            with agents, episode_span(spec.id, task=spec.task.id, sample=spec.sample, run=run, parent=trace) as span:
                episode = await self._run(spec, on_turn, stop, pause)
                episode_ended(span, episode)
            return episode
        finally:
            in_run.reset(token)

    def pause(self, id: str, seconds: float = ABORT_TIMEOUT) -> bool:
        """Pause an episode: it ends as `PAUSED`, with the record to resume it from; return whether it was running.

        `seconds`: how long to wait for engine calls that were already made; complete and partial answers are kept.
        """
        paused = self._pauses.get(id)
        if paused is not None and not paused.done():
            paused.set_result(seconds)
        return paused is not None

    async def _run(
        self, spec: EpisodeSpec, on_turn: OnTurn | None, stop: asyncio.Event | None, pause: CancelSignal | None
    ) -> Episode:
        events: list[bytes] = []  # the episode's events, if it can be paused
        episode_run = EpisodeRun(spec.id, spec.task, self._recorder(spec, events, pause))
        if on_turn is not None:
            episode_run.recorder.on_turn = lambda turn: on_turn(TurnCounts.of(turn))
        try:
            return await self._run_agent(spec, episode_run, events, stop)
        finally:
            if opened := episode_run.recorder.opened:
                closing = asyncio.ensure_future(opened.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
                await asyncio.wait({closing}, timeout=_GRACE)

    async def _run_agent(
        self, spec: EpisodeSpec, episode_run: EpisodeRun, events: list[bytes], stop: asyncio.Event | None
    ) -> Episode:
        run_spec, limits = self.run_spec, spec.limits or self.run_spec.limits
        began, episode_run.recorder.clock = time.monotonic(), EpisodeClock()
        model, others = self.models.of(spec), self._other_models
        work = asyncio.ensure_future(
            episode_run.run(run_spec.build, model, limits, run_spec.rerun_tools, self._gateways, others)
        )
        paused = self._pauses[spec.id] = asyncio.get_running_loop().create_future()
        try:
            await self._wait(episode_run, limits, {work, paused} if run_spec.pausable else {work})
            if paused.done():
                await episode_run.recorder.pause(paused.result())
            if work.done():
                outcome = _outcome(work, episode_run, limits)
                if outcome.end_reason.failed and run_spec.pausable and episode_run.recorder.live_engine.paused:
                    outcome = AgentOutcome(EndReason.PAUSED)  # it failed because its engine calls were refused
            else:
                await _cancel_agent(episode_run.recorder, work)
                outcome = AgentOutcome(EndReason.PAUSED if paused.done() else EndReason.TIMEOUT)
            if (error := _outage(episode_run)) is not None and outcome.end_reason is not EndReason.PAUSED:
                outcome = outcome_of(error, limits, episode_run.tokens)  # even if the agent handled the error
        except asyncio.CancelledError:
            await _cancel_agent(episode_run.recorder, work)
            if stop is None or not stop.is_set():
                del self._pauses[spec.id]
                await self._close_session(episode_run.recorder)
                raise
            outcome = AgentOutcome(EndReason.NOT_NEEDED)
        seconds = time.monotonic() - began
        ending = asyncio.ensure_future(self._finalizer.episode(spec, episode_run, outcome, seconds, events=events))
        try:
            if run_spec.pausable and outcome.end_reason is not EndReason.PAUSED:
                await asyncio.wait({ending, paused}, return_when=asyncio.FIRST_COMPLETED)
                # An episode that is still being scored is paused, too; it is scored after it is resumed.
                if not ending.done() and not episode_run.recorder.ending:
                    ending.cancel()
                    await asyncio.wait({ending})
                    paused_outcome = AgentOutcome(EndReason.PAUSED)
                    ending = asyncio.ensure_future(
                        self._finalizer.episode(spec, episode_run, paused_outcome, seconds, events=events)
                    )
            return await asyncio.shield(ending)
        except asyncio.CancelledError:
            if stop is None or not stop.is_set():
                ending.cancel()
                await asyncio.wait({ending})
                raise
            await asyncio.wait({ending})
            return ending.result()  # the episode had ended already: it keeps its own end reason
        finally:
            del self._pauses[spec.id]
            await self._close_session(episode_run.recorder)

    async def _close_session(self, recorder: EpisodeRecorder) -> None:
        """End the episode's session of the prefix cache, after its last request: a later one would open it again."""
        recorder.close()
        if has_sessions(engine := self.model.client):
            await engine.close_session(recorder.session)

    async def _wait(self, episode_run: EpisodeRun, limits: Limits, futures: set[asyncio.Future[Any]]) -> None:
        """Wait until an episode ends, exceeds its time limit, is paused, or cannot continue because of an outage."""
        recorder, seconds = episode_run.recorder, limits.episode_timeout
        with nullcontext() if seconds is None else self._engine_monitor.watching(recorder.clock):
            try:
                await wait_in_time({*futures, recorder.outage}, recorder.clock, seconds, recorder.alive)
            except EngineUnreachableError as error:
                recorder.outage.set_result(error)

    async def _score(self, record: EpisodeRecord, stop: asyncio.Event | None) -> Episode:
        """Score an episode whose end is recorded; if the run stops it meanwhile, it is returned without a score."""
        try:
            return await self._finalizer.score(record)
        except asyncio.CancelledError:
            if stop is None or not stop.is_set():
                raise
            return restored(record)

    async def end_without_running(self, spec: EpisodeSpec, outcome: AgentOutcome) -> Episode:
        """End an episode that cannot be run, with its recorded turns; an end that is recorded already is returned."""
        if spec.unscored and spec.record is not None:
            return restored(spec.record)  # it has ended; only its reward is missing
        episode_run = EpisodeRun(spec.id, spec.task, self._recorder(spec, []))
        tree = TokenTree(spec.id) if spec.record is None else spec.record.tree()
        return await self._finalizer.episode(spec, episode_run, outcome, 0.0, recorded_tree=tree)

    async def close(self) -> None:
        """Close what episodes opened, write the remaining events and close the ledger shard."""
        await self._gateways.close()
        await asyncio.gather(*self._closing)
        await self._opened.close()
        if self._writer is not None:
            await self._writer.flushed()
            self._writer.close()

    def _recorder(self, spec: EpisodeSpec, events: list[bytes], pause: CancelSignal | None = None) -> EpisodeRecorder:
        begin = None if spec.record is None else spec.record.begin
        # An episode that started in another run is not written to this ledger: its BEGIN event would be missing there.
        starts_here = begin is None or data_of(begin, BeginData).get("run") == self.run_spec.run
        template_time = (None if spec.record is None else spec.record.template_time) or datetime.now()
        chain, replay_log, sink = None, None, self._sink(events, starts_here)
        put_file = None if self._writer is None or not starts_here else self._writer.put_file
        # The record of an episode that can be paused also travels without the run directory.
        put_data = None if self.run_spec.pausable else put_file
        if spec.record is not None:
            replay_log = ReplayLog(spec.record, replay_trailing_errors=False)
        if sink is not None:
            if spec.record is None:
                chain = HashChain(sink, spec.id, epoch=spec.epoch)
                data: BeginData = {
                    "task": spec.task.to_dict(put_data),
                    "sample": spec.sample,
                    "run": self.run_spec.run,
                    "fingerprint": self.fingerprint,
                    "template_time": template_time.isoformat(),
                }
                chain.append(EventKind.BEGIN, data)
            else:
                chain = self._resumed_chain(sink, spec.record)
        loop = asyncio.get_running_loop()
        engine = PausableEngine(
            self.model.client,
            pause,
            pausable=self.run_spec.pausable,
            on_pause=lambda: loop.call_soon_threadsafe(self.pause, spec.id),
        )
        recorder = EpisodeRecorder(
            engine,
            spec.id,
            chain=chain,
            replay_log=replay_log,
            routing_key=spec.routing_key,
            loop_throttle=self._loop_throttle,
            engine_monitor=self._engine_monitor,
            put_file=put_file,
            adapter=spec.task.adapter,
            session=f"{self.run_spec.run}/{spec.id}#{token_hex(4)}",
        )
        recorder.opened_by_worker = self._opened
        recorder.template_time = template_time
        if self.run_spec.seed is not None:
            events_before = () if spec.record is None else spec.record.events
            recorded = (one.data["seed"] for one in events_before if one.data.get("seed") is not None)
            recorder.seeds = TurnSeeds(self.run_spec.seed, spec.id, recorded)
        recorder.put_data = put_data
        recorder.tool_arguments = self.run_spec.tool_arguments
        return recorder

    def _sink(self, events: list[bytes], starts_here: bool) -> Callable[[bytes], None] | None:
        """Return the function that writes events: to the ledger, and to `events` if episodes can be paused."""
        write = None if self._writer is None or not starts_here else self._writer.write
        if not self.run_spec.pausable:
            return write

        def write_both(event: bytes) -> None:
            if write is not None:
                write(event)
            events.append(event)

        return write_both

    def _resumed_chain(self, sink: Callable[[bytes], None], record: EpisodeRecord) -> HashChain:
        chain = HashChain(sink, record.id, epoch=record.epoch + 1, number=record.next_number, head=record.head)
        resume: ResumeData = {
            "from_event": record.next_number - 1,
            "head": record.head.hex(),
            "pid": os.getpid(),
            "worker": self._worker,
            "mark": token_hex(8),
            "fingerprint": self.fingerprint,
        }
        chain.append(EventKind.RESUME, resume)
        return chain


def _outcome(work: asyncio.Task[AgentOutcome], episode_run: EpisodeRun, limits: Limits) -> AgentOutcome:
    """Return how an agent ended, also if its code cancelled the asyncio task it ran in."""
    error = asyncio.CancelledError("cancelled by the agent's own code") if work.cancelled() else work.exception()
    return work.result() if error is None else outcome_of(error, limits, episode_run.tokens)


def _outage(episode_run: EpisodeRun) -> EngineError | ToolUnavailableError | None:
    """Return the error of the first engine call that failed permanently, or of an unavailable tool or model, if any."""
    recorder = episode_run.recorder
    return recorder.outage.result() if recorder.outage.done() else recorder.lost_calls.first


async def _cancel_agent(recorder: EpisodeRecorder, work: asyncio.Task[AgentOutcome]) -> None:
    """Cancel an agent. One that ignores the cancellation keeps running in the background; its recorder is closed."""
    recorder.close()
    work.cancel()
    await asyncio.wait({work}, timeout=_GRACE)
    if work.done() and not work.cancelled():
        work.exception()
