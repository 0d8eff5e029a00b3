"""Documented command lines are accepted, run as written, and print what the pages show, except for times."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from strands_sglang.cli._command import Command
from strands_sglang.cli.main import COMMANDS, PROGRAM, main, program
from support.documented_run import TOKENIZER, write_documented_run

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


BLOCKS = [
    block
    for page in ("cli.md", "drift.md")
    for block in re.findall(r"^```console\n\$ (.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    if "runs/first" in block.partition("\n")[0]
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, name = tmp_path_factory.mktemp("documented"), TOKENIZER
    if Path(TOKENIZER).is_dir():
        (made / "Qwen").mkdir()
        name = str(made / "Qwen" / "Qwen3-8B")
        Path(name).symlink_to(TOKENIZER)
    write_documented_run(made / "runs" / "first", name)
    return made


def without_times(text: str) -> list[str]:
    """Return lines without seconds and places in files, and with single spaces between columns."""
    text = re.sub(r"\(\S*\.py:\d+ in ", "(", text)
    lines = [re.sub(r"\d[\d.e-]* s\b|seconds=\S+|\b\d+\.\d\b(?=  [A-Z])", "-", line) for line in text.splitlines()]
    return [re.sub(r"  +", "  ", line).rstrip() for line in lines]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.partition("\n")[0])
def test_output(block: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    line, _, shown = block.partition("\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    assert main(shlex.split(line)[1:]) == 0
    printed, expected = without_times(capsys.readouterr().out), without_times(shown)
    if expected[-1] == "...":  # the page shows the start
        printed, expected = printed[: len(expected) - 1], expected[:-1]
    assert printed == expected


def test_blocks_are_found() -> None:
    assert {shlex.split(block.partition("\n")[0])[1] for block in BLOCKS} == {"eval", "show", "drift"}


LIVE = ("--base-url", "--rescore", "--public-key", "--key", "--root", "doctor", "http:", "...", "--templates")
"""What needs a server, a key, or a value that the page leaves out."""


def commands() -> list[str]:
    """Return the documented command lines that work on `runs/first` without an engine."""
    found = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for line in text.splitlines():
            line = line.strip().removeprefix("$ ")
            if not line.startswith(f"{PROGRAM} ") or any(word in line for word in LIVE):
                continue
            words = shlex.split(line, comments=True)[1:]
            words = words[: next((at for at, word in enumerate(words) if word in ("|", ">", "&&")), len(words))]
            if words[0] not in COMMANDS or "runs/first" not in words:
                continue
            if words[0] == "view" and "--export" not in words:
                continue  # serves until Ctrl-C
            if words[0] == "replay" and "examples.calculator.agent:build" in words:
                continue  # another agent than the one that made this run
            found.append(shlex.join(words))
    return sorted(set(found))


@pytest.mark.parametrize("line", commands())
def test_command(
    line: str, documented: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(documented)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    words = [TOKENIZER if word.startswith("Qwen/") else word for word in shlex.split(line)]
    code = main(words)
    shown = capsys.readouterr()
    allowed = (0, 3) if "--unscored" in words else (0,)  # 3: every episode has a score
    assert code in allowed, f"{line}: exit code {code}\n{shown.out}\n{shown.err}"
    assert shown.out + shown.err and "Traceback" not in shown.err


def test_commands_are_found() -> None:
    assert {"show", "verify", "eval", "replay", "score"} <= {line.split()[0] for line in commands()}
