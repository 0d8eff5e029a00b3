"""TRL: a `rollout_func` for `GRPOTrainer`, from the same code that `rollout` takes.

    trainer = GRPOTrainer(..., reward_funcs=[trl_reward], rollout_func=trl_rollout(build, reward=score, base_url=...))

TRL itself is not imported: what is used of a trainer is its arguments, its state, its model and its accelerator. Every
process runs the episodes of its own prompts; the main one alone updates the engine.

Invariant: a call returns one completion for each prompt it was given, in their order, sampled by the weights that the
trainer has at that moment; what is trained of it was sampled, token by token.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strands_sglang.engine import SGLangClient, TokenEngine
from strands_sglang.errors import ConfigurationError, EngineError
from strands_sglang.rollout import Limits, Task, rollout
from strands_sglang.trainers.row import Row
from strands_sglang.trainers.trl_batch import FIGURES, Masked, Place, batch_of, trl_reward, versions_of
from strands_sglang.trainers.trl_disk import DiskSync, sharded_by
from strands_sglang.trainers.trl_gap import LogprobGap, logprob_gap
from strands_sglang.trainers.trl_link import EngineLink
from strands_sglang.trainers.trl_served import check_served
from strands_sglang.trainers.trl_settings import check_trainer, limits_within, sampling_of
from strands_sglang.trainers.trl_sync import Syncer, SyncKind, WeightSync
from strands_sglang.trainers.trl_tasks import Plan, TaskFinder

__all__ = [
    "trl_rollout",
    "trl_reward",
    "TrlRollout",
    "TrlStep",
    "DiskSync",
    "WeightSync",
    "EngineLink",
    "logprob_gap",
    "LogprobGap",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrlStep:
    """What came of one call."""

    step: int
    """The trainer's step."""
    version: str | None
    """Name of the weights the engine sampled from; None: they are not ours to update."""
    directory: Path | None
    """Where the ledger of its episodes is; None: nowhere."""
    places: list[Place]
    """One for each prompt."""
    figures: dict[str, float]
    """Its numbers, by the names they are logged under."""

    @property
    def rows(self) -> list[Row]:
        """What is trained."""
        return [place.row for place in self.places if place.row is not None and place.masked is None]


