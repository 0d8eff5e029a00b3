"""One episode to be run: `Job`, and what every worker needs to run it: `Setup`.

Invariant: both can be pickled: a worker may be another process, on another machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from strands_sglang.engine import TokenEngine
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.writer import Durability
from strands_sglang.model import SGLangModel
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.task import Task
from strands_sglang.rollout.tool_result import ToolArguments


@dataclass(slots=True)
class Job:
    """One sample of one task."""

    task: Task
    """What is asked."""
    sample: int
    """Number among the samples of the task, from 0."""
    record: EpisodeRecord | None = None
    """What is on record of it already; None: nothing."""
    epoch: int = 0
    """Epoch of an episode that begins: above 0 where only remnants of an earlier beginning are on record."""
    finished: Episode | None = None
    """The episode, if it has ended in an earlier process; None: it is to be run."""
    unscored: bool = False
    """Whether it has ended, and all that is to be done is to score it; `record` then holds all of it."""
    sampling_params: dict[str, Any] | None = None
    """SGLang sampling parameters of this episode; None: those of the run."""
    limits: Limits | None = None
    """How far this episode may go; None: as far as any of the run."""
    session: str | None = None
    """What the engine's router keeps together; None: all samples of the task."""

    @property
    def routing_key(self) -> str:
        """What the engine's router keeps together; letters and digits only where we make it."""
        return self.session or hashlib.blake2b(self.task.id.encode(), digest_size=16).hexdigest()

    @property
    def life(self) -> int:
        """Epoch of what will be written of it."""
        return self.epoch if self.record is None else self.record.epoch + 1

    @property
    def id(self) -> str:
        """Id of the episode."""
        return f"{self.task.id}/{self.sample}"


@dataclass(frozen=True, slots=True)
class Setup:
    """What the episodes of a run have in common."""

    build: Callable[..., Any]
    """Makes an agent from a task and a model; may be async."""
    reward: Callable[..., Any] | None
    """Scores an episode; None: nobody does."""
    tokenizer: Any
    """The model's tokenizer, or the name or path it is loaded from."""
    client: TokenEngine
    """Where tokens come from."""
    limits: Limits
    """How far an episode may go."""
    model_options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `SGLangModel`."""
    directory: Path | None = None
    """Where the ledger is written; None: nowhere."""
    run: str = ""
    """Id of the run."""
    durability: Durability = Durability.PROCESS
    """What a written event survives."""
    rerun_tools: frozenset[str] = frozenset()
    """Tools that are run again when an episode is resumed."""
    suspendable: bool = False
    """Whether episodes may be set aside and go on later: their events are then kept in memory, too."""
    reward_seconds: float | None = None
    """Seconds that scoring may take; None: no bound."""
    tool_arguments: ToolArguments = ToolArguments.RECORD
    """What is on record of the arguments of tool calls."""
    trace: dict[str, str] = field(default_factory=dict)
    """Which trace the run is part of, as OpenTelemetry passes it on; empty: none."""

    def settings(self) -> dict[str, Any]:
        """Return what the ledger says of how the episodes were made: plain data, anything else in words."""
        plain: dict[str, Any] = orjson.loads(
            orjson.dumps({**self.model_options, "limits": asdict(self.limits)}, default=repr)
        )
        return plain

    def model(self) -> SGLangModel:
        """Return a model for these episodes."""
        tokenizer = loaded_tokenizer(self.tokenizer)
        options = dict(self.model_options)
        sampling = dict(options.pop("sampling_params", None) or options.pop("params", None) or {})
        if self.limits.tokens_per_turn is not None:
            given = sampling.get("max_new_tokens") or self.limits.tokens_per_turn
            sampling["max_new_tokens"] = min(given, self.limits.tokens_per_turn)
        if self.limits.tokens_per_episode is not None:
            options["max_episode_tokens"] = self.limits.tokens_per_episode
        if self.limits.response is not None:
            options["max_response_tokens"] = self.limits.response
        if self.limits.context is not None:
            options["context_window_limit"] = self.limits.context
        return SGLangModel(tokenizer=tokenizer, client=self.client, sampling_params=sampling, **options)


def loaded_tokenizer(tokenizer: Any) -> Any:
    """Return a tokenizer, loaded where only its name or path is given."""
    if not isinstance(tokenizer, (str, Path)):
        return tokenizer
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(tokenizer))


def fingerprint(model: SGLangModel) -> dict[str, str]:
    """Return what must be the same for a recorded conversation to be rendered the same again."""
    return {"template": model.soundness.digest, "parser": type(model.tool_parser).__name__}
