"""`strands-sglang`: one command line, one command a file.

Invariant: what a command was asked for goes to standard output, everything else to standard error; nothing of a ledger
goes to either as it is.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from strands_sglang._version import __version__
from strands_sglang.cli import replay, score, sign, verify
from strands_sglang.errors import StrandsSGLangError
from strands_sglang.ledger.shown import shown
from strands_sglang.rollout.interrupt import this_command

COMMANDS = (verify, sign, replay, score)
"""Every command: a module with `add`, which declares it and sets `run`."""

NOT_READ = 141
"""Exit code where nobody reads the output any more, as a shell has it of others that this happens to."""
INTERRUPTED = 130
"""Exit code where Ctrl-C was pressed."""
USAGE = 2
"""Exit code where what was asked for makes no sense."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: What was typed behind the name; None: what the process was started with.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="strands-sglang", description="Strands agents on SGLang, token by token.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()  # here, where it can be told what it means that nobody reads it
    except BrokenPipeError:  # `| head` has read what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python says so at its end
        return NOT_READ
    except KeyboardInterrupt:
        left = getattr(options, "interrupted", "nothing was written")
        print(f"strands-sglang: interrupted: {left}; to begin again: {this_command()}", file=sys.stderr)
        return INTERRUPTED
    except StrandsSGLangError as error:  # may quote a ledger
        print(f"strands-sglang: {shown(str(error))}", file=sys.stderr)
        return USAGE
    except OSError as error:  # quotes what was typed; that of a tokenizer has several lines
        print("strands-sglang: " + "\n".join(map(shown, str(error).splitlines())), file=sys.stderr)
        return USAGE
    return code
