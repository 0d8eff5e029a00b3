"""Defines what a worker runs: one episode (`EpisodeSpec`) and the settings of all episodes of a run (`RunSpec`).

Invariant: both specs can be pickled, because a worker may be another process on another machine. Episodes with the same
sampling parameters and limits share a model, as long as at most 256 such models are needed. `rollout` accepts every
function that the types (`BuildAgent`, `ScoreEpisode`) allow.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import orjson

from strands_sglang._json import dump_bytes
from strands_sglang.engine import TokenEngine
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.writer import Durability
from strands_sglang.model import SGLangModel
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.recording.event_data import ToolArguments
from strands_sglang.runs.reward import Reward
from strands_sglang.runs.task import Task

if TYPE_CHECKING:
    from strands import Agent
    from strands.multiagent.base import MultiAgentBase

    from strands_sglang.gateway.process import RemoteAgent
    from strands_sglang.runs.recording.other_models import RecordedModel


@dataclass(slots=True)
class EpisodeSpec:
    """One sample of one task: an episode to run, to resume, or to score."""

    task: Task
    sample: int
    """Number among the samples of the task, from 0."""
    record: EpisodeRecord | None = None
    """The recorded episode to resume from; None: it starts from the beginning."""
    epoch: int = 0
    """Above 0 if an episode that starts from the beginning has unusable events of an earlier start."""
    finished: Episode | None = None
    """The episode, if a previous run ended it; None: it must be run."""
    unscored: bool = False
    """Whether it has ended and only has to be scored; `record` is then the complete episode."""
    sampling_params: dict[str, Any] | None = None
    """SGLang sampling parameters of this episode; None: those of the run."""
    limits: Limits | None = None
    """Limits of this episode; None: those of the run."""
    session: str | None = None
    """Routing key for session affinity; None: one key for all samples of the task."""

    @property
    def routing_key(self) -> str:
        """Routing key for session affinity; hexadecimal digits unless `session` is given."""
        return self.session or hashlib.blake2b(self.task.id.encode(), digest_size=16).hexdigest()

    @property
    def next_epoch(self) -> int:
        """Epoch of the events that this episode will write."""
        return self.epoch if self.record is None else self.record.epoch + 1

    @property
    def id(self) -> str:
        """Id of the episode."""
        return f"{self.task.id}/{self.sample}"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Settings shared by all episodes of a run; most are arguments of `rollout` or fields of `RunOptions`."""

    build: Callable[..., Any]
    reward: Callable[..., Any] | None
    tokenizer: Any
    client: TokenEngine
    limits: Limits
    model_options: dict[str, Any] = field(default_factory=dict)
    directory: Path | None = None
    run: str = ""
    durability: Durability = Durability.PROCESS
    rerun_tools: frozenset[str] = frozenset()
    pausable: bool = False
    """Whether episodes can be paused and resumed; their events are then also kept in memory."""
    reward_timeout: float | None = None
    tool_arguments: ToolArguments = ToolArguments.RECORD
    seed: int | None = None
    """Seed that the seeds of all turns are derived from; None: the engine chooses at random."""
    tune_runtime: bool = True
    fast_agents: bool = True
    """Whether episodes run inside `fast_agents`."""
    trace: dict[str, str] = field(default_factory=dict)
    experiment: dict[str, str] = field(default_factory=dict)
    """What `experiment.experiment_of` returns; empty: nothing is recorded."""
    models: dict[str, Any] = field(default_factory=dict)
    """Other models by name: `Model` objects, or functions that make them."""

    def settings(self) -> dict[str, Any]:
        """Return model options and limits as plain data for the ledger; other objects are replaced by their repr."""
        seed = {} if self.seed is None else {"seed": self.seed}
        plain: dict[str, Any] = orjson.loads(dump_bytes({**self.model_options, "limits": asdict(self.limits), **seed}))
        return plain

    def tokenizer_name(self) -> str | None:
        """Return the name of the tokenizer, or the absolute path of its folder; None if it has neither."""
        given = self.tokenizer
        name = given if isinstance(given, (str, os.PathLike)) else getattr(given, "name_or_path", None)
        if not isinstance(name, (str, os.PathLike)) or not str(name):
            return None
        return os.path.abspath(name) if os.path.isdir(name) else str(name)

    def model(self) -> SGLangModel:
        """Return a new model for these episodes; loads the tokenizer if only its name or path is given."""
        options = dict(self.model_options)
        sampling = dict(options.pop("sampling_params", None) or options.pop("params", None) or {})
        if self.limits.max_new_tokens is not None:
            given = sampling.get("max_new_tokens") or self.limits.max_new_tokens
            sampling["max_new_tokens"] = min(given, self.limits.max_new_tokens)
        if self.limits.max_episode_tokens is not None:
            options["max_episode_tokens"] = self.limits.max_episode_tokens
        if self.limits.max_response_tokens is not None:
            options["max_response_tokens"] = self.limits.max_response_tokens
        if self.limits.max_context_tokens is not None:
            options["context_window_limit"] = self.limits.max_context_tokens
        return SGLangModel(tokenizer=self.tokenizer, client=self.client, sampling_params=sampling, **options)


