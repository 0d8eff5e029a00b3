"""AReaL: a Strands agent as a rollout workflow, `StrandsWorkflow`, on AReaL's inference engine.

    trainer.train(
        workflow="strands_sglang.trainers.areal.StrandsWorkflow",
        workflow_kwargs=dict(build="my_agent.build", reward="my_agent.score", gconfig=..., tokenizer=...),
    )

AReaL's engines continue a request that a weight update interrupted, and report the weight version of every token.

Invariants:

- `arun_episode` returns a valid trajectory however the episode ends, or None if failed episodes are rejected. It raises
  nothing but cancellation. All per-token tensors of a trajectory have the same length.
- Sampling follows AReaL's generation parameters; a parameter that they do not have raises, and is not dropped silently.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol
from uuid import uuid4

from strands_sglang.engine import BaseEngine, Generation
from strands_sglang.engine.base import finished, sampled, spans_of
from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import Episode, Limits, Task
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec
from strands_sglang.trainers.chat_tasks import chat_task
from strands_sglang.trainers.rows import PlainRow, plain_rows
from strands_sglang.trainers.statuses import is_trainable
from strands_sglang.trainers.worker_pool import (
    PerLoop,
    agent_functions,
    bound_limits,
    named_models,
    new_spec,
    pad_id_of,
    run_episode,
)

try:
    from areal import workflow_context
    from areal.api import ModelRequest, RolloutWorkflow
    from areal.api.cli_args import GenerationHyperparameters
    from areal.utils import stats_tracker
except ImportError as error:
    raise ImportError(
        "StrandsWorkflow requires AReaL (tested with 1.0): pip install areal, or import it in the environment that "
        "AReaL runs in"
    ) from error

__all__ = ["StrandsWorkflow"]

_ALL_TOKENS = 10**8  # AReaL's `top_k` for all tokens


class ModelResponse(Protocol):
    """The response of AReaL's engines, as far as it is read."""

    output_tokens: list[int]
    output_logprobs: list[float]
    output_versions: list[int]
    """One per token: the version of the weights that sampled it."""
    stop_reason: str
    """ "stop", "length", "tool_calls" or "abort"."""


class InferenceEngine(Protocol):
    """AReaL's engine, as far as it is used here."""

    async def agenerate(self, req: Any) -> ModelResponse:
        """Sample; requests with the same `rid` go to the same server."""
        ...


class ArealEngine(BaseEngine):
    """Sends requests to AReaL's engine."""

    owner = "AReaL"

    def __init__(self, engine: InferenceEngine, request: Callable[..., Any], gconfig: Any, tokenizer: Any) -> None:
        """Wrap the engine that AReaL passes to workflows; `request` is AReaL's `ModelRequest`."""
        super().__init__()
        self._engine, self._request, self._gconfig, self._tokenizer = engine, request, gconfig, tokenizer

    def loses_kept_sets(self, sampling: Mapping[str, Any]) -> bool:
        """Return whether sampling has kept sets; the parameters that decide are in `gconfig`."""
        own = self._gconfig
        top_k = -1 if own.top_k >= _ALL_TOKENS else own.top_k
        return not own.greedy and super().loses_kept_sets({"top_p": own.top_p, "top_k": top_k, **sampling})

    async def request(
        self, input_ids: list[int], sampling: dict[str, Any], key: str, experts_start: int | None
    ) -> Generation:
        """Send one request."""
        unknown = [name for name in sampling if not hasattr(self._gconfig, name)]
        if unknown:
            raise ConfigurationError(
                "sampling parameters must be fields of AReaL's GenerationHyperparameters, got "
                f"{', '.join(unknown)}: remove them"
            )
        budget, count = int(sampling["max_new_tokens"]), len(input_ids)
        request = self._request(
            rid=key,
            input_ids=input_ids,
            gconfig=self._gconfig.new(n_samples=1, **sampling),
            tokenizer=self._tokenizer,
        )
        response = await self._engine.agenerate(request)
        ids = response.output_tokens
        return sampled(
            self.owner,
            ids,
            response.output_logprobs,
            spans_of(response.output_versions),
            finished(response.stop_reason, ids, budget),
            prompt_tokens=count,
            rid=key,
        )


