"""`score_run`: a recorded run scored anew, from its ledger alone.

A reward with a mistake in it costs the scores of a run, not what it sampled. Nothing is sampled and no agent is built:
the reward is asked with the episodes as they are read back.

Invariant: nothing that is on record is changed or lost. A score is one event behind the end of its episode; the newest
counts. A ledger that is not as it was sealed is not sealed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.seal import SealFault, check_seal, read_seal, seal
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.rollout.callables import ScoreEpisode
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.finish import Finish
from strands_sglang.rollout.lock import directory_lock
from strands_sglang.rollout.reward import Reward
from strands_sglang.rollout.scorer import Scorer

_WORKER = "score"
_AT_ONCE = 64  # episodes that are in memory to be scored


@dataclass(frozen=True, slots=True)
class Scored:
    """One episode that was scored anew."""

    id: str
    """Id of the episode."""
    before: Reward
    """What it was worth until now."""
    now: Reward
    """What it is worth."""


async def score_run(
    reward: ScoreEpisode,
    directory: str | Path,
    *,
    episodes: Collection[str] | None = None,
    unscored_only: bool = False,
    reward_seconds: float | None = None,
) -> list[Scored]:
    """Score the episodes of a recorded run anew.

    Episodes without an end, and those that failed or were cut short, are passed over: they are the run's to finish.

    Args:
        reward: As for `rollout`. The episodes it is asked with are read back: `restored` is True.
        directory: The run's.
        episodes: Ids of the episodes to score; None: all.
        unscored_only: Whether those that have a score keep it.
        reward_seconds: Seconds that scoring an episode may take; None: no bound.

    Returns:
        What came out, in the order of the ledger.

    Raises:
        LedgerError: No run, no such episode, or a ledger that is not as it was sealed.
        ConfigurationError: Another process has the run, or that is no reward function.
    """
    folder = Path(directory)
    ledger = Ledger(folder)
    _ = ledger.run
    missing = sorted(set(episodes or ()) - set(ledger.ids() if episodes else ()))
    if missing:
        raise LedgerError(f"the ledger in {folder} has no episode {', '.join(map(repr, missing[:10]))}")
    scorer = Scorer(reward, timeout=reward_seconds)
    loop = asyncio.get_running_loop()
    with directory_lock(folder):
        sealed = await loop.run_in_executor(None, _sealed, folder)
        scored: list[Scored] = []
        records = _records(Ledger(folder), episodes, unscored_only)
        try:
            with LedgerWriter(folder, worker=_WORKER) as writer:
                finish = Finish(scorer, writer)
                while batch := await loop.run_in_executor(None, _some, records):
                    scored += await asyncio.gather(*(_score(finish, record) for record in batch))
        finally:  # whatever ended it: what was scored counts
            if sealed:
                await loop.run_in_executor(None, seal, folder)
    return scored


async def _score(finish: Finish, record: EpisodeRecord) -> Scored:
    before = Reward() if record.reward is None else Reward.from_dict(record.reward.data)
    return Scored(record.id, before, (await finish.score(record)).score)


def _records(ledger: Ledger, episodes: Collection[str] | None, unscored_only: bool) -> Iterator[EpisodeRecord]:
    for record in ledger.episodes():
        if record.begin is None or record.end is None or Ended(record.end.data["ended"]).again:
            continue
        known = record.reward is not None and record.reward.data.get("error") is None
        if (episodes is None or record.id in episodes) and not (unscored_only and known):
            yield record


def _some(records: Iterator[EpisodeRecord]) -> list[EpisodeRecord]:
    return [record for record, _ in zip(records, range(_AT_ONCE), strict=False)]


def _sealed(folder: Path) -> bool:
    """Return whether a run is sealed; raise LedgerError when its files are not those that were."""
    if read_seal(folder) is None:
        return False
    found = check_seal(folder)
    added = [one for one in found if one.kind is SealFault.NEW]
    if len(added) == len(found):
        # Files of a run that went on since: it seals itself at its end. Ours, of a scoring that died, are sealed now.
        return all(one.shard.startswith(f"{_WORKER}-") for one in added)
    if found := [one for one in found if one not in added]:
        raise LedgerError(
            f"{found[0].shard}: {found[0].message}. The run in {folder} is not as it was sealed, and is not sealed "
            f"anew: see what `strands-sglang verify {folder}` says"
        )
    return True
