"""`strands-sglang show`: the episodes of a run, or one episode turn by turn, in the terminal.

Invariant: nothing is written, and no server is needed. Without a tokenizer, token ids are shown in place of text.
"""

from __future__ import annotations

import operator
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strands_sglang.cli._command import RUN_DIRECTORY, Command, json_option, tokenizer_option
from strands_sglang.errors import ConfigurationError, LedgerError

if TYPE_CHECKING:
    from strands_sglang.ledger.record import EpisodeRecord
    from strands_sglang.ledger.summary import SummaryRow
    from strands_sglang.viewer.token_text import TokenTexts

SHOWN, NOTHING = 0, 3
"""Exit codes: something was shown; no episode matches."""

END_REASONS = (
    *("answered", "stopped", "turn_limit", "tool_limit", "token_limit", "turn_truncated", "context_length"),
    *("failed_call", "timeout", "not_needed", "paused", "engine_error", "agent_error", "unfinished"),
)
"""Values of `--ended`: the end reasons, and "unfinished". Listed here because their module imports much."""

_SORT = {
    **{"id": "id", "reward": "reward", "turns": "turns", "tokens": "tokens", "sampled": "sampled_tokens"},
    **{"tools": "tool_calls", "errors": "tool_errors", "seconds": "seconds", "time": "end_time", "ended": "end_reason"},
}
"""Columns of a row by the value of `--sort`."""
_ROWS = 50  # of a list, unless --limit is given
_CHARACTERS = 2000  # of a text, unless --full is given

_DESCRIPTION = """\
Show the episodes of a run, or one episode turn by turn: its sampled tokens coloured by probability, tool calls with
arguments, results, errors and seconds, its reward, why it ended, and its branches.

EPISODE is an episode id such as task-7/0, or the start of one.
"""


def run(directory: str, episode: str | None, **options: Any) -> int:
    """Show a run or an episode; return the exit code.

    Raises:
        LedgerError: There is no such run or episode.
        ConfigurationError: An argument is invalid, or the tokenizer cannot be loaded.
    """
    from strands_sglang.cli._recorded_run import open_run

    run_file = open_run(directory)
    if episode is None:
        return _show_list(Path(directory), **options)
    return _show_episode(_record(Path(directory), episode), run_file, **options)


def _record(directory: Path, start: str) -> EpisodeRecord:
    """Return the record of the only episode whose id starts with a text."""
    from strands_sglang.ledger.reader import Ledger

    ledger = Ledger(directory)
    found = [start] if start in ledger else [id for id in ledger.ids() if id.startswith(start)]
    if len(found) == 1:
        return ledger.episode(found[0])
    if not found:
        raise LedgerError(f"the ledger in {directory} has no episode {start!r}")
    some = ", ".join(map(repr, found[:8])) + (", ..." if len(found) > 8 else "")
    raise LedgerError(f"several episodes start with {start!r}: {some}; give more of the id")


def _show_list(
    directory: Path,
    *,
    ended: Sequence[str],
    min_reward: float | None,
    max_reward: float | None,
    task: Sequence[str],
    text: Sequence[str],
    sort: str,
    reverse: bool,
    limit: int | None,
    as_json: bool,
    **_: Any,
) -> int:
    from strands_sglang.cli._episode_steps import UNFINISHED
    from strands_sglang.cli._episode_text import list_lines, summary_line
    from strands_sglang.cli._output import Paint, json_text, wants_colours
    from strands_sglang.ledger.summary import run_rows

    rows = run_rows(directory)
    found = [
        row
        for row in rows
        if (not ended or (row["end_reason"] or UNFINISHED) in ended)
        and (not task or row["task_id"] in task)
        and (min_reward is None or (row["reward"] is not None and row["reward"] >= min_reward))
        and (max_reward is None or (row["reward"] is not None and row["reward"] <= max_reward))
    ]
    for words in text if found else ():
        matching = _containing(directory, words)
        found = [row for row in found if row["id"] in matching]
    found = _sorted(found, sort, reverse)
    if as_json:
        for row in found[: limit or None]:
            print(json_text(row))
        return SHOWN if found else NOTHING
    paint = Paint(wants_colours())
    most = _ROWS if limit is None else limit or None
    lines = [summary_line(str(directory), rows, paint)]
    if found:
        width = shutil.get_terminal_size((120, 24)).columns
        lines += ["", *list_lines(found[:most], paint, width)]
    if most is not None and len(found) > most:
        lines += ["", f"and {len(found) - most:,} more: --limit 0 shows all"]
    elif not found and rows:
        lines.append("no episode matches")
    print("\n".join(lines))
    return SHOWN if found else NOTHING


def _containing(directory: Path, words: str) -> set[str]:
    """Return the ids of the episodes that contain a text."""
    from strands_sglang.viewer.search import MAX_QUERY, search_run

    if not words.strip() or len(words) > MAX_QUERY:
        raise ConfigurationError(f"--text must have 1 to {MAX_QUERY} characters that are not all spaces, got {words!r}")
    return {id for id in search_run(directory, words) if id is not None}


