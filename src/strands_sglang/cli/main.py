"""Entry point of the `strands-sglang` command line; each command is a module of `commands/`.

To add a command, write a module with a `command` (see `_command.py`) and add a line to `COMMANDS`.

Invariants: a command's result goes to standard output, everything else to standard error. Text from a ledger is escaped
before it is printed. This module and the command modules import only the standard library, click and `errors` at the
top; a command imports the rest of the package when it runs, so that `--help` is fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from strands_sglang._terminal import this_command
from strands_sglang._version import __version__
from strands_sglang.cli._command import CONTEXT, LazyGroup, epilog, tell
from strands_sglang.cli._command import INTERRUPTED as LEFT_BEHIND
from strands_sglang.cli._wording import error_lines
from strands_sglang.errors import StrandsSGLangError

COMMANDS = {
    "doctor": "check a server, a tokenizer, an agent and this machine, and say what to do",
    "rollout": "run an agent on tasks and record the episodes",
    "serve": "open sessions for agents that others start, and record them as episodes",
    "eval": "run an agent on tasks, or read a recorded run, and report pass@k and mean rewards",
    "show": "show the episodes of a run, or one episode turn by turn, in the terminal",
    "view": "show a run in the browser, or export episodes as one HTML file",
    "verify": "prove from its files that every trained token of a run was sampled",
    "sign": "sign a proved run",
    "replay": "run recorded episodes again without an engine, and compare",
    "score": "score a recorded run again, without sampling",
    "teacher": "let another model score the tokens of a recorded run, for distillation",
    "drift": "measure how turns would differ if they were re-tokenised",
    "templates": "report for which steps a chat template can be continued exactly",
    "completion": "print the script for completion in bash, zsh or fish",
}
"""What each command does, by name, in the order of the help page."""

PROGRAM = "strands-sglang"
COMPLETE_VARIABLE = "_STRANDS_SGLANG_COMPLETE"  # environment variable that a shell sets when it asks for completions

USAGE = 2  # exit code for invalid arguments, or a run or episode that does not exist
INTERRUPTED = 130  # exit code after Ctrl-C, as in a shell
BROKEN_PIPE = 141  # exit code if the reader of standard output closed it, as in a shell

_EXIT_CODES = {
    0: "success",
    1: "the run is broken or differs; an episode, reward, request or check failed",
    2: "invalid arguments, no such run or episode, or the server cannot be used",
    3: "no result: the run is unfinished or files are missing, or there was nothing to do; doctor --strict: warnings",
    130: "interrupted by Ctrl-C",
    141: "the reader of standard output closed it",
}

_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120}

program = LazyGroup(
    PROGRAM,
    COMMANDS,
    epilog(
        _EXIT_CODES,
        [
            f"{PROGRAM} doctor --base-url http://localhost:30000 --tokenizer Qwen/Qwen3-8B",
            f"{PROGRAM} rollout --help",
            f"{PROGRAM} view runs/first",
        ],
    ),
    help="Run Strands agents on SGLang; inspect, verify and evaluate what they did.",
    context_settings=_SETTINGS,
    no_args_is_help=False,
)
click.version_option(__version__, message="%(version)s")(program)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command (None: of this process) and return its exit code; SystemExit after help or invalid arguments."""
    if arguments is None:
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # no line about missing PyTorch
    given = list(sys.argv[1:] if arguments is None else arguments)
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete

        raise SystemExit(shell_complete(program, {}, PROGRAM, COMPLETE_VARIABLE, instruction))
    meta: dict[str, Any] = {}
    try:
        code = _run(given, meta)
        sys.stdout.flush()  # raises BrokenPipeError here instead of at interpreter exit
    except BrokenPipeError:  # for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports the error at exit
        return BROKEN_PIPE
    except KeyboardInterrupt:
        if state := meta.get(LEFT_BEHIND, "nothing was written"):
            tell(f"interrupted: {state}; run again with: {this_command()}")
        return INTERRUPTED
    except StrandsSGLangError as error:  # may quote a ledger
        _tell_error(str(error), meta.get(CONTEXT))
        return USAGE
    except OSError as error:  # a tokenizer's may have several lines
        tell(*str(error).splitlines())
        return USAGE
    return code


def _run(arguments: list[str], meta: dict[str, Any]) -> int:
    """Parse the arguments and run the command; return its exit code. `meta` receives its `Context.meta`."""
    try:
        if not arguments:
            with click.Context(program, info_name=PROGRAM, **_SETTINGS) as context:
                print(program.get_help(context), file=sys.stderr)
            raise SystemExit(USAGE)
        with program.make_context(PROGRAM, arguments) as context:
            try:
                code = program.invoke(context)
            finally:
                meta.update(context.meta)
            return int(code or 0)
    except click.exceptions.Exit as exit:
        raise SystemExit(exit.exit_code) from None
    except click.ClickException as error:
        message = error.format_message().partition(" Choose from:")[0].rstrip(".")  # the metavar lists the choices
        _tell_error(message[:1].lower() + message[1:], getattr(error, "ctx", None))
        raise SystemExit(USAGE) from None


def _tell_error(message: str, context: click.Context | None) -> None:
    command = None if context is None else context.command
    tell(*error_lines(message, command, PROGRAM if context is None else context.command_path))
