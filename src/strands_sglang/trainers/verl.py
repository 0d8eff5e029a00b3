"""verl: a Strands agent as an agent loop, `StrandsAgentLoop`, on verl's own servers.

In verl's agent loop configuration (`actor_rollout_ref.rollout.agent.agent_loop_config_path`):

    - name: calculator
      _target_: strands_sglang.trainers.verl.StrandsAgentLoop
      build: my_agent.build
      reward: my_agent.score

Invariants:

- `StrandsAgentLoop.run` returns a valid output however the episode ends, and raises nothing but cancellation.
- A token's weight version is what verl reports for it: the global step of the server, or a range of steps if verl
  joined several parts of a turn.
- Prompt and response have at most `prompt_length` and `response_length` tokens and together are a prefix of the branch.
  Every output of a run has the same fields, because verl stacks them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Protocol
from uuid import uuid4

import numpy as np

from strands_sglang.engine import BaseEngine, Capability, Generation
from strands_sglang.engine.base import experts_from, finished, sampled
from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import Episode, Limits, Task
from strands_sglang.runs.staleness import MaxStaleness, StalenessGate
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec
from strands_sglang.tokens.arrays import VersionSpan
from strands_sglang.tokens.teacher import NO_ID
from strands_sglang.trainers.chat_tasks import chat_task, plain
from strands_sglang.trainers.images import images_within, pictures_of, whole_images
from strands_sglang.trainers.rows import Branches, PlainRow, plain_rows
from strands_sglang.trainers.worker_pool import (
    EpisodeTeacher,
    PerLoop,
    bound_limits,
    import_by_path,
    named_models,
    new_spec,
    pad_id_of,
    run_episode,
)

try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
except ImportError as error:
    raise ImportError(
        "StrandsAgentLoop requires verl (tested with 0.9): pip install verl, or import it in the environment that verl "
        "runs in"
    ) from error

__all__ = ["StrandsAgentLoop"]

logger = logging.getLogger(__name__)

_RANGE = ".."
_WORKERS: PerLoop[LocalWorker] = PerLoop()
_teacher_at = cache(EpisodeTeacher)  # the same for all agent loops: its connections are per event loop
_DROPPED_PARAMS = ("logprobs", "prompt_logprobs")
"""`VerlEngine` always requests logprobs."""


class TokenOutput(Protocol):
    """The response of verl's servers, as far as it is read."""

    token_ids: list[int]
    log_probs: list[float] | None
    """One per token; None if not requested, or if nothing was sampled."""
    routed_experts: Any
    """Shape (prompt and sampled tokens except the last, layers, top k); None if verl does not replay them."""
    stop_reason: str | None
    """SGLang: "stop", "length", "abort". vLLM: "completed", also if truncated, or "aborted"."""
    extra_fields: dict[str, Any]
    """Includes `min_global_steps` and `max_global_steps`: the weights used."""


class ServerClient(Protocol):
    """verl's client of its servers, as far as it is used here."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        """Sample; requests with the same id go to the same server."""
        ...


class VerlEngine(BaseEngine):
    """Sends requests to verl's servers."""

    owner = "verl"
    capabilities = frozenset({Capability.ROUTED_EXPERTS})
    newest_step: ClassVar[int | None] = None
    """The newest global step that a server reported to this process; None if none did."""

    def __init__(self, servers: ServerClient) -> None:
        super().__init__()
        self.servers = servers

    @classmethod
    def newest_name(cls) -> str | None:
        """Return the newest global step as a weight version."""
        return None if cls.newest_step is None else str(cls.newest_step)

    async def request(
        self, input_ids: list[int], sampling: dict[str, Any], key: str, experts_start: int | None
    ) -> Generation:
        """Send one request."""
        budget, count = int(sampling["max_new_tokens"]), len(input_ids)
        output = await self.servers.generate(
            request_id=key, prompt_ids=input_ids, sampling_params={**sampling, "logprobs": True}
        )
        ids, extra = output.token_ids, output.extra_fields
        first, last = _reported_steps(extra)
        if last is not None:
            VerlEngine.newest_step = max(last, VerlEngine.newest_step or 0)
        name = None if first is None else str(first) if first == last else f"{first}{_RANGE}{last}"
        return sampled(
            self.owner,
            ids,
            output.log_probs,
            (VersionSpan(name, 0, len(ids)),),
            finished(output.stop_reason, ids, budget),
            prompt_tokens=count,
            cached_tokens=extra.get("num_cached_tokens"),
            rid=key,
            routed_experts=experts_from(output.routed_experts, experts_start) if ids else None,
        )


