"""Running episodes in this process, on the running event loop: `LocalWorker`.

Invariant: each episode runs in a task and an episode scope of its own; whatever happens in it ends up in the
`Episode` that comes out. Nothing is reported as finished before the ledger has it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from secrets import token_hex
from typing import Any

from strands_sglang.engine.protocol import CancelSignal
from strands_sglang.errors import EngineError, EngineUnreachableError
from strands_sglang.ledger.chain import Chain
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.rollout.asker import Asker
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.clock import Clock, in_time
from strands_sglang.rollout.collector import calm_collector
from strands_sglang.rollout.drive import Outcome, outcome_of
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.finish import Finish
from strands_sglang.rollout.job import Job, Setup, fingerprint, loaded_tokenizer
from strands_sglang.rollout.journal import Journal
from strands_sglang.rollout.measures import OnTurn, TurnCounts
from strands_sglang.rollout.models import Models
from strands_sglang.rollout.pace import Pace
from strands_sglang.rollout.play import Play
from strands_sglang.rollout.pulse import Pulse
from strands_sglang.rollout.quiet_logs import quiet_logs
from strands_sglang.rollout.recorded import Recorded
from strands_sglang.rollout.resume import restored
from strands_sglang.rollout.scorer import Scorer
from strands_sglang.rollout.telemetry import episode_span, quiet_tracing
from strands_sglang.tokens import TokenTree

_GRACE = 5.0  # seconds a cancelled agent has to let go
ANSWERED = 30.0
"""Seconds that an engine which was told to abort has to answer."""


class LocalWorker:
    """Runs episodes of one run, any number at once."""

    def __init__(self, setup: Setup, worker: str = "0", *, guest: bool = False) -> None:
        """Make the model and open a ledger.

        Args:
            setup: What the episodes have in common.
            worker: A name for this worker, which its part of the ledger bears.
            guest: Whether the process is somebody else's, a trainer's say: its garbage collector is left alone.
        """
        self.setup = setup = replace(setup, tokenizer=loaded_tokenizer(setup.tokenizer))
        self.models = Models(setup)
        """The models that episodes share."""
        self.model = self.models.usual
        """The one of all episodes that ask for nothing else."""
        self._worker = worker
        self._quiet = ExitStack()
        self._quiet.enter_context(quiet_tracing())
        quiet_logs()
        if not guest:
            self._quiet.enter_context(calm_collector())
        self._pace, self._pulse = Pace(), Pulse(self.model.client)
        self._writer: LedgerWriter | None = None
        if setup.directory is not None:
            self._writer = LedgerWriter(setup.directory, worker=worker, durability=setup.durability)
        scorer = None if setup.reward is None else Scorer(setup.reward, timeout=setup.reward_seconds)
        self._finish = Finish(scorer, self._writer)
        self._halts: dict[str, asyncio.Future[float]] = {}

    @property
    def fingerprint(self) -> dict[str, str]:
        """What the model renders conversations with."""
        return fingerprint(self.model)

    async def run(
        self,
        job: Job,
        *,
        on_turn: OnTurn | None = None,
        cut_short: asyncio.Event | None = None,
        halt: CancelSignal | None = None,
    ) -> Episode:
        """Run an episode to its end.

        Args:
            job: Which.
            on_turn: Called with every turn that is sampled.
            cut_short: Once it is set, a cancelled episode ends as `CUT_SHORT`; else cancelling leaves it unfinished.
            halt: Once it is set, the episode asks for nothing more; whoever sets it calls `suspend` soon.

        Returns:
            The episode. One that has its end on record and is only unscored is scored, and not run.
        """
        if job.unscored and job.record is not None:
            return await self._score(job.record, cut_short)
        run, trace = self.setup.run, self.setup.trace
        with episode_span(job.id, task=job.task.id, sample=job.sample, run=run, parent=trace) as span:
            episode = await self._run(job, on_turn, cut_short, halt)
            span.ended(episode)
        return episode

    def suspend(self, id: str, seconds: float = ANSWERED) -> bool:
        """Set an episode aside: it ends as `SUSPENDED`, with the record it can go on from.

        Args:
            id: Of the episode.
            seconds: How long to wait for what the engine was asked already: its answer is kept, whole or in part.

        Returns:
            Whether it was running.
        """
        halted = self._halts.get(id)
        if halted is not None and not halted.done():
            halted.set_result(seconds)
        return halted is not None

    async def _run(
        self, job: Job, on_turn: OnTurn | None, cut_short: asyncio.Event | None, halt: CancelSignal | None
    ) -> Episode:
        setup, limits = self.setup, job.limits or self.setup.limits
        kept: list[bytes] = []
        play = Play(job.id, job.task, self._journal(job, kept, halt))
        if on_turn is not None:
            play.journal.on_turn = lambda turn: on_turn(TurnCounts.of(turn))
        began, play.journal.clock = time.monotonic(), Clock()
        work = asyncio.ensure_future(play.act(setup.build, self.models.of(job), limits, setup.rerun_tools))
        halted = self._halts[job.id] = asyncio.get_running_loop().create_future()
        try:
            await self._wait(play, limits, {work, halted} if setup.suspendable else {work})
            if halted.done():
                await play.journal.halt(halted.result())
            if work.done():
                outcome = _outcome(work, play, limits)
                if outcome.ended.failed and setup.suspendable and play.journal.asker.halted:
                    outcome = Outcome(Ended.SUSPENDED)  # it fell because it was refused to go on
            else:
                await _let_go(play.journal, work)
                outcome = Outcome(Ended.SUSPENDED if halted.done() else Ended.TIMEOUT)
            if (error := _lost(play)) is not None and outcome.ended not in (Ended.ENGINE, Ended.SUSPENDED):
                outcome = outcome_of(error, limits, play.tokens)  # whatever the agent made of it
        except asyncio.CancelledError:
            await _let_go(play.journal, work)
            if cut_short is None or not cut_short.is_set():
                del self._halts[job.id]
                raise
            outcome = Outcome(Ended.CUT_SHORT)
        seconds = time.monotonic() - began
        ending = asyncio.ensure_future(self._finish.episode(job, play, outcome, seconds, kept=kept))
        try:
            if setup.suspendable and outcome.ended is not Ended.SUSPENDED:
                await asyncio.wait({ending, halted}, return_when=asyncio.FIRST_COMPLETED)
                if not ending.done() and not play.journal.ending:  # it is being scored: that is for later, too
                    ending.cancel()
                    await asyncio.wait({ending})
                    aside = Outcome(Ended.SUSPENDED)
                    ending = asyncio.ensure_future(self._finish.episode(job, play, aside, seconds, kept=kept))
            return await asyncio.shield(ending)
        except asyncio.CancelledError:
            if cut_short is None or not cut_short.is_set():
                ending.cancel()
                await asyncio.wait({ending})
                raise
            await asyncio.wait({ending})
            return ending.result()  # all but over: it counts as what it is
        finally:
            del self._halts[job.id]

    async def _wait(self, play: Play, limits: Limits, waited_for: set[asyncio.Future[Any]]) -> None:
        """Wait until an episode is over, has used up its time, or cannot go on without the engine."""
        journal, seconds = play.journal, limits.seconds_per_episode
        with nullcontext() if seconds is None else self._pulse.watching(journal.clock):
            try:
                await in_time({*waited_for, journal.abandoned}, journal.clock, seconds, journal.alive)
            except EngineUnreachableError as error:
                journal.abandoned.set_result(error)

    async def _score(self, record: EpisodeRecord, cut_short: asyncio.Event | None) -> Episode:
        """Score an episode that has its end on record; where there is enough without it, it stays as it is."""
        try:
            return await self._finish.score(record)
        except asyncio.CancelledError:
            if cut_short is None or not cut_short.is_set():
                raise
            return restored(record)

    async def give_up(self, job: Job, outcome: Outcome) -> Episode:
        """End an episode that cannot be run, with what is on record of it."""
        if job.unscored and job.record is not None:
            return restored(job.record)  # it has its end: only its reward could not be had
        play = Play(job.id, job.task, self._journal(job, []))
        tree = TokenTree(job.id) if job.record is None else job.record.tree()
        return await self._finish.episode(job, play, outcome, 0.0, known=tree)

    async def close(self) -> None:
        """Write what is left and close the ledger."""
        self._quiet.close()
        if self._writer is not None:
            await self._writer.flushed()
            self._writer.close()

    def _journal(self, job: Job, kept: list[bytes], halt: CancelSignal | None = None) -> Journal:
        begin = None if job.record is None else job.record.begin
        # What was begun in another run is not part of this one's ledger: it would have no beginning there.
        ours = begin is None or begin.data.get("run") == self.setup.run
        chain, recorded, sink = None, None, self._sink(kept, ours)
        if job.record is not None:
            recorded = Recorded(job.record, trailing_faults=False)
        if sink is not None:
            if job.record is None:
                chain = Chain(sink, job.id, epoch=job.epoch)
                about = {"task": job.task.to_dict(), "sample": job.sample, "run": self.setup.run}
                chain.append(EventKind.BEGIN, {**about, "fingerprint": fingerprint(self.model)})
            else:
                chain = self._taken_over(sink, job.record)
        loop = asyncio.get_running_loop()
        asker = Asker(
            self.model.client,
            halt,
            haltable=self.setup.suspendable,
            on_halt=lambda: loop.call_soon_threadsafe(self.suspend, job.id),
        )
        journal = Journal(
            asker,
            job.id,
            chain=chain,
            recorded=recorded,
            routing_key=job.routing_key,
            pace=self._pace,
            pulse=self._pulse,
        )
        journal.tool_arguments = self.setup.tool_arguments
        return journal

    def _sink(self, kept: list[bytes], ours: bool) -> Callable[[bytes], None] | None:
        """Return where events go: to the ledger, and into memory where an episode may be set aside."""
        write = None if self._writer is None or not ours else self._writer.write
        if not self.setup.suspendable:
            return write

        def both(event: bytes) -> None:
            if write is not None:
                write(event)
            kept.append(event)

        return both

    def _taken_over(self, sink: Callable[[bytes], None], record: EpisodeRecord) -> Chain:
        chain = Chain(sink, record.id, epoch=record.epoch + 1, number=record.next_number, head=record.head)
        last = {"from": record.next_number - 1, "head": record.head.hex()}
        chain.append(EventKind.RESUME, {**last, "pid": os.getpid(), "worker": self._worker, "mark": token_hex(8)})
        return chain


def _outcome(work: asyncio.Task[Outcome], play: Play, limits: Limits) -> Outcome:
    """Return how an agent ended, whatever it has done to the task it ran in."""
    error = asyncio.CancelledError("cancelled by the agent's own code") if work.cancelled() else work.exception()
    return work.result() if error is None else outcome_of(error, limits, play.tokens)


def _lost(play: Play) -> EngineError | None:
    """Return why an episode has not got all the tokens it asked for; None when it has."""
    journal = play.journal
    return journal.abandoned.result() if journal.abandoned.done() else journal.lost.first


async def _let_go(journal: Journal, work: asyncio.Task[Outcome]) -> None:
    """End an agent from outside. One that does not listen is left behind: its journal is closed to it."""
    journal.close()
    work.cancel()
    await asyncio.wait({work}, timeout=_GRACE)
    if work.done() and not work.cancelled():
        work.exception()