def fingerprint(model: SGLangModel, run_spec: RunSpec) -> dict[str, str]:
    """Return what identifies the experiment of a run: chat template, tool parser, and `RunSpec.experiment`."""
    return {"template": model.soundness.digest, "parser": type(model.tool_parser).__name__, **run_spec.experiment}


_MAX_CACHED = 256  # models besides the default one: a trainer needs one each for training, evaluation, and every seed


class ModelCache:
    """Creates and caches the models of a worker's episodes."""

    def __init__(self, run_spec: RunSpec) -> None:
        self._run_spec = run_spec
        self.default = run_spec.model()
        self._others: dict[bytes, SGLangModel] = {}

    def of(self, spec: EpisodeSpec) -> SGLangModel:
        """Return the model for an episode."""
        if spec.sampling_params is None and spec.limits is None:
            return self.default
        limits = spec.limits or self._run_spec.limits
        key = dump_bytes([spec.sampling_params, asdict(limits)], sort_keys=True)
        if key not in self._others:
            options = dict(self._run_spec.model_options)
            if spec.sampling_params is not None:
                options.pop("params", None)
                options["sampling_params"] = dict(spec.sampling_params)
            if len(self._others) >= _MAX_CACHED:
                self._others.clear()
            self._others[key] = replace(self._run_spec, limits=limits, model_options=options).model()
        return self._others[key]


Built: TypeAlias = (
    "Agent | RemoteAgent | MultiAgentBase | Callable[[], Any] | tuple[MultiAgentBase | Callable[[], Any], Agent]"
)
"""Return type of `build`: an agent, here or over HTTP (`AgentProcess`); a graph or swarm, or a function without
arguments that runs the episode, alone or with the agent whose branch is the main one."""

Score: TypeAlias = float | Mapping[str, Any] | Sequence[Any] | Reward | None
"""What a reward function returns: a number; a dict with "reward"; one number per turn; a `Reward`; None: no reward."""


class _BuildWithModels(Protocol):
    def __call__(
        self, task: Task, model: SGLangModel, /, *, models: Mapping[str, RecordedModel]
    ) -> Built | Awaitable[Built]: ...


BuildAgent: TypeAlias = "Callable[[Task, SGLangModel], Built | Awaitable[Built]] | _BuildWithModels"
"""Type of the function that builds the agent of an episode: it takes the task and a model to use, and `models` if it
uses other models; may be async."""

_Scored: TypeAlias = Score | Awaitable[Score]


class _ScoreWithModels(Protocol):
    def __call__(self, episode: Episode, /, *, models: Mapping[str, RecordedModel]) -> _Scored: ...


class _ScoreTaskWithModels(Protocol):
    def __call__(self, task: Task, episode: Episode, /, *, models: Mapping[str, RecordedModel]) -> _Scored: ...


ScoreEpisode: TypeAlias = (
    Callable[[Episode], _Scored] | Callable[[Task, Episode], _Scored] | _ScoreWithModels | _ScoreTaskWithModels
)
"""Type of a reward function: it takes the episode, or the task and the episode, and `models` if it uses other models;
may be async."""
