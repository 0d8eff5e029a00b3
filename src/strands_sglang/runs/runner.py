"""Runs an agent on many tasks, several times each, and returns the episodes: `rollout`, and `rollout_sync` for scripts.

`RunOptions` has the options that most runs do not need; each is validated when the object is made.

Invariant: a failed episode is data. `rollout` raises only for invalid arguments (before anything runs, with a message
that says what to do), for a server that does not fit or cannot be reached, for a ledger that cannot be written, if the
first episodes all fail with the same error, for errors of the user's tasks and callbacks, and when it is cancelled. The
next call with the same directory resumes from everything recorded by then.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_type_hints

from strands_sglang._async import run_async
from strands_sglang._checks import check_int, check_number, chosen, closest_name
from strands_sglang._terminal import this_command
from strands_sglang.engine import SGLangClient, TokenEngine, is_server
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.writer import Durability
from strands_sglang.provider.config import ModelOptions
from strands_sglang.runs.controller import RunController
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.experiment import Part
from strands_sglang.runs.groups import GroupCollector, GroupFilter, GroupFilters, RunResult
from strands_sglang.runs.interrupt import InterruptHandler, interrupted_line
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.monitoring.metrics import RunCounters, RunMetrics
from strands_sglang.runs.monitoring.progress import Progress, Reporter, display_for
from strands_sglang.runs.monitoring.trackers import TrackedRun, Tracker, Tracking, tracker_for
from strands_sglang.runs.preflight import preflight_run
from strands_sglang.runs.recording.event_data import ToolArguments
from strands_sglang.runs.recording.other_models import checked_models
from strands_sglang.runs.resume import PreviousRun, directory_lock, read_previous_run
from strands_sglang.runs.staleness import MaxStaleness, StalenessGate
from strands_sglang.runs.stop_criteria import StopCriteria
from strands_sglang.runs.task import Task, check_unique
from strands_sglang.runs.workers.process_tuning import check_open_files, infrequent_gc, threads_for, tool_threads
from strands_sglang.runs.workers.spec import BuildAgent, RunSpec, ScoreEpisode

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Less common options of `rollout`. Each is also an option of the command line (`cli/_run_options.py`).

    Example:
        >>> options = RunOptions(reward_timeout=60, on_metrics=lambda metrics: tracker.log(metrics.to_dict()))
    """

    durability: Durability = Durability.PROCESS
    """Which failures a written event survives: a crash of the process, or of the machine."""
    rerun_tools: Collection[str] = ()
    """Names of tools that are run again when an episode is resumed, because they keep state in memory."""
    tool_arguments: ToolArguments | str = ToolArguments.RECORD
    """How the ledger records arguments of tool calls: "record", or "digest" if hooks pass secrets to tools; what the
    model sampled is recorded as tokens in either case."""
    reward_timeout: float | None = None
    """Seconds that scoring an episode may take; None: no limit."""
    prefix_warmup: float | None = 1.0
    """Seconds that the other samples of a task wait at most until the first turn of its first sample, so that
    their common prompt is in the engine's prefix cache; None: they start at once."""
    stop_if_first_fail: int | None = 8
    """The run stops if this many first episodes all fail with the same error class, because of the agent's code or
    because the engine rejects the requests; None: it never stops for this."""
    on_metrics: Callable[[RunMetrics], Any] | None = None
    """Called with a `RunMetrics` every `metrics_interval` seconds, and at the end; None: not called."""
    metrics_interval: float = 10.0
    preflight: bool = True
    """Whether to check the SGLang server before the run starts, for at most 5 seconds: that it answers, and that
    tokenizer, chat template, context length and sampling parameters fit it."""
    tune_runtime: bool = True
    """Whether the run changes settings of its processes while it runs: more threads for synchronous tools (the event
    loop's default executor), fewer garbage collections, and a limit of open files that allows for all connections.
    Executor and collector are restored at the end."""
    allow_changed: Collection[str] = ()
    """Parts of the experiment ("agent", "reward", "settings", "model", "packages") that may differ from those of the
    recorded run in the directory. The run is then mixed, and `verify`, `show`, the viewer and `Group.mixed` say so."""
    fast_agents: bool = True
    """Whether agents run inside `fast_agents`. Without, the SDK's own loop limits an invocation to about 300 turns."""

    def __post_init__(self) -> None:
        check_number("RunOptions.reward_timeout", self.reward_timeout)
        check_number("RunOptions.prefix_warmup", self.prefix_warmup)
        check_int("RunOptions.stop_if_first_fail", self.stop_if_first_fail)
        check_number("RunOptions.metrics_interval", self.metrics_interval, optional=False)
        for name in ("preflight", "tune_runtime", "fast_agents"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"RunOptions.{name} must be True or False, got {getattr(self, name)!r:.100}")
        parts = [self.allow_changed] if isinstance(self.allow_changed, str) else self.allow_changed
        allowed = frozenset(chosen("RunOptions.allow_changed", part, Part).value for part in parts)
        object.__setattr__(self, "allow_changed", allowed)
        tools = frozenset([self.rerun_tools] if isinstance(self.rerun_tools, str) else self.rerun_tools)
        object.__setattr__(self, "rerun_tools", tools)
        arguments = chosen("RunOptions.tool_arguments", self.tool_arguments, ToolArguments)
        object.__setattr__(self, "tool_arguments", arguments)


