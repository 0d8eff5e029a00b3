"""Strands agents as a rollout workflow of AReaL: `StrandsWorkflow`.

    trainer.train(
        workflow="strands_sglang.trainers.areal.StrandsWorkflow",
        workflow_kwargs=dict(build="my_agent.build", reward="my_agent.score", gconfig=..., tokenizer=...),
    )

Invariant: `arun_episode` gives AReaL a valid trajectory whatever becomes of the episode, or None where failed ones are
to be rejected; only cancellation passes through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any
from uuid import uuid4

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout import Episode, Limits, Task
from strands_sglang.rollout.job import Job, Setup
from strands_sglang.rollout.local import LocalWorker
from strands_sglang.trainers.areal_engine import ArealEngine, InferenceEngine
from strands_sglang.trainers.areal_row import trajectory
from strands_sglang.trainers.chat_task import chat_task
from strands_sglang.trainers.loop_worker import LoopWorkers, found, played
from strands_sglang.trainers.plain_row import plain_rows, usable

try:
    from areal import workflow_context
    from areal.api import ModelRequest, RolloutWorkflow
    from areal.api.cli_args import GenerationHyperparameters
    from areal.utils import stats_tracker
except ImportError as error:
    raise ImportError(
        "strands_sglang.trainers.areal is for use inside AReaL (1.0 was tried): pip install areal, or import this "
        "module in the environment that AReaL runs in"
    ) from error


class Failed(str, Enum):
    """What AReaL is given of an episode that failed."""

    MASK = "mask"
    """Its tokens with loss mask 0 and reward 0.

    The default, because AReaL normalises rewards over so many rows in a row: one that is missing in a group would shift
    all groups behind it.
    """
    REJECT = "reject"
    """None: AReaL drops it."""


class StrandsWorkflow(RolloutWorkflow):  # type: ignore[misc]
    """Runs one episode of a Strands agent on AReaL's engine."""

    def __init__(
        self,
        build: Callable[..., Any] | str,
        reward: Callable[..., Any] | str,
        gconfig: Any,
        tokenizer: Any,
        *,
        task: Callable[..., Any] | str | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        model: Mapping[str, Any] | None = None,
        failed: Failed | str = Failed.MASK,
        reward_seconds: float | None = None,
    ) -> None:
        """Make a workflow. Functions may be given as dotted paths, for workflows that are made elsewhere.

        Args:
            build: Makes the agent of an episode from a task and a model.
            reward: Scores an episode.
            gconfig: AReaL's `GenerationHyperparameters`, or a dict of them. `max_new_tokens` bounds a turn,
                `max_tokens` prompt and response of all turns together.
            tokenizer: The model's, or where it is loaded from.
            task: Makes a task of a row of the dataset; None: `row_task`.
            limits: How far an episode may go, beside `gconfig`.
            model: Further arguments of `SGLangModel`.
            failed: What AReaL is given of an episode that failed.
            reward_seconds: Seconds that scoring may take; None: no bound.

        Raises:
            ConfigurationError: Something given cannot work.
        """
        self._build, self._reward = found(build), found(reward)
        if not callable(self._build) or not callable(self._reward):
            raise ConfigurationError(f"build and reward should be functions; they are {build!r} and {reward!r}")
        self._task, self._failed, self._reward_seconds = found(task) or row_task, Failed(failed), reward_seconds
        self.tokenizer = _loaded(tokenizer)
        given = GenerationHyperparameters(**gconfig) if isinstance(gconfig, Mapping) else gconfig
        self.gconfig = given.new_with_stop_and_pad_token_ids(self.tokenizer)
        bounds = Limits(**limits) if isinstance(limits, Mapping) else limits or Limits()
        self._limits = replace(bounds, context=min(bounds.context or given.max_tokens, given.max_tokens))
        self._model, self._workers = dict(model or {}), LoopWorkers()

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> dict[str, Any] | None:
        """Run one episode.

        Args:
            engine: AReaL's.
            data: A row of the dataset.

        Returns:
            Tensors of shape [1, tokens] (rewards: [1]); None: rejected.
        """
        episode = await played(self._worker(engine), lambda: self._job(data))
        if self._failed is Failed.REJECT and (episode is None or not usable(episode, scored=True)):
            return None
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.tokenizer.eos_token_id
        (row,) = plain_rows(episode, pad_id=pad or 0, scored=True)
        self._tell(episode, row.reward or 0.0)
        return trajectory(row)

    def _job(self, data: Mapping[str, Any]) -> Job:
        """Return the episode of a row: under an id of its own, since AReaL may run a row any number of times."""
        id = uuid4().hex
        task = Task.of(self._task(dict(data)))
        return Job(replace(task, id=f"{task.id[:150]}-{id}"), 0, session=id)

    def _worker(self, engine: InferenceEngine) -> LocalWorker:
        return self._workers.get(id(engine), lambda: self._setup(engine))

    def _setup(self, engine: InferenceEngine) -> Setup:
        sampling: dict[str, Any] = {"max_new_tokens": self.gconfig.max_new_tokens}
        # What decides whether a turn can go on behind a cut is told; the rest AReaL's parameters say themselves.
        sampling |= {name: getattr(self.gconfig, name) for name in ("stop", "frequency_penalty")}
        return Setup(
            build=self._build,
            reward=self._reward,
            tokenizer=self.tokenizer,
            client=ArealEngine(engine, ModelRequest, self.gconfig, self.tokenizer),
            limits=self._limits,
            model_options={**self._model, "sampling_params": {**sampling, **self._model.get("sampling_params", {})}},
            reward_seconds=self._reward_seconds,
        )

    def _tell(self, episode: Episode | None, reward: float) -> None:
        """Tell AReaL's statistics of an episode, as its own workflows do."""
        numbers = {"reward": reward, "failed": float(episode is None or not usable(episode, scored=True))}
        if episode is not None:
            used = episode.metrics
            numbers |= {"num_turns": used.turns, "tool_calls": used.tool_calls, "tool_seconds": used.tool_seconds}
            numbers |= {name: part for name, part in episode.score.parts.items() if name not in numbers}
        stats_tracker.get(workflow_context.stat_scope()).scalar(**numbers)


def row_task(data: Mapping[str, Any]) -> Task:
    """Return the task of a row with `messages`: the last user message; `answer` is the answer, the rest its data."""
    rest = {name: value for name, value in data.items() if name not in ("messages", "answer")}
    return chat_task(data["messages"], answer=data.get("answer"), data=rest)


def _loaded(tokenizer: Any) -> Any:
    if not isinstance(tokenizer, str):
        return tokenizer
    from areal.utils.hf_utils import load_hf_tokenizer

    return load_hf_tokenizer(tokenizer)
