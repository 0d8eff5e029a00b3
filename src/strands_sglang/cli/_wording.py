"""Puts an error in the words of the command line: options in place of Python arguments, and what to type on a new line.

The package's messages name arguments of functions (`Limits.max_turns`, `SGLangClient(first_contact=600)`). Somebody who
typed a command knows its options only.

Invariant: a message says nothing else than before; only names that are options of the command are replaced.
"""

from __future__ import annotations

import ast
import json
import re

import click

_SUBJECT = re.compile(r"^(?:(?:RunOptions|Limits)\.)?([a-z][a-z_]+)(?= must )")
_ARGUMENT = re.compile(r"(?<![\w.'])[a-z]+(?:_[a-z]+)+(?![\w=('])")
_CLIENT = re.compile(r"SGLangClient\(([a-z_]+)=([^()]+)\)")
_PASSED = re.compile(r"(?<=pass )([a-z_]+)=('[^']*'|[\w.]+)")
# What follows is what to do. Not within quotation marks: quoted text of a ledger must not begin a line.
_TODO = re.compile(
    r"((?:'(?:[^'\\]|\\.)*'|[^'])+?)(?:; | \| |: (?=(?:pass|write|run|start|install|create|implement) ))(.+)", re.DOTALL
)


def error_lines(message: str, command: click.Command | None, path: str) -> list[str]:
    """Return what is wrong, and what to do: as the message says, or the help of the command at this path."""
    message = in_options(message, command)
    parts = _TODO.fullmatch(message)
    wrong, todo = parts.groups() if parts else (message, f"try: {path} --help")
    return [wrong.rstrip("."), f"  {todo}"]


def in_options(message: str, command: click.Command | None) -> str:
    """Return a message with options of the command in place of Python arguments."""
    parameters = [] if command is None else command.params
    options = {one.name: _typed(one) for one in parameters}
    lists = {f"{one.name}s": _typed(one) for one in parameters if isinstance(one, click.Option) and one.multiple}
    options |= lists  # an option that can be repeated, and the list that its values become

    def subject(match: re.Match[str]) -> str:
        return options.get(match[1], match[0])

    def passed(match: re.Match[str], holder: str) -> str:
        name, value = match[1], match[2]
        if holder == "model_options" and name in options:
            return f"{options[name]} {value}"
        try:
            if name in lists:
                return " ".join(f"{lists[name]} {one}" for one in ast.literal_eval(value))
            return f"{options[holder]} '{json.dumps({name: ast.literal_eval(value)})}'"
        except (KeyError, ValueError):  # no such option; not a literal
            return match[0]

    text, known, names = message.partition("Known: ")  # a list of other names, such as sampling parameters
    text = _SUBJECT.sub(subject, text).replace(" or None, got ", ", got ")
    message = _ARGUMENT.sub(lambda match: options.get(match[0], match[0]), text) + known + names
    message = _CLIENT.sub(lambda match: passed(match, "client_options"), message)
    return _PASSED.sub(lambda match: passed(match, "model_options"), message)


def _typed(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return (parameter.metavar or parameter.name or "").strip("[]")
