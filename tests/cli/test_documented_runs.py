"""Documented commands that need no engine are run on a recorded run, as written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from strands_sglang.cli.main import COMMANDS, PROGRAM, main
from support.documented_run import TOKENIZER, record

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("**/*.md")), *sorted((ROOT / "examples").glob("**/*.md"))]
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


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documented")
    record(folder)
    return folder


@pytest.mark.parametrize("line", commands())
def test_command(
    line: str, recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(recorded)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    words = [TOKENIZER if word.startswith("Qwen/") else word for word in shlex.split(line)]
    code = main(words)
    shown = capsys.readouterr()
    allowed = (0, 3) if "--unscored" in words else (0,)  # 3: every episode has a score
    assert code in allowed, f"{line}: exit code {code}\n{shown.out}\n{shown.err}"
    assert shown.out + shown.err and "Traceback" not in shown.err


def test_commands_are_found() -> None:
    assert {"show", "verify", "eval", "replay", "score"} <= {line.split()[0] for line in commands()}
