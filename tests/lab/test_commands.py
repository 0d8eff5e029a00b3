"""The lab's commands say what is wrong when they are called wrongly."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lab_servers import LAB


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["serve", "no-such-model"], "tool-policy"),
        (["router", "127.0.0.1:30000"], "http://127.0.0.1:30000"),
        (["setup", "no-such-model"], "tool-policy"),
    ],
)
def test_a_wrong_argument_is_answered_with_a_right_one(command: list[str], words: str) -> None:
    result = subprocess.run(
        [sys.executable, LAB / command[0], *command[1:]], capture_output=True, text=True, timeout=60
    )
    assert result.returncode != 0
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["serve", "router", "setup"])
def test_help(command: str) -> None:
    result = subprocess.run([sys.executable, LAB / command, "--help"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and "usage" in result.stdout
