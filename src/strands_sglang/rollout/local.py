"""Running episodes in this process, on the running event loop: `LocalWorker`.

Invariant: each episode runs in a task and an episode scope of its own; whatever happens in it ends up in the
`Episode` that comes out. Nothing is reported as finished before the ledger has it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import ExitStack
from secrets import token_hex

from strands_sglang.ledger.chain import Chain
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.summary import trajectory_summary
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.collector import calm_collector
from strands_sglang.rollout.drive import Outcome, outcome_of
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.job import Job, Setup, fingerprint
from strands_sglang.rollout.journal import Journal
from strands_sglang.rollout.measures import OnTurn, TurnCounts
from strands_sglang.rollout.pace import Pace
from strands_sglang.rollout.play import Play
from strands_sglang.rollout.recorded import Recorded
from strands_sglang.rollout.reward import Reward
from strands_sglang.rollout.scorer import Scorer
from strands_sglang.rollout.telemetry import episode_span, quiet_tracing
from strands_sglang.tokens import TokenTree

logger = logging.getLogger(__name__)

_GRACE = 5.0  # seconds a cancelled agent has to let go


class LocalWorker:
    """Runs episodes of one run, any number at once."""

    def __init__(self, setup: Setup, worker: str = "0") -> None:
        """Make the model and open a ledger.

        Args:
            setup: What the episodes have in common.
            worker: A name for this worker, which its part of the ledger bears.
        """
        self.setup = setup
        self.model = setup.model()
        """The model all episodes share."""
        self._worker = worker
        self._quiet = ExitStack()
        self._quiet.enter_context(quiet_tracing())
        self._quiet.enter_context(calm_collector())
        self._pace = Pace()
        self._scorer = None if setup.reward is None else Scorer(setup.reward, timeout=setup.reward_seconds)
        self._writer: LedgerWriter | None = None
        if setup.directory is not None:
            self._writer = LedgerWriter(setup.directory, worker=worker, durability=setup.durability)

    @property
    def fingerprint(self) -> dict[str, str]:
        """What the model renders conversations with."""
        return fingerprint(self.model)

    async def run(self, job: Job, *, on_turn: OnTurn | None = None, cut_short: asyncio.Event | None = None) -> Episode:
        """Run an episode to its end.

        Args:
            job: Which.
            on_turn: Called with every turn that is sampled.
            cut_short: Once it is set, a cancelled episode ends as `CUT_SHORT`; else cancelling leaves it unfinished.

        Returns:
            The episode.
        """
        run, trace = self.setup.run, self.setup.trace
        with episode_span(job.id, task=job.task.id, sample=job.sample, run=run, parent=trace) as span:
            episode = await self._run(job, on_turn, cut_short)
            span.ended(episode)
        return episode

    async def _run(self, job: Job, on_turn: OnTurn | None, cut_short: asyncio.Event | None) -> Episode:
        setup, play = self.setup, Play(job.id, job.task, self._journal(job))
        if on_turn is not None:
            play.journal.on_turn = lambda turn: on_turn(TurnCounts.of(turn))
        began = time.monotonic()
        work = asyncio.ensure_future(play.act(setup.build, self.model, setup.limits, setup.rerun_tools))
        try:
            done, _ = await asyncio.wait({work}, timeout=setup.limits.seconds_per_episode)
            if not done:
                await _let_go(play.journal, work)
            outcome = _outcome(work, play, setup.limits) if done else Outcome(Ended.TIMEOUT)
        except asyncio.CancelledError:
            await _let_go(play.journal, work)
            if cut_short is None or not cut_short.is_set():
                raise
            outcome = Outcome(Ended.CUT_SHORT)
        ending = asyncio.ensure_future(self._finished(job, play, outcome, time.monotonic() - began))
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError:
            if cut_short is None or not cut_short.is_set():
                ending.cancel()
                await asyncio.wait({ending})
                raise
            await asyncio.wait({ending})
            return ending.result()  # all but over: it counts as what it is

    async def give_up(self, job: Job, outcome: Outcome) -> Episode:
        """End an episode that cannot be run, with what is on record of it."""
        play = Play(job.id, job.task, self._journal(job))
        tree = None if job.record is None else job.record.tree()
        return await self._finished(job, play, outcome, 0.0, tree)

    async def close(self) -> None:
        """Write what is left and close the ledger."""
        self._quiet.close()
        if self._writer is not None:
            await self._writer.flushed()
            self._writer.close()

    def _journal(self, job: Job) -> Journal:
        chain, recorded = None, None
        if job.record is not None:
            recorded = Recorded(job.record, trailing_faults=False)
        if self._writer is not None:
            if job.record is None:
                chain = Chain(self._writer.write, job.id, epoch=job.epoch)
                about = {"task": job.task.to_dict(), "sample": job.sample, "run": self.setup.run}
                chain.append(EventKind.BEGIN, {**about, "fingerprint": fingerprint(self.model)})
            else:
                chain = self._taken_over(self._writer, job.record)
        return Journal(
            self.model.client, job.id, chain=chain, recorded=recorded, routing_key=job.routing_key, pace=self._pace
        )

    def _taken_over(self, writer: LedgerWriter, record: EpisodeRecord) -> Chain:
        chain = Chain(writer.write, record.id, epoch=record.epoch + 1, number=record.next_number, head=record.head)
        last = {"from": record.next_number - 1, "head": record.head.hex()}
        chain.append(EventKind.RESUME, {**last, "pid": os.getpid(), "worker": self._worker, "mark": token_hex(8)})
        return chain

    async def _finished(
        self, job: Job, play: Play, outcome: Outcome, seconds: float, known: TokenTree | None = None
    ) -> Episode:
        journal = play.journal
        tree = play.tree if known is None else known
        journal.close()
        resumable = known is None and len(journal.recorded) > 0 and outcome.ended.failed
        if known is None and len(journal.recorded) and not resumable:
            reason = f"the episode ended ({outcome.ended.value}) before the turns on record were made again"
            about = {"turns": len(tree), "kind": "diverged", "event": journal.recorded.next_event, "reason": reason}
            journal.write(EventKind.CUT, about, ends=True)
        journal.metrics.count(tree)
        journal.metrics.seconds = seconds
        episode = Episode(
            id=job.id,
            task=job.task,
            sample=job.sample,
            ended=outcome.ended,
            source=tree,
            metrics=journal.metrics,
            failure=outcome.failure,
            text=outcome.text,
            messages=play.messages,
            epoch=0 if job.record is None else job.record.epoch + 1,
        )
        if self._scorer is not None and not outcome.ended.failed and outcome.ended is not Ended.CUT_SHORT:
            episode.score = await self._scorer.score(episode)
        episode.time = time.time()
        if not len(tree) and outcome.ended is Ended.ANSWERED:
            logger.warning("episode=<%s> | it made no turn: does the agent use the model that build was given?", job.id)
        if resumable:
            # What is on record is good, and was not reached this time: it stays for the next.
            logger.warning("episode=<%s>, ended=<%s> | failed before it was brought back", job.id, outcome.ended.value)
        else:
            await self._write_end(journal, episode)
        return episode

    async def _write_end(self, journal: Journal, episode: Episode) -> None:
        if self._writer is None:
            return
        failure = episode.failure
        if episode.score != Reward():
            journal.write(EventKind.REWARD, episode.score.to_dict())
        journal.write(
            EventKind.END,
            {
                "ended": episode.ended.value,
                "time": episode.time,
                "failure": None
                if failure is None
                else {"kind": failure.kind, "message": failure.message, "where": failure.where},
                "metrics": episode.metrics.to_dict(),
                "text": episode.text,
                "rejected": [turn.id for turn in episode.tree if turn.rejected],
                "trajectories": [trajectory_summary(trajectory) for trajectory in episode.trajectories],
            },
        )
        await self._writer.flushed()


def _outcome(work: asyncio.Task[Outcome], play: Play, limits: Limits) -> Outcome:
    """Return how an agent ended, whatever it has done to the task it ran in."""
    error = asyncio.CancelledError("cancelled by the agent's own code") if work.cancelled() else work.exception()
    return work.result() if error is None else outcome_of(error, limits, play.tokens)


async def _let_go(journal: Journal, work: asyncio.Task[Outcome]) -> None:
    """End an agent from outside. One that does not listen is left behind: its journal is closed to it."""
    journal.close()
    work.cancel()
    await asyncio.wait({work}, timeout=_GRACE)
    if work.done() and not work.cancelled():
        work.exception()
