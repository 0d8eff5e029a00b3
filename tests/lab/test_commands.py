"""The lab's commands say what is wrong when they are called wrongly."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest

from support.lab_servers import LAB, LabProcess, task
from support.scripted_fleet import Engine


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
    about = Engine(tokenizer=None, model_path="/models/of-somebody-else")
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


def test_a_right_dialogue_is_rewarded() -> None:
    rng = random.Random(0)
    for _ in range(200):
        drawn = task.sample_task(rng)
        messages = task.dialogue(drawn, compact=rng.random() < 0.5)
        calls = [task.parse_call(message.text) for message in messages if message.role == "assistant"]
        results = [message.text for message in messages if message.role == "tool"]
        assert calls == [*drawn.expressions, None]
        assert results == [task.calculate(expression) for expression in drawn.expressions]
        assert task.score(drawn, messages[-1].text) == 1.0
        assert task.score(drawn, f"The answer is {drawn.answer + 1}.") == 0.0


@pytest.mark.parametrize("expression", ["", "1 / 2", "1 + ", "__import__('os')", "1 + 2 + 3", "1" * 13 + " + 1"])
def test_the_calculator_understands_one_operation_only(expression: str) -> None:
    assert task.calculate(expression) == "error"


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 3.",
        "<tool_call>\n{broken\n</tool_call>",
        '<tool_call>\n{"name": "other", "arguments": {"expression": "1 + 1"}}\n</tool_call>',
        '<tool_call>\n{"name": "calculator", "arguments": "1 + 1"}\n</tool_call>',
        '<tool_call>\n{"name": "calculator", "arguments": {}}\n</tool_call>',
    ],
)
def test_what_is_not_a_call(text: str) -> None:
    assert task.parse_call(text) is None


@pytest.mark.engine
def test_serve_says_when_it_is_ready(tool_policy: LabProcess) -> None:
    ready = f"lab: tool-policy is ready on {tool_policy.url}"
    until = time.monotonic() + 60
    while ready not in tool_policy.log.read_text():
        assert time.monotonic() < until, tool_policy.tail()
        time.sleep(0.2)
