"""`strands-sglang show`: the runs of a folder, the episodes of a run, or one episode turn by turn, in the terminal.

Invariant: nothing is written, and no server is needed. Without a tokenizer, token ids are shown in place of text.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strands_sglang._terminal import natural_key
from strands_sglang.cli import _command as cli
from strands_sglang.cli import _episode_text
from strands_sglang.errors import ConfigurationError, LedgerError

if TYPE_CHECKING:
    from strands_sglang.ledger.folder import RunPlace
    from strands_sglang.ledger.record import EpisodeRecord
    from strands_sglang.ledger.summary import SummaryRow
    from strands_sglang.viewer.token_text import TokenTexts

SHOWN, NOTHING = 0, 3  # exit codes: something was shown; no episode matches

_SORT = {
    **{"id": "id", "reward": "reward", "turns": "turns", "tokens": "tokens", "sampled": "sampled_tokens"},
    **{"tools": "tool_calls", "errors": "tool_errors", "seconds": "seconds", "time": "end_time", "ended": "end_reason"},
}
_ROWS = 50  # of a list, unless --limit is given
_CHARACTERS = 2000  # of a text, unless --full is given


def run(directory: str, episode: str | None, **options: Any) -> int:
    """Show the episodes of a run, or one episode turn by turn: its sampled tokens coloured by probability, tool calls
    with arguments, results, errors and seconds, its reward, why it ended, and its branches. Of a folder with runs, such
    as the steps of a training, show a line for each run.

    EPISODE is an episode id such as task-7/0, or the start of one.
    """
    from strands_sglang.cli._recorded_run import open_run
    from strands_sglang.ledger.folder import find_runs, is_run
    from strands_sglang.ledger.summary import run_rows

    if not is_run(Path(directory)) and (places := find_runs(directory)):
        return _show_folder(directory, places, episode=episode, **options)
    run_file = open_run(directory)
    if options["verdict"]:
        raise ConfigurationError(f"--verdict is for a folder of runs; of one run: strands-sglang verify {directory}")
    if episode is None:
        return _show_list(Path(directory), **options)
    mixed = _mixed(Path(directory), run_rows(Path(directory)))
    return _show_episode(_record(Path(directory), episode), run_file, mixed, **options)


def _show_folder(
    directory: str, places: list[RunPlace], *, limit: int | None, as_json: bool, verdict: bool, **options: Any
) -> int:
    """Show a line for each run of a folder; options that choose or show episodes need a run."""
    from strands_sglang.cli._folder_text import folder_lines, read_runs

    given = [
        name for name, value in options.items() if value not in (None, (), False) and (name, value) != ("sort", "id")
    ]
    if given:
        word = "EPISODE" if given[0] == "episode" else f"--{given[0].replace('_', '-')}"
        raise ConfigurationError(
            f"{word} needs the directory of one run, and {directory} is a folder of runs, such as {places[-1].name}"
        )
    if as_json:
        for run in read_runs(places[-(limit or 0) :], proved=verdict):
            print(cli.json_text(run), flush=True)
    else:
        most, paint = _ROWS if limit is None else limit or None, cli.Paint(cli.wants_colours())
        print("\n".join(folder_lines(directory, places, most, paint, proved=verdict)))
    return SHOWN


def _mixed(directory: Path, rows: Sequence[SummaryRow]) -> list[str]:
    """Return the parts of the experiment in which the episodes of a run differ."""
    from strands_sglang.ledger.fingerprint import differing
    from strands_sglang.ledger.reader import Ledger

    one_of_each = {row["experiment"]: row["id"] for row in rows}
    if len(one_of_each) < 2 and not any("+" in experiment for experiment in one_of_each):
        return []
    ledger = Ledger(directory)
    records = (ledger.episode(id) for id in one_of_each.values())
    return list(differing([record.fingerprint, *record.earlier_fingerprints] for record in records))


def _record(directory: Path, start: str) -> EpisodeRecord:
    """Return the record of the only episode whose id starts with a text."""
    from strands_sglang.ledger.reader import Ledger

    ledger = Ledger(directory)
    found = [start] if start in ledger else [id for id in ledger.ids() if id.startswith(start)]
    if len(found) == 1:
        return ledger.episode(found[0])
    if not found:
        raise LedgerError(f"the ledger in {directory} has no episode {start!r}")
    some = ", ".join(map(repr, found[:8])) + ", ..." * (len(found) > 8)
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
    from strands_sglang.ledger.summary import run_rows

    rows = run_rows(directory)
    found = [
        row
        for row in rows
        if (not ended or (row["end_reason"] or _episode_text.UNFINISHED) in ended)
        and (not task or row["task_id"] in task)
        and (min_reward is None or (row["reward"] is not None and row["reward"] >= min_reward))
        and (max_reward is None or (row["reward"] is not None and row["reward"] <= max_reward))
    ]
    for words in text if found else ():
        matching = _containing(directory, words)
        found = [row for row in found if row["id"] in matching]
    found = _sorted(found, sort, reverse)
    if as_json:
        print(*(cli.json_text(row) + "\n" for row in found[: limit or None]), sep="", end="")
    else:
        most = _ROWS if limit is None else limit or None
        paint = cli.Paint(cli.wants_colours())
        print("\n".join(_episode_text.list_lines(str(directory), rows, found, most, _mixed(directory, rows), paint)))
    return SHOWN if found else NOTHING


def _containing(directory: Path, words: str) -> set[str]:
    from strands_sglang.viewer.search import MAX_QUERY, search_run

    if not words.strip() or len(words) > MAX_QUERY:
        raise ConfigurationError(f"--text must have 1 to {MAX_QUERY} characters that are not all spaces, got {words!r}")
    return {id for id in search_run(directory, words) if id is not None}


def _sorted(rows: list[SummaryRow], by: str, reverse: bool) -> list[SummaryRow]:
    """Return rows in order; those without a value come last in either direction."""
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
    mixed: list[str],
    *,
    tokenizer: str | None,
    ids: bool,
    tokens: bool,
    context: bool,
    full: bool,
    as_json: bool,
    **_: Any,
) -> int:
    shown = _episode_text.shown_episode(record, None if ids else _token_texts(tokenizer, run_file))
    if as_json:
        print(cli.json_text(shown, indent=2))
        return SHOWN
    limits = _episode_text.mapping(_episode_text.mapping(run_file.get("settings")).get("limits"))
    paint, longest = cli.Paint(cli.wants_colours()), None if full else _CHARACTERS
    printer = _episode_text.EpisodePrinter(
        paint, limits=limits, mixed=mixed, longest=longest, context=context, tokens=tokens
    )
    print("\n".join(printer.lines(shown)))
    return SHOWN


def _token_texts(tokenizer: str | None, run_file: dict[str, Any]) -> TokenTexts | None:
    """Return the given tokenizer or that of the run; None if there is none, or that of the run cannot be loaded."""
    from strands_sglang.cli._recorded_run import tokenizer_of
    from strands_sglang.viewer.token_text import TokenTexts

    try:
        return TokenTexts(tokenizer_of(run_file, tokenizer))
    except ConfigurationError as error:
        if tokenizer is not None:
            raise
        cli.tell(f"{error}; token ids are shown")
        return None


command = cli.Command(
    "show",
    callback=run,
    params=[
        cli.run_argument(),
        click.Argument(["episode"], metavar="[EPISODE]", required=False),
        cli.option(
            "--ended",
            f"only episodes with this end reason: {', '.join(_episode_text.WHY)}; can be repeated",
            list(_episode_text.WHY),
            metavar="REASON",
            multiple=True,
        ),
        cli.option("--min-reward", "only episodes with at least this reward", float, metavar="X"),
        cli.option("--max-reward", "only episodes with at most this reward", float, metavar="X"),
        cli.option("--task", "only episodes of this task; can be repeated", metavar="ID", multiple=True),
        cli.option(
            "--text",
            "only episodes with this text in a message, tool call, result or error; can be repeated",
            metavar="WORDS",
            multiple=True,
        ),
        cli.option("--sort", "order", list(_SORT), default="id"),
        cli.flag("--reverse", "largest or latest first"),
        cli.option(
            "--limit", f"number of episodes to list; 0: all (default: {_ROWS}, and all with --json)", cli.NOT_NEGATIVE
        ),
        cli.tokenizer_option("the one in run.json; without any, ids are shown"),
        cli.flag("--ids", "show token ids in place of text"),
        cli.flag("--tokens", "list sampled tokens one by one, with their logprobs"),
        cli.flag("--context", "also show the tokens added before each turn"),
        cli.flag("--full", "do not cut long texts"),
        cli.flag("--verdict", "of a folder, also prove each run that is shown, which reads every token"),
        cli.json_option("print JSON: one object per episode (or run) and line, or one object for EPISODE"),
    ],
    exit_codes={0: "something was shown", 2: "invalid arguments, or no such run or episode", 3: "no episode matches"},
    examples=[
        "show runs/first",
        "show runs",
        "show runs --verdict --json | jq '[.run, .reward, .parts, .verdict]'",
        "show runs/first --ended timeout --ended agent_error",
        "show runs/first --max-reward 0 --text 'division by zero' --sort turns --reverse",
        "show runs/first task-7/0",
        "show runs/first task-7/0 --tokens --tokenizer Qwen/Qwen3-8B",
        "show runs/first --json | jq .reward",
    ],
)