def checked_tasks(tasks: Any) -> list[Task] | Iterable[Any]:
    """Return a sequence as distinct tasks, or raise ConfigurationError; any other iterable is returned and not read."""
    if isinstance(tasks, (str, Mapping, Task)):
        raise ConfigurationError("tasks must be an iterable of tasks, got a single task: pass [task]")
    if not isinstance(tasks, Iterable):
        raise ConfigurationError(f"tasks must be an iterable of tasks, got {tasks!r:.200}")
    if not isinstance(tasks, Sequence):
        return tasks
    checked = [Task.of(task) for task in tasks]
    seen: dict[str, int] = {}
    for number, task in enumerate(checked):
        check_unique(task, seen)
        seen[task.id] = number
    return checked


def check_names(options: Collection[str], known: Collection[str]) -> None:
    """Raise ConfigurationError for a model option that looks like a misspelt argument (`known`) of `rollout`."""
    for name in set(options) - set(get_type_hints(ModelOptions)):
        if name in {field.name for field in fields(RunOptions)}:
            raise ConfigurationError(f"{name} is an option of the run: pass options=RunOptions({name}=...)")
        close = closest_name(name, known, cutoff=0.85)
        if close is not None:
            raise ConfigurationError(f"unknown argument {name!r}; did you mean {close!r}?")


