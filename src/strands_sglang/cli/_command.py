"""The parts of every command: `Command` with its help page, `LazyGroup`, shared options, and text that is printed.

Invariants: importing this module costs click and `errors`, and nothing else. A command's module is imported only when
the command is run, completed, or asked for its own help; the list of commands comes from the table in `main.py`.
Printed text has no control characters except the line breaks and colours of this module. JSON is printable ASCII, with
null for NaN and infinities. Colours are used only if standard output is a terminal and NO_COLOR is not set.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import click

from strands_sglang._checks import did_you_mean
from strands_sglang._terminal import escape_for_terminal, is_terminal
from strands_sglang.errors import ConfigurationError

# Keys in `Context.meta`.
INTERRUPTED = "strands_sglang.interrupted"  # what an interrupted command leaves; "": reported
CONTEXT = "strands_sglang.context"  # the context of the command that runs


class Command(click.Command):
    """A command whose help is the docstring of its function, and ends with its exit codes and examples."""

    def __init__(
        self,
        name: str,
        *,
        callback: Callable[..., int],
        exit_codes: Mapping[int, str] | None = None,
        examples: Sequence[str] = (),
        interrupted: str = "nothing was written",
        **settings: Any,
    ) -> None:
        """Create the command; `callback` returns its exit code.

        `examples` are without the program's name, lines of other programs start with "$ ". `interrupted`: what the
        command leaves behind after Ctrl-C.
        """
        super().__init__(name, callback=callback, help=inspect.getdoc(callback), **settings)
        self.exit_codes, self.examples, self.interrupted = dict(exit_codes or {}), tuple(examples), interrupted

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of a section under its title."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title in sorted(sections, key=lambda title: title == "Options"):  # the others keep their order
            with formatter.section(title):
                formatter.write_dl(sections[title])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write exit codes and examples; they are not wrapped."""
        lines = [one[2:] if one.startswith("$ ") else f"strands-sglang {one}" for one in self.examples]
        formatter.write("\n" + epilog(self.exit_codes, lines))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it leaves behind after Ctrl-C is in `Context.meta`."""
        ctx.meta.setdefault(INTERRUPTED, self.interrupted)
        ctx.meta[CONTEXT] = ctx
        return super().invoke(ctx)


def epilog(exit_codes: Mapping[int, str], examples: Sequence[str]) -> str:
    """Return exit codes and examples as the end of a help page."""
    width = max((len(str(code)) for code in exit_codes), default=1)
    lines = ["Exit codes:", *(f"  {code:<{width}}  {meaning}" for code, meaning in exit_codes.items())]
    return "\n".join([*lines, "", "Examples:", *(f"  {example}" for example in examples), ""])


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def __init__(self, name: str, table: Mapping[str, str], end: str, **settings: Any) -> None:
        """Create the group of the commands in `table` (what each does, by name); `end` ends the help, not wrapped."""
        super().__init__(name, **settings)
        self._table, self._end = table, end

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of this name."""
        if cmd_name not in self._table:
            return None
        command: click.Command = importlib.import_module(f"{__package__}.commands.{cmd_name}").command
        command.short_help = self._table[cmd_name]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to run; name the closest one if there is none of this name."""
        if args and args[0] not in self._table and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{did_you_mean(args[0], self._table).rstrip('.')}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._table.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the end of the help page as it is."""
        formatter.write("\n" + self._end)


def json_object(value: Any) -> dict[str, Any]:
    """Option type: a JSON object."""
    example = """write '{"name": 1}', with single quotes around it and double quotes within"""
    try:
        decoded = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}; {example}") from error
    if not isinstance(decoded, dict):
        raise click.BadParameter(f"not a JSON object: {value}; {example}")
    return decoded


def int_list(value: Any) -> tuple[int, ...]:
    """Option type: positive integers, separated by commas; repetitions are dropped."""
    parts = value.split(",") if isinstance(value, str) else value
    try:
        numbers = tuple(dict.fromkeys(int(part) for part in parts))
    except ValueError:
        raise click.BadParameter(f"must be integers separated by commas, such as 1,8,64, got {value!r}") from None
    if min(numbers) < 1:
        raise click.BadParameter(f"must be positive integers, got {value!r}")
    return numbers


RUN_DIRECTORY = click.Path()  # the command says what is missing


POSITIVE, NOT_NEGATIVE = click.IntRange(min=1), click.IntRange(min=0)
POSITIVE.name = NOT_NEGATIVE.name = "integer"  # as in "'x' is not a valid integer"
NOT_BELOW_0 = click.FloatRange(min=0)
NOT_BELOW_0.name = "number"
"""Types of numbers."""


class Option(click.Option):
    """An option that may be listed under a title of its own."""

    section = "Options"


