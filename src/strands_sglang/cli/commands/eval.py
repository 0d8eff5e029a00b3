"""`strands-sglang eval`: runs an agent on tasks and reports pass@k and mean rewards with confidence intervals, or
compares two recorded runs.

Invariant: of one run, the exit code is 0 only if every episode has a reward, so that the figures are complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from strands_sglang._terminal import counted
from strands_sglang.cli import _command as cli
from strands_sglang.cli._run_options import RUN, setting_params, task_params
from strands_sglang.errors import ConfigurationError

if TYPE_CHECKING:
    from strands_sglang.runs import Episode, RunResult
    from strands_sglang.runs.offline.evaluation import Scored

COMPLETE, INCOMPLETE, NOTHING = 0, 1, 3  # exit codes: every episode has a reward; some have none; no episode has one

_TASKS = 50  # listed in the text


def run(
    recorded: str | None,
    other: str | None,
    last: int | None,
    k: tuple[int, ...] | None,
    threshold: float,
    confidence: float,
    unscored: str,
    as_json: bool,
    markdown: bool,
    **given: Any,
) -> int:
    """Run an agent on every task of a JSON Lines file, as rollout does, and report pass@k and the mean reward with
    confidence intervals, per task and overall. With --recorded, a recorded run is evaluated and nothing is run.

    pass@k is the unbiased estimator 1 - C(n-c, k) / C(n, k). Overall figures are means over tasks, with Student's t
    intervals over tasks: samples of one task are not independent of each other. Episodes without a reward, such as
    those that an engine failure ended, are left out and counted.

    With two directories, eval A B, two recorded runs or trainings are compared on the tasks that both have: the mean
    over tasks of the difference B - A with its interval, and each task with Welch's interval. Nothing is run.
    """
    from strands_sglang.cli._recorded_run import open_run
    from strands_sglang.cli.commands.rollout import perform
    from strands_sglang.runs.offline.evaluation import evaluate, recorded_scores

    if other is not None:
        if recorded is not None or given["agent"] is not None or markdown:
            option = "--recorded" if recorded is not None else "--markdown" if markdown else "--agent"
            raise ConfigurationError(f"{option} must not be given with two runs, which are only compared")
        return _compare(str(given["tasks"]), other, last, threshold, confidence, as_json)
    if last is not None:
        raise ConfigurationError("--last-steps needs two trainings: eval A B --last-steps N")
    if as_json and markdown:
        raise ConfigurationError("only one of --json and --markdown can be given")
    if recorded is not None:
        if given["tasks"] is not None:
            raise ConfigurationError("TASKS must not be given with --recorded, which runs nothing")
        open_run(recorded, needs_run_file=True)
        scores: Sequence[Scored]
        scores, unfinished = recorded_scores(recorded)
        if unfinished:
            cli.tell(f"{counted(unfinished, 'unfinished episode')} left out")
    else:
        for name, option in (("tasks", "TASKS"), ("agent", "--agent"), ("reward", "--reward")):
            if given[name] is None:
                raise ConfigurationError(f"{option} must be given, or --recorded with the directory of a run")
        result = perform(given)
        if result is None:
            return INCOMPLETE
        scores = _all_episodes(result)
    found = evaluate(scores, ks=k, threshold=threshold, confidence=confidence, unscored_as_zero=unscored == "zero")
    if as_json:
        print(cli.json_text(found.to_dict(), indent=2))
    else:
        print(found.markdown() if markdown else found.text(_TASKS))
    if found.unscored == found.episodes:
        return NOTHING
    return INCOMPLETE if found.unscored else COMPLETE


def _compare(first: str, second: str, last: int | None, threshold: float, confidence: float, as_json: bool) -> int:
    from strands_sglang.runs.offline.comparison import compare_figures, recorded_figures

    figures = [recorded_figures(one, last) for one in (first, second)]
    found = compare_figures(*figures, threshold=threshold, confidence=confidence)
    if as_json:
        print(cli.json_text({"a": first, "b": second, **found.to_dict()}, indent=2))
    else:
        print(found.text((first, second), _TASKS))
    return COMPLETE if found.tasks else NOTHING


def _all_episodes(result: RunResult) -> list[Episode]:
    """Return every episode of a run, also those of groups that were dropped or not completed."""
    groups = [episode for group in (*result.groups, *result.dropped) for episode in group.episodes]
    return list({episode.id: episode for episode in (*groups, *result.left_over)}.values())


command = cli.Command(
    "eval",
    callback=run,
    params=[
        *task_params(required=False),
        click.Argument(["other"], metavar="[RUN]", required=False, type=cli.RUN_DIRECTORY),
        *cli.section(RUN, cli.option("-d --directory", "directory of the run, to record and resume it", metavar="DIR")),
        *cli.section(
            "Evaluation",
            cli.option("--recorded", "evaluate the run in this directory", cli.RUN_DIRECTORY, metavar="RUN"),
            cli.option("-k --k", "values of k (default: 1, 2, 4, ... samples per task)", cli.int_list, metavar="N,.."),
            cli.option("--last-steps last", "of two trainings, compare the last N steps", cli.POSITIVE),
            cli.option("--threshold", "reward from which an episode passes", float, metavar="X", default=1.0),
            cli.option("--confidence", "confidence of the intervals", float, metavar="X", default=0.95),
            cli.option(
                "--unscored",
                "episodes without a reward: leave them out, or count them as 0",
                ["skip", "zero"],
                default="skip",
            ),
        ),
        *setting_params(),
        cli.flag("--markdown", "print Markdown tables"),
        cli.json_option(),
    ],
    exit_codes={
        0: "every episode has a reward, or two runs were compared",
        1: "some episodes have no reward",
        2: "invalid arguments, no such run, or the server cannot be used",
        3: "no episode has a reward, or two runs have no task in common",
    },
    examples=[
        "eval tasks.jsonl --agent my_agent:build --reward my_agent:reward --base-url http://localhost:30000 \\\n"
        "      --tokenizer Qwen/Qwen3-8B -n 8 -k 1,8 -d runs/eval",
        "eval --recorded runs/first --markdown",
        "eval --recorded runs/first --threshold 0.5 --json",
        "eval runs/before runs/after",
        "eval runs/seed-1 runs/seed-2 --last-steps 20",
    ],
)