def check_seed(seed: Any, model_options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a seed that is no integer, or if all turns are given one seed too."""
    if seed is None:
        return
    if type(seed) is not int:
        raise ConfigurationError(f"seed must be an int, got {seed!r:.100}")
    sampling = model_options.get("sampling_params") or model_options.get("params") or {}
    if "sampling_seed" in sampling:
        raise ConfigurationError(
            "seed and sampling_params['sampling_seed'] must not both be given: remove sampling_seed, which would be "
            "the same for every turn"
        )


def tracked_run(run_spec: RunSpec, samples_per_task: int, concurrency: int) -> TrackedRun:
    """Return run metadata for a tracker."""
    settings = {"samples_per_task": samples_per_task, "concurrency": concurrency, **run_spec.settings()}
    if (tokenizer := run_spec.tokenizer_name()) is not None:
        settings["tokenizer"] = tokenizer
    directory = run_spec.directory
    name = run_spec.run[:12] if directory is None else directory.resolve().name
    return TrackedRun(run_spec.run, name, directory, settings)


async def rollout(
    build: BuildAgent,
    tasks: Iterable[Task | str | Mapping[str, Any]],
    *,
    tokenizer: Any,
    client: TokenEngine | None = None,
    base_url: str | None = None,
    reward: ScoreEpisode | None = None,
    samples_per_task: int = 1,
    limits: Limits | None = None,
    concurrency: int = 256,
    workers: int = 0,
    directory: str | Path | None = None,
    filters: Sequence[GroupFilter] | GroupFilter = (),
    stop_after_groups: int | None = None,
    min_samples_per_task: int | None = None,
    progress: bool | str | Progress = False,
    on_episode: Callable[[Episode], Any] | None = None,
    tracker: str | Tracker | None = None,
    models: Mapping[str, Any] | None = None,
    seed: int | None = None,
    max_staleness: MaxStaleness | int | None = None,
    options: RunOptions | None = None,
    **model_options: Unpack[ModelOptions],
) -> RunResult:
    """Run an agent on every task, `samples_per_task` times, and return the episodes.

    Called again with the directory of an interrupted run, it resumes that run: finished episodes are kept, the others
    are replayed to their last event and continue from there.

    Args:
        build: Builds the agent of an episode: `build(task, model)`, plain or async. It returns a Strands agent, a graph
            or swarm, or a function without arguments that runs the episode with agents of its own; or one of these and
            the agent whose branch is the main one: `return run, solver`.
        tasks: The tasks: each a `Task`, a prompt, or a dict with "prompt". An iterator is read as slots become free.
        tokenizer: The model's tokenizer, or the name or path it is loaded from.
        client: The engine; give either `client` or `base_url`.
        base_url: Address of the SGLang server or router.
        reward: Scores an episode: `reward(episode)` or `reward(task, episode)`, plain or async; see `Reward.of` for
            what it may return. None: episodes are not scored.
        samples_per_task: Number of episodes of each task.
        limits: Limits of each episode; None: no limits.
        concurrency: Number of episodes that run at the same time.
        workers: Number of Ray processes that run the episodes; 0: they run in this process.
        directory: Directory that the ledger is written to, and that a run is resumed from; None: nothing is written.
        filters: Functions that return whether a complete group is kept.
        stop_after_groups: Number of kept groups after which the run ends and its other episodes are stopped as
            `not_needed`; None: all tasks are run.
        min_samples_per_task: Number of episodes that complete the group of a task; the task's other episodes are then
            stopped as `not_needed`; None: all `samples_per_task`.
        progress: True: a live view on a terminal or in a notebook, otherwise a line every 10 seconds; or "live",
            "lines"; or a `Progress`.
        on_episode: Called with each episode as it ends, plain or async; also with the episodes restored from a previous
            run (`episode.restored`).
        tracker: Experiment tracker that receives the run's metrics: "wandb", "mlflow", "tensorboard" (each an extra),
            or a `Tracker`; None: none.
        models: Other models than the policy, by name, such as a simulated user or a judge: Strands models, or functions
            that make one in each process. `build(task, model, models)` and `reward(episode, models)` get those of
            their episode. Their answers are recorded, and never trained. None: there are none.
        seed: A seed for every turn is derived from it (`turn_seed`), so that the run can be repeated on an engine with
            deterministic inference. None: the engine chooses at random.
        max_staleness: The number of weight updates after which a token is too old to be trained, or a `MaxStaleness`
            that also says what happens to its group then. It is decided when a group is complete, before `filters`.
            None: tokens of any age are trained.
        options: Less common options; None: the defaults of `RunOptions`.
        **model_options: Further arguments of `SGLangModel`: `sampling_params`, `tool_parser`, `enable_thinking`, ...

    Returns:
        The episodes and metrics of the run.

    Raises:
        ConfigurationError: An argument is invalid, or does not fit the server; the message says what to do.
        LedgerError: The ledger cannot be written.
        EngineError: The server cannot be reached and never answered this process, or it does not work as it should.
        RunStoppedError: The first episodes all failed with the same error class.

    Example:
        ```python
        run = await rollout(
            lambda task, model: Agent(model=model, tools=[calculator], callback_handler=None),
            [Task("Compute 615 * 17.", answer=10455)],
            base_url="http://localhost:30000",
            tokenizer="Qwen/Qwen3-8B",
            reward=lambda episode: float(str(episode.task.answer) in episode.text),
            samples_per_task=8,
            directory="runs/first",
        )
        ```
    """
    if (client is None) == (base_url is None):
        given = "neither" if client is None else "both"
        raise ConfigurationError(
            f"exactly one of client and base_url must be given, got {given}: pass either client=SGLangClient(...) or "
            "base_url='http://...'"
        )
    if limits is not None and not isinstance(limits, Limits):
        raise ConfigurationError(f"limits must be a Limits, got {limits!r:.200}")
    if options is not None and not isinstance(options, RunOptions):
        raise ConfigurationError(f"options must be a RunOptions, got {options!r:.200}")
    options = options or RunOptions()
    check_int("workers", workers, minimum=0, optional=False, hint="0: run in this process")
    check_names(model_options, set(inspect.signature(rollout).parameters))
    for name, count in (("samples_per_task", samples_per_task), ("concurrency", concurrency)):
        check_int(name, count, optional=False)
    check_int("stop_after_groups", stop_after_groups)
    check_int("min_samples_per_task", min_samples_per_task)
    if min_samples_per_task is not None and min_samples_per_task > samples_per_task:
        raise ConfigurationError(
            f"min_samples_per_task must be at most samples_per_task ({samples_per_task}), got {min_samples_per_task}"
        )
    check_seed(seed, model_options)
    others = checked_models(models, build, reward)
    checked = checked_tasks(tasks)
    own_client = None
    if client is None:
        client = own_client = SGLangClient(str(base_url), max_connections=concurrency)
    path = None if directory is None else Path(directory)
    run_spec = RunSpec(
        build=build,
        reward=reward,
        tokenizer=tokenizer,
        client=client,
        limits=limits or Limits(),
        model_options=dict(model_options),
        models=others,
        seed=seed,
        directory=path,
        run=uuid.uuid4().hex,
        durability=options.durability,
        rerun_tools=frozenset(options.rerun_tools),
        reward_timeout=options.reward_timeout,
        tool_arguments=ToolArguments(options.tool_arguments),
        tune_runtime=options.tune_runtime,
        fast_agents=options.fast_agents,
    )
    rule = MaxStaleness.of(max_staleness)
    gate = None if rule is None else StalenessGate(rule, client, path)
    display = display_for(progress, title="rollout" if path is None else f"rollout {path.name}")
    chosen_tracker = tracker_for(tracker)
    group_filters = GroupFilters([filters] if callable(filters) else filters)
    check_open_files(concurrency, raise_limit=options.tune_runtime)
    total = len(checked) * samples_per_task if isinstance(checked, list) else None
    totals = RunCounters(total)
    if is_server(client):
        totals.unreachable = client.unreachable_seconds
    with ExitStack() as stack:
        interrupt = stack.enter_context(InterruptHandler())
        if options.tune_runtime:
            stack.enter_context(tool_threads(threads_for(concurrency)))
            if workers == 0:  # otherwise the episodes run in other processes
                stack.enter_context(infrequent_gc())
        previous_run = PreviousRun({})
        if path is not None:
            stack.enter_context(directory_lock(path))
            try:
                previous_run = await asyncio.get_running_loop().run_in_executor(None, read_previous_run, path)
            except asyncio.CancelledError:
                interrupt.report(f"interrupted while reading {path}, nothing was changed; to resume: {this_command()}")
                raise
        controller = RunController(
            run_spec,
            previous_run,
            GroupCollector(StopCriteria(stop_after_groups, min_samples_per_task), group_filters, gate=gate),
            on_episode,
            options.stop_if_first_fail,
            options.allow_changed,
        )
        try:
            if options.preflight and controller.may_sample(checked, samples_per_task):
                await preflight_run(run_spec, samples=samples_per_task)
            about, interval = tracked_run(controller.run_spec, samples_per_task, concurrency), options.metrics_interval
            async with (
                Tracking(chosen_tracker, about) as tracking,
                Reporter(totals, display, options.on_metrics, interval, tracking) as controller.reporter,
            ):
                await controller.run(checked, samples_per_task, concurrency, workers, options.prefix_warmup)
        except asyncio.CancelledError:
            interrupt.report(interrupted_line(totals.snapshot(), path))
            raise
        finally:
            if own_client is not None:
                await own_client.close()
    return RunResult(
        controller.collector.groups(kept=True),
        totals.snapshot(),
        controller.collector.groups(kept=False),
        controller.collector.left_over,
        path,
        controller.run_spec.run,
    )


P = ParamSpec("P")
R = TypeVar("R")


def _synchronous(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    @wraps(function)
    def wait(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return run_async(function(*args, **kwargs))
        raise ConfigurationError(
            f"{function.__name__}_sync must not be called while an event loop is running (in a notebook, or in async "
            f"code): write `await {function.__name__}(...)`"
        )

    return wait


rollout_sync = _synchronous(rollout)
"""The blocking form of `rollout`, for scripts: takes the same arguments and returns when the run has ended.

Example:
    >>> run = rollout_sync(build, tasks, base_url="http://localhost:30000", tokenizer="Qwen/Qwen3-8B", reward=reward)
"""
