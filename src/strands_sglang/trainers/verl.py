"""Strands agents as an agent loop of verl: `StrandsAgentLoop`.

In verl's agent loop configuration (`actor_rollout_ref.rollout.agent.agent_loop_config_path`):

    - name: calculator
      _target_: strands_sglang.trainers.verl.StrandsAgentLoop
      build: my_agent.build
      reward: my_agent.score

Invariant: `run` gives verl a valid output whatever becomes of the episode; only cancellation passes through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout import Limits, Task
from strands_sglang.rollout.job import Job, Setup
from strands_sglang.rollout.local import LocalWorker
from strands_sglang.trainers.chat_task import chat_task, plain
from strands_sglang.trainers.loop_worker import LoopWorkers, found, played
from strands_sglang.trainers.plain_row import plain_rows
from strands_sglang.trainers.row import Branches
from strands_sglang.trainers.verl_engine import VerlEngine
from strands_sglang.trainers.verl_output import output_fields

try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
except ImportError as error:
    raise ImportError(
        "strands_sglang.trainers.verl is for use inside verl (0.9 was tried): pip install verl, or import this module "
        "in the environment that verl runs in"
    ) from error

_WORKERS = LoopWorkers()
_NOT_OURS = ("logprobs", "prompt_logprobs")  # of verl's sampling parameters: the engine handle asks for logprobs always


class StrandsAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Runs one episode of a Strands agent on verl's servers.

    What it is made of stands in verl's configuration, or in a subclass: `build = staticmethod(my_build)`.
    """

    build: Any = None
    """Makes the agent of an episode from a task and a model; a function or its dotted path."""
    reward: Any = None
    """Scores an episode; a function or its dotted path. None: verl's own reward does."""
    task: Any = None
    """Makes a task of the dataset's fields (a dict); a function or its dotted path. None: `row_task`."""
    limits: Any = None
    """A `Limits`, or a dict of its fields. What verl's configuration says is used where nothing is said here."""
    sampling_params: Any = None
    """SGLang sampling parameters beside those of verl, which win."""
    model: Any = None
    """Further arguments of `SGLangModel`, as a dict: `{"enable_thinking": False}`."""
    branches: Any = Branches.MAIN
    """Which branches are trained. "all" gives verl a list, which only its v1 trainer takes."""
    reward_keys: Any = ()
    """Parts of the reward that verl should average as validation metrics."""
    reward_seconds: Any = None
    """Seconds that scoring may take; None: no bound."""
    expert_shape: Any = None
    """Layers and top k of the model, where verl replays routed experts (`enable_rollout_routing_replay`)."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Take what verl gives its agent loops, and any of the settings above."""
        given = {name: plain_config(settings.pop(name)) for name in _SETTINGS if name in settings}
        super().__init__(*args, **settings)
        for name, value in given.items():
            setattr(self, name, value)
        self._build, self._reward = found(self.build), found(self.reward)
        if not callable(self._build):
            raise ConfigurationError(f"build should make an agent from a task and a model; it is {self.build!r}")
        self._task = found(self.task) or row_task
        rollout = self.rollout_config
        self._prompt_length, self._response_length = int(rollout.prompt_length), int(rollout.response_length)
        self._limits = self._bounds(Limits(**self.limits) if isinstance(self.limits, Mapping) else self.limits)
        self._experts = bool(rollout.get("enable_rollout_routing_replay", False))
        if self._experts and self.expert_shape is None:
            raise ConfigurationError("verl replays routed experts: give expert_shape=[layers, top k] of the model")

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> Any:
        """Run one episode.

        Args:
            sampling_params: verl's, of training or of validation.
            **fields: The row of the dataset.

        Returns:
            An `AgentLoopOutput`; with branches "all" a list of them, the main branch's last.
        """
        worker = self._worker()
        episode = await played(worker, lambda: self._job(sampling_params, fields))
        steps = VerlEngine.newest_step  # of a row that no server has seen; verl computes with it and takes no None
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
                )
            )
            for row in plain_rows(
                episode, pad_id=pad or 0, scored=self._reward is not None, branches=Branches(self.branches)
            )
        ]
        return outputs if Branches(self.branches) is Branches.ALL else outputs[-1]

    def _job(self, sampling_params: Mapping[str, Any], fields: Mapping[str, Any]) -> Job:
        """Return the episode of a row: under an id of its own, since verl may run a row any number of times."""
        id = uuid4().hex
        if self.rollout_config.get("full_determinism", False):
            id = f"det-{int(fields.get('priority', 0))}"
        task = Task.of(self._task(dict(fields)))
        sampling = {"max_new_tokens": self._response_length, **(self.sampling_params or {})}
        sampling |= {name: value for name, value in sampling_params.items() if name not in _NOT_OURS}
        named = replace(task, id=f"{task.id[:150]}-{id}")
        return Job(named, 0, sampling_params=plain(sampling), limits=self._limits, session=id)

    def _worker(self) -> LocalWorker:
        """Return the worker of this process; verl makes an agent loop for every sample."""
        settings = tuple(repr(getattr(self, name)) for name in ("model", "reward_seconds"))
        purpose = (self._build, self._reward, id(self.server_manager), id(self.tokenizer), self._limits, settings)
        return _WORKERS.get(purpose, self._setup)

    def _setup(self) -> Setup:
        options = dict(self.model or {})
        templated = plain_config(self.apply_chat_template_kwargs) or {}
        if templated:
            options["chat_template_kwargs"] = {**templated, **options.get("chat_template_kwargs", {})}
        if self._experts:
            options["routed_experts"] = True
        return Setup(
            build=self._build,
            reward=self._reward,
            tokenizer=self.tokenizer,
            client=VerlEngine(self.server_manager),
            limits=self._limits,
            model_options=options,
            reward_seconds=self.reward_seconds,
        )

    def _bounds(self, given: Limits | None) -> Limits:
        """Return the limits of an episode: what fits verl's lengths, and no more than was given."""
        rollout, limits = self.rollout_config, given or Limits()
        context = self._prompt_length + self._response_length
        if rollout.get("max_model_len"):
            context = min(context, int(rollout.max_model_len) - 1)  # verl's SGLang server keeps one token back
        turns = (rollout.get("multi_turn") or {}).get("max_assistant_turns")
        return replace(
            limits,
            response=min(limits.response or self._response_length, self._response_length),
            context=min(limits.context or context, context),
            turns=limits.turns or (int(turns) if turns else None),
        )


_SETTINGS = tuple(name for name in StrandsAgentLoop.__annotations__)


def row_task(fields: Mapping[str, Any]) -> Task:
    """Return the task of a row of verl's `RLHFDataset`: its last user message, and the ground truth as the answer."""
    truth = fields.get("reward_model") or {}
    kept = {name: fields[name] for name in ("data_source", "index", "uid") if fields.get(name) is not None}
    data = {**(plain(fields.get("extra_info")) or {}), **kept}
    return chat_task(fields["raw_prompt"], answer=truth.get("ground_truth"), data=data)


def plain_config(value: Any) -> Any:
    """Return a value of an OmegaConf configuration as Python's own."""
    try:
        from omegaconf import OmegaConf
    except ImportError:
        return value
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