class Failed(str, Enum):
    """What AReaL gets for an episode that failed."""

    MASK = "mask"
    """Its tokens with loss mask 0 and reward 0. AReaL normalises rewards over a fixed number of consecutive rows: a
    missing row would shift all groups after it.
    """
    REJECT = "reject"


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
        reward_timeout: float | None = None,
        models: Mapping[str, Any] | str | None = None,
    ) -> None:
        """Make a workflow. Functions may be given as dotted paths, for workflows that another process makes.

        Args:
            build, reward: As for `rollout`; functions or their dotted paths.
            gconfig: AReaL's `GenerationHyperparameters`, or a dict of them. `max_new_tokens` limits a turn,
                `max_tokens` limits prompt and response of all turns together.
            tokenizer: The model's tokenizer, or the path it is loaded from.
            task: Makes a task from a row of the dataset; None: `row_task`.
            limits: Limits of an episode, in addition to those of `gconfig`.
            reward_timeout: Time limit for scoring an episode, in seconds; None means no limit.
            models: Other models of an episode, as for `rollout`; they and the dict may be dotted paths.
        """
        self._build, self._reward, self._task = agent_functions(build, reward, task or row_task)
        self._reward_timeout = reward_timeout
        self._models = named_models(models, self._build, self._reward)
        self._failed = Failed(failed)
        self.tokenizer = _loaded(tokenizer)
        given = GenerationHyperparameters(**gconfig) if isinstance(gconfig, Mapping) else gconfig
        self.gconfig = given.new_with_stop_and_pad_token_ids(self.tokenizer)
        self._limits = bound_limits(limits, max_context_tokens=given.max_tokens)
        self._model = dict(model or {})
        self._workers: PerLoop[LocalWorker] = PerLoop()

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> dict[str, Any] | None:
        """Run one episode; return tensors of shape [1, tokens] (rewards: [1]), or None if the episode is rejected."""
        episode = await run_episode(self._worker(engine), lambda: self._episode_spec(data))
        if self._failed is Failed.REJECT and not is_trainable(episode, scored=True):
            return None
        (row,) = plain_rows(episode, pad_id=pad_id_of(self.tokenizer), scored=True)
        self._log_stats(episode, row.reward or 0.0)
        return trajectory(row)

    def _episode_spec(self, data: Mapping[str, Any]) -> EpisodeSpec:
        id = uuid4().hex
        return new_spec(self._task(dict(data)), id, session=id)

    def _worker(self, engine: InferenceEngine) -> LocalWorker:
        return self._workers.get(lambda: LocalWorker(self._run_spec(engine)), id(engine))

    def _run_spec(self, engine: InferenceEngine) -> RunSpec:
        sampling: dict[str, Any] = {"max_new_tokens": self.gconfig.max_new_tokens}
        # These decide whether an interrupted turn can be continued; the other parameters are in AReaL's gconfig.
        sampling |= {name: getattr(self.gconfig, name) for name in ("stop", "frequency_penalty")}
        return RunSpec(
            build=self._build,
            reward=self._reward,
            tokenizer=self.tokenizer,
            client=ArealEngine(engine, ModelRequest, self.gconfig, self.tokenizer),
            limits=self._limits,
            model_options={**self._model, "sampling_params": {**sampling, **self._model.get("sampling_params", {})}},
            reward_timeout=self._reward_timeout,
            models=self._models,
        )

    def _log_stats(self, episode: Episode | None, reward: float) -> None:
        numbers = {"reward": reward, "failed": float(not is_trainable(episode, scored=True))}
        if episode is not None:
            used = episode.metrics
            numbers |= {"num_turns": used.turns, "tool_calls": used.tool_calls, "tool_seconds": used.tool_seconds}
            numbers |= {name: part for name, part in episode.reward_detail.parts.items() if name not in numbers}
        stats_tracker.get(workflow_context.stat_scope()).scalar(**numbers)


def row_task(data: Mapping[str, Any]) -> Task:
    """Return the task of a row with `messages`: the last user message, `answer` as answer, the other fields as data."""
    rest = {name: value for name, value in data.items() if name not in ("messages", "answer")}
    return chat_task(data["messages"], answer=data.get("answer"), data=rest)


def trajectory(row: PlainRow) -> dict[str, Any]:
    """Return a row as the tensors that AReaL's workflows return; versions are -1 on tokens that were not sampled."""
    torch = _torch()
    before, ids = len(row.prompt_ids), row.token_ids
    versions = [-1] * before + [-1 if version is None else int(version) for version in row.versions]
    tensors = {
        "input_ids": torch.tensor(ids, dtype=torch.int32),
        "loss_mask": torch.tensor([0] * before + row.loss_mask, dtype=torch.int32),
        "logprobs": torch.tensor([0.0] * before + row.logprobs, dtype=torch.float32),
        "versions": torch.tensor(versions, dtype=torch.int32),
        "attention_mask": torch.ones(len(ids), dtype=torch.bool),
        "rewards": torch.tensor(row.reward, dtype=torch.float32),
    }
    return {name: tensor.unsqueeze(0) for name, tensor in tensors.items()}


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError("AReaL trajectories require PyTorch: pip install torch") from error
    return torch


def _loaded(tokenizer: Any) -> Any:
    if not isinstance(tokenizer, (str, os.PathLike)):
        return tokenizer
    from areal.utils.hf_utils import load_hf_tokenizer

    return load_hf_tokenizer(str(tokenizer))
