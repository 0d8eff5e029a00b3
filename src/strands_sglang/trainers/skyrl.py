"""SkyRL: a Strands agent as a generator, `StrandsGenerator`, on SkyRL's vLLM servers.

    class Exp(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return StrandsGenerator(build, score, cfg.generator, inference_engine_client, tokenizer)

The servers freeze requests during a weight update and continue them afterwards, so a turn may have two weight versions,
and the boundary is not reported.

Invariants:

- `generate` returns rows for every prompt of the batch, in order, however the episodes end, and raises nothing but
  cancellation. Rows of one episode are adjacent, the main branch last.
- A token's weight version is the client's count of weight updates when its turn began and when it ended: one number, or
  a range if they differ.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.engine import BaseEngine, Capability, Generation
from strands_sglang.engine.base import experts_from, finished, sampled
from strands_sglang.errors import ConfigurationError, MalformedResponseError
from strands_sglang.runs import Episode, Limits, Task
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec
from strands_sglang.tokens import KeptSets
from strands_sglang.tokens.arrays import VersionSpan, logprob_array
from strands_sglang.trainers.chat_tasks import chat_task, plain
from strands_sglang.trainers.rows import Branches, PlainRow, plain_rows
from strands_sglang.trainers.statuses import TrainerStatus, is_trainable, status_of
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
    from skyrl.train.generators.base import GeneratorInterface
    from skyrl.train.generators.utils import get_custom_chat_template, get_rollout_metrics
except ImportError as error:
    raise ImportError(
        "StrandsGenerator requires SkyRL (tested with 0.3 on Python 3.12): pip install skyrl, or import it in the "
        "environment that SkyRL runs in"
    ) from error

__all__ = ["StrandsGenerator"]

_DROPPED_PARAMS = ("max_tokens", "max_generate_length", "logprobs", "additional_kwargs", "n")


class InferenceClient(Protocol):
    """SkyRL's client, as far as it is used here; its attribute `weight_version` is read if it exists."""

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        """Sample for a batch of prompts; requests of one session go to the same server."""
        ...

    async def finish_session(self, session_id: str) -> None:
        """Called when a session has ended; never raises."""
        ...


class SkyrlEngine(BaseEngine):
    """Sends requests to SkyRL's servers."""

    owner = "SkyRL"
    capabilities = frozenset({Capability.ROUTED_EXPERTS})

    def __init__(self, client: InferenceClient, model: str | None = None, *, kept_sets: bool = False) -> None:
        """Wrap SkyRL's client; `model` None samples from the servers' base model.

        `kept_sets`: the servers return kept sets (`enable_return_sample_support_set`).
        """
        super().__init__()
        self._client, self._model, self._kept_sets = client, model, kept_sets
        self.salts: dict[str, str] = {}
        """Cache salts by session: they separate the prefix caches of different weights."""
        self.expert_shape: tuple[int, ...] = ()
        """Layers and top k of routed experts; empty until the first response that has them."""

    @property
    def version(self) -> int | None:
        """Number of weight updates so far; None if the client does not count them."""
        return getattr(self._client, "weight_version", None)

    def loses_kept_sets(self, sampling: Mapping[str, Any]) -> bool:
        """Return whether sampling has kept sets that the answer does not tell."""
        return super().loses_kept_sets(sampling) and not (self._kept_sets and has_bounded_support(sampling))

    async def request(
        self, input_ids: list[int], sampling: dict[str, Any], key: str, experts_start: int | None
    ) -> Generation:
        """Send one request."""
        budget, count, before = int(sampling.pop("max_new_tokens")), len(input_ids), self.version
        batch: dict[str, Any] = {
            "prompt_token_ids": [input_ids],
            "session_ids": [key],
            "sampling_params": {**sampling, "max_tokens": budget, "logprobs": sampling.get("logprobs") or 1},
        }
        if key in self.salts:
            batch["cache_salt"] = self.salts[key]
        bounded = self._kept_sets and has_bounded_support(sampling)
        if bounded:
            batch["return_sample_support"] = True
        output = await self._client.generate(batch, model=self._model)
        ids = output["response_ids"][0]
        logprobs = (output.get("response_logprobs") or [None])[0]
        return sampled(
            self.owner,
            ids,
            logprobs,
            (VersionSpan(self._name(before), 0, len(ids)),),
            finished(output["stop_reasons"][0], ids, budget),
            prompt_tokens=count,
            rid=key,
            routed_experts=self._experts(output, experts_start, count + len(ids) - 1) if ids else None,
            kept=kept_sets_of(output.get("rollout_sample_support"), logprobs or ()) if bounded else None,
        )

    def _name(self, before: int | None) -> str | None:
        after = self.version
        if before is None or after is None:
            return None
        return str(before) if before == after else f"{before}..{after}"

    def _experts(self, output: Any, start: int | None, rows: int) -> Any:
        choices = output.get("rollout_expert_indices")
        if choices is None or choices[0] is None or start is None:
            return None
        chosen = np.asarray(choices[0])
        self.expert_shape = chosen.shape[1:]
        return experts_from(chosen[:rows], start)


