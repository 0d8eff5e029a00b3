"""Ctrl-C in a real process: it prints one line about saved data and how to resume, and ends by the signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strands_sglang.ledger.reader import Ledger
from strands_sglang.runs.interrupt import InterruptHandler, interrupted_line
from strands_sglang.runs.monitoring.metrics import RunCounters
from support.interrupts import heeds_interrupts, press_ctrl_c
from support.rollout.scripts import PromptEngine, run, steps

TESTS = Path(__file__).resolve().parent.parent
SCRIPT = TESTS / "support" / "rollout" / "interrupted_run.py"


def interrupted(*arguments: str) -> tuple[int, list[str], str]:
    """Start the script, press Ctrl-C while it runs; return exit code (as in a shell), stderr lines and command."""
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
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
def test_interrupt_prints_one_line(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, errors, command = interrupted(kind, str(folder))
    assert code == 130
    assert errors == [
        f"interrupted: 1 of 2 episodes and the recorded turns of the others are saved in {folder}; to resume: {command}"
    ]
    assert sorted(record.finished for record in Ledger(folder).episodes()) == [False, True]


def test_interrupt_while_previous_run_is_read(tmp_path: Path) -> None:
    code, errors, command = interrupted("reading", str(tmp_path / "run"))
    assert code == 130
    assert errors == [f"interrupted while reading {tmp_path / 'run'}, nothing was changed; to resume: {command}"]


def test_interrupt_without_directory() -> None:
    code, errors, _ = interrupted("await")
    assert code == 130 and len(errors) == 1
    assert errors[0].startswith("interrupted after 1 of 2 episodes: nothing was saved")


async def test_nothing_is_printed_without_interrupt(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before, hook = signal.getsignal(signal.SIGINT), sys.excepthook
    await run(lambda task, model: lambda: None, ["go"], PromptEngine(steps(1)), tmp_path)
    assert signal.getsignal(signal.SIGINT) is before and sys.excepthook is hook
    with InterruptHandler() as interrupt:
        interrupt.report("not this")
    assert "not this" not in capsys.readouterr().err and sys.excepthook is hook


def test_other_errors_are_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, lambda number, frame: None)
        with InterruptHandler() as interrupt:
            signal.raise_signal(signal.SIGINT)
            interrupt.report("one line")
            interrupt.report("once")
    finally:
        signal.signal(signal.SIGINT, before)
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err == "one line\n"
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    sys.excepthook(ValueError, ValueError("seen"), None)
    assert capsys.readouterr().err == "KeyboardInterrupt\nValueError: seen\n"


def test_interrupted_line() -> None:
    numbers = RunCounters(None).snapshot()
    assert interrupted_line(numbers, Path("runs/x")).startswith("interrupted: 0 episodes and the recorded turns")
    assert interrupted_line(numbers, None).startswith("interrupted after 0 episodes: nothing was saved")