def global_steps(versions: Iterable[str | None]) -> tuple[int, int] | None:
    """Return the first and last global step in the weight versions of tokens; None if no version was reported."""
    ends = [int(end) for name in set(versions) if name is not None for end in name.split(_RANGE)]
    return (min(ends), max(ends)) if ends else None


def _reported_steps(extra: Mapping[str, Any]) -> tuple[int | None, int | None]:
    step = extra.get("global_steps")
    first, last = extra.get("min_global_steps", step), extra.get("max_global_steps", step)
    if first is None or last is None:
        return None, None
    return int(first), int(last)


def output_fields(
    row: PlainRow,
    episode: Episode | None,
    *,
    prompt_length: int,
    response_length: int,
    logprobs: bool,
    steps: int,
    expert_shape: tuple[int, int] | None = None,
    reward_keys: Sequence[str] = (),
    teacher_top: int | None = None,
) -> dict[str, Any]:
    """Return the arguments of an `AgentLoopOutput`.

    `steps` is the global step to report for a row without a sampled token. `teacher_top` is None without a teacher; a
    row that the teacher could not score is not trained.
    """
    # verl would shorten a first prompt longer than prompt_length, but the model has seen all of it. The excess becomes
    # the start of the response, which may contain tokens that are not trained.
    cut = min(len(row.prompt_ids), prompt_length)
    before = row.prompt_ids[cut:]
    length = min(len(before) + len(row.response_ids), response_length)
    length = max(whole_images(row.images, cut + length) - cut, 1)
    response = (before + row.response_ids)[:length]
    if len(before) + len(row.response_ids) > length:
        lost = len(before) + len(row.response_ids) - length
        logger.warning(
            "kept=<%d>, dropped=<%d> | response is longer than response_length, its end is dropped", length, lost
        )
    shown = images_within(row.images, cut + len(response)) if row.images and episode is not None else []
    zeros = [0] * len(before)
    known = global_steps(row.versions) or ((None, None) if row.num_turns else (steps, steps))
    fields: dict[str, Any] = {
        "prompt_ids": row.prompt_ids[:cut],
        "response_ids": response,
        "response_mask": (zeros + row.loss_mask)[:length],
        "response_logprobs": ([0.0] * len(before) + row.logprobs)[:length] if logprobs else None,
        "routed_experts": _experts(row, expert_shape, cut + len(response)),
        "multi_modal_data": {"images": pictures_of(episode.image_files, shown)} if shown and episode else None,
        "reward_score": row.reward,
        "num_turns": 2 * row.num_turns,  # verl also counts the question and the tool results
        "metrics": {} if episode is None else _metrics(episode),
        "extra_fields": {
            **_about(episode, reward_keys),
            "strands_agent": row.agent or "",
            "strands_main": row.main,
            "min_global_steps": known[0],
            "max_global_steps": known[1],
        },
    }
    if teacher_top is not None:
        if row.teacher is None:
            fields["response_mask"] = [0] * len(response)
        fields["extra_fields"] |= _teacher(row, cut + len(response), teacher_top)
    return fields


def _teacher(row: PlainRow, tokens: int, top: int) -> dict[str, Any]:
    """Return a teacher's logprobs in verl's form: row p is about token p + 1, of prompt and response.

    With `top` 0, the only entry of a row is the token itself.
    """
    import torch

    ids, width, first = np.array(row.token_ids), max(top, 1), len(row.prompt_ids)
    teacher_ids, logprobs = np.zeros((tokens, width), np.int32), np.zeros((tokens, width), np.float32)
    teacher_ids[: tokens - 1] = ids[1:tokens, None]
    if row.teacher is not None:
        known = row.teacher.part(0, tokens - first)
        scored = np.flatnonzero(known.top_id_rows[:, 0] != NO_ID) if top else np.arange(len(known))
        before = scored + first - 1
        logprobs[before] = known.top_logprob_rows[scored] if top else np.asarray(known.logprobs)[scored, None]
        if top:
            teacher_ids[before] = known.top_id_rows[scored]
    return {"teacher_ids": torch.from_numpy(teacher_ids), "teacher_logprobs": torch.from_numpy(logprobs)}


