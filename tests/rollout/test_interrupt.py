"""Ctrl-C, really pressed: one line, which says what is on disk and how to go on; and the process dies of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from interrupts import heeds_interrupts, press_ctrl_c
from rollout.scripts import PromptEngine, run, steps
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.rollout.interrupt import Interrupt, interrupted_line
from strands_sglang.rollout.totals import Totals

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "interrupted_run.py"


def interrupted(*arguments: str) -> tuple[int, list[str], str]:
    """Start the script, press Ctrl-C when it is under way; return exit code as a shell has it, errors, command."""
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, str(SCRIPT), *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        preexec_fn=heeds_interrupts,
    )
    errors = press_ctrl_c(process)
    code = process.returncode
    return 128 - code if code < 0 else code, errors, " ".join(command)


@pytest.mark.parametrize("kind", ["await", "gather"])
def test_one_line(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, errors, command = interrupted(kind, str(folder))
    assert code == 130
    assert errors == [
        f"interrupted: on disk in {folder}: 1 of 2 episodes and what was sampled of the others; to go on: {command}"
    ]
    assert sorted(record.finished for record in Ledger(folder).episodes()) == [False, True]


def test_one_line_while_an_earlier_run_is_read(tmp_path: Path) -> None:
    code, errors, command = interrupted("reading", str(tmp_path / "run"))
    assert code == 130
    assert errors == [f"interrupted while {tmp_path / 'run'} was read, which is as it was; to go on: {command}"]


def test_nothing_on_disk() -> None:
    code, errors, _ = interrupted("await")
    assert code == 130 and len(errors) == 1
    assert errors[0].startswith("interrupted after 1 of 2 episodes: nothing is on disk")


async def test_what_was_not_pressed_is_not_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before, hook = signal.getsignal(signal.SIGINT), sys.excepthook
    await run(lambda task, model: lambda: None, ["go"], PromptEngine(steps(1)), tmp_path)
    assert signal.getsignal(signal.SIGINT) is before and sys.excepthook is hook
    with Interrupt() as interrupt:
        interrupt.tell("not this")
    assert "not this" not in capsys.readouterr().err and sys.excepthook is hook


def test_what_else_is_raised_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, lambda number, frame: None)
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            interrupt.tell("one line")
            interrupt.tell("once")
    finally:
        signal.signal(signal.SIGINT, before)
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err == "one line\n"
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    sys.excepthook(ValueError, ValueError("seen"), None)
    assert capsys.readouterr().err == "KeyboardInterrupt\nValueError: seen\n"


def test_the_line() -> None:
    numbers = Totals(None).snapshot()
    assert interrupted_line(numbers, Path("runs/x")).startswith("interrupted: on disk in runs/x: 0 episodes and what")
    assert interrupted_line(numbers, None).startswith("interrupted after 0 episodes: nothing is on disk")
