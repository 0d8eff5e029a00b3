"""A `rollout_func` for TRL's `GRPOTrainer`, made from the same functions that `rollout` takes: `trl_rollout`.

    trainer = GRPOTrainer(..., reward_funcs=[trl_reward], rollout_func=trl_rollout(build, reward=score, base_url=...))

TRL itself is not imported. Every process runs the episodes of its own prompts; the main process alone updates the
engine.

Invariant: a call returns one completion per prompt, in the order of the prompts, sampled by the trainer's current
weights. Only sampled tokens are trained.

A server on another port, or one that another user started on the same port, would accept the trainer's weights without
an error, and the model that it served would be lost. `check_served_model` prevents that.

Invariant: the engine samples as the trainer scores, at the same temperature and within the same number of tokens. A
server is refused only for a model name that it reports itself.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.engine import ServerEngine, SGLangClient, TokenEngine, is_server
from strands_sglang.engine.probe import ServerFacts
from strands_sglang.engine.request import has_kept_sets
from strands_sglang.errors import ConfigurationError, EngineError
from strands_sglang.runs import Limits, RunOptions, Task, rollout
from strands_sglang.runs.preflight import SECONDS
from strands_sglang.runs.recording.seeds import turn_seed
from strands_sglang.runs.runner import check_seed
from strands_sglang.runs.staleness import MaxStaleness
from strands_sglang.trainers.rows import Row
from strands_sglang.trainers.trl.batch import METRICS, Completion, MaskReason, batch_of, logprob_drift, versions_of
from strands_sglang.trainers.trl.engine_thread import EngineThread
from strands_sglang.trainers.trl.tasks import Plan, TaskFinder
from strands_sglang.trainers.trl.trainer_values import ValuesRecorder
from strands_sglang.trainers.trl.weight_sync import SyncKind, WeightSync, WeightUpdater, sharded_by
from strands_sglang.trainers.worker_pool import bound_limits, pad_id_of

_HUB_PATH = re.compile(r"models--(?:.+--)?(?P<name>[^/]+)/snapshots/[^/]+$")
_SAVED = re.compile(r"^weights-")  # saved by an earlier training
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "temperature": (),
    "top_p": (None, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
}


def check_trainer(trainer: Any) -> None:
    """Raise ConfigurationError if a trainer uses a feature that `trl_rollout` does not support."""
    if getattr(trainer, "tools", None):
        raise ConfigurationError(
            "the trainer must have no tools: it would call them again on the agent's output and drop the loss mask. "
            "Give the tools to the agent that `build` makes"
        )
    if getattr(trainer, "environment_factories", None):
        raise ConfigurationError(
            "the trainer must have no environment_factory: the agent that `build` makes has the tools. Remove it"
        )
    if getattr(trainer.args, "generation_kwargs", None):
        raise ConfigurationError(
            "generation_kwargs must be empty, they are for TRL's own generation: pass SGLang's names to "
            "trl_rollout(sampling_params=...)"
        )


def sampling_of(args: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's sampling parameters. Raises ConfigurationError if the two contradict each other."""
    sampling = dict(given)
    for name, neutral in _NEUTRAL.items():
        value = getattr(args, name, None)
        if name in sampling and sampling[name] != value and not (sampling[name] in neutral and value in neutral):
            raise ConfigurationError(
                f"sampling_params must not contradict the trainer, got {name}={sampling[name]!r} and {value!r}: set it "
                "only in GRPOConfig, so that tokens are sampled as they are scored"
            )
        if value is not None and value not in neutral:
            sampling[name] = value
    return sampling


def check_served_model(engine: EngineThread, trainer: Any) -> None:
    """Raise ConfigurationError if the server serves another model than the trainer's."""
    client = engine.client
    trained = model_name(trainer)
    if not is_server(client):
        return
    facts = engine.run(_facts(client))
    if facts is None or facts.model_path is None or not trained:
        return
    served, meant = _short(facts.model_path), _short(trained)
    if served.lower() == meant.lower() or _SAVED.match(served):
        return
    raise ConfigurationError(
        f"the server must serve the trainer's model {trained}, got {facts.model_path} at {client.base_url}, which the "
        f"training would overwrite: give the base_url of the server started with --model-path {trained}, or pass "
        "options=RunOptions(preflight=False) to use this server"
    )


async def _facts(client: ServerEngine) -> ServerFacts | None:
    probe = client.probe(SECONDS)
    if not await probe.reach(client.first_contact or 0.0):
        return None
    return await probe.facts()


def model_name(trainer: Any) -> str:
    """Return the name or path that the trainer's model was loaded from; "" if unknown."""
    config = getattr(trainer.accelerator.unwrap_model(trainer.model), "config", None)
    name = getattr(config, "_name_or_path", None) or getattr(config, "name_or_path", None)
    return name if isinstance(name, str) else ""