def section(title: str, *options: click.Parameter) -> list[click.Parameter]:
    """Return the options, which are listed under this title."""
    for one in options:
        if isinstance(one, Option):
            one.section = title
    return list(options)


def option(names: str, help: str, type: Any = None, **settings: Any) -> click.Option:
    """Return an option; `names` are separated by spaces, `type` may be a list of choices.

    A number has the metavar N, and a default is shown, unless the settings say otherwise.
    """
    if type in (int, float) or isinstance(type, click.IntRange):
        settings.setdefault("metavar", "N")
    if settings.get("default") is not None:
        settings.setdefault("show_default", True)
    kind = click.Choice(type) if isinstance(type, (list, tuple)) else type
    return Option(names.split(), help=help, type=kind, **settings)


def flag(names: str, help: str) -> click.Option:
    """Return an option without a value."""
    return Option(names.split(), help=help, is_flag=True)


def run_argument() -> click.Argument:
    """Return the argument RUN."""
    return click.Argument(["directory"], metavar="RUN", type=RUN_DIRECTORY)


def json_option(help: str = "print one JSON object") -> click.Option:
    """Return the option `--json`."""
    return flag("--json as_json", help)


def episode_option(help: str = "only this episode; can be repeated") -> click.Option:
    """Return the option `--episode`."""
    return option("--episode", help, metavar="ID", multiple=True)


def tokenizer_option(default: str = "the one in run.json") -> click.Option:
    """Return the option `--tokenizer` of a command that reads a recorded run."""
    return option("--tokenizer", f"name or path of the run's tokenizer (default: {default})", metavar="NAME")


def function_option(name: str, help: str, *, required: bool = False, multiple: bool = False) -> click.Option:
    """Return an option that takes a function as MODULE:FUNCTION."""
    return option(name, help, metavar="MODULE:FUNCTION", required=required, multiple=multiple)


def import_function(path: str, option: str, example: str) -> Callable[..., Any]:
    """Import the function `module:name`, also from the working directory; errors name the option and an example."""
    module, _, name = path.partition(":")
    if module.endswith(".py") or not name or not module or module.startswith("."):
        # folder/my_agent.py:build, my_agent.py, my_agent.build
        file = re.fullmatch(r"(?:\./)?([\w/]+)\.py(?::(\w+))?", path)
        parts = (file[1].replace("/", "."), file[2] or example.partition(":")[2]) if file else path.rpartition(".")[::2]
        close = f"; did you mean '{':'.join(parts)}'?" if all(parts) and "/" not in "".join(parts) else ""
        raise ConfigurationError(f"{option} must be MODULE:FUNCTION, such as {example}, got {path!r}{close}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{option}: cannot import {module!r}: {error}; run the command in the directory of the module, or set "
            "PYTHONPATH"
        ) from error
    function = getattr(found, name, None)
    if not callable(function):
        close = did_you_mean(name, [one for one in vars(found) if callable(getattr(found, one))])
        raise ConfigurationError(f"{option}: module {module} has no function {name!r}{close}")
    chosen: Callable[..., Any] = function
    return chosen


_CODES = {
    **{"bold": "1", "dim": "2", "underline": "4", "red": "31", "green": "32", "yellow": "33", "blue": "34"},
    **{"magenta": "35", "cyan": "36"},
    **{"likely": "38;5;250", "probable": "38;5;114", "possible": "38;5;221", "unlikely": "38;5;208"},
    "improbable": "1;38;5;203",
}


def wants_colours(stream: TextIO | None = None) -> bool:
    """Return whether text for a stream (None: stdout) is coloured: a terminal, without NO_COLOR (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return is_terminal(stream or sys.stdout)


class Paint:
    r"""Colours text, or returns it unchanged."""

    def __init__(self, coloured: bool) -> None:
        self.coloured = coloured

    def __call__(self, text: str, *styles: str) -> str:
        """Return text in styles; the text itself must be escaped already."""
        if not self.coloured or not text or not styles:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return printable ASCII JSON, with null for NaN and infinities."""
    return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), indent=indent)


def tell(*lines: str) -> None:
    """Print a message to standard error, under the name of the program."""
    print("strands-sglang: " + "\n".join(map(escape_for_terminal, lines)), file=sys.stderr)


def escape_lines(text: str) -> list[str]:
    """Return the lines of a text, each escaped."""
    return [escape_for_terminal(line) for line in text.split("\n")]


def shorten(text: str, width: int) -> str:
    """Return a text as one escaped line of at most `width` characters."""
    line = escape_for_terminal(" ".join(text[: 4 * width].split()))
    return line if len(line) <= width and len(text) <= 4 * width else line[: max(width - 1, 0)] + "…"


def number(value: float | None) -> str:
    """Return a number in a short form; "-" for None."""
    return "-" if value is None else f"{value:.4g}"
