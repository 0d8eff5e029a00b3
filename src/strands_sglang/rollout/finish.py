"""What becomes of an episode that is over, or set aside: scored, written down, given back. `Finish`.

Invariant: an episode is given back when the ledger has its end; one that is set aside has none, and bears the record it
goes on from.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from strands_sglang.engine.routed_experts import RoutedExperts
from strands_sglang.errors import CountMismatchError
from strands_sglang.ledger.chain import Chain
from strands_sglang.ledger.event import EventKind, decoded
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.summary import trajectory_summary
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.provider.conversations import conversations, plain_json
from strands_sglang.rollout.drive import Outcome
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.job import Job
from strands_sglang.rollout.journal import Journal
from strands_sglang.rollout.messages import kept_messages
from strands_sglang.rollout.play import Play
from strands_sglang.rollout.resume import restored
from strands_sglang.rollout.reward import Reward
from strands_sglang.rollout.scorer import Scorer
from strands_sglang.tokens import TokenTree

logger = logging.getLogger(__name__)

_AUDIT_SECONDS = 30.0


class Finish:
    """Finishes the episodes of one worker."""

    def __init__(self, scorer: Scorer | None, writer: LedgerWriter | None) -> None:
        """Take who scores them and where they are written; None: nobody, nowhere."""
        self._scorer, self._writer = scorer, writer

    async def episode(
        self,
        job: Job,
        play: Play,
        outcome: Outcome,
        seconds: float,
        *,
        known: TokenTree | None = None,
        kept: Sequence[bytes] = (),
    ) -> Episode:
        """Score an episode, write its end, and return it.

        Args:
            job: What was to be run.
            play: How it was run.
            outcome: How that ended.
            seconds: How long it took.
            known: Its turns, where they are on record alone; None: those that were played.
            kept: Its events of this time, where it may go on later.
        """
        journal = play.journal
        tree = play.tree if known is None else known
        journal.close()
        aside = outcome.ended is Ended.SUSPENDED
        resumable = aside or (known is None and len(journal.recorded) > 0 and outcome.ended.failed)
        if known is None and len(journal.recorded) and not resumable:
            reason = f"the episode ended ({outcome.ended.value}) before the turns on record were made again"
            about = {"turns": len(tree), "kind": "diverged", "event": journal.recorded.next_event, "reason": reason}
            journal.write(EventKind.CUT, about, ends=True)
        journal.metrics.count(tree)
        journal.metrics.seconds = seconds
        await _audited(play, journal)
        episode = Episode(
            id=job.id,
            task=job.task,
            sample=job.sample,
            ended=outcome.ended,
            source=tree,
            metrics=journal.metrics,
            failure=outcome.failure,
            text=outcome.text or ("" if outcome.ended.complete or outcome.ended.failed else play.last_words),
            conversation=play.messages,
            epoch=job.life,
            earlier=dict(journal.earlier) if job.record is not None else {},
            routed_experts=_experts(play, tree) if known is None else {},
        )
        if self._scorer is not None and not outcome.ended.again:
            episode.score = await self._scorer.score(episode)
        journal.ending = True
        episode.time = time.time()
        if not len(tree) and outcome.ended is Ended.ANSWERED:
            logger.warning("episode=<%s> | it made no turn: does the agent use the model that build was given?", job.id)
        if aside:
            old = () if job.record is None else job.record.events
            events = (*old, *(decoded(event)[0] for event in kept))
            episode.halves = list(journal.halves)
            episode.record = EpisodeRecord(job.id, events, epoch=episode.epoch)
            episode.source = episode.record.tree()  # one that was stopped again early has not made all its turns again
            await self._flushed()
        elif resumable:
            # What is on record is good, and was not reached this time: it stays for the next.
            logger.warning("episode=<%s>, ended=<%s> | failed before it was brought back", job.id, outcome.ended.value)
            episode.record = job.record
        else:
            await self._write_end(journal, episode, play)
        return episode

    async def score(self, record: EpisodeRecord) -> Episode:
        """Score an episode that has its end on record, write the score behind that, and return it."""
        episode = restored(record)
        if self._scorer is None or episode.ended.again:
            return episode
        episode.score = await self._scorer.score(episode)
        if self._writer is not None:
            # No other process has anything to write of it any more: the epoch stays.
            epoch = record.events[-1].epoch
            chain = Chain(self._writer.write, record.id, epoch=epoch, number=record.next_number, head=record.head)
            chain.append(EventKind.REWARD, {**episode.score.to_dict(), "time": time.time()})
            await self._flushed()
        return episode

    async def _write_end(self, journal: Journal, episode: Episode, play: Play) -> None:
        if self._writer is None:
            return
        asked, text = ([], "[]") if episode.source is not play.tokens.tree else _conversations(play)
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
                "conversations": text,
                "messages": kept_messages(episode.messages, asked),
                "rejected": [turn.id for turn in episode.tree if turn.rejected],
                "trajectories": [trajectory_summary(trajectory) for trajectory in episode.trajectories],
            },
        )
        await self._flushed()

    async def _flushed(self) -> None:
        if self._writer is not None:
            await self._writer.flushed()


def _conversations(play: Play) -> tuple[list[dict[str, Any]], str]:
    """Return what each branch was asked, and the same as JSON; nothing that goes wrong with it ends an episode."""
    tokens = play.tokens
    try:
        with tokens.lock:
            asked = conversations(tokens.lineage, tokens.tree)
        return asked, plain_json(asked)
    except Exception:
        logger.exception("episode=<%s> | its conversations are left out", play.id)
        return [], "[]"


async def _audited(play: Play, journal: Journal) -> None:
    """Wait for the audit of an episode, and count it."""
    tokens = play.tokens
    if tokens.under_audit is not None:
        await asyncio.wait([asyncio.wrap_future(tokens.under_audit)], timeout=_AUDIT_SECONDS)
    journal.metrics.audits, journal.metrics.audit_differences = tokens.audits, tokens.audit_differences


def _experts(play: Play, tree: TokenTree) -> dict[int, RoutedExperts]:
    """Return the experts of each branch, by the id of its last turn; nothing where none were asked for."""
    found: dict[int, RoutedExperts] = {}
    for leaf in tree.branches():
        try:
            experts = play.tokens.routed_experts(play.tokens.tree[leaf.id])
        except CountMismatchError as error:
            logger.warning("episode=<%s>, branch=<%d> | its routed experts are left out: %s", play.id, leaf.id, error)
            continue
        if experts is not None:
            found[leaf.id] = experts
    return found
