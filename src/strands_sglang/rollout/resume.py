"""What an earlier process left behind: `Before`, read from the directory of a run.

Invariant: an episode that has its end on record is finished, and never run again; one whose record does not hold
together is not believed: it goes on from the last event that does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.run_file import read_run
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode, Failure
from strands_sglang.rollout.measures import EpisodeMetrics
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

    def check(self, fingerprint: dict[str, str], samples_per_task: int) -> None:
        """Raise ConfigurationError unless a run with these settings can go on from here."""
        recorded = self.run.get("fingerprint", {})
        for name, value in fingerprint.items():
            if recorded.get(name, value) != value:
                raise ConfigurationError(
                    f"the run on record was made with another {name} ({recorded[name]}, now {value}): its "
                    "conversations would be rendered differently. Take the same tokenizer and options, or another "
                    "directory"
                )
        if self.run.get("samples_per_task", samples_per_task) > samples_per_task:
            raise ConfigurationError(
                f"the run on record has {self.run['samples_per_task']} samples a task, more than {samples_per_task}"
            )

    def take(self, id: str, task: Task) -> Episode | EpisodeRecord | None:
        """Return what is on record of an episode, once; None: nothing.

        Raises:
            ConfigurationError: Another task bears this id.
        """
        known = self.finished.pop(id, None) or self.unfinished.pop(id, None)
        if known is None or (isinstance(known, EpisodeRecord) and known.begin is None):
            return known
        recorded = known.task if isinstance(known, Episode) else task_of(known)
        if recorded != task:
            raise ConfigurationError(
                f"episode {id} is on record with another task ({recorded.prompt!r:.80}, now {task.prompt!r:.80}): "
                "give changed tasks other ids, or take another directory"
            )
        return known


def read_before(directory: Path) -> Before | None:
    """Return what is on record in a directory; None when no run has begun there."""
    run = read_run(directory)
    if run is None:
        return None
    before = Before(run)
    for record in Ledger(directory).episodes():
        if record.finished and not record.problems:
            before.finished[record.id] = restored(record)
        else:
            for problem in record.problems:
                logger.warning("episode=<%s> | resumed before a broken place of its record: %s", record.id, problem)
            before.unfinished[record.id] = record
    return before


def task_of(record: EpisodeRecord) -> Task:
    """Return the task of an episode whose beginning is on record."""
    assert record.begin is not None
    return Task(**record.begin.data["task"])


def restored(record: EpisodeRecord) -> Episode:
    """Return a finished episode as it was reported when it ended, but for its messages."""
    assert record.begin is not None and record.end is not None
    end = record.end.data
    rewards = [event.data for event in record.events if event.kind is EventKind.REWARD]
    return Episode(
        id=record.id,
        task=task_of(record),
        sample=record.begin.data["sample"],
        ended=Ended(end["ended"]),
        source=record.tree,
        score=Reward.from_dict(rewards[-1]) if rewards else Reward(),
        metrics=EpisodeMetrics.from_dict(end["metrics"]),
        failure=None if end["failure"] is None else Failure(**end["failure"]),
        text=end["text"],
        epoch=record.epoch,
    )
