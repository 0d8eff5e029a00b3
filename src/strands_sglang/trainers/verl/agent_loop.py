"""A Strands agent as an agent loop of verl: `StrandsAgentLoop`.

In verl's agent loop configuration (`actor_rollout_ref.rollout.agent.agent_loop_config_path`):

    - name: calculator
      _target_: strands_sglang.trainers.verl.StrandsAgentLoop
      build: my_agent.build
      reward: my_agent.score

Invariant: `run` returns a valid output however the episode ends, and raises nothing but cancellation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import Limits, Task
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec
from strands_sglang.trainers.chat_tasks import chat_task, plain
from strands_sglang.trainers.rows import Branches, plain_rows
from strands_sglang.trainers.teacher import EpisodeTeacher
from strands_sglang.trainers.verl.engine import VerlEngine
from strands_sglang.trainers.verl.output import output_fields
from strands_sglang.trainers.worker_pool import PerLoop, import_by_path, run_episode

try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
except ImportError as error:
    raise ImportError(
        "StrandsAgentLoop requires verl (tested with 0.9): pip install verl, or import it in the environment that verl "
        "runs in"
    ) from error

_WORKERS: PerLoop[LocalWorker] = PerLoop()
_TEACHERS: PerLoop[EpisodeTeacher] = PerLoop()
_DROPPED_PARAMS = ("logprobs", "prompt_logprobs")
"""Sampling parameters of verl's that are not passed on: `VerlEngine` always requests logprobs."""


class StrandsAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Runs one episode of a Strands agent on verl's servers.

    The settings below come from verl's configuration, or from a subclass.

    Example:
        >>> @register("calculator")
        ... class Calculator(StrandsAgentLoop):
        ...     build = staticmethod(build)
        ...     reward = staticmethod(score)
    """

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
    expert_shape: Any = None
    """Layers and top k of the model; required if verl replays routed experts (`enable_rollout_routing_replay`)."""
    teacher: Any = None
    """Base URL of a teacher's engine, whose logprobs become `teacher_ids` and `teacher_logprobs`; None: no teacher.
    In place of verl's own teacher servers, which must be off then (`distillation.enabled`)."""
    teacher_top: Any = 0
    """Number of the teacher's likeliest ids per token (`topk` of verl's distillation loss); 0: the sampled token's
    logprob alone."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Accept verl's arguments for agent loops, and any of the settings above.

        Raises:
            ConfigurationError: If a setting cannot work.
        """
        given = {name: plain_config(settings.pop(name)) for name in _SETTINGS if name in settings}
        super().__init__(*args, **settings)
        for name, value in given.items():
            setattr(self, name, value)
        self._build, self._reward = import_by_path(self.build), import_by_path(self.reward)
        if not callable(self._build):
            raise ConfigurationError(f"build must be a function or its dotted path, got {self.build!r}")
        self._task = import_by_path(self.task) or row_task
        rollout = self.rollout_config
        self._prompt_length, self._response_length = int(rollout.prompt_length), int(rollout.response_length)
        self._limits = self._bounds(Limits(**self.limits) if isinstance(self.limits, Mapping) else self.limits)
        self._experts = bool(rollout.get("enable_rollout_routing_replay", False))
        if self._experts and self.expert_shape is None:
            raise ConfigurationError(
                "expert_shape must be [layers, top k] of the model if verl replays routed experts, got None"
            )

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> Any:
        """Run one episode.

        Args:
            sampling_params: verl's sampling parameters, for training or for validation.
            **fields: The row of the dataset.

        Returns:
            An `AgentLoopOutput`; with branches "all" a list of them, the main branch last.
        """
        worker = self._worker()
        episode = await run_episode(worker, lambda: self._episode_spec(sampling_params, fields))
        teacher = self._teacher()
        if teacher is not None and episode is not None:
            await teacher.score(episode)
        steps = VerlEngine.newest_step  # for a row without a sampled token: verl computes with it and rejects None
        if steps is None:
            steps = int(fields.get("global_steps") or 0)
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.tokenizer.eos_token_id
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
            for row in plain_rows(
                episode, pad_id=pad or 0, scored=self._reward is not None, branches=Branches(self.branches)
            )
        ]
        return outputs if Branches(self.branches) is Branches.ALL else outputs[-1]

    def _episode_spec(self, sampling_params: Mapping[str, Any], fields: Mapping[str, Any]) -> EpisodeSpec:
        """Return the episode specification of a row, with a new id: verl may run a row any number of times."""
        id = uuid4().hex
        if self.rollout_config.get("full_determinism", False):
            id = f"det-{int(fields.get('priority', 0))}"
        task = Task.of(self._task(dict(fields)))
        sampling = {"max_new_tokens": self._response_length, **(self.sampling_params or {})}
        sampling |= {name: value for name, value in sampling_params.items() if name not in _DROPPED_PARAMS}
        named = replace(task, id=f"{task.id[:150]}-{id}")
        return EpisodeSpec(named, 0, sampling_params=plain(sampling), limits=self._limits, session=id)

    def _worker(self) -> LocalWorker:
        """Return the worker of this loop; it is shared, because verl makes an agent loop for every sample."""
        settings = tuple(repr(getattr(self, name)) for name in ("model", "reward_timeout"))
        key = (self._build, self._reward, id(self.server_manager), id(self.tokenizer), self._limits, settings)
        return _WORKERS.get(lambda: LocalWorker(self._run_spec()), key)

    def _teacher(self) -> EpisodeTeacher | None:
        """Return the teacher; it is shared, as the worker is."""
        if not self.teacher:
            return None
        return _TEACHERS.get(
            lambda: EpisodeTeacher(str(self.teacher), int(self.teacher_top)), (str(self.teacher), int(self.teacher_top))
        )

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
        )

    def _bounds(self, given: Limits | None) -> Limits:
        """Return the limits of an episode: the given ones, within verl's lengths."""
        rollout, limits = self.rollout_config, given or Limits()
        context = self._prompt_length + self._response_length
        if rollout.get("max_model_len"):
            context = min(context, int(rollout.max_model_len) - 1)  # verl's SGLang server reserves one token
        turns = (rollout.get("multi_turn") or {}).get("max_assistant_turns")
        return replace(
            limits,
            max_response_tokens=min(limits.max_response_tokens or self._response_length, self._response_length),
            max_context_tokens=min(limits.max_context_tokens or context, context),
            max_turns=limits.max_turns or (int(turns) if turns else None),
        )


_SETTINGS = tuple(name for name in StrandsAgentLoop.__annotations__)


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
