"""Strands agents as a generator of SkyRL: `StrandsGenerator`.

    class Exp(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return StrandsGenerator(build, score, cfg.generator, inference_engine_client, tokenizer)

Invariant: `generate` answers every prompt of its batch, in order, whatever becomes of the episodes; only cancellation
passes through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout import Episode, Limits, Task
from strands_sglang.rollout.job import Job, Setup
from strands_sglang.rollout.local import LocalWorker
from strands_sglang.trainers.chat_task import chat_task, plain
from strands_sglang.trainers.loop_worker import LoopWorkers, found, played
from strands_sglang.trainers.plain_row import PlainRow, plain_rows
from strands_sglang.trainers.row import Branches
from strands_sglang.trainers.skyrl_engine import InferenceClient, SkyrlEngine
from strands_sglang.trainers.skyrl_output import Wishes, generator_output, metrics_of

try:
    from skyrl.train.generators.base import GeneratorInterface
    from skyrl.train.generators.utils import get_custom_chat_template, get_rollout_metrics
except ImportError as error:
    raise ImportError(
        "strands_sglang.trainers.skyrl is for use inside SkyRL (0.3 was tried, on Python 3.12): pip install skyrl, or "
        "import this module in the environment that SkyRL runs in"
    ) from error

_NOT_OURS = ("max_tokens", "max_generate_length", "logprobs", "additional_kwargs", "n")


class StrandsGenerator(GeneratorInterface):  # type: ignore[misc]
    """Runs an episode of a Strands agent for every prompt of a batch."""

    def __init__(
        self,
        build: Callable[..., Any] | str,
        reward: Callable[..., Any] | str,
        generator_cfg: Any,
        inference_engine_client: InferenceClient,
        tokenizer: Any,
        *,
        policy_model_name: str | None = None,
        task: Callable[..., Any] | str | None = None,
        limits: Limits | None = None,
        model: Mapping[str, Any] | None = None,
        reward_seconds: float | None = None,
    ) -> None:
        """Make a generator.

        Args:
            build: Makes the agent of an episode from a task and a model.
            reward: Scores an episode.
            generator_cfg: SkyRL's `cfg.generator`: turns, lengths, sampling.
            inference_engine_client: SkyRL's client of its servers.
            tokenizer: The model's.
            policy_model_name: Who is asked, where the servers serve several; None: their base model.
            task: Makes a task of a prompt and its `env_extras`; None: `row_task`.
            limits: How far an episode may go, beside what `generator_cfg` says.
            model: Further arguments of `SGLangModel`.
            reward_seconds: Seconds that scoring may take; None: no bound.

        Raises:
            ConfigurationError: Something given cannot work.
        """
        self._build, self._reward = found(build), found(reward)
        if not callable(self._build) or not callable(self._reward):
            raise ConfigurationError(f"build and reward should be functions; they are {build!r} and {reward!r}")
        self._task, self._reward_seconds = found(task) or row_task, reward_seconds
        self._cfg, self._client, self.tokenizer = generator_cfg, inference_engine_client, tokenizer
        self._name, self._model = policy_model_name, dict(model or {})
        self._limits, self._workers = limits or Limits(), LoopWorkers()

    async def generate(self, input_batch: Any, disable_tqdm: bool = False) -> dict[str, Any]:
        """Run the episodes of a batch.

        Args:
            input_batch: SkyRL's `GeneratorInput`.
            disable_tqdm: Taken because SkyRL's own generator takes it; nothing is shown here.

        Returns:
            SkyRL's `GeneratorOutput`.
        """
        prompts, extras = input_batch["prompts"], input_batch.get("env_extras") or [{}] * len(input_batch["prompts"])
        ids, sampling = input_batch.get("trajectory_ids"), self._sampling(input_batch.get("sampling_params"))
        worker = self._worker()
        engine = worker.model.client
        assert isinstance(engine, SkyrlEngine)
        salt = self._salt(engine)
        wanted = zip(prompts, extras, ids or [None] * len(prompts), strict=True)
        done = await asyncio.gather(*(self._one(worker, engine, salt, sampling, *one) for one in wanted))
        wishes = self._wishes(input_batch.get("sampling_params"))
        output = generator_output(done, wishes, trajectory_ids=ids, expert_shape=engine.expert_shape)
        times = [0.0 if episode is None else episode.metrics.seconds for episode, _ in done]
        output["rollout_metrics"] = {
            **get_rollout_metrics(
                output["response_ids"],
                output["rewards"],
                loss_masks=output["loss_masks"],
                trajectory_completion_times=times,
            ),
            **metrics_of(done),
        }
        return output

    async def _one(
        self,
        worker: LocalWorker,
        engine: SkyrlEngine,
        salt: str | None,
        sampling: dict[str, Any],
        prompt: Any,
        extras: Any,
        trajectory_id: Any,
    ) -> tuple[Episode | None, list[PlainRow]]:
        """Run one episode."""
        session = uuid4().hex if trajectory_id is None else f"{trajectory_id.to_string()}_{uuid4().hex[:8]}"
        if salt is not None:
            engine.salts[session] = salt

        def job() -> Job:
            task = Task.of(self._task(prompt, extras))
            limits = self._bounds(sampling["max_new_tokens"])
            named = replace(task, id=f"{task.id[:150]}-{uuid4().hex}")
            return Job(named, 0, sampling_params=sampling, limits=limits, session=session)

        try:
            episode = await played(worker, job)
        finally:
            engine.salts.pop(session, None)
            await self._client.finish_session(session)
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.tokenizer.eos_token_id
        branches = Branches.ALL if self._cfg.step_wise_trajectories else Branches.MAIN
        return episode, plain_rows(episode, pad_id=pad or 0, scored=True, branches=branches)

    def _sampling(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return sampling parameters: those of the batch, or of the configuration, vLLM's words but for the budget."""
        own = self._cfg.sampling_params
        if given is None:
            names = ("temperature", "top_p", "top_k", "min_p", "stop", "repetition_penalty")
            given = {**{name: getattr(own, name) for name in names}, **(own.additional_kwargs or {})}
        budget = given.get("max_tokens") or own.max_generate_length
        asked = {name: value for name, value in plain(given).items() if name not in _NOT_OURS}
        return {**asked, "max_new_tokens": int(budget)}

    def _bounds(self, budget: int) -> Limits:
        """Return the limits of an episode: SkyRL's, and no more than was given."""
        limits, longest = self._limits, self._cfg.max_input_length
        context = limits.context if longest is None else min(limits.context or longest + budget, longest + budget)
        return replace(limits, context=context, turns=limits.turns or self._cfg.max_turns)

    def _wishes(self, given: Mapping[str, Any] | None) -> Wishes:
        cfg = self._cfg
        return Wishes(
            step_wise=bool(cfg.step_wise_trajectories),
            logprobs=(cfg.sampling_params.logprobs if given is None else given.get("logprobs")) is not None,
            experts=bool(cfg.inference_engine.enable_return_routed_experts),
            zero_reward_on_non_stop=bool(cfg.zero_reward_on_non_stop),
            overlong_filtering=bool(cfg.apply_overlong_filtering),
        )

    def _salt(self, engine: SkyrlEngine) -> str | None:
        """Return what keeps the prefix caches of different weights apart, as SkyRL's own generator makes it."""
        if not self._cfg.use_cache_salt or engine.version is None:
            return None
        return f"{self._name}@{engine.version}" if self._name is not None else str(engine.version)

    def _worker(self) -> LocalWorker:
        return self._workers.get("generator", self._setup)

    def _setup(self) -> Setup:
        options: dict[str, Any] = dict(self._model)
        template = get_custom_chat_template(self._cfg.chat_template)
        if template is not None:
            options.setdefault("chat_template", template)
        if self._cfg.chat_template_kwargs:
            options["chat_template_kwargs"] = {
                **plain(self._cfg.chat_template_kwargs),
                **options.get("chat_template_kwargs", {}),
            }
        if self._cfg.inference_engine.enable_return_routed_experts:
            options["routed_experts"] = True
        return Setup(
            build=self._build,
            reward=self._reward,
            tokenizer=self.tokenizer,
            client=SkyrlEngine(self._client, self._name),
            limits=self._limits,
            model_options=options,
            reward_seconds=self._reward_seconds,
        )


def row_task(prompt: Sequence[Mapping[str, Any]], extras: Mapping[str, Any]) -> Task:
    """Return the task of a prompt: its last user message; `reward_spec.ground_truth` is the answer, the rest data."""
    spec = extras.get("reward_spec") or {}
    return chat_task(prompt, answer=spec.get("ground_truth") if isinstance(spec, Mapping) else None, data=extras)