def _short(path: str) -> str:
    path = path.rstrip("/")
    found = _HUB_PATH.search(path)
    return found["name"] if found else PurePath(path).name


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrlStep:
    """The result of one call of a `TrlRollout`.

    Example:
        >>> rollouts.last.metrics["rollout/masked"]
        0.0
    """

    step: int
    version: str | None
    directory: Path | None
    completions: list[Completion]
    metrics: dict[str, float]

    @property
    def rows(self) -> list[Row]:
        """The rows that are trained."""
        return [one.row for one in self.completions if one.row is not None and one.masked is None]


class TrlRollout:
    """A rollout function with its own event loop, client and weight updates; made by `trl_rollout`.

    Example:
        >>> rollouts = trl_rollout(build, reward=score, base_url="http://127.0.0.1:30000")
    """

    def __init__(
        self,
        build: Callable[..., Any],
        engine: EngineThread,
        updater: WeightUpdater,
        finder: TaskFinder,
        limits: Limits,
        drift_rows: int,
        options: Mapping[str, Any],
        values: ValuesRecorder | None = None,
    ) -> None:
        self._values = values
        self.engine = engine
        self.last: TrlStep | None = None
        self._build, self._updater, self._finder = build, updater, finder
        self._limits, self._drift_rows, self._options = limits, drift_rows, dict(options)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Run the episodes of some prompts with the trainer's current weights; TRL calls this."""
        if not prompts:
            return batch_of([], pad=0, longest=None)
        check_trainer(trainer)
        sampling = sampling_of(trainer.args, self._options.get("sampling_params") or {})
        if self.last is None and has_kept_sets(sampling):
            logger.warning(
                "top_p=<%s>, top_k=<%s>, min_p=<%s> | sampling has kept sets, but TRL scores tokens over the whole "
                "vocabulary and has no place for the tokens that were kept, so importance ratios are biased",
                *(sampling.get(name) for name in ("top_p", "top_k", "min_p")),
            )
        metrics: dict[str, float] = {}
        if (seconds := self._updater.update(trainer)) is not None:
            metrics["sync/seconds"] = seconds
        training = bool(trainer.model.training)
        plan = Plan.of(self._finder.find(prompts, trainer.train_dataset if training else trainer.eval_dataset))
        directory = self._directory(trainer, training)
        tokenizer = load_tokenizer(self._options.get("tokenizer") or trainer.processing_class)
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        longest = trainer.args.max_completion_length
        rule = MaxStaleness.of(self._options.get("max_staleness")) if training else None
        seed = self._options.get("seed")
        began = time.monotonic()
        run = self.engine.run(
            rollout(
                self._build,
                plan.tasks,
                samples_per_task=plan.samples,
                client=self.engine.client,
                limits=bound_limits(self._limits, max_response_tokens=longest),
                **{
                    # After a first successful step, failures of a later step do not end the training.
                    **({} if self.last is None else {"options": RunOptions(stop_if_first_fail=None)}),
                    **self._options,
                    "tokenizer": tokenizer,
                    "directory": directory,
                    "sampling_params": sampling,
                    "max_staleness": None if rule is None else self._updater.fitted(rule),
                    "seed": None if seed is None else _seed_of_step(seed, trainer),
                    **({} if self._updater.adapter is None else {"adapter": self._updater.adapter}),
                },
            )
        )
        metrics["rollout/seconds"] = time.monotonic() - began
        # Of a task that was run again, the last group counts; its samples have higher numbers.
        groups = [*run.dropped, *run.groups]
        episodes = {(one.task.id, one.sample % plan.samples): one for group in groups for one in group.episodes}
        if rule is not None:
            metrics["rollout/stale_groups"] = run.metrics.groups_stale
        version = self._updater.version
        completions = [Completion.of(episodes[slot], version) for slot in plan.slots]
        self.last = TrlStep(trainer.state.global_step, version, directory, completions, metrics)
        self._report_masked(self.last)
        self._measure_drift(self.last, trainer)
        if self._values is not None and directory is not None and training:
            self._values.expect(trainer, directory, completions)
        return {**batch_of(completions, pad=pad_id_of(tokenizer), longest=longest), METRICS: metrics}

    def close(self) -> None:
        """Stop the thread, close the client and remove saved weights. A later call starts again."""
        if self._values is not None:
            self._values.detach()
        self._updater.close()
        self.engine.close()

    def _directory(self, trainer: Any, training: bool) -> Path | None:
        """The directory does not exist yet: the tokens of an earlier run have other weights."""
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

    def _report_masked(self, step: TrlStep) -> None:
        """Log which completions are masked; raise if all are because of their weights."""
        masked = Counter(one.masked for one in step.completions if one.masked is not None)
        step.metrics["rollout/masked"] = masked.total() / len(step.completions)
        turns = [one.episode.metrics.turns for one in step.completions]
        step.metrics["rollout/turns"] = sum(turns) / len(turns)
        if not masked:
            return
        stale = [one.row for one in step.completions if one.masked is MaskReason.STALE and one.row is not None]
        found = sorted({str(name) for row in stale for name in versions_of(row)})
        failure = next((one.episode.failure for one in step.completions if one.episode.failure is not None), None)
        logger.warning(
            "step=<%d>, masked=<%s>, of=<%d>, versions=<%s>, failure=<%s> | some episodes are not trained",
            step.step,
            {kind.value: count for kind, count in masked.items() if kind is not None},
            len(step.completions),
            found,
            failure and f"{failure.kind}: {failure.message:.200}",
        )
        if masked[MaskReason.STALE] == len(step.completions):
            raise EngineError(
                f"the tokens of this step must be sampled by the weights {step.version!r}, got {found}: another "
                "process updates this engine, or it was restarted with other weights"
            )

    def _measure_drift(self, step: TrlStep, trainer: Any) -> None:
        rows, number = step.rows, self._drift_rows
        if not number or not rows or sharded_by(trainer) is not None:
            return
        chosen = rows[:: max(1, len(rows) // number)][:number]
        model = trainer.accelerator.unwrap_model(trainer.model)
        drift = logprob_drift(model, chosen, temperature=trainer.args.temperature)
        # TRL logs the same quantity under these names when it uses vLLM.
        step.metrics["sampling/sampling_logp_difference/mean"] = drift.mean
        step.metrics["sampling/sampling_logp_difference/max"] = drift.max


def _seed_of_step(seed: int, trainer: Any) -> int:
    """Return another seed for every step and process: a prompt may come again, and a group may be of two processes."""
    process = getattr(trainer.accelerator, "process_index", 0)
    return turn_seed(seed, f"step {trainer.state.global_step}", f"process {process}", 0)


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
    drift_rows: int = 8,
    trainer_values: bool = False,
    max_staleness: MaxStaleness | int | None = None,
    **options: Any,
) -> TrlRollout:
    """Return a `rollout_func` for TRL's `GRPOTrainer` that runs episodes as `rollout` does, on an SGLang engine.

    Args:
        build: Makes the agent of an episode: `build(task, model)`.
        reward: Scores an episode; `trl_reward` passes the result to TRL. None leaves scoring to TRL's reward functions,
            which get the episodes as the argument `episode`.
        limits: Limits of an episode. In addition, all its turns together stay within `max_completion_length`.
        tasks: Makes the task of a prompt. None: the row of the trainer's dataset with this prompt is the task, with its
            `answer` and, in `data`, every other column.
        sync: How the engine gets the trainer's weights whenever its step has changed: "disk"; "adapter", which loads
            the LoRA adapter alone; a `DiskSync(folder)` or `AdapterSync(folder)`; a function
            `sync(trainer, version, engine)`, called on every process; or "none".
        directory: Where ledgers are written, each call in its own directory; None: no ledger is written.
        max_staleness: The number of weight updates after which a token is too old to be trained, or a `MaxStaleness`.
            None: an episode is trained only if the trainer's current weights sampled all of its tokens.
        drift_rows: Number of rows per step whose logprobs are recomputed by the trainer's model; 0 for none.
        trainer_values: Whether to write what the trainer makes of every sampled token (advantage, logprob, ratio,
            entropy, clip, loss mask) beside the ledger of each step, for the viewer. Needs `directory`.
        **options: Further arguments of `rollout`: `workers`, `progress`, `tokenizer`, `tool_parser`, `options`, ...
            `RunOptions.preflight` (on by default) also checks that the server serves the model whose weights it gets.
            A `seed` is that of the training: each step and process derives its own.

    Example:
        >>> rollouts = trl_rollout(build, reward=score, base_url="http://127.0.0.1:30000", limits=Limits(max_turns=10))
    """
    if (client is None) == (base_url is None):
        raise ConfigurationError(
            "exactly one of client and base_url must be given: client=SGLangClient(...) or base_url='http://...'"
        )
    fixed = {"samples_per_task", "filters", "stop_after_groups", "min_samples_per_task"} & set(options)
    if fixed:
        raise ConfigurationError(
            f"{sorted(fixed)[0]} cannot be given: TRL needs exactly one completion per prompt. Remove it"
        )
    if trainer_values and directory is None:
        raise ConfigurationError(
            "trainer_values=True needs a directory, where they are written: directory='runs/first'"
        )
    check_seed(options.get("seed"), {"sampling_params": sampling_params})
    used = SGLangClient(str(base_url), max_connections=concurrency) if client is None else client
    engine = EngineThread(used, owned=client is None)
    check = check_served_model if options.get("options", RunOptions()).preflight else None
    given = {
        **{"reward": reward, "directory": directory, "concurrency": concurrency, "sampling_params": sampling_params},
        "max_staleness": MaxStaleness.of(max_staleness),
    }
    return TrlRollout(
        build,
        engine,
        WeightUpdater(sync, engine, check),
        TaskFinder(tasks),
        limits or Limits(),
        drift_rows,
        {**options, **given},
        ValuesRecorder() if trainer_values else None,
    )
