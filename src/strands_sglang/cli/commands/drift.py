"""`strands-sglang drift`: measures how turns would differ if they were re-tokenised.

Invariant: differences are a result, not a failure: the exit code is 0 if everything could be measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from strands_sglang._terminal import counted
from strands_sglang.cli import _command as cli
from strands_sglang.errors import ConfigurationError

MEASURED, INCOMPLETE, NOTHING = 0, 1, 3  # exit codes: all was measured; something is unreadable; nothing is there


def run(
    source: str,
    tokenizer: str | None,
    html: str | None,
    episode: tuple[str, ...],
    examples: int,
    processes: int,
    model_options: dict[str, Any] | None,
    as_json: bool,
) -> int:
    """Measure how many turns and tokens would differ if they were not recorded: if the text of each turn was
    re-tokenised, or the messages were rendered again by the chat template. Differences are counted by cause, with
    examples.

    SOURCE is the directory of a run, or a JSON Lines file with one conversation per line: {"messages": [...]} in the
    form of OpenAI or Strands, or an exported trajectory.
    """
    from strands_sglang.drift import measure

    name, options = _tokenizer_and_options(source, tokenizer, model_options)
    report = measure(
        source,
        name,
        episodes=episode or None,
        processes=processes,
        examples=max(examples, 3 if html else 0),
        **options,
    )
    if html is not None:
        from strands_sglang._files import replace_file
        from strands_sglang.drift import html_page

        with replace_file(Path(html)) as temporary:
            temporary.write_text(html_page(report), encoding="utf-8")
    if as_json:
        print(cli.json_text(report.to_dict(), indent=2))
    else:
        print(report.text(examples))
    if html is not None:
        cli.tell(f"{html} was written")
    if not any(drift.turns for drift in report.methods.values()):
        return NOTHING
    if report.problems:
        problems = counted(len(report.problems), "problem")
        cli.tell(f"{problems}: the figures do not cover everything")
        return INCOMPLETE
    return MEASURED


def _tokenizer_and_options(
    source: str, tokenizer: str | None, given: dict[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """Return the tokenizer, and the arguments of `measure` that a run's settings or the user name."""
    from strands_sglang.cli._recorded_run import open_run, run_settings, tokenizer_of
    from strands_sglang.provider.config import template_arguments

    run_file: dict[str, Any] = {}
    if Path(source).is_dir():
        run_file = open_run(source)
        name = tokenizer_of(run_file, tokenizer)
    elif tokenizer is None:
        raise ConfigurationError("--tokenizer must be given for a file: the name or path of the model's tokenizer")
    else:
        name = tokenizer
    settings = run_settings(run_file, None, given)
    settings.report_left_out()
    options = dict(settings.model_options)
    chat_template = options.get("chat_template")
    arguments = template_arguments(chat_template or "", options)
    chosen = {"tool_parser": options.get("tool_parser", "auto"), "chat_template": chat_template}
    return name, {**chosen, "chat_template_kwargs": arguments}


command = cli.Command(
    "drift",
    callback=run,
    params=[
        click.Argument(["source"], metavar="SOURCE", type=click.Path()),
        cli.tokenizer_option("the one in run.json; required for a file"),
        cli.option("--html", "also write a page with plots", click.Path(dir_okay=False), metavar="FILE"),
        cli.episode_option("only this episode, or this line of a file; can be repeated"),
        cli.option("--examples", "examples of each method and cause", cli.NOT_NEGATIVE, default=1),
        cli.option("--processes", "processes to use", cli.POSITIVE, default=1),
        cli.option(
            "--model-options",
            "tool_parser, chat_template, chat_template_kwargs or enable_thinking (default: as in run.json)",
            cli.json_object,
            metavar="JSON",
        ),
        cli.json_option(),
    ],
    exit_codes={
        0: "everything was measured",
        1: "some episodes or lines could not be read",
        2: "invalid arguments, or no such run, episode or file",
        3: "there are no turns to measure",
    },
    examples=[
        "drift runs/first",
        "drift runs/first --html drift.html --processes 2",
        "drift messages.jsonl --tokenizer Qwen/Qwen3-8B --json",
    ],
)
