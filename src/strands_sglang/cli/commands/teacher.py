"""`strands-sglang teacher`: lets another model score the tokens of a recorded run.

Invariant: the exit code is 0 only if no episode failed and at least one was scored, now or before.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strands_sglang.cli import _command as cli

if TYPE_CHECKING:
    from strands_sglang.runs.offline.teacher import TeacherReport

SCORED, FAILED, NOTHING = 0, 1, 3  # exit codes: all episodes were scored; an episode failed; there was nothing to score

_PROGRESS_SECONDS = 5.0


def run(directory: str, url: str, top: int, episode: tuple[str, ...], again: bool, at_once: int, as_json: bool) -> int:
    """Let a teacher score every sampled token of a recorded run: its logprob, and optionally the teacher's likeliest
    ids. The teacher is another SGLang server with the same vocabulary. The scores are appended to the ledger and are
    part of every export; a command that was interrupted continues where it stopped.
    """
    from strands_sglang._async import run_async
    from strands_sglang.cli._recorded_run import open_run
    from strands_sglang.proof.files import SIGNATURE
    from strands_sglang.runs.offline.teacher import teacher_logprobs

    folder = Path(directory)
    open_run(folder, needs_run_file=True)
    report = run_async(
        teacher_logprobs(
            folder,
            url,
            top=top,
            episodes=list(episode) or None,
            again=again,
            at_once=at_once,
            progress=None if as_json else _Progress(),
        )
    )
    if as_json:
        print(cli.json_text(report.to_dict(), indent=2))
    else:
        print(report.text())
        if report.episodes and (folder / SIGNATURE).exists():
            print("  signature.json no longer matches the run: sign it again with `strands-sglang sign`")
    if report.failures:
        return FAILED
    return SCORED if report.episodes or report.known else NOTHING


class _Progress:
    """Prints a line to standard error every few seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, report: TeacherReport) -> None:
        now = time.monotonic()
        if now - self._last < _PROGRESS_SECONDS:
            return
        self._last = now
        speed = report.sent / (report.seconds or 1.0)
        print(f"{report.episodes:,} episodes, {report.tokens:,} tokens, {speed:,.0f} tokens/s", file=sys.stderr)


command = cli.Command(
    "teacher",
    callback=run,
    interrupted="scores computed so far are in the ledger; run the command again for the rest",
    params=[
        cli.run_argument(),
        click.Argument(["url"], metavar="URL"),
        cli.option(
            "--top",
            "also keep the K likeliest ids per token",
            cli.NOT_NEGATIVE,
            default=0,
            metavar="K",
            show_default=False,
        ),
        cli.episode_option(),
        cli.flag("--again", "also episodes that the same teacher has scored"),
        cli.option(
            "--at-once", "number of concurrent requests (default: 16)", cli.POSITIVE, default=16, show_default=False
        ),
        cli.json_option("print the report as JSON"),
    ],
    exit_codes={
        0: "all episodes are scored",
        1: "an episode could not be scored",
        2: "invalid arguments, no such run or episode, or the teacher does not answer",
        3: "there was nothing to score",
    },
    examples=[
        "teacher runs/first http://localhost:30001",
        "teacher runs/first http://localhost:30001 --top 32",
    ],
)
