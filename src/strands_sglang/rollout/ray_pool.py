"""Episodes spread over processes, on one machine or a cluster, by Ray: `RayPool`.

The agents' code then runs in none of the caller's threads: a trainer's process only hears of results. Turns and
messages stay where they were made until somebody looks at them.

Invariant: an episode whose worker died goes on in another from its last event on record; it is reported once. One that
takes three workers with it, the last of which had nothing else to do, is given up, and is a result.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from strands_sglang.errors import ConfigurationError
from strands_sglang.extras import install
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.rollout.drive import Outcome
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode, Failure
from strands_sglang.rollout.job import Job, Setup, fingerprint
from strands_sglang.rollout.local import ANSWERED, LocalWorker
from strands_sglang.rollout.measures import OnTurn, TurnCounts
from strands_sglang.rollout.ray_worker import RayWorker
from strands_sglang.rollout.resume import restored

logger = logging.getLogger(__name__)

_DEATHS = 3  # workers an episode may lose
_CLOSING = 60.0  # seconds that a worker has to write the rest of its ledger
_Part = TypeVar("_Part")
_POLL = 0.5  # seconds between two looks at how many turns were made


@dataclass(slots=True, eq=False)
class _Actor:
    """One process."""

    handle: Any
    name: str
    jobs: dict[str, Job] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)  # jobs that are to be set aside
    dead: asyncio.Future[dict[str, EpisodeRecord]] | None = None
    unreachable: float = 0.0  # seconds for which its engine has not answered


class RayPool:
    """Workers of one run; a `Worker` itself."""

    def __init__(self, setup: Setup, workers: int, concurrency: int) -> None:
        """Start the workers, on the Ray that is running, else on one of this machine alone.

        Args:
            setup: What the episodes have in common.
            workers: How many processes.
            concurrency: Episodes at once, in all of them together.

        Raises:
            ConfigurationError: Ray is not installed.
        """
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ConfigurationError(f"workers= needs Ray: {install('ray')}") from error
        self._ray, self._setup = ray, setup
        if not ray.is_initialized():
            # It stays until the program ends: results are looked at after the run.
            cpus = max(workers, os.cpu_count() or 1)
            ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
        # Waiting for a core that will never come free would be waiting for ever.
        cores = 1 if ray.available_resources().get("CPU", 0) >= workers else 0
        self._kind = ray.remote(
            num_cpus=cores, max_restarts=0, max_concurrency=max(1000, 2 * concurrency), scheduling_strategy="SPREAD"
        )(RayWorker)
        try:
            self._shared = ray.put(setup)
        except Exception as error:
            raise ConfigurationError(
                f"workers= needs a build, reward, client and tokenizer that can be pickled: {error}"
            ) from error
        self._alone, self._spare, self._lent = asyncio.Semaphore(workers), list[_Actor](), set[_Actor]()
        self._names = itertools.count()
        self._actors = [self._start() for _ in range(workers)]
        self._local: LocalWorker | None = None
        self._on_turn: dict[str, OnTurn] = {}
        self._poll: asyncio.Task[None] | None = None

    @property
    def fingerprint(self) -> dict[str, str]:
        """What the workers' models render conversations with."""
        return fingerprint(self._setup.model())

    def unreachable_seconds(self) -> float:
        """Return for how long some worker has not reached the engine; 0.0: all do."""
        return max((actor.unreachable for actor in self._actors), default=0.0)

    def _start(self, **options: Any) -> _Actor:
        name = f"ray{next(self._names)}"
        return _Actor(self._kind.options(**options).remote(self._shared, name), name)

    async def run(self, job: Job, *, on_turn: OnTurn | None = None, cut_short: asyncio.Event | None = None) -> Episode:
        """Run an episode to its end, in whichever worker has least to do; see `LocalWorker.run`."""
        if on_turn is not None:
            self._on_turn[job.id] = on_turn
            if self._poll is None:
                self._poll = asyncio.ensure_future(self._count())
        try:
            for _ in range(_DEATHS - 1):
                actor = min(self._actors, key=lambda one: len(one.jobs))
                if (episode := await self._try(actor, job, cut_short)) is not None:
                    return episode
            # Whether it was this episode that took the workers with it is seen where it is alone.
            async with self._alone:
                actor = self._spare.pop() if self._spare else self._start(num_cpus=0)
                self._lent.add(actor)
                try:
                    if (episode := await self._try(actor, job, cut_short)) is not None:
                        return episode
                finally:
                    self._lent.discard(actor)
                    self._spare += [actor] if actor.dead is None else []
            logger.warning("episode=<%s> | given up: %d workers died running it", job.id, _DEATHS)
            failure = Failure("WorkerDied", f"{_DEATHS} workers died while they ran this episode")
            self._local = self._local or LocalWorker(self._setup, "driver")
            return await self._local.give_up(job, Outcome(Ended.AGENT, failure=failure))
        finally:
            self._on_turn.pop(job.id, None)

    def suspend(self, id: str, seconds: float = ANSWERED) -> bool:
        """Set an episode aside; see `LocalWorker.suspend`."""
        running = [actor for actor in [*self._actors, *self._lent] if id in actor.jobs]
        for actor in running:
            if id not in actor.told:
                actor.told.add(id)
                actor.handle.suspend.remote(id, actor.jobs[id].life, seconds)
        return bool(running)

    async def close(self) -> None:
        """Close the ledgers and end the workers."""
        if self._poll is not None:
            self._poll.cancel()
        actors = [*self._actors, *self._spare]
        closing = [asyncio.ensure_future(_of(actor.handle.close.remote())) for actor in actors]
        await asyncio.wait(closing, timeout=_CLOSING)
        for actor, closed in zip(actors, closing, strict=True):
            if not closed.done() or closed.exception() is not None:
                logger.warning("worker=<%s> | did not close its ledger: its last events may be lost", actor.name)
                closed.cancel()
            self._ray.kill(actor.handle)
        if self._local is not None:
            await self._local.close()

    async def _try(self, actor: _Actor, job: Job, cut_short: asyncio.Event | None) -> Episode | None:
        """Run an episode in a worker; None when the worker dies of it, and then the job knows what is on record."""
        actor.jobs[job.id] = job
        epoch = -1 if job.record is None else job.record.epoch
        try:
            return await self._in(actor, job, cut_short)
        except self._ray.exceptions.RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                why = str(error).strip().rpartition("\n")[2]
                raise ConfigurationError(f"workers= cannot start: they need all that is needed here: {why}") from error
            records = await self._buried(actor, error)
            record = job.record = records.get(job.id, job.record)
            # An end of an earlier epoch is why it is run again.
            return restored(record) if record is not None and record.finished and record.epoch > epoch else None
        finally:
            actor.jobs.pop(job.id, None)
            actor.told.discard(job.id)

    async def _in(self, actor: _Actor, job: Job, cut_short: asyncio.Event | None) -> Episode:
        """Run an episode in one worker."""
        small, turns_there, messages_there = actor.handle.run.options(num_returns=3).remote(replace(job, finished=None))
        answer = asyncio.ensure_future(_of(small))
        if cut_short is not None and cut_short.is_set():  # in a worker that died of something else
            actor.handle.end.remote(job.id, True)
        try:
            episode, turns = await asyncio.shield(answer)
        except asyncio.CancelledError:
            cut = cut_short is not None and cut_short.is_set()
            actor.handle.end.remote(job.id, cut)
            if not cut:
                answer.cancel()
                raise
            episode, turns = await asyncio.shield(answer)
        self._counted(job.id, turns)
        ended: Episode = episode
        ended.source = lambda: self._fetched(turns_there, job.id, lambda known: known.tree)
        ended.conversation = lambda: self._fetched(messages_there, job.id, lambda known: known.messages)
        return ended

    def _counted(self, id: str, turns: list[TurnCounts]) -> None:
        on_turn = self._on_turn.get(id)
        if on_turn is not None:
            for counts in turns:
                on_turn(counts)

    def _fetched(self, reference: Any, id: str, of: Callable[[Episode], _Part]) -> _Part:
        """Return a large part of an episode from wherever it is.

        Args:
            reference: Where Ray has it.
            id: The episode's.
            of: Takes it from the episode as the ledger has it, should Ray no longer have it.
        """
        try:
            part: _Part = self._ray.get(reference)
        except self._ray.exceptions.RayError:
            if self._setup.directory is None:
                raise
            logger.info("episode=<%s> | no longer in memory, read from the ledger", id)
            part = of(restored(Ledger(self._setup.directory).episode(id)))
        return part

    async def _buried(self, actor: _Actor, error: Exception) -> dict[str, EpisodeRecord]:
        """Replace a worker that died, once, and return what is on record of the episodes it ran."""
        if actor.dead is None:
            actor.dead = asyncio.ensure_future(self._bury(actor, error))
        return await asyncio.shield(actor.dead)

    async def _bury(self, actor: _Actor, error: Exception) -> dict[str, EpisodeRecord]:
        logger.warning(
            "worker=<%s>, episodes=<%d>, error=<%s> | a worker died; its episodes go on in others",
            actor.name,
            len(actor.jobs),
            str(error).partition("\n")[0],
        )
        if actor in self._actors:
            self._actors[self._actors.index(actor)] = self._start()
        if self._setup.directory is None:
            return {}
        ids, ledger = set(actor.jobs), Ledger(self._setup.directory)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            None, lambda: {record.id: record for record in ledger.episodes() if record.id in ids and record.begin}
        )

    async def _count(self) -> None:
        """Hear of the turns that the workers make, and of engines they cannot reach."""
        while True:
            await asyncio.sleep(_POLL)
            for actor in list(self._actors):
                try:
                    turns, actor.unreachable = await actor.handle.news.remote()
                except self._ray.exceptions.RayError:
                    continue
                for id, counts in turns.items():
                    self._counted(id, counts)


async def _of(reference: Any) -> Any:
    return await reference
