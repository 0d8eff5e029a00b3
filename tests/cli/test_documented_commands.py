"""Every command line in the pages and help texts is accepted by the parser, and every option of a page exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from strands_sglang.cli._command import Command
from strands_sglang.cli.main import COMMANDS, PROGRAM, program

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("**/*.md")), *sorted((ROOT / "examples").glob("**/*.md"))]
_BLOCK = re.compile(r"^ *```(?:bash|sh|console|text)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def command_of(name: str) -> Command:
    found = program.get_command(click.Context(program), name)
    assert isinstance(found, Command)
    return found


def in_pages() -> list[tuple[str, str]]:
    lines = []
    for page in PAGES:
        text = page.read_text()
        blocks = [block.replace("\\\n", " ") for block in _BLOCK.findall(text)]
        found = [line.lstrip("$ ") for block in blocks for line in block.splitlines()]
        lines += [(page.name, line) for line in found if line.startswith(f"{PROGRAM} ")]
    return lines


def in_help() -> list[tuple[str, str]]:
    return [
        (name, f"{PROGRAM} {one}".replace("\\\n", " "))
        for name in COMMANDS
        for one in command_of(name).examples
        if one.split()[0] in COMMANDS
    ]


def parsed(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    words = words[: next((at for at, word in enumerate(words) if word in ("|", ">", "&&", ";")), len(words))]
    words = [word for word in words if word != "..."]
    name, *arguments = words
    if name in ("--help", "--version") or "--help" in arguments or name.isupper():
        return
    command_of(name).make_context(name, arguments, resilient_parsing="..." in line)


@pytest.mark.parametrize(("place", "line"), [*in_pages(), *in_help()])
def test_command_lines_are_accepted(place: str, line: str) -> None:
    parsed(line)


def test_command_lines_are_found() -> None:
    assert {"cli.md", "README.md", "ledger.md", "templates.md"} <= {page for page, _ in in_pages()}
    assert {name for name, _ in in_help()} == set(COMMANDS)
    with pytest.raises(click.UsageError):
        parsed(f"{PROGRAM} verify runs/first --no-such-option")


def options_of(*names: str) -> set[str]:
    params = [param for name in names for param in command_of(name).params]
    return {"--help", *(one for param in params for one in (*param.opts, *param.secondary_opts))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_exist(page: Path) -> None:
    for line in re.findall(rf"`{PROGRAM} ([^`]+)`", page.read_text()):
        name, *words = line.split()
        if name in COMMANDS:
            named = {word for word in words if word.startswith("--")}
            assert named <= options_of(name), line


def test_options_named_on_the_page_exist() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    named = {one for block in re.findall(r"`([^`\n]+)`", text) for one in re.findall(r"(?<!\S)--[a-z][a-z-]+", block)}
    assert named <= options_of(*COMMANDS)


def test_every_command_is_on_the_page() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    assert all(f"`{name}`" in text for name in COMMANDS)