def has_bounded_support(sampling: Mapping[str, Any]) -> bool:
    """Return whether SkyRL's servers return kept sets with these sampling parameters: only below a `top_k`."""
    top_k = sampling.get("top_k")
    return top_k is not None and top_k > 1


def kept_sets_of(supports: Any, logprobs: Sequence[float]) -> KeptSets:
    """Return kept sets from what SkyRL's client returned for one prompt.

    `supports` has for each prompt an array of shape (tokens, top k) with -1 after the ids of each set. vLLM computes
    `logprobs` over the kept sets if it runs with `logprobs_mode="processed_logprobs"`.
    """
    rows = None if not supports else np.asarray(supports[0])
    if not len(logprobs):
        return KeptSets.of((), ())
    if rows is None or rows.ndim != 2 or len(rows) != len(logprobs):
        raise MalformedResponseError(
            f"SkyRL's engine must return a kept set for each of {len(logprobs)} tokens (rollout_sample_support), got "
            f"{None if rows is None else rows.shape}: check generator.inference_engine.enable_return_sample_support_set"
        )
    kept = rows >= 0
    offsets = array("i", [0, *np.cumsum(kept.sum(1)).tolist()])
    return KeptSets(array("i", rows[kept].tolist()), offsets, logprob_array(logprobs))


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What SkyRL's configuration requires of a batch."""

    step_wise: bool = False
    """`step_wise_trajectories`: an episode may be several rows."""
    logprobs: bool = True
    experts: bool = False
    """`enable_return_routed_experts`."""
    zero_reward_on_non_stop: bool = False
    """Reward 0 for episodes that a limit ended."""
    overlong_filtering: bool = False
    """`apply_overlong_filtering`: loss mask 0 for episodes that a limit ended."""
    support_width: int = 0
    """`enable_return_sample_support_set`: size of the largest kept set, which is the `top_k`; 0: sets are not used."""


def generator_output(
    results: Sequence[tuple[Episode | None, list[PlainRow]]],
    options: OutputOptions,
    *,
    trajectory_ids: Sequence[Any] | None,
    expert_shape: Sequence[int] = (),
) -> dict[str, Any]:
    """Return a `GeneratorOutput` without its rollout metrics."""
    columns: dict[str, list[Any]] = defaultdict(list)
    for number, (episode, rows) in enumerate(results):
        status, score = status_of(episode), None if episode is None else episode.reward_detail
        not_stopped = status is not TrainerStatus.COMPLETED
        for place, row in enumerate(rows):
            last = place == len(rows) - 1
            reward = row.reward if last and not (not_stopped and options.zero_reward_on_non_stop) else 0.0
            columns["prompt_token_ids"].append(row.prompt_ids)
            columns["response_ids"].append(row.response_ids)
            columns["rewards"].append(reward or 0.0)
            columns["loss_masks"].append(
                [0] * len(row.loss_mask) if not_stopped and options.overlong_filtering else row.loss_mask
            )
            columns["stop_reasons"].append(status.stop_reason)
            columns["rollout_logprobs"].append(row.logprobs)
            columns["rollout_sample_support"].append(_support(row, options.support_width))
            columns["trajectory_generation_times"].append(0.0 if episode is None else episode.metrics.seconds)
            columns["rollout_expert_indices"].append(_experts(row, expert_shape))
            columns["is_last_step"].append(last)
            columns["trajectory_ids"].append(None if trajectory_ids is None else trajectory_ids[number])
            columns["env_metrics"].append(
                {
                    **({} if score is None else score.parts),
                    "end_reason": "no_task" if episode is None else episode.end_reason.value,
                    "agent": row.agent or "",
                    "main": float(row.main),
                }
            )
    if not options.support_width:
        del columns["rollout_sample_support"]  # versions of SkyRL up to 0.3 do not have this field
    unwanted = {
        "rollout_logprobs": not options.logprobs,
        "rollout_expert_indices": not options.experts,
        "is_last_step": not options.step_wise,
        "trajectory_ids": not options.step_wise,
    }
    return {name: None if unwanted.get(name) else values for name, values in columns.items()}


