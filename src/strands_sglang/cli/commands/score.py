"""`strands-sglang score`: scores a recorded run again.

Invariant: the exit code is 0 only if at least one episode was scored and no reward failed.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from strands_sglang.cli import _command as cli

if TYPE_CHECKING:
    from strands_sglang.runs.offline.score_run import ScoreRunResult

SCORED, FAILED, NOTHING = 0, 1, 3  # exit codes: all episodes were scored; a reward failed; there was nothing to score

_MAX_ERRORS = 10  # kinds of error to list


def run(
    directory: str,
    reward: str,
    unscored: bool,
    episode: tuple[str, ...],
    reward_timeout: float | None,
    models: str | None,
    as_json: bool,
) -> int:
    """Score the episodes of a recorded run again with a reward function, without an engine. The new scores are appended
    to the ledger and replace the earlier ones, which stay recorded.
    """
    from strands_sglang._async import run_async
    from strands_sglang.cli._recorded_run import open_run
    from strands_sglang.cli._run_options import other_models
    from strands_sglang.proof.files import SIGNATURE
    from strands_sglang.runs.offline.score_run import score_run

    folder = Path(directory)
    open_run(folder, needs_run_file=True)
    scored = run_async(
        score_run(
            cli.import_function(reward, "--reward", "my_rewards:reward"),
            folder,
            episodes=list(episode) or None,
            unscored_only=unscored,
            reward_timeout=reward_timeout,
            models=None if models is None else other_models(models),
        )
    )
    for line in map(_json, scored) if as_json else _lines(scored, signed=(folder / SIGNATURE).exists()):
        print(line)
    if not scored:
        return NOTHING
    return SCORED if all(one.now.error is None for one in scored) else FAILED


def _lines(scored: list[ScoreRunResult], *, signed: bool) -> list[str]:
    """Return the summary as lines of text; `signed`: the run has a signature, which the new scores invalidate."""
    from strands_sglang._terminal import counted, escape_for_terminal

    if not scored:
        return ["nothing to score: no episode ended by itself, or all have a score"]
    values = [one.now.value for one in scored if one.now.value is not None]
    failed = [one for one in scored if one.now.error is not None]
    changed = sum(one.before.value != one.now.value for one in scored)
    mean = f", mean {math.fsum(values) / len(values):.4g}" if values else ""
    lines = [f"{counted(len(scored), 'episode')} scored: {len(values)} with a value{mean}, {len(failed)} failed"]
    lines.append(f"  {counted(changed, 'value')} changed; earlier scores stay recorded, the newest counts")
    causes = Counter(str(one.now.error) for one in failed)
    lines += [f"  {counted(count, 'time')}: {cause}" for cause, count in causes.most_common(_MAX_ERRORS)]
    if signed:
        lines.append("  signature.json no longer matches the run: sign it again with `strands-sglang sign`")
    return [escape_for_terminal(line) for line in lines]


def _json(one: ScoreRunResult) -> str:
    return cli.json_text(
        {"episode": one.id, "reward": one.now.value, "error": one.now.error, "before": one.before.value}
    )


command = cli.Command(
    "score",
    callback=run,
    interrupted="scores computed so far are in the ledger and count",
    params=[
        cli.run_argument(),
        cli.function_option("--reward", "reward function, as for rollout()", required=True),
        cli.function_option("--models", "function that returns the models that the reward asks, by name"),
        cli.flag("--unscored", "only episodes without a score or whose reward failed"),
        cli.episode_option(),
        cli.option("--reward-timeout", "time limit for each reward, in seconds", float),
        cli.json_option("print one JSON object per episode and line"),
    ],
    exit_codes={
        0: "all episodes were scored",
        1: "a reward failed",
        2: "invalid arguments, or no such run or episode",
        3: "there was nothing to score",
    },
    examples=[
        "score runs/first --reward my_rewards:reward",
        "score runs/first --reward my_rewards:reward --unscored --json",
    ],
)
