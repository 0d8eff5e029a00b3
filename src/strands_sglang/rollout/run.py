"""`rollout`: an agent on many tasks, many times, and everything it sampled.

Invariant: a bad episode is data. `rollout` raises only for settings that cannot work, for a ledger that cannot be
written, where the first episodes all fail alike, and when it is cancelled; whatever is on record then is there for the
next call with the same directory.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strands_sglang.engine import SGLangClient, TokenEngine
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.writer import Durability
from strands_sglang.provider.config import ModelOptions
from strands_sglang.rollout.arguments import check_names, check_numbers, checked_tasks
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.callables import BuildAgent, ScoreEpisode
from strands_sglang.rollout.course import Course
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.group import Filters, GroupFilter, Wanted
from strands_sglang.rollout.interrupt import Interrupt, interrupted_line, this_command
from strands_sglang.rollout.job import Setup
from strands_sglang.rollout.lock import directory_lock
from strands_sglang.rollout.open_files import allow_open_files
from strands_sglang.rollout.preflight import Asked
from strands_sglang.rollout.preflight import preflight as check_server
from strands_sglang.rollout.progress import Progress, ProgressKind, display_for
from strands_sglang.rollout.reporter import Reporter
from strands_sglang.rollout.result import RolloutResult
from strands_sglang.rollout.resume import read_before
from strands_sglang.rollout.tally import Tally
from strands_sglang.rollout.task import Task
from strands_sglang.rollout.threads import tool_threads
from strands_sglang.rollout.tool_result import ToolArguments
from strands_sglang.rollout.totals import RunMetrics, Totals

if TYPE_CHECKING:
    from typing_extensions import Unpack


async def rollout(
    build: BuildAgent,
    tasks: Iterable[Task | str | Mapping[str, Any]],
    *,
    tokenizer: Any,
    client: TokenEngine | None = None,
    base_url: str | None = None,
    reward: ScoreEpisode | None = None,
    samples_per_task: int = 1,
    concurrency: int = 256,
    limits: Limits | None = None,
    directory: str | Path | None = None,
    ledger: bool = True,
    durability: Durability = Durability.PROCESS,
    workers: int = 0,
    filters: Sequence[GroupFilter] | GroupFilter = (),
    enough_groups: int | None = None,
    enough_samples: int | None = None,
    warm_seconds: float | None = 1.0,
    rerun_tools: Collection[str] = (),
    tool_arguments: ToolArguments | str = ToolArguments.RECORD,
    reward_seconds: float | None = None,
    stop_after_failures: int | None = 8,
    progress: bool | str | Progress = False,
    on_episode: Callable[[Episode], Any] | None = None,
    on_metrics: Callable[[RunMetrics], Any] | None = None,
    metrics_seconds: float = 10.0,
    preflight: bool = True,
    **model_options: Unpack[ModelOptions],
) -> RolloutResult:
    """Run an agent on every task, `samples_per_task` times, and return the episodes.

    Called again with the directory of a run that was interrupted, it goes on: finished episodes are kept, the others
    are brought back to their last event and go on from there.

    Args:
        build: Makes the agent of an episode: `build(task, model)`, plain or async. It returns a Strands agent, or a
            function without arguments that does the work of an episode with agents of its own.
        tasks: What to ask: `Task`, a question, or a dict with a "prompt". Read as places come free.
        tokenizer: The model's tokenizer, or the name or path it is loaded from.
        client: Where tokens come from.
        base_url: Address of the server or router, when no client is given.
        reward: Scores an episode: `reward(episode)`, plain or async; see `Reward.of` for what it may return.
        samples_per_task: Episodes of each task.
        concurrency: Episodes at once.
        limits: How far an episode may go.
        directory: Where the ledger of the run is written, and read when it is resumed; None: nothing is kept on disk.
        ledger: Whether a ledger is written; False: as without a directory.
        durability: What a written event survives: the end of the process, or that of the machine.
        workers: Processes to spread the episodes over, with Ray; 0: they run in this one.
        filters: Each says whether a complete group is kept.
        enough_groups: Kept groups after which the run ends and the rest is cut short; None: all tasks are run.
        enough_samples: Episodes of a task after which its group is complete and the rest is cut short; None: all.
        warm_seconds: How long the samples of a task wait at most until the first of them has brought their common
            prompt into the engine's cache; None: they begin at once.
        rerun_tools: Names of tools that are run again when an episode is resumed, because they keep a state.
        tool_arguments: What the ledger has of the arguments of tool calls: "record", or "digest" for tools that hooks
            hand secrets to (what the model itself wrote is among its tokens in any case).
        reward_seconds: Seconds that scoring an episode may take; None: no bound.
        stop_after_failures: Episodes after which a run is stopped in which all have failed alike, from the first, by
            the agent's code or because the engine refuses what is asked; None: never.
        progress: True: a live view on a terminal, else a line now and then; or "live", "lines"; or a `Progress`.
        on_episode: Called with each episode as it ends, plain or async; also with those that an earlier process ran
            (`episode.restored`).
        on_metrics: Called with the numbers of the run every `metrics_seconds`, and at the end.
        metrics_seconds: How often.
        preflight: Whether an SGLang server is looked over before anything begins, for 5 seconds at most: that it
            answers, and that tokenizer, chat template, context length and sampling parameters fit it.
        **model_options: Further arguments of `SGLangModel`: `sampling_params`, `tool_parser`, `enable_thinking`, ...

    Returns:
        The episodes.

    Raises:
        ConfigurationError: Something given cannot work; the message says what would.
        LedgerError: The ledger cannot be written.
        EngineError: The server cannot be reached, and never could by this process; or it does not do what it should.
        RunStoppedError: The first episodes all failed alike.
    """
    if (client is None) == (base_url is None):
        raise ConfigurationError("give either client=SGLangClient(...) or base_url='http://...', and not both")
    if limits is not None and not isinstance(limits, Limits):
        raise ConfigurationError(f"limits is a Limits(...), not {limits!r:.200}")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ConfigurationError(f"workers is how many processes, 0 for none but this one, not {workers!r}")
    check_names(model_options, set(inspect.signature(rollout).parameters))
    check_numbers(
        whole={
            "samples_per_task": samples_per_task,
            "concurrency": concurrency,
            "enough_groups": enough_groups,
            "enough_samples": enough_samples,
            "stop_after_failures": stop_after_failures,
        },
        seconds={"warm_seconds": warm_seconds, "reward_seconds": reward_seconds, "metrics_seconds": metrics_seconds},
    )
    if enough_samples is not None and enough_samples > samples_per_task:
        raise ConfigurationError(f"enough_samples is {enough_samples}, but a task has {samples_per_task} samples")
    asked = checked_tasks(tasks)
    ours = client is None
    engine = SGLangClient(str(base_url), max_connections=concurrency) if client is None else client
    path = None if directory is None or not ledger else Path(directory)
    setup = Setup(
        build=build,
        reward=reward,
        tokenizer=tokenizer,
        client=engine,
        limits=limits or Limits(),
        model_options=dict(model_options),
        directory=path,
        run=uuid.uuid4().hex,
        durability=durability,
        rerun_tools=frozenset([rerun_tools] if isinstance(rerun_tools, str) else rerun_tools),
        reward_seconds=reward_seconds,
        tool_arguments=_tool_arguments(tool_arguments),
    )
    shown = display_for(
        (ProgressKind.AUTO if progress else ProgressKind.NONE) if isinstance(progress, bool) else progress,
        title="rollout" if directory is None else f"rollout {Path(directory).name}",
    )
    chosen = Filters([filters] if callable(filters) else filters)
    allow_open_files(concurrency)
    known = len(asked) if isinstance(asked, list) else None
    totals = Totals(None if known is None else known * samples_per_task)
    if isinstance(engine, SGLangClient):
        totals.unreachable = engine.unreachable_seconds
    with ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        stack.enter_context(tool_threads(max(64, min(4 * concurrency, 1024))))
        before = None
        if path is not None:
            stack.enter_context(directory_lock(path))
            try:
                before = await asyncio.get_running_loop().run_in_executor(None, read_before, path)
            except asyncio.CancelledError:
                interrupt.tell(f"interrupted while {path} was read, which is as it was; to go on: {this_command()}")
                raise
        course = Course(
            setup, before, Tally(Wanted(enough_groups, enough_samples), chosen), on_episode, stop_after_failures
        )
        try:
            if preflight and isinstance(engine, SGLangClient) and course.samples(asked, samples_per_task):
                wishes = await asyncio.get_running_loop().run_in_executor(None, Asked.of, setup)
                await check_server(engine, wishes)
                if workers == 0:  # loaded once
                    course.setup = replace(course.setup, tokenizer=wishes.tokenizer)
            async with Reporter(totals, shown, on_metrics, metrics_seconds) as course.reporter:
                await course.run(asked, samples_per_task, concurrency, workers, warm_seconds)
        except asyncio.CancelledError:
            interrupt.tell(interrupted_line(totals.snapshot(), path))
            raise
        finally:
            if ours and isinstance(engine, SGLangClient):
                await engine.close()
    return RolloutResult(
        course.tally.groups(kept=True),
        totals.snapshot(),
        course.tally.groups(kept=False),
        course.tally.left_over,
        path,
        course.setup.run,
    )


def _tool_arguments(given: ToolArguments | str) -> ToolArguments:
    try:
        return ToolArguments(given)
    except ValueError:
        names = ", ".join(repr(one.value) for one in ToolArguments)
        raise ConfigurationError(f"tool_arguments is one of {names}, not {given!r:.100}") from None