def _support(row: PlainRow, width: int) -> npt.NDArray[np.int32]:
    """-1 follows the ids of each set; only -1 for a token that was not sampled."""
    if row.kept is not None:
        return row.kept.padded(width or None)
    if width and any(row.loss_mask):
        raise ConfigurationError(
            "SkyRL renormalises over kept sets (enable_return_sample_support_set), but a row that is trained has none: "
            "do not sample with a grammar, and leave sampling parameters to SkyRL's configuration"
        )
    return np.full((len(row.response_ids), width), -1, np.int32)


def metrics_of(results: Sequence[tuple[Episode | None, list[PlainRow]]]) -> dict[str, float]:
    """Return the metrics of a batch; SkyRL averages those with "avg" in their names over batches and sums the rest."""
    episodes = [episode for episode, _ in results if episode is not None]
    failed = len(results) - sum(is_trainable(episode, scored=True) for episode in episodes)
    numbers: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        used = episode.metrics
        mine: Mapping[str, float] = {
            "generate/avg_turns": used.turns,
            "generate/avg_tool_calls": used.tool_calls,
            "generate/avg_tool_errors": used.tool_errors,
            "generate/avg_tool_seconds": used.tool_seconds,
            **{f"reward/avg_{name}": part for name, part in episode.reward_detail.parts.items()},
        }
        for name, number in mine.items():
            numbers[name].append(float(number))
    return {"generate/failed_episodes": float(failed)} | {name: float(np.mean(all)) for name, all in numbers.items()}


def _experts(row: PlainRow, shape: Sequence[int]) -> Any:
    return None if row.experts is None else row.experts.reshape(len(row.experts), *shape).tolist()


class StrandsGenerator(GeneratorInterface):  # type: ignore[misc]
    """Runs one episode of a Strands agent for every prompt of a batch."""

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
        models: Mapping[str, Any] | str | None = None,
    ) -> None:
        """Make a generator. Functions may be given as dotted paths.

        Args:
            build, reward: As for `rollout`.
            generator_cfg: SkyRL's `cfg.generator`: turns, lengths, sampling.
            tokenizer: The model's tokenizer, or the name or path to load it from.
            policy_model_name: Name of the model to sample from, if the servers serve several; None: their base model.
            task: Makes a task from a prompt and its `env_extras`; None: `row_task`.
            limits: Limits of an episode, in addition to those of `generator_cfg`.
            reward_timeout: Time limit for scoring an episode, in seconds; None means no limit.
            models: Other models of an episode, as for `rollout`; they and the dict may be dotted paths.
        """
        self._build, self._reward, self._task = agent_functions(build, reward, task or row_task)
        self._reward_timeout = reward_timeout
        self._models = named_models(models, self._build, self._reward)
        self._cfg, self._client, self.tokenizer = generator_cfg, inference_engine_client, load_tokenizer(tokenizer)
        self._name, self._model = policy_model_name, dict(model or {})
        self._limits = limits or Limits()
        self._workers: PerLoop[LocalWorker] = PerLoop()

    async def generate(self, input_batch: Any, disable_tqdm: bool = False) -> dict[str, Any]:
        """Run the episodes of a `GeneratorInput`; return a `GeneratorOutput`. No progress bar is shown."""
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
        session = uuid4().hex if trajectory_id is None else f"{trajectory_id.to_string()}_{uuid4().hex[:8]}"
        if salt is not None:
            engine.salts[session] = salt

        def spec() -> EpisodeSpec:
            limits = self._bounds(sampling["max_new_tokens"])
            return new_spec(self._task(prompt, extras), sampling_params=sampling, limits=limits, session=session)

        try:
            episode = await run_episode(worker, spec)
        finally:
            engine.salts.pop(session, None)
            await self._client.finish_session(session)
        branches = Branches.ALL if self._cfg.step_wise_trajectories else Branches.MAIN
        return episode, plain_rows(episode, pad_id=pad_id_of(self.tokenizer), scored=True, branches=branches)

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
        longest = self._cfg.max_input_length
        limits = bound_limits(self._limits, max_context_tokens=None if longest is None else longest + budget)
        return replace(limits, max_turns=limits.max_turns or self._cfg.max_turns)

    @property
    def _kept_sets(self) -> bool:
        """SkyRL up to 0.3 does not know kept sets."""
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
            models=self._models,
        )


def row_task(prompt: Sequence[Mapping[str, Any]], extras: Mapping[str, Any]) -> Task:
    """Return the task of a prompt: its last user message, `reward_spec.ground_truth` as answer, the extras as data."""
    spec = extras.get("reward_spec") or {}
    return chat_task(prompt, answer=spec.get("ground_truth") if isinstance(spec, Mapping) else None, data=extras)
