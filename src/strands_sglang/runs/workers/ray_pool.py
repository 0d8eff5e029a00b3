"""Runs episodes in Ray processes, on one machine or a cluster: `RayPool`.

Each process runs a `RayWorker`: a `LocalWorker` with its own name, ledger shard and event loop. No agent code runs in
the caller's process, which receives only results. Turns and messages stay in the process that made them until they are
read.

Invariant: an episode is the same as with a `LocalWorker`. An episode whose worker died continues on another worker from
its last recorded event, and is reported once. If three workers die while they run it, and the third one runs nothing
else, it fails: it is returned with the end reason `AGENT_ERROR`. A worker that answers nothing for longer than its
episodes may take, or than a start may take, is killed: a process that is stopped or blocked cannot enforce its limits.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import logging
import math
import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from strands_sglang._checks import install
from strands_sglang.engine import is_server
from strands_sglang.errors import ConfigurationError, LedgerError
from strands_sglang.ledger.encoding import encoded, episode_of, first_link
from strands_sglang.ledger.reader import Ledger, Placed, resolved
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.run_dir import shard_paths
from strands_sglang.ledger.shard import ShardReader
from strands_sglang.runs.agent_runner import AgentOutcome
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode, Failure, OnTurn, TurnCounts
from strands_sglang.runs.resume import restored
from strands_sglang.runs.workers.local import ABORT_TIMEOUT, LocalWorker
from strands_sglang.runs.workers.process_tuning import infrequent_gc, tool_threads
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec, fingerprint
from strands_sglang.tokens import TokenTree

logger = logging.getLogger(__name__)

_MAX_WORKER_DEATHS = 3  # an episode fails after this many workers died while they ran it
_CLOSE_TIMEOUT = 60.0  # seconds that a worker has to write its remaining events
_POLL_INTERVAL = 0.5  # seconds between two calls of `RayWorker.poll`; longer if there are many workers
_MAX_SILENCE = 60.0  # seconds that a worker may answer nothing, beyond the time limit of its episodes
_UNLIMITED = 600.0  # seconds that are taken as the time limit of episodes that have none, in this respect
_START_SILENCE = (
    600.0  # seconds that a worker may take to start once another one has: a cluster may add a machine for it
)
_CLOSE_SILENCE = 10.0  # a worker that has answered nothing for these seconds is not waited for at the end
_MAX_POLLS = 100  # workers that are polled at a time: polling takes a few percent of a core, however many there are

_Part = TypeVar("_Part")


class RayWorker:
    """Runs episodes of one run, any number at once, for a `RayPool`."""

    def __init__(self, run_spec: RunSpec, name: str) -> None:
        """Store the settings; `ready` creates the `LocalWorker`, and the name of its ledger shard contains `name`."""
        self._run_spec, self._name = run_spec, name
        self._local: LocalWorker | None = None
        self._tuning = ExitStack()
        self._running: dict[str, tuple[asyncio.Task[Episode], asyncio.Event]] = {}
        self._turns: dict[str, list[TurnCounts]] = {}
        self._early_pauses: dict[str, tuple[int, float]] = {}  # of episodes that were paused before they started
        self._early_ends: dict[str, bool] = {}  # `stop` of episodes that were ended before they started

    async def ready(self) -> int:
        """Create the `LocalWorker` on the event loop of this process, if there is none yet; returns the process id."""
        if self._local is None:
            self._local = LocalWorker(self._run_spec, self._name)
            if self._run_spec.tune_runtime:
                self._tuning.enter_context(tool_threads(1024))
                self._tuning.enter_context(infrequent_gc())
        return os.getpid()

    async def run(
        self, spec: EpisodeSpec
    ) -> tuple[tuple[Episode, list[TurnCounts]], TokenTree, list[Any], dict[str, bytes] | None]:
        """Run an episode; return four values, which Ray stores separately, so that only the first, small one is sent.

        They are the episode with the turn counts that `poll` has not returned yet; its turns; its messages; its images,
        or None if they are in its record and were not read.
        """
        await self.ready()
        assert self._local is not None
        stop = asyncio.Event()
        work = asyncio.ensure_future(
            self._local.run(spec, on_turn=lambda counts: self._turns.setdefault(spec.id, []).append(counts), stop=stop)
        )
        await asyncio.sleep(0)  # a task that is cancelled before its first step runs none of its code
        self._running[spec.id] = (work, stop)
        epoch, seconds = self._early_pauses.pop(spec.id, (-1, 0.0))
        if epoch == spec.next_epoch:
            self._local.pause(spec.id, seconds)
        if spec.id in self._early_ends:
            await self.end(spec.id, self._early_ends.pop(spec.id))
        try:
            episode = await work
        finally:
            del self._running[spec.id]
        tree, messages = episode.tree, episode.messages
        images = episode.images if isinstance(episode.images, dict) else None
        episode.source, episode.conversation, episode.images = TokenTree(spec.id), [], {}
        return (episode, self._turns.pop(spec.id, [])), tree, messages, images

    async def end(self, id: str, stop: bool) -> None:
        """Cancel an episode: with `stop` it ends as `NOT_NEEDED`, otherwise it stays unfinished."""
        running = self._running.get(id)
        if running is None:
            self._early_ends[id] = stop  # its `run` has not started yet
            return
        work, event = running
        if stop:
            event.set()
        work.cancel()

    async def pause(self, id: str, epoch: int, seconds: float) -> None:
        """Pause an episode; see `LocalWorker.pause`. A later attempt than that of `epoch` is not paused."""
        if self._local is None or not self._local.pause(id, seconds):
            self._early_pauses[id] = (epoch, seconds)  # its `run` has not started, or has just ended

    async def poll(self) -> tuple[dict[str, list[TurnCounts]], float]:
        """Return the counts of the turns sampled since the last call, by episode id, and unreachable seconds."""
        turns, self._turns = self._turns, {}
        client = self._run_spec.client
        return turns, client.unreachable_seconds() if is_server(client) else 0.0

    async def close(self) -> None:
        """Write the remaining events, close the ledger shard, and restore the settings of the process."""
        self._tuning.close()
        if self._local is not None:
            await self._local.close()


@dataclass(slots=True, eq=False)
class _Actor:
    handle: Any
    name: str
    specs: dict[str, EpisodeSpec] = field(default_factory=dict)
    pausing: set[str] = field(default_factory=set)  # ids of episodes that a pause was sent for
    recovery: asyncio.Future[dict[str, EpisodeRecord]] | None = None  # set once it died: its episodes' records, by id
    unreachable: float = 0.0  # seconds for which its engine has been unreachable; 0.0: it is reachable
    polling: asyncio.Future[None] | None = None  # the last call of `poll`
    has_started: bool = False  # whether it ever answered `poll`
    silent: float = 0.0  # seconds since it answered `poll`, or since it was asked first


class RayPool:
    """The Ray workers of one run. Implements the `Worker` protocol."""

    def __init__(self, run_spec: RunSpec, workers: int, concurrency: int) -> None:
        """Start the workers on the Ray cluster of this process, or on this machine; ConfigurationError if it fails."""
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ConfigurationError(f"workers > 0 needs Ray: {install('ray')}") from error
        self._ray, self._run_spec = ray, run_spec
        if not ray.is_initialized():
            # Ray is not shut down before the program ends: results are read after the run.
            if cluster := os.environ.get("RAY_ADDRESS"):  # has cores and settings of its own
                try:
                    ray.init(log_to_driver=False)
                except (ConnectionError, ValueError) as error:
                    raise ConfigurationError(
                        f"no Ray cluster answers at RAY_ADDRESS={cluster}: start it, or unset RAY_ADDRESS to use "
                        f"this machine ({error})"
                    ) from error
            else:
                cpus = max(workers, os.cpu_count() or 1)
                ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
        # Without enough free cores, workers that reserve one would never start.
        cores = 1 if ray.available_resources().get("CPU", 0) >= workers else 0
        self._actor_class = ray.remote(
            num_cpus=cores, max_restarts=0, max_concurrency=max(1000, 2 * concurrency), scheduling_strategy="SPREAD"
        )(RayWorker)
        try:
            self._run_spec_reference = ray.put(run_spec)
        except Exception as error:
            raise ConfigurationError(
                f"with workers > 0, build, reward, client, tokenizer and models must be picklable; functions "
                f"that make the models may be given: {error}"
            ) from error
        # Shards of earlier processes: an episode that is resumed from them has their events in its record.
        self._earlier_shards: set[str] = set()
        if run_spec.directory is not None:
            self._earlier_shards = {path.name for path in shard_paths(run_spec.directory)}
        self._ledger: Ledger | None = None  # as it was when turns or messages were last read from it
        # Workers that run a single episode, to find out whether it is the one that kills workers: slots, idle, busy.
        self._solo_slots, self._solo_idle, self._solo_busy = asyncio.Semaphore(workers), list[_Actor](), set[_Actor]()
        self._names = itertools.count()
        self._actors = [self._start() for _ in range(workers)]
        self._local: LocalWorker | None = None
        self._on_turn: dict[str, OnTurn] = {}
        self._polling: asyncio.Task[None] | None = None

    @property
    def fingerprint(self) -> dict[str, str]:
        """What identifies the experiment; see `spec.fingerprint`."""
        return fingerprint(self._run_spec.model(), self._run_spec)

    def unreachable_seconds(self) -> float:
        """Return the longest time in seconds that a worker could not reach the engine; 0.0: all reach it."""
        return max((actor.unreachable for actor in self._actors), default=0.0)

    def _start(self, **options: Any) -> _Actor:
        name = f"ray{next(self._names)}"
        return _Actor(self._actor_class.options(**options).remote(self._run_spec_reference, name), name)

    async def run(
        self, spec: EpisodeSpec, *, on_turn: OnTurn | None = None, stop: asyncio.Event | None = None
    ) -> Episode:
        """Run an episode to its end on the worker with the fewest episodes; see `LocalWorker.run`."""
        if on_turn is not None:
            self._on_turn[spec.id] = on_turn
        if self._polling is None:
            self._polling = asyncio.ensure_future(self._poll_workers())
        try:
            for _ in range(_MAX_WORKER_DEATHS - 1):
                running = [one for one in self._actors if one.has_started] or self._actors
                actor = min(running, key=lambda one: len(one.specs))
                if (episode := await self._attempt(actor, spec, stop)) is not None:
                    return episode
            # The last attempt runs on a worker of its own: if that dies too, this episode is the cause.
            async with self._solo_slots:
                actor = self._solo_idle.pop() if self._solo_idle else self._start(num_cpus=0)
                self._solo_busy.add(actor)
                try:
                    if (episode := await self._attempt(actor, spec, stop)) is not None:
                        return episode
                finally:
                    self._solo_busy.discard(actor)
                    self._solo_idle += [actor] if actor.recovery is None else []
            logger.warning(
                "episode=<%s>, workers=<%d> | episode failed: workers died while they ran it",
                spec.id,
                _MAX_WORKER_DEATHS,
            )
            failure = Failure("WorkerDied", f"{_MAX_WORKER_DEATHS} workers died while they ran this episode")
            self._local = self._local or LocalWorker(self._run_spec, "driver")
            return await self._local.end_without_running(spec, AgentOutcome(EndReason.AGENT_ERROR, failure=failure))
        finally:
            self._on_turn.pop(spec.id, None)

    def pause(self, id: str, seconds: float = ABORT_TIMEOUT) -> bool:
        """Pause an episode; see `LocalWorker.pause`."""
        running = [actor for actor in [*self._actors, *self._solo_busy] if id in actor.specs]
        for actor in running:
            if id not in actor.pausing:
                actor.pausing.add(id)
                actor.handle.pause.remote(id, actor.specs[id].next_epoch, seconds)
        return bool(running)

    async def close(self) -> None:
        """Close the ledger shards and end the worker processes."""
        if self._polling is not None:
            self._polling.cancel()
        actors = [*self._actors, *self._solo_idle]
        for actor in actors:
            if actor.polling is not None:
                actor.polling.cancel()
        closing = [asyncio.ensure_future(_awaited(actor.handle.close.remote())) for actor in actors]
        answering = [closed for actor, closed in zip(actors, closing, strict=True) if actor.silent < _CLOSE_SILENCE]
        if answering:
            await asyncio.wait(answering, timeout=_CLOSE_TIMEOUT)
        for actor, closed in zip(actors, closing, strict=True):
            if not closed.done() or closed.exception() is not None:
                logger.warning(
                    "worker=<%s> | worker did not close its ledger shard, its last events may be lost", actor.name
                )
                closed.cancel()
            self._ray.kill(actor.handle)
        if self._local is not None:
            await self._local.close()

    async def _attempt(self, actor: _Actor, spec: EpisodeSpec, stop: asyncio.Event | None) -> Episode | None:
        """Run an episode on a worker; if the worker dies, set `spec.record` to the recorded episode and return None."""
        actor.specs[spec.id] = spec
        epoch = -1 if spec.record is None else spec.record.epoch
        try:
            return await self._run_on(actor, spec, stop)
        except self._ray.exceptions.RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                cause = str(error).strip().rpartition("\n")[2]
                raise ConfigurationError(
                    f"the Ray workers cannot start: {cause}. Make every module and file that build and reward need "
                    "available on the workers"
                ) from error
            records = await self._recovered(actor, error)
            record = spec.record = records.get(spec.id, spec.record)
            # An end recorded in an earlier epoch does not count: the episode was resumed after it.
            return restored(record) if record is not None and record.finished and record.epoch > epoch else None
        finally:
            actor.specs.pop(spec.id, None)
            actor.pausing.discard(spec.id)

    async def _run_on(self, actor: _Actor, spec: EpisodeSpec, stop: asyncio.Event | None) -> Episode:
        """Run an episode on a worker; its turns and messages are fetched when they are first read."""
        result, tree_reference, messages_reference, images_reference = actor.handle.run.options(num_returns=4).remote(
            replace(spec, finished=None)
        )
        answer = asyncio.ensure_future(_awaited(result))
        if stop is not None and stop.is_set():  # the run stopped it while its previous worker died
            actor.handle.end.remote(spec.id, True)
        try:
            episode, turns = await asyncio.shield(answer)
        except asyncio.CancelledError:
            stopped = stop is not None and stop.is_set()
            actor.handle.end.remote(spec.id, stopped)
            if not stopped:
                answer.cancel()
                raise
            episode, turns = await asyncio.shield(answer)
        self._report_turns(spec.id, turns)
        ended: Episode = episode
        ended.source = lambda: self._fetch(tree_reference, ended, lambda known: known.tree)
        ended.conversation = lambda: self._fetch(messages_reference, ended, lambda known: known.messages)
        ended.images = lambda: self._images(images_reference, ended, spec.record)
        return ended

    def _images(self, reference: Any, episode: Episode, before: EpisodeRecord | None) -> dict[str, bytes]:
        """Return the images of an episode; `before` is the record that it was resumed from."""
        images: dict[str, bytes] | None = self._fetch(reference, episode, lambda known: known.image_files)
        if images is not None:
            return images
        record = episode.record or before
        return {} if record is None else record.images()

    def _report_turns(self, id: str, turns: list[TurnCounts]) -> None:
        on_turn = self._on_turn.get(id)
        if on_turn is not None:
            for counts in turns:
                on_turn(counts)

    def _fetch(self, reference: Any, episode: Episode, of: Callable[[Episode], _Part]) -> _Part:
        """Return turns or messages from Ray's object store; if they are gone, `of` the ledger's episode."""
        try:
            part: _Part = self._ray.get(reference)
        except self._ray.exceptions.RayError:
            if self._run_spec.directory is None:
                raise
            logger.info(
                "episode=<%s> | turns or messages are no longer in memory, reading them from the ledger", episode.id
            )
            part = of(restored(self._recorded(self._run_spec.directory, episode)))
        return part

    def _recorded(self, directory: Path, episode: Episode) -> EpisodeRecord:
        """Return the record of an ended episode. The run is indexed again only if it ended after the last time."""
        if self._ledger is not None and episode.id in self._ledger:
            record = self._ledger.episode(episode.id)
            if record.finished and record.epoch >= episode.epoch:
                return record
        self._ledger = Ledger(directory)
        return self._ledger.episode(episode.id)

    async def _recovered(self, actor: _Actor, error: Exception) -> dict[str, EpisodeRecord]:
        """Return the records of the episodes of a worker that died; the first call also replaces the worker."""
        if actor.recovery is None:
            actor.recovery = asyncio.ensure_future(self._replace(actor, error))
        return await asyncio.shield(actor.recovery)

    async def _replace(self, actor: _Actor, error: Exception) -> dict[str, EpisodeRecord]:
        logger.warning(
            "worker=<%s>, episodes=<%d>, error=<%s> | worker died, its episodes continue on other workers",
            actor.name,
            len(actor.specs),
            str(error).partition("\n")[0],
        )
        if actor in self._actors:
            self._actors[self._actors.index(actor)] = self._start()
        if self._run_spec.directory is None:
            return {}
        directory, specs = self._run_spec.directory, list(actor.specs.values())
        return await asyncio.get_running_loop().run_in_executor(
            None, lambda: recorded_by(directory, actor.name, specs, self._earlier_shards)
        )

    async def _poll_workers(self) -> None:
        for start in itertools.count(step=_MAX_POLLS):
            await asyncio.sleep(_POLL_INTERVAL)
            actors = [*self._actors, *self._solo_busy]
            count = len(actors)
            for number in range(start, start + min(count, _MAX_POLLS)):
                actor = actors[number % count]
                if actor.polling is None or actor.polling.done():  # a slow worker does not delay the others
                    actor.polling = asyncio.ensure_future(self._poll(actor))
                else:
                    # Counted in polls and not by a clock: this process may have been suspended itself.
                    actor.silent += _POLL_INTERVAL * max(1.0, count / _MAX_POLLS)
                    if actor.specs and actor.silent > self._max_silence(actor, actors):
                        logger.warning(
                            "worker=<%s>, seconds=<%.0f> | worker is unresponsive, killing it", actor.name, actor.silent
                        )
                        actor.silent = 0.0
                        self._ray.kill(actor.handle)  # its calls then fail as those of a worker that died

    async def _poll(self, actor: _Actor) -> None:
        try:
            turns, actor.unreachable = await actor.handle.poll.remote()
        except self._ray.exceptions.RayError:
            return
        actor.has_started, actor.silent = True, 0.0
        for id, counts in turns.items():
            self._report_turns(id, counts)

    def _max_silence(self, actor: _Actor, actors: Collection[_Actor]) -> float:
        """Return the seconds after which a silent worker will not start, or end its episodes within their limits."""
        if not actor.has_started:
            return _START_SILENCE if any(one.has_started for one in actors) else math.inf
        limits = [spec.limits or self._run_spec.limits for spec in actor.specs.values()]
        return _MAX_SILENCE + max(_UNLIMITED if one.episode_timeout is None else one.episode_timeout for one in limits)


def recorded_by(
    directory: Path, worker: str, specs: Collection[EpisodeSpec], earlier_shards: Collection[str] = ()
) -> dict[str, EpisodeRecord]:
    """Return the records of episodes that a worker ran, by id, from its own shards; without those it wrote nothing of.

    The cost depends on what this worker wrote and not on the size of the run: events that other processes wrote before
    (in `earlier_shards`) are in the record that the worker resumed the episode from.
    """
    before = {spec.id: spec.record for spec in specs}
    written: dict[str, list[Placed]] = {}
    for path in shard_paths(directory):
        if path.name.partition("-")[0] != worker or path.name in earlier_shards:
            continue
        for block in ShardReader(path):
            for event in block.events:
                try:
                    id = episode_of(event)
                except LedgerError:
                    continue
                if id in before:
                    written.setdefault(id, []).append(Placed(event, path.name, block.at))
    records: dict[str, EpisodeRecord] = {}
    for id, places in written.items():
        try:
            record = _continued(id, before[id], places)
        except LedgerError:  # the events that it was resumed from must be read as they are on disk
            record = Ledger(directory).episode(id)
        if record.begin is not None:
            records[id] = record
    return records


def _continued(id: str, earlier: EpisodeRecord | None, places: list[Placed]) -> EpisodeRecord:
    """Return a record with further events of its episode, which may repeat some; `earlier` None: these are all.

    LedgerError if the events of the record cannot be encoded to the bytes they were read from.
    """
    if earlier is None:
        return resolved(id, places)
    known, previous, first = {place.data for place in places}, first_link(id), list[Placed]()
    for event in earlier.events:
        data = encoded(copy := replace(event), previous)
        if copy.digest != event.digest:
            raise LedgerError(f"event {event.number} of episode {id} has another digest when it is encoded again")
        previous = event.digest
        if data not in known:
            first.append(Placed(data, "", 0))
    record = resolved(id, [*first, *places])
    record.epoch = max(record.epoch, earlier.epoch)
    return record


async def _awaited(reference: Any) -> Any:
    return await reference