class TrlRollout:
    """A rollout function with a loop, a client and a weight sync of its own; see `trl_rollout`."""

    def __init__(
        self,
        build: Callable[..., Any],
        link: EngineLink,
        sync: Syncer,
        finder: TaskFinder,
        limits: Limits,
        gap_rows: int,
        options: Mapping[str, Any],
    ) -> None:
        self.link = link
        """Where the episodes run."""
        self.last: TrlStep | None = None
        """What came of the last call."""
        self._build, self._sync, self._finder = build, sync, finder
        self._limits, self._gap_rows, self._options = limits, gap_rows, dict(options)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Run the episodes of some prompts, with the trainer's present weights; TRL calls this."""
        if not prompts:
            return batch_of([], pad=0, longest=None)
        check_trainer(trainer)
        figures: dict[str, float] = {}
        if (seconds := self._sync.update(trainer)) is not None:
            figures["sync/seconds"] = seconds
        training = bool(trainer.model.training)
        plan = Plan.of(self._finder.find(prompts, trainer.train_dataset if training else trainer.eval_dataset))
        directory = self._directory(trainer, training)
        tokenizer = self._options.get("tokenizer") or trainer.processing_class
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        longest = trainer.args.max_completion_length
        began = time.monotonic()
        run = self.link.run(
            rollout(
                self._build,
                plan.tasks,
                samples_per_task=plan.samples,
                client=self.link.client,
                limits=limits_within(self._limits, longest),
                **{
                    # A training that has come this far is not ended by one step.
                    **({} if self.last is None else {"stop_after_failures": None}),
                    **self._options,
                    "tokenizer": tokenizer,
                    "directory": directory,
                    "sampling_params": sampling_of(trainer.args, self._options.get("sampling_params") or {}),
                },
            )
        )
        figures["rollout/seconds"] = time.monotonic() - began
        groups = [*run.groups, *run.dropped]
        episodes = {(one.task.id, one.sample): one for group in groups for one in group.episodes}
        places = [Place.of(episodes[place], self._sync.version) for place in plan.places]
        self.last = TrlStep(trainer.state.global_step, self._sync.version, directory, places, figures)
        self._look_over(self.last)
        self._measure(self.last, trainer)
        pad = next((id for id in (tokenizer.pad_token_id, tokenizer.eos_token_id) if id is not None), 0)
        return {**batch_of(places, pad=pad, longest=longest), FIGURES: figures}

    def close(self) -> None:
        """End the loop's thread, close the client, remove saved weights. The next call would begin anew."""
        self._sync.close()
        self.link.close()

    def _directory(self, trainer: Any, training: bool) -> Path | None:
        """Name a directory that is not there yet: tokens of an earlier run came from other weights."""
        if self._options.get("directory") is None:
            return None
        accelerator = trainer.accelerator
        name = f"step-{trainer.state.global_step:06d}" + ("" if training else "-eval")
        if getattr(accelerator, "num_processes", 1) > 1:
            name += f"-rank{accelerator.process_index}"
        base, number = Path(self._options["directory"]), 0
        while (path := base / (name if not number else f"{name}.{number}")).exists():
            number += 1
        return path

    def _look_over(self, step: TrlStep) -> None:
        """Say what is not trained, and raise where that is everything because of its weights."""
        masked = Counter(place.masked for place in step.places if place.masked is not None)
        step.figures["rollout/masked"] = masked.total() / len(step.places)
        turns = [place.episode.metrics.turns for place in step.places]
        step.figures["rollout/turns"] = sum(turns) / len(turns)
        if not masked:
            return
        stale = [place.row for place in step.places if place.masked is Masked.STALE and place.row is not None]
        found = sorted({str(name) for row in stale for name in versions_of(row)})
        broken = next((place.episode.failure for place in step.places if place.episode.failure is not None), None)
        logger.warning(
            "step=<%d>, masked=<%s>, of=<%d>, versions=<%s>, failure=<%s> | episodes are not trained",
            step.step,
            {kind.value: count for kind, count in masked.items() if kind is not None},
            len(step.places),
            found,
            broken and f"{broken.kind}: {broken.message:.200}",
        )
        if masked[Masked.STALE] == len(step.places):
            raise EngineError(
                f"the engine has the weights {step.version!r}, but every token of this step was sampled by {found}: "
                "somebody else updates this engine, or it was started anew with other weights"
            )

    def _measure(self, step: TrlStep, trainer: Any) -> None:
        rows, number = step.rows, self._gap_rows
        if not number or not rows or sharded_by(trainer) is not None:
            return
        chosen = rows[:: max(1, len(rows) // number)][:number]
        model = trainer.accelerator.unwrap_model(trainer.model)
        gap = logprob_gap(model, chosen, temperature=trainer.args.temperature)
        # The names under which TRL logs the same with vLLM.
        step.figures["sampling/sampling_logp_difference/mean"] = gap.mean
        step.figures["sampling/sampling_logp_difference/max"] = gap.max


def trl_rollout(
    build: Callable[..., Any],
    *,
    reward: Callable[..., Any] | None = None,
    base_url: str | None = None,
    client: TokenEngine | None = None,
    limits: Limits | None = None,
    tasks: Callable[[Any], Task] | None = None,
    sync: WeightSync | SyncKind | str = SyncKind.DISK,
    directory: str | Path | None = None,
    concurrency: int = 256,
    sampling_params: Mapping[str, Any] | None = None,
    gap_rows: int = 8,
    **options: Any,
) -> TrlRollout:
    """Return a `rollout_func` for TRL's `GRPOTrainer`: its episodes are those of `rollout`, on an SGLang engine.

    Args:
        build: Makes the agent of an episode: `build(task, model)`.
        reward: Scores an episode; TRL gets it through `trl_reward`. None: by reward functions of TRL's alone, which
            find the episodes under `episode`.
        base_url: Address of the server or router, when no client is given.
        client: Where tokens come from.
        limits: How far an episode may go; besides, all its turns together stay within `max_completion_length`.
        tasks: Makes the task of a prompt; None: the row of the trainer's dataset with this prompt is the task, with its
            `answer` and, in `data`, every other column.
        sync: How the engine gets the trainer's weights whenever its step has changed: "disk"; a `DiskSync(folder)`; a
            function `sync(trainer, version, link)`, called on every process; or "none".
        directory: Where ledgers are written, one for each call, in directories of its own; None: nowhere.
        concurrency: Episodes at once.
        sampling_params: Further ones; temperature, top_p and their like are the trainer's.
        gap_rows: Rows of each step that are scored by the trainer's model and compared with the engine; 0: none.
        **options: Further arguments of `rollout`: `workers`, `progress`, `tokenizer`, `tool_parser`, ... With
            `preflight` (the default) it is also made sure that the server serves the model whose weights it will get.

    Returns:
        The function. It keeps a thread and connections until `close()`.

    Raises:
        ConfigurationError: Something given cannot work.
    """
    if (client is None) == (base_url is None):
        raise ConfigurationError("give either client=SGLangClient(...) or base_url='http://...', and not both")
    fixed = {"samples_per_task", "filters", "enough_groups", "enough_samples"} & set(options)
    if fixed:
        raise ConfigurationError(
            f"{sorted(fixed)[0]} cannot be given: TRL wants one completion for each of its prompts"
        )
    ours = client is None
    engine = SGLangClient(str(base_url), max_connections=concurrency) if client is None else client
    link = EngineLink(engine, ours=ours)
    look = check_served if options.get("preflight", True) else None
    given = {"reward": reward, "directory": directory, "concurrency": concurrency, "sampling_params": sampling_params}
    return TrlRollout(
        build, link, Syncer(sync, link, look), TaskFinder(tasks), limits or Limits(), gap_rows, {**options, **given}
    )