def _sorted(rows: list[SummaryRow], by: str, reverse: bool) -> list[SummaryRow]:
    """Return rows in order; those without a value come last in either direction."""
    from strands_sglang._terminal import natural_key

    rows = sorted(rows, key=lambda row: natural_key(row["id"]))
    name = _SORT[by]
    if name == "id":
        return rows[::-1] if reverse else rows
    key: Callable[[SummaryRow], Any] = operator.itemgetter(name)
    known = sorted((row for row in rows if key(row) is not None), key=key, reverse=reverse)
    return known + [row for row in rows if key(row) is None]


def _show_episode(
    record: EpisodeRecord,
    run_file: dict[str, Any],
    *,
    tokenizer: str | None,
    ids: bool,
    tokens: bool,
    context: bool,
    full: bool,
    as_json: bool,
    **_: Any,
) -> int:
    from strands_sglang.cli._episode_steps import EpisodeView
    from strands_sglang.cli._episode_text import EpisodePrinter
    from strands_sglang.cli._output import Paint, json_text, wants_colours

    view = EpisodeView.of(record, None if ids else _token_texts(tokenizer, run_file))
    if as_json:
        print(json_text(view.to_dict(), indent=2))
        return SHOWN
    settings = run_file.get("settings")
    limits = settings.get("limits") if isinstance(settings, dict) else None
    printer = EpisodePrinter(
        Paint(wants_colours()),
        limits=limits if isinstance(limits, dict) else {},
        longest=None if full else _CHARACTERS,
        context=context,
        tokens=tokens,
    )
    print("\n".join(printer.lines(view)))
    return SHOWN


def _token_texts(tokenizer: str | None, run_file: dict[str, Any]) -> TokenTexts | None:
    """Return the tokenizer; None if there is none, or the recorded one cannot be loaded any more.

    Args:
        tokenizer: Name or path that the user gave; None: the one in run.json.
        run_file: Content of run.json.
    """
    from strands_sglang._terminal import escape_for_terminal
    from strands_sglang.cli._recorded_run import tokenizer_of

    try:
        name = tokenizer_of(run_file, tokenizer)
        from strands_sglang.viewer.token_text import TokenTexts

        return TokenTexts.load(name)
    except ConfigurationError as error:
        if tokenizer is not None:
            raise
        print(f"strands-sglang: {escape_for_terminal(str(error))}; token ids are shown", file=sys.stderr)
        return None


command = Command(
    "show",
    callback=run,
    help=_DESCRIPTION,
    params=[
        click.Argument(["directory"], metavar="RUN", type=RUN_DIRECTORY),
        click.Argument(["episode"], metavar="[EPISODE]", required=False),
        click.Option(
            ["--ended"],
            type=click.Choice(END_REASONS),
            metavar="REASON",
            multiple=True,
            help=f"only episodes with this end reason: {', '.join(END_REASONS)}; can be repeated",
        ),
        click.Option(["--min-reward"], type=float, metavar="X", help="only episodes with at least this reward"),
        click.Option(["--max-reward"], type=float, metavar="X", help="only episodes with at most this reward"),
        click.Option(["--task"], metavar="ID", multiple=True, help="only episodes of this task; can be repeated"),
        click.Option(
            ["--text"],
            metavar="WORDS",
            multiple=True,
            help="only episodes with this text in a message, tool call, result or error; can be repeated",
        ),
        click.Option(["--sort"], type=click.Choice(list(_SORT)), default="id", show_default=True, help="order"),
        click.Option(["--reverse"], is_flag=True, help="largest or latest first"),
        click.Option(
            ["--limit"],
            type=click.IntRange(min=0),
            metavar="N",
            help=f"number of episodes to list; 0: all (default: {_ROWS}, and all with --json)",
        ),
        tokenizer_option("the one in run.json; without any, ids are shown"),
        click.Option(["--ids"], is_flag=True, help="show token ids in place of text"),
        click.Option(["--tokens"], is_flag=True, help="list sampled tokens one by one, with their logprobs"),
        click.Option(["--context"], is_flag=True, help="also show the tokens added before each turn"),
        click.Option(["--full"], is_flag=True, help="do not cut long texts"),
        json_option("print JSON: one object per episode and line, or one object for EPISODE"),
    ],
    exit_codes={
        0: "something was shown",
        2: "invalid arguments, or no such run or episode",
        3: "no episode matches",
    },
    examples=[
        "show runs/first",
        "show runs/first --ended timeout --ended agent_error",
        "show runs/first --max-reward 0 --text 'division by zero' --sort turns --reverse",
        "show runs/first task-7/0",
        "show runs/first task-7/0 --tokens --tokenizer Qwen/Qwen3-8B",
        "show runs/first --json | jq .reward",
    ],
)
"""The command."""
