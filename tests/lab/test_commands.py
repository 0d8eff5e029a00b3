"""The lab's commands say what is wrong when they are called wrongly."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.lab_servers import LAB
from support.scripted_sglang import Served


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


@pytest.mark.parametrize(("command", "what"), [("serve", "tool-policy"), ("router", "http://127.0.0.1:9")])
def test_an_occupied_port_is_refused_at_once(command: str, what: str) -> None:
    about = Served(tokenizer=None, model_path="/models/of-somebody-else")
    with about.server() as server:
        result = subprocess.run(
            [sys.executable, LAB / command, what, "--port", str(server.port)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert result.returncode != 0 and "Traceback" not in result.stderr
    assert f"127.0.0.1:{server.port} cannot be listened on" in result.stderr
    assert "it serves /models/of-somebody-else" in result.stderr and "--port" in result.stderr
    assert not result.stdout  # not a word that it comes up
