"""A Strands agent as a generator of SkyRL: `StrandsGenerator`.

    class Exp(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return StrandsGenerator(build, score, cfg.generator, inference_engine_client, tokenizer)

Invariant: `generate` returns rows for every prompt of the batch, in order, however the episodes end, and raises nothing
but cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import Episode, Limits, Task
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec
from strands_sglang.trainers.chat_tasks import chat_task, plain
from strands_sglang.trainers.rows import Branches, PlainRow, plain_rows
from strands_sglang.trainers.skyrl.engine import InferenceClient, SkyrlEngine, has_bounded_support
from strands_sglang.trainers.skyrl.output import OutputOptions, generator_output, metrics_of
from strands_sglang.trainers.worker_pool import PerLoop, import_by_path, run_episode

try:
    from skyrl.train.generators.base import GeneratorInterface
    from skyrl.train.generators.utils import get_custom_chat_template, get_rollout_metrics
except ImportError as error:
    raise ImportError(
        "StrandsGenerator requires SkyRL (tested with 0.3 on Python 3.12): pip install skyrl, or import it in the "
        "environment that SkyRL runs in"
    ) from error

_DROPPED_PARAMS = ("max_tokens", "max_generate_length", "logprobs", "additional_kwargs", "n")


class StrandsGenerator(GeneratorInterface):  # type: ignore[misc]
    """Runs one episode of a Strands agent for every prompt of a batch.

    Example:
        >>> StrandsGenerator(build, score, cfg.generator, inference_engine_client, tokenizer)
    """

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
        reward_timeout: float | None = None,
    ) -> None:
        """Make a generator. Functions may be given as dotted paths.

        Args:
            build: Makes the agent of an episode: `build(task, model)`.
            reward: Scores an episode.
            generator_cfg: SkyRL's `cfg.generator`: turns, lengths, sampling.
            inference_engine_client: SkyRL's client of its servers.
            tokenizer: The model's tokenizer, or the name or path to load it from.
            policy_model_name: Name of the model to sample from, if the servers serve several; None: their base model.
            task: Makes a task from a prompt and its `env_extras`; None: `row_task`.
            limits: Limits of an episode, in addition to those of `generator_cfg`.
            model: Further arguments of `SGLangModel`.
            reward_timeout: Time limit for scoring an episode, in seconds; None means no limit.

        Raises:
            ConfigurationError: If an argument cannot work.
        """
        self._build, self._reward = import_by_path(build), import_by_path(reward)
        if not callable(self._build) or not callable(self._reward):
            raise ConfigurationError(
                f"build and reward must be functions or their dotted paths, got {build!r} and {reward!r}"
            )
        self._task, self._reward_timeout = import_by_path(task) or row_task, reward_timeout
        self._cfg, self._client, self.tokenizer = generator_cfg, inference_engine_client, load_tokenizer(tokenizer)
        self._name, self._model = policy_model_name, dict(model or {})
        self._limits = limits or Limits()
        self._workers: PerLoop[LocalWorker] = PerLoop()

    async def generate(self, input_batch: Any, disable_tqdm: bool = False) -> dict[str, Any]:
        """Run the episodes of a batch.

        Args:
            input_batch: SkyRL's `GeneratorInput`.
            disable_tqdm: Accepted because SkyRL's own generator has it; no progress bar is shown.

        Returns:
            SkyRL's `GeneratorOutput`.
        """
        prompts, extras = input_batch["prompts"], input_batch.get("env_extras") or [{}] * len(input_batch["prompts"])
        ids, sampling = input_batch.get("trajectory_ids"), self._sampling(input_batch.get("sampling_params"))
        worker = self._worker()
        engine = worker.model.client
        assert isinstance(engine, SkyrlEngine)
        salt = self._salt(engine)
        inputs = zip(prompts, extras, ids or [None] * len(prompts), strict=True)
        done = await asyncio.gather(*(self._one(worker, engine, salt, sampling, *one) for one in inputs))
        options = self._output_options(input_batch.get("sampling_params"), sampling)
        output = generator_output(done, options, trajectory_ids=ids, expert_shape=engine.expert_shape)
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

        def spec() -> EpisodeSpec:
            task = Task.of(self._task(prompt, extras))
            limits = self._bounds(sampling["max_new_tokens"])
            named = replace(task, id=f"{task.id[:150]}-{uuid4().hex}")
            return EpisodeSpec(named, 0, sampling_params=sampling, limits=limits, session=session)

        try:
            episode = await run_episode(worker, spec)
        finally:
            engine.salts.pop(session, None)
            await self._client.finish_session(session)
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.tokenizer.eos_token_id
        branches = Branches.ALL if self._cfg.step_wise_trajectories else Branches.MAIN
        return episode, plain_rows(episode, pad_id=pad or 0, scored=True, branches=branches)

    def _sampling(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the sampling parameters of the batch or the configuration, in vLLM's names except `max_new_tokens`."""
        own = self._cfg.sampling_params
        if given is None:
            names = ("temperature", "top_p", "top_k", "min_p", "stop", "repetition_penalty")
            given = {**{name: getattr(own, name) for name in names}, **(own.additional_kwargs or {})}
        budget = given.get("max_tokens") or own.max_generate_length
        params = {name: value for name, value in plain(given).items() if name not in _DROPPED_PARAMS}
        return {**params, "max_new_tokens": int(budget)}

    def _bounds(self, budget: int) -> Limits:
        """Return the limits of an episode: the given ones, within SkyRL's lengths."""
        limits, longest = self._limits, self._cfg.max_input_length
        context = (
            limits.max_context_tokens
            if longest is None
            else min(limits.max_context_tokens or longest + budget, longest + budget)
        )
        return replace(limits, max_context_tokens=context, max_turns=limits.max_turns or self._cfg.max_turns)

    @property
    def _kept_sets(self) -> bool:
        """Whether SkyRL's servers return kept sets; versions up to 0.3 do not know them."""
        return bool(getattr(self._cfg.inference_engine, "enable_return_sample_support_set", False))

    def _output_options(self, given: Mapping[str, Any] | None, sampling: Mapping[str, Any]) -> OutputOptions:
        cfg = self._cfg
        return OutputOptions(
            support_width=int(sampling["top_k"]) if self._kept_sets and has_bounded_support(sampling) else 0,
            step_wise=bool(cfg.step_wise_trajectories),
            logprobs=(cfg.sampling_params.logprobs if given is None else given.get("logprobs")) is not None,
            experts=bool(cfg.inference_engine.enable_return_routed_experts),
            zero_reward_on_non_stop=bool(cfg.zero_reward_on_non_stop),
            overlong_filtering=bool(cfg.apply_overlong_filtering),
        )

    def _salt(self, engine: SkyrlEngine) -> str | None:
        """Return the cache salt of the current weights, as SkyRL's generator makes it; None if salts are not used."""
        if not self._cfg.use_cache_salt or engine.version is None:
            return None
        return f"{self._name}@{engine.version}" if self._name is not None else str(engine.version)

    def _worker(self) -> LocalWorker:
        return self._workers.get(lambda: LocalWorker(self._run_spec()))

    def _run_spec(self) -> RunSpec:
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
        return RunSpec(
            build=self._build,
            reward=self._reward,
            tokenizer=self.tokenizer,
            client=SkyrlEngine(self._client, self._name, kept_sets=self._kept_sets),
            limits=self._limits,
            model_options=options,
            reward_timeout=self._reward_timeout,
        )


def row_task(prompt: Sequence[Mapping[str, Any]], extras: Mapping[str, Any]) -> Task:
    """Return the task of a prompt: its last user message, `reward_spec.ground_truth` as answer, the extras as data."""
    spec = extras.get("reward_spec") or {}
    return chat_task(prompt, answer=spec.get("ground_truth") if isinstance(spec, Mapping) else None, data=extras)
