"""`strands-sglang completion`: prints the script that lets a shell complete commands and options."""

from __future__ import annotations

import click

from strands_sglang.cli import _command as cli


def run(shell: str) -> int:
    """Print the script that completes commands, options and their values in bash (4.4 or newer), zsh or fish. Load it
    where your shell loads its settings.
    """
    from click.shell_completion import get_completion_class

    from strands_sglang.cli.main import COMPLETE_VARIABLE, PROGRAM, program

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(program, {}, PROGRAM, COMPLETE_VARIABLE)
    # `source` of bash would start bash to check its version.
    print(made.source_template % made.source_vars())
    return 0


command = cli.Command(
    "completion",
    callback=run,
    params=[click.Argument(["shell"], type=click.Choice(["bash", "zsh", "fish"]))],
    exit_codes={0: "the script was printed", 2: "invalid arguments"},
    examples=[
        "completion bash > ~/.local/share/bash-completion/completions/strands-sglang",
        "completion zsh > ~/.zfunc/_strands-sglang    # with fpath+=~/.zfunc before compinit in ~/.zshrc",
        "completion fish > ~/.config/fish/completions/strands-sglang.fish",
    ],
)
