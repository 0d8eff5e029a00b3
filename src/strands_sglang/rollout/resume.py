"""What an earlier process left behind: `Before`, read from the directory of a run.

Invariant: an episode that has its end on record is finished, and never run again; one whose record does not hold
together is not believed: it goes on from the last event that does. One that failed, or was cut short, may be taken up
again. One that was to be scored and has no score is scored from its record, and not run.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.run_file import read_run
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode, Failure
from strands_sglang.rollout.job import Job
from strands_sglang.rollout.measures import EpisodeMetrics
from strands_sglang.rollout.messages import messages_of
from strands_sglang.rollout.reward import Reward
from strands_sglang.rollout.task import Task

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Before:
    """The episodes of a run that are on record."""

    run: dict[str, Any]
    """What run.json says."""
    finished: dict[str, Episode] = field(default_factory=dict)
    """Episodes with an end, by id."""
    unfinished: dict[str, EpisodeRecord] = field(default_factory=dict)
    """What is on record of the others, by id."""
    unscored: dict[str, EpisodeRecord] = field(default_factory=dict)
    """What is on record of those with an end that nobody scored, or whose reward failed, by id."""

    def check(self, fingerprint: dict[str, str]) -> None:
        """Raise ConfigurationError unless a run with this model can go on from here."""
        recorded = self.run.get("fingerprint", {})
        for name, value in fingerprint.items():
            if recorded.get(name, value) != value:
                raise ConfigurationError(
                    f"the run on record was made with another {name} ({recorded[name]}, now {value}): its "
                    "conversations would be rendered differently. Take the same tokenizer and options, or another "
                    "directory"
                )

    def complete_at(self, task: Task, samples: int, needed: int) -> float:
        """Return when the group of a task had `needed` good episodes, in Unix seconds; infinity: it never had."""
        ids = [Job(task, sample).id for sample in range(samples)]
        ended = [self.finished[one] for one in ids if one in self.finished]
        times = sorted(one.time for one in ended if not one.ended.again)
        return times[needed - 1] if len(times) >= needed else math.inf

    def open(self, task: Task, samples: int, needed: int) -> bool:
        """Return whether an episode of a task has to be run, or to go on; see `jobs`."""
        ended = [self.finished.get(Job(task, sample).id) for sample in range(samples)]
        complete = sum(one is not None and not one.ended.again for one in ended) >= needed
        return any(one is None or (one.ended.again and not complete) for one in ended)

    def jobs(self, task: Task, samples: int, needed: int, *, scored: bool = False) -> list[Job]:
        """Return the jobs of a task: those that ended first, in the order in which they did.

        Args:
            task: Which.
            samples: Episodes of it.
            needed: Good episodes that make its group complete: without so many, failed ones are taken up again.
            scored: Whether somebody scores episodes: those that have no score are then to be scored.

        Raises:
            ConfigurationError: Another task bears its id.
        """
        jobs = [Job(task.copy(), sample) for sample in range(samples)]
        ended = [self.finished[job.id] for job in jobs if job.id in self.finished]
        complete = sum(not one.ended.again for one in ended) >= needed
        for job in jobs:
            finished, record = self.finished.pop(job.id, None), self.unfinished.pop(job.id, None)
            if finished is not None and (complete or not finished.ended.again):
                _check_task(job, finished.task)
                job.finished, job.record = finished, self.unscored.pop(job.id, None) if scored else None
                job.unscored = job.record is not None
            elif record is not None and record.begin is None:
                job.epoch = record.epoch + 1  # all that is left of it is damaged: it begins anew
            elif record is not None:
                _check_task(job, task_of(record))
                job.record = record
        return sorted(jobs, key=lambda job: job.finished.time if job.finished is not None else math.inf)


def _check_task(job: Job, recorded: Task) -> None:
    if recorded == job.task:
        return
    differs = next(name for name in ("prompt", "answer", "data") if getattr(recorded, name) != getattr(job.task, name))
    was, now = getattr(recorded, differs), getattr(job.task, differs)
    raise ConfigurationError(
        f"episode {job.id} is on record with another {differs} ({was!r:.80}, now {now!r:.80}): give changed tasks "
        "other ids, or take another directory"
    )


def read_before(directory: Path) -> Before | None:
    """Return what is on record in a directory; None when no run has begun there."""
    run = read_run(directory)
    if run is None:
        return None
    before = Before(run)
    for record in Ledger(directory).episodes():
        for problem in record.problems:
            logger.warning("episode=<%s> | a broken place in its record: %s", record.id, problem)
        if record.finished:
            episode = before.finished[record.id] = restored(record)
            if episode.ended.again:
                before.unfinished[record.id] = record
            elif record.reward is None or episode.score.error is not None:
                before.unscored[record.id] = record
        else:
            before.unfinished[record.id] = record
    return before


def task_of(record: EpisodeRecord) -> Task:
    """Return the task of an episode whose beginning is on record."""
    assert record.begin is not None
    return Task(**record.begin.data["task"])


def restored(record: EpisodeRecord) -> Episode:
    """Return a finished episode as it was reported when it ended, with its newest score.

    Its messages are those on record; an end of an earlier version has them up to the agent's last turn.
    """
    assert record.begin is not None and record.end is not None
    end = record.end.data
    leaves = [one["leaf"] for one in end.get("trajectories") or () if type(one.get("leaf")) is int]
    return Episode(
        id=record.id,
        task=task_of(record),
        sample=record.begin.data["sample"],
        ended=Ended(end["ended"]),
        source=record.tree,
        score=Reward() if record.reward is None else Reward.from_dict(record.reward.data),
        metrics=EpisodeMetrics.from_dict(end["metrics"]),
        failure=None if end["failure"] is None else Failure(**end["failure"]),
        text=end["text"],
        conversation=messages_of(end, max(leaves, default=None)),
        epoch=record.epoch,
        time=end.get("time", 0.0),
        restored=True,
    )
