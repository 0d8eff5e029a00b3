"""On the real engine: an agent is run, shown, evaluated, proved and replayed by commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.lab_servers import LAB, LabProcess

pytestmark = pytest.mark.engine

TOKENIZER = str(LAB / "tool_policy" / "canonical")
AGENT = '''
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager


@tool
def calculator(expression: str) -> str:
    """Compute one operation on two integers.

    Args:
        expression: Such as `615 * 17`.
    """
    left, operator, right = expression.split()
    return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator](int(left), int(right)))


def build(task, model):
    return Agent(model=model, tools=[calculator], callback_handler=None, conversation_manager=NullConversationManager())


def reward(episode):
    return float(str(episode.task.answer) in episode.text)
'''


def command(folder: Path, *arguments: str) -> str:
    words = [sys.executable, "-m", "strands_sglang.cli", *arguments]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_from_tasks_to_a_certificate(tool_policy: LabProcess, tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(AGENT)
    tasks = [{"prompt": f"Compute {n} * 17, then - 88.", "answer": n * 17 - 88, "id": f"n-{n}"} for n in (610, 615)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    given = ["tasks.jsonl", "--agent", "my_agent:build", "--reward", "my_agent:reward", "--base-url", tool_policy.url]
    given += ["--tokenizer", TOKENIZER, "-n", "2", "--max-turns", "10", "--max-new-tokens", "64", "--temperature", "0"]
    given += ["-d", "runs/first"]
    assert command(tmp_path, "rollout", *given).startswith("4 episodes: 4 answered\n")
    again: Any = json.loads(command(tmp_path, "rollout", *given, "--json"))
    assert again["metrics"]["restored"] == 4
    report: Any = json.loads(command(tmp_path, "eval", *given, "-k", "1,2", "--json"))
    assert report["tasks"][1]["pass_at"]["2"]["value"] == 1.0 and report["unscored"] == 0
    shown = command(tmp_path, "show", "runs/first", "n-615/0")
    assert "<tool_call>" in shown and '  call     {"expression": "615 * 17"}\n  result   10455\n' in shown
    assert "ended    answered" in shown and "reward   1" in shown
    assert command(tmp_path, "verify", "runs/first").startswith("PROVED")
    assert "4 identical" in command(tmp_path, "replay", "runs/first", "--agent", "my_agent:build")