def _experts(row: PlainRow, shape: tuple[int, int] | None, tokens: int) -> Any:
    """One row per token of prompt and response, except the last."""
    if shape is None:
        return None
    if row.experts is None:
        return np.zeros((1, *shape), np.int32)  # verl stacks them and needs the same shape for all samples
    return row.experts.reshape(len(row.experts), *shape)[:tokens]


def _metrics(episode: Episode) -> dict[str, float]:
    return {"generate_sequences": episode.metrics.engine_seconds, "tool_calls": episode.metrics.tool_seconds}


def _about(episode: Episode | None, reward_keys: Sequence[str]) -> dict[str, Any]:
    score = None if episode is None else episode.reward_detail
    failure = None if episode is None else episode.failure
    parts = {} if score is None else dict(score.parts)
    return {
        "turn_scores": [] if score is None else list(score.steps),
        "tool_rewards": [],
        "reward_extra_info": {name: parts.get(name, 0.0) for name in reward_keys},
        "reward_parts": parts,
        "strands_episode": "" if episode is None else episode.id,
        "strands_end_reason": "no_task" if episode is None else episode.end_reason.value,
        "strands_failure": "" if failure is None else f"{failure.kind}: {failure.message}",
    }


class StrandsAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Runs one episode of a Strands agent on verl's servers."""

    build: Any = None
    """Makes the agent of an episode: `build(task, model)`. A function or its dotted path."""
    reward: Any = None
    """Scores an episode. A function or its dotted path; None leaves scoring to verl's own reward."""
    task: Any = None
    """Makes a task from the dataset's fields (a dict). A function or its dotted path; None: `row_task`."""
    limits: Any = None
    """A `Limits` or a dict of its fields. The lengths of verl's configuration apply in any case."""
    sampling_params: Any = None
    """Further SGLang sampling parameters; those of verl take precedence."""
    model: Any = None
    """Further arguments of `SGLangModel`, as a dict: `{"enable_thinking": False}`."""
    branches: Any = Branches.MAIN
    """Which branches are trained. "all" returns a list, which only verl's v1 trainer accepts."""
    reward_keys: Any = ()
    """Names of the reward's parts that verl averages as validation metrics."""
    reward_timeout: Any = None
    """Time limit for scoring an episode, in seconds; None means no limit."""
    models: Any = None
    """Other models of an episode, as for `rollout`; they and the dict may be dotted paths."""
    expert_shape: Any = None
    """Layers and top k of the model; required if verl replays routed experts (`enable_rollout_routing_replay`)."""
    max_staleness: Any = None
    """The number of global steps after which a token is too old to be trained, or a `MaxStaleness`, or a dict of its
    fields. It is decided for each episode when it has ended. None: tokens of any age are trained."""
    teacher: Any = None
    """Base URL of a teacher's engine, whose logprobs become `teacher_ids` and `teacher_logprobs`; None: no teacher.
    In place of verl's own teacher servers, which must be off then (`distillation.enabled`)."""
    teacher_top: Any = 0
    """Number of the teacher's likeliest ids per token (`topk` of verl's distillation loss); 0: the sampled token's
    logprob alone."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Accept verl's arguments for agent loops, and any of the settings above."""
        given = {name: plain_config(settings.pop(name)) for name in _SETTINGS if name in settings}
        super().__init__(*args, **settings)
        for name, value in given.items():
            setattr(self, name, value)
        self._build, self._reward = import_by_path(self.build), import_by_path(self.reward)
        if not callable(self._build):
            raise ConfigurationError(f"build must be a function or its dotted path, got {self.build!r}")
        self._task = import_by_path(self.task) or row_task
        self._models = named_models(self.models, self._build, self._reward)
        rollout = self.rollout_config
        self._prompt_length, self._response_length = int(rollout.prompt_length), int(rollout.response_length)
        self._limits = self._bounds()
        self._rule = staleness_rule(self.max_staleness)
        self._experts = bool(rollout.get("enable_rollout_routing_replay", False))
        if self._experts and self.expert_shape is None:
            raise ConfigurationError(
                "expert_shape must be [layers, top k] of the model if verl replays routed experts, got None"
            )

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> Any:
        """Run one episode on a row of the dataset.

        Returns an `AgentLoopOutput`; with branches "all" a list of them, the main branch last.
        """
        worker = self._worker()
        gate = None if self._rule is None else StalenessGate(self._rule, worker.run_spec.client)
        episode = await run_episode(worker, lambda: self._episode_spec(sampling_params, fields), gate)
        teacher = _teacher_at(str(self.teacher), int(self.teacher_top)) if self.teacher else None
        if teacher is not None and episode is not None:
            await teacher.score(episode)
        steps = VerlEngine.newest_step  # for a row without a sampled token: verl computes with it and rejects None
        if steps is None:
            steps = int(fields.get("global_steps") or 0)
        scored, branches = self._reward is not None, Branches(self.branches)
        outputs = [
            AgentLoopOutput(
                **output_fields(
                    row,
                    episode,
                    prompt_length=self._prompt_length,
                    response_length=self._response_length,
                    logprobs=bool(sampling_params.get("logprobs")),
                    steps=steps,
                    expert_shape=tuple(self.expert_shape) if self._experts else None,
                    reward_keys=self.reward_keys,
                    teacher_top=None if teacher is None else teacher.top,
                )
            )
            for row in plain_rows(episode, pad_id=pad_id_of(self.tokenizer), scored=scored, branches=branches)
        ]
        return outputs if branches is Branches.ALL else outputs[-1]

    def _episode_spec(self, sampling_params: Mapping[str, Any], fields: Mapping[str, Any]) -> EpisodeSpec:
        id = uuid4().hex
        if self.rollout_config.get("full_determinism", False):
            id = f"det-{int(fields.get('priority', 0))}"
        sampling = {"max_new_tokens": self._response_length, **(self.sampling_params or {})}
        sampling |= {name: value for name, value in sampling_params.items() if name not in _DROPPED_PARAMS}
        made = self._task(dict(fields))
        return new_spec(made, id, sampling_params=plain(sampling), limits=self._limits, session=id)

    def _worker(self) -> LocalWorker:
        """Shared, because verl makes an agent loop for every sample."""
        settings = tuple(repr(getattr(self, name)) for name in ("model", "models", "reward_timeout"))
        key = (self._build, self._reward, id(self.server_manager), id(self.tokenizer), self._limits, settings)
        return _WORKERS.get(lambda: LocalWorker(self._run_spec()), key)

    def _run_spec(self) -> RunSpec:
        options = dict(self.model or {})
        templated = plain_config(self.apply_chat_template_kwargs) or {}
        if templated:
            options["chat_template_kwargs"] = {**templated, **options.get("chat_template_kwargs", {})}
        if self._experts:
            options["routed_experts"] = True
        return RunSpec(
            build=self._build,
            reward=self._reward,
            tokenizer=self.tokenizer,
            client=VerlEngine(self.server_manager),
            limits=self._limits,
            model_options=options,
            reward_timeout=self.reward_timeout,
            models=self._models,
        )

    def _bounds(self) -> Limits:
        rollout = self.rollout_config
        context = self._prompt_length + self._response_length
        if rollout.get("max_model_len"):
            context = min(context, int(rollout.max_model_len) - 1)  # verl's SGLang server reserves one token
        turns = (rollout.get("multi_turn") or {}).get("max_assistant_turns")
        limits = bound_limits(self.limits, max_response_tokens=self._response_length, max_context_tokens=context)
        return replace(limits, max_turns=limits.max_turns or (int(turns) if turns else None))


_SETTINGS = tuple(name for name in StrandsAgentLoop.__annotations__)


def staleness_rule(given: Any) -> MaxStaleness | None:
    """Return a rule that knows verl's versions: of a range of global steps, the first counts."""
    rule = MaxStaleness.of(given)
    if rule is None:
        return None
    newest = VerlEngine.newest_name
    return replace(rule, order=rule.order or _first_step, current=rule.current or newest, stop_running=False)


def _first_step(version: str) -> int:
    return int(version.split(_RANGE)[0])


def row_task(fields: Mapping[str, Any]) -> Task:
    """Return the task of a row of verl's `RLHFDataset`: its last user message, with the ground truth as the answer."""
    truth = fields.get("reward_model") or {}
    kept = {name: fields[name] for name in ("data_source", "index", "uid") if fields.get(name) is not None}
    data = {**(plain(fields.get("extra_info")) or {}), **kept}
    return chat_task(fields["raw_prompt"], answer=truth.get("ground_truth"), data=data)


def plain_config(value: Any) -> Any:
    """Return a value of an OmegaConf configuration as plain Python data."""
    try:
        from omegaconf import OmegaConf
    except ImportError:
        return value
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
