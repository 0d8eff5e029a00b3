"""State recovered from a previous run (`PreviousRun`), the lock of a run directory (`directory_lock`), and `appending`.

Invariants:

- An episode whose end is recorded is finished and never run again, unless it failed or the run stopped it: such an
  episode may be resumed. A damaged record is used up to the last event that is valid. An episode that has no score, but
  should have one, is scored from its record and not run.
- The lock is released when the process that holds it ends, however it ends, and whatever children it forked.
- A ledger that no longer matches its seal is neither continued nor sealed again. Appending to a finished run changes
  and removes no recorded event; the run is sealed with the new events, also if appending failed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strands_sglang.errors import ConfigurationError, LedgerError
from strands_sglang.ledger.event import BeginData, EndData, RewardData, data_of
from strands_sglang.ledger.messages import messages_of
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.run_dir import read_run, shard_paths
from strands_sglang.ledger.seal import SealFault, check_seal, read_seal, seal
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode, EpisodeMetrics, Failure, Staleness
from strands_sglang.runs.experiment import Part, difference
from strands_sglang.runs.reward import Reward
from strands_sglang.runs.task import Task
from strands_sglang.runs.workers.spec import EpisodeSpec

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PreviousRun:
    """The recorded episodes of a run; empty if it is a new one."""

    run: dict[str, Any]
    """The content of run.json; empty: there is none."""
    finished: dict[str, Episode] = field(default_factory=dict)
    """Episodes whose end is recorded, by id."""
    unfinished: dict[str, EpisodeRecord] = field(default_factory=dict)
    """Records of the episodes that can be resumed: without an end, failed, or stopped by the run; by id."""
    unscored: dict[str, EpisodeRecord] = field(default_factory=dict)
    """Records of the finished episodes without a reward, or whose reward failed, by id."""

    def check(self, fingerprint: dict[str, str], allowed: Collection[str] = ()) -> None:
        """Raise ConfigurationError if a call with this fingerprint would mix experiments, unless that is allowed.

        A part that no recorded result depends on may change: a corrected agent or reward continues the run.
        """
        recorded = self.run.get("fingerprint", {})
        for name in ("template", "parser"):
            if recorded.get(name, fingerprint[name]) != fingerprint[name]:
                raise ConfigurationError(
                    f"{name} must be the one of the recorded run ({recorded[name]}), got {fingerprint[name]}: "
                    "conversations would be rendered differently. Use the same tokenizer and options, or another "
                    "directory"
                )
        for part in Part:
            now = fingerprint.get(part.value)
            was = next((known for known in self._depended_on(part) if known not in (now, None)), None)
            if now is None or was is None:
                continue
            told = f"{part.value} {difference(was, now)}"
            if part.value not in allowed:
                raise ConfigurationError(
                    f"{told}. The groups of this run would mix samples of two experiments: use another directory. If "
                    f"that is intended, pass RunOptions(allow_changed=[{part.value!r}]), on the command line "
                    f"--allow-changed {part.value}: `verify`, `show`, the viewer and each group then say what is mixed"
                )
            logger.warning("%s | allowed: every report of the run says that it is mixed", told)
        agent = fingerprint.get(Part.AGENT.value)
        agents = (one.fingerprint.get(Part.AGENT.value) for one in self.unfinished.values() if one.calls)
        if agent is not None and (others := sum(one not in (agent, None) for one in agents)):
            logger.warning(
                "agent=<%s>, episodes=<%d> | continues episodes of another agent: if turns of them are kept, every "
                "report of the run says that it is mixed",
                agent,
                others,
            )

    def _depended_on(self, part: Part) -> Iterator[str | None]:
        """Yield the values of a part of the experiment that recorded results depend on; None: unknown."""
        for episode in self.finished.values():
            if not episode.end_reason.resumable and (part is not Part.REWARD or episode.reward is not None):
                yield episode.fingerprint.get(part.value)
        # What a resumed agent does is compared with its record, and it is scored at its end.
        for record in self.unfinished.values() if part not in (Part.AGENT, Part.REWARD) else ():
            if record.calls:
                yield record.fingerprint.get(part.value)

    def complete_at(self, task: Task, samples: int, needed: int, first: int = 0) -> float:
        """Return when the group of a task was complete, in seconds since 1970; infinity: never; see `specs`."""
        ended = [self.finished.get(EpisodeSpec(task, sample).id) for sample in range(first, first + samples)]
        times = sorted(one.time for one in ended if one is not None and not one.end_reason.resumable)
        return times[needed - 1] if len(times) >= needed else math.inf

    def open(self, task: Task, samples: int, needed: int) -> bool:
        """Return whether an episode of a task must be run or resumed; see `specs`."""
        ended = [self.finished.get(EpisodeSpec(task, sample).id) for sample in range(samples)]
        complete = self.complete_at(task, samples, needed) < math.inf
        return any(one is None or (one.end_reason.resumable and not complete) for one in ended)

    def specs(
        self, task: Task, samples: int, needed: int, *, scored: bool = False, first: int = 0
    ) -> list[EpisodeSpec]:
        """Return the episodes of a task: first the finished ones, in the order in which they ended.

        `needed` episodes that neither failed nor were stopped complete the group; if there are fewer, the others are
        resumed. `scored`: finished episodes without a score are scored. ConfigurationError if the id had another task.
        `first`: number of the first sample, above 0 if the task is run again because its group became too old.
        """
        specs = [EpisodeSpec(task.copy(), sample) for sample in range(first, first + samples)]
        complete = self.complete_at(task, samples, needed, first) < math.inf
        for spec in specs:
            finished, record = self.finished.pop(spec.id, None), self.unfinished.pop(spec.id, None)
            if finished is not None and (complete or not finished.end_reason.resumable):
                check_task(spec, finished.task)
                spec.finished, spec.record = finished, self.unscored.pop(spec.id, None) if scored else None
                spec.unscored = spec.record is not None
            elif record is not None and record.begin is None:
                spec.epoch = record.epoch + 1  # its record is damaged from the start: it is run from scratch
            elif record is not None:
                check_task(spec, task_of(record))
                spec.record = record
        return sorted(specs, key=lambda spec: spec.finished.time if spec.finished is not None else math.inf)


_CONTENT = ("prompt", "answer", "data", "adapter")


def check_task(spec: EpisodeSpec, recorded: Task) -> None:
    """Raise ConfigurationError if an episode was recorded with another task of the same id."""
    if recorded == spec.task:
        return
    differs = next(name for name in _CONTENT if getattr(recorded, name) != getattr(spec.task, name))
    was, now = getattr(recorded, differs), getattr(spec.task, differs)
    raise ConfigurationError(
        f"episode {spec.id} was recorded with another {differs}: {was!r:.80}, got {now!r:.80}. Use a new id for a "
        "changed task, or another directory"
    )


def read_previous_run(directory: Path) -> PreviousRun:
    """Return the recorded episodes of a run directory; without episodes if there is no run in it.

    Raises:
        ConfigurationError: The directory has a ledger without run.json.
        LedgerError: Its files do not match its seal, or cannot be read.
    """
    run = read_run(directory)
    if run is None:
        if shard_paths(directory):
            raise ConfigurationError(
                f"{directory} has a ledger but no run.json, so that its run cannot be resumed: restore run.json from a "
                "copy, or use another directory"
            )
        return PreviousRun({})
    if read_seal(directory) is not None:
        _added_since_seal(directory)
    previous = PreviousRun(run)
    for record in Ledger(directory).episodes():
        for problem in record.problems:
            logger.warning("episode=<%s> | damaged record: %s", record.id, problem)
        if record.finished and record.begin is not None:
            episode = previous.finished[record.id] = restored(record)
            if episode.end_reason.resumable:
                previous.unfinished[record.id] = record
            elif record.reward is None or episode.reward_detail.error is not None:
                previous.unscored[record.id] = record
        else:
            previous.unfinished[record.id] = record
    return previous


def task_of(record: EpisodeRecord) -> Task:
    """Return the task of a recorded episode; the record must have its `BEGIN` event."""
    assert record.begin is not None
    return Task.from_dict(data_of(record.begin, BeginData)["task"], record.files)


def is_over(record: EpisodeRecord) -> bool:
    """Return whether an episode ended and is not resumed by the same rollout."""
    if record.begin is None or record.end is None:
        return False
    return not EndReason(data_of(record.end, EndData)["end_reason"]).resumable


def restored(record: EpisodeRecord) -> Episode:
    """Return a finished episode as it was reported when it ended, with its newest reward."""
    assert record.begin is not None and record.end is not None
    end = data_of(record.end, EndData)
    return Episode(
        id=record.id,
        task=task_of(record),
        sample=data_of(record.begin, BeginData)["sample"],
        end_reason=EndReason(end["end_reason"]),
        source=record.tree,
        reward_detail=Reward() if record.reward is None else Reward.from_dict(data_of(record.reward, RewardData)),
        metrics=EpisodeMetrics.from_dict(end["metrics"]),
        failure=None if end["failure"] is None else Failure(**end["failure"]),
        text=end["text"],
        conversation=messages_of(end, record.files),
        images=record.images,
        epoch=record.epoch,
        time=end["time"],
        fingerprint=record.fingerprint,
        earlier_fingerprints=record.earlier_fingerprints,
        restored=True,
        staleness=Staleness.of(record),
        chain_end=(record.events[-1].epoch, record.next_number, record.head),
    )


try:
    import fcntl
except ImportError:  # Windows: directories are not locked
    fcntl = None  # type: ignore[assignment]


# A lock of `flock` belongs to every process that has the file open, so a forked child closes its copy. A record lock
# (`lockf`) has one owner, but is lost as soon as the process closes the file once more, such as when it copies the
# directory. No process is forked between opening a file and noting it.
_locked_files: set[int] = set()
_forking = threading.Lock()


def _close_in_child() -> None:
    _forking.release()
    while _locked_files:
        os.close(_locked_files.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_close_in_child)


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Lock a directory while the `with` block runs; creates the directory. No lock on a file system without locks.

    Raises:
        ConfigurationError: Another run holds the lock.
        LedgerError: The directory cannot be written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _forking:
            handle = os.open(directory / ".lock", os.O_CREAT | os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
            _locked_files.add(handle)
    except OSError as error:
        if isinstance(error, FileExistsError):
            raise ConfigurationError(f"directory must be the directory of a run, got the file {directory}") from error
        raise LedgerError(f"the directory {directory} cannot be written to: {error}") from error
    owner = os.getpid()
    try:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"another run is active in {directory}: wait until it ends, or use another directory"
                ) from None
            except OSError:
                pass  # a file system without locks
        yield
    finally:
        if os.getpid() == owner:
            with _forking:
                _locked_files.discard(handle)
                os.close(handle)


_WORKERS = ("score", "teacher")
"""Names of the writers that append to finished runs; the files they write begin with them."""


@asynccontextmanager
async def appending(
    folder: Path, worker: str, episodes: Collection[str] | None
) -> AsyncIterator[tuple[LedgerWriter, Iterator[EpisodeRecord]]]:
    """Lock a run, yield a writer of further events and the records of some episodes (None: all), and seal it again.

    LedgerError if there is no run, if an id of `episodes` is not in it, or if it does not match its seal.
    """
    ledger, loop = Ledger(folder), asyncio.get_running_loop()
    _ = ledger.run
    if missing := sorted(set(episodes or ()) - set(ledger.ids() if episodes else ())):
        raise LedgerError(f"the ledger in {folder} has no episode {', '.join(map(repr, missing[:10]))}")
    with directory_lock(folder):
        sealed = await loop.run_in_executor(None, _must_seal, folder)
        try:
            with LedgerWriter(folder, worker=worker) as writer:
                records = Ledger(folder).episodes()  # as it is now that it is locked
                yield writer, (record for record in records if episodes is None or record.id in episodes)
        finally:  # seal the new events even if something failed
            if sealed:
                await loop.run_in_executor(None, seal, folder)


def _must_seal(folder: Path) -> bool:
    """Return whether the run must be sealed afterwards; raise LedgerError if its files do not match its seal."""
    if read_seal(folder) is None:
        return False
    # New files of a resumed run are sealed by that run. New files of an interrupted call of ours are sealed now.
    return all(name.startswith(tuple(f"{worker}-" for worker in _WORKERS)) for name in _added_since_seal(folder))


def _added_since_seal(folder: Path) -> list[str]:
    """Return the names of the shards that are not in the seal; raise LedgerError if the others do not match it."""
    added = []
    for fault in check_seal(folder):
        if fault.kind is not SealFault.NEW:
            raise LedgerError(
                f"{fault.shard}: {fault.message}. The run in {folder} does not match its seal, so it is neither "
                f"continued nor sealed again: run `strands-sglang verify {folder}` for details, then restore the file "
                "from a copy, or use another directory"
            )
        added.append(fault.shard)
    return added
