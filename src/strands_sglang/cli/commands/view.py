"""`strands-sglang view`: shows a recorded run in the browser, or writes chosen episodes as one HTML file.

Invariant: the page is served on 127.0.0.1 only, to those who know its token, and the run is never changed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from strands_sglang._terminal import counted, escape_for_terminal
from strands_sglang.cli import _command as cli
from strands_sglang.errors import ConfigurationError

VIEWER_TOKEN = "STRANDS_SGLANG_VIEWER_TOKEN"  # environment variable: an option would be visible to other users


def run(
    directory: str,
    tokenizer: str | None,
    port: int,
    no_browser: bool,
    export: str | None,
    episode: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show a recorded run in the browser: a table of its episodes, and each episode token by token beside its messages.
    Of a folder with runs, such as the steps of a training, the page shows curves, the list of runs, and any two of them
    compared. The page is served on 127.0.0.1 until you press Ctrl-C; a run that is being written is followed. Its
    address contains a random token, without which the run cannot be read; the environment variable
    STRANDS_SGLANG_VIEWER_TOKEN sets it.

    With --export, chosen episodes are written as one HTML file instead, which works without a server. It contains
    everything that the tools of these episodes returned: treat it like the run itself.
    """
    from strands_sglang.viewer import export_html, view

    if export is not None:
        written = export_html(directory, export, tokenizer=tokenizer, episodes=list(episode) or None)
        size = Path(export).stat().st_size
        if as_json:
            print(cli.json_text({"file": export, "episodes": written, "bytes": size}))
        else:
            print(f"{escape_for_terminal(export)}: {counted(written, 'episode')}, {size:,} bytes")
        return 0
    if episode:
        raise ConfigurationError("--episode chooses what is exported: give --export FILE.html, too")

    def announce(address: str) -> None:
        if as_json:
            print(cli.json_text({"address": address}), flush=True)
        else:
            print(f"{escape_for_terminal(directory)} is shown at {address}", flush=True)
            print("press Ctrl-C to end the viewer", file=sys.stderr, flush=True)

    token = os.environ.get(VIEWER_TOKEN) or None
    view(directory, tokenizer=tokenizer, port=port, browser=not no_browser, token=token, ready=announce)
    return 0


command = cli.Command(
    "view",
    callback=run,
    params=[
        cli.run_argument(),
        cli.tokenizer_option("the one in run.json; without any, ids are shown"),
        cli.option(
            "--port",
            "port on 127.0.0.1 (default: any free one)",
            click.IntRange(0, 65535),
            default=0,
            show_default=False,
        ),
        cli.flag("--no-browser", "print the address and open no browser"),
        cli.option("--export", "write one HTML file", click.Path(dir_okay=False), metavar="FILE.html"),
        cli.episode_option("episode to export (default: all of a small run); can be repeated"),
        cli.json_option("print the address, or what was exported, as one JSON object"),
    ],
    exit_codes={
        0: "the viewer was ended with Ctrl-C, or the file was written",
        2: "invalid arguments, no such run or episode, or too much to export",
    },
    examples=[
        "view runs/first",
        "view runs",
        "view runs/first --export bad.html --episode task-7/0 --episode task-7/3",
        "view runs/first --port 8000 --no-browser    # then, elsewhere: ssh -L 8000:127.0.0.1:8000 HOST",
    ],
)
