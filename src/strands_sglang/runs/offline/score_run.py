"""Scores a recorded run again from its ledger: `score_run`. Nothing is sampled and no agent is built.

Invariant: no recorded event is changed or removed. A new score is a `REWARD` event after the end of its episode; the
newest counts. A ledger that no longer matches its seal is not sealed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strands_sglang.ledger.event import RewardData, data_of
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.runs.finalizer import EpisodeFinalizer, RewardRunner
from strands_sglang.runs.function_source import function_source
from strands_sglang.runs.recording.other_models import checked_models, made_models
from strands_sglang.runs.resume import appending, is_over
from strands_sglang.runs.reward import Reward
from strands_sglang.runs.workers.spec import ScoreEpisode

_WORKER = "score"
_BATCH = 64  # episodes that are read and scored at the same time


@dataclass(frozen=True, slots=True)
class ScoreRunResult:
    """An episode that was scored again."""

    id: str
    before: Reward
    now: Reward


async def score_run(
    reward: ScoreEpisode,
    directory: str | Path,
    *,
    episodes: Collection[str] | None = None,
    unscored_only: bool = False,
    reward_timeout: float | None = None,
    models: Mapping[str, Any] | None = None,
) -> list[ScoreRunResult]:
    """Score the episodes of a recorded run again.

    Episodes without an end, and episodes that failed or were stopped by the run, are skipped: a resumed run finishes
    them.

    Args:
        reward: As for `rollout`. It is called with episodes read from the ledger (`Episode.restored` is True).
        episodes: Ids of the episodes to score; None: all.
        unscored_only: Whether to skip episodes that have a score.
        reward_timeout: Time limit for scoring one episode in seconds; None: no limit.
        models: Other models that the reward asks, as for `rollout`. What the record answers is not asked again.

    Returns:
        One result per scored episode, in the order of the ledger.

    Raises:
        LedgerError: There is no run in the directory, an id of `episodes` is not in the ledger, or the ledger does not
            match its seal.
        ConfigurationError: Another process uses the directory, or `reward` is not a reward function.

    Example:
        >>> results = await score_run(lambda episode: float(str(episode.task.answer) in episode.text), "runs/first")
        >>> print(sum(result.now.value != result.before.value for result in results), "scores changed")
    """
    reward_runner = RewardRunner(reward, timeout=reward_timeout)
    others = made_models(checked_models(models, reward))
    loop = asyncio.get_running_loop()
    scored: list[ScoreRunResult] = []
    async with appending(Path(directory), _WORKER, episodes) as (writer, records):
        finalizer = EpisodeFinalizer(reward_runner, writer, {"reward": function_source(reward)}, others)
        to_score = (record for record in records if _is_wanted(record, unscored_only))
        while batch := await loop.run_in_executor(None, _next_batch, to_score):
            scored += await asyncio.gather(*(_score(finalizer, record) for record in batch))
    return scored


async def _score(finalizer: EpisodeFinalizer, record: EpisodeRecord) -> ScoreRunResult:
    before = Reward() if record.reward is None else Reward.from_dict(data_of(record.reward, RewardData))
    return ScoreRunResult(record.id, before, (await finalizer.score(record)).reward_detail)


def _is_wanted(record: EpisodeRecord, unscored_only: bool) -> bool:
    known = record.reward is not None and data_of(record.reward, RewardData).get("error") is None
    return is_over(record) and not (unscored_only and known)


def _next_batch(records: Iterator[EpisodeRecord]) -> list[EpisodeRecord]:
    return [record for record, _ in zip(records, range(_BATCH), strict=False)]
