"""Workers that run a trainer's episodes and teachers that score them, kept per event loop: `PerLoop`, `run_episode`.

Locks and connections belong to one loop, so the model is set up once per loop, not once per sample.

Invariants: an object kept here is only used on the event loop that it was made on. An episode that failed, or that the
teacher could not score, is logged and returned; a teacher raises only at the first contact, where a wrong address is a
setting that cannot work.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Generic, TypeVar
from uuid import uuid4

from strands_sglang.engine import ScoringEngine, SGLangClient
from strands_sglang.errors import ConfigurationError
from strands_sglang.runs.episode import Episode, StalenessDecision
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.offline.teacher import TeacherScorer
from strands_sglang.runs.recording.other_models import checked_models
from strands_sglang.runs.staleness import StalenessGate
from strands_sglang.runs.task import Task
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec

logger = logging.getLogger(__name__)

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Objects kept by event loop and key. Those of closed loops are dropped when a new one is made."""

    def __init__(self) -> None:
        self._kept: dict[tuple[asyncio.AbstractEventLoop, Hashable], T] = {}

    def get(self, make: Callable[[], T], key: Hashable = None) -> T:
        """Return the running loop's object under this key, making it at first use."""
        place = (asyncio.get_running_loop(), key)
        if place not in self._kept:
            for known in [known for known in self._kept if known[0].is_closed()]:
                del self._kept[known]
            self._kept[place] = make()
        return self._kept[place]

    def discard(self, key: Hashable = None) -> None:
        """Forget the running loop's object, so that the next `get` makes a new one."""
        self._kept.pop((asyncio.get_running_loop(), key), None)

    def __len__(self) -> int:
        return len(self._kept)


async def run_episode(
    worker: LocalWorker, spec: Callable[[], EpisodeSpec], gate: StalenessGate | None = None
) -> Episode | None:
    """Run an episode and log its failure, if any. Raises nothing but cancellation, and errors of the gate.

    If `spec` raises, the result is None: one bad row of a dataset must not end a training.
    """
    try:
        made = spec()
    except Exception as error:
        logger.error("error=<%s: %s> | cannot make a task from this row of the dataset", type(error).__name__, error)
        return None
    episode = await run_fresh(gate, made, worker.run)
    log_failure(episode)
    return episode


async def run_fresh(
    gate: StalenessGate | None, spec: EpisodeSpec, run: Callable[[EpisodeSpec], Awaitable[Episode]]
) -> Episode:
    """Run an episode and decide whether its tokens are too old; if the rule says so, run its task again."""
    task = spec.task
    for attempt in itertools.count(1):
        episode = await run(spec)
        if gate is None or episode.end_reason.resumable:
            return episode
        gate.sampled(episode.metrics.versions)
        decided = gate.decide([episode], await gate.current(), retry=attempt <= gate.rule.retries)
        await gate.flushed()
        if decided.decision is not StalenessDecision.RETRIED:
            return episode
        # The id of an episode is used once; the new one starts from the beginning.
        spec = replace(spec, task=replace(task, id=f"{task.id}~{attempt}"), record=None)
    raise AssertionError("unreachable")


def log_failure(episode: Episode) -> None:
    """Log a warning if the episode or its reward function failed."""
    if episode.failure is not None:
        failure = f"{episode.failure.kind}: {episode.failure.message}"
        logger.warning(
            "episode=<%s>, end_reason=<%s>, failure=<%s> | episode failed",
            episode.id,
            episode.end_reason.value,
            failure,
        )
    elif episode.reward_detail.error is not None:
        logger.warning("episode=<%s>, error=<%s> | reward function failed", episode.id, episode.reward_detail.error)


class EpisodeTeacher:
    """Scores the sampled tokens of episodes with another model of the same vocabulary."""

    def __init__(self, teacher: ScoringEngine | str, top: int = 0) -> None:
        """Keep the settings; `top` likeliest ids are kept for each token. Nothing is sent before the first episode."""
        self._client = SGLangClient(teacher) if isinstance(teacher, str) else teacher
        self.top = top
        self._scorers: PerLoop[asyncio.Future[TeacherScorer]] = PerLoop()

    async def score(self, episode: Episode) -> None:
        """Set the teacher's logprobs in the tree of an episode."""
        opening = self._scorers.get(lambda: asyncio.ensure_future(TeacherScorer.open(self._client, self.top)))
        try:
            scorer = await asyncio.shield(opening)
        except Exception:
            self._scorers.discard()  # the next episode tries again
            raise
        await scorer.score_episode(episode)
        if (why := scorer.report.failures.pop(episode.id, None)) is not None:
            logger.warning("episode=<%s>, error=<%s> | teacher could not score the episode", episode.id, why)


def new_spec(made: Any, id: str = "", **settings: Any) -> EpisodeSpec:
    """Return the specification of one episode of a task.

    `made` is a `Task`, or what `Task.of` accepts. The task gets an id of its own (`id`; "": a random one), because a
    trainer may run a row of its dataset any number of times.
    """
    task = Task.of(made)
    return EpisodeSpec(replace(task, id=f"{task.id[:150]}-{id or uuid4().hex}"), 0, **settings)


def bound_limits(given: Limits | Mapping[str, Any] | None, **bounds: int | None) -> Limits:
    """Return limits, or a dict of their fields, that are nowhere above a trainer's own; None and 0 are no bound."""
    limits = Limits(**given) if isinstance(given, Mapping) else given or Limits()
    lower = {name: min(filter(None, (getattr(limits, name), bound)), default=None) for name, bound in bounds.items()}
    return replace(limits, **lower)


def pad_id_of(tokenizer: Any) -> int:
    """Return the id that a tokenizer pads with: its padding token, or its end token, or 0."""
    return next((id for id in (tokenizer.pad_token_id, tokenizer.eos_token_id) if id is not None), 0)


def agent_functions(build: Any, reward: Any, task: Any) -> tuple[Any, Any, Any]:
    """Return the functions that make an agent, score an episode and make a task, given as such or by dotted path."""
    functions = import_by_path(build), import_by_path(reward), import_by_path(task)
    if not all(map(callable, functions[:2])):
        raise ConfigurationError(
            f"build and reward must be functions or their dotted paths, got {build!r} and {reward!r}"
        )
    return functions


def named_models(models: Any, build: Any, reward: Any) -> dict[str, Any]:
    """Return the other models of a run; they, their dict or functions that make them may be given by dotted path."""
    given = import_by_path(models)
    if isinstance(given, Mapping):
        given = {name: import_by_path(model) for name, model in given.items()}
    return checked_models(given, build, reward)


def import_by_path(target: Any) -> Any:
    """Return the object at a dotted path such as "my_agent.build"; anything but a string is returned as it is."""
    if not isinstance(target, str):
        return target
    module, _, name = target.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"expected a function or a dotted path such as 'my_agent.build', got {target!r}: {error}"
        ) from error
