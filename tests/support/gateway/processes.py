"""An agent as a process for tests of trainers: `build_process`, and what a policy says to it (`multiplies`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from strands_sglang.gateway import AgentProcess
from support.scripted_engine import tool_call

PROGRAM = str(Path(__file__).with_name("programs") / "calculator.py")


def build_process(task: Any, model: Any) -> AgentProcess:
    return AgentProcess([sys.executable, PROGRAM, "What is 6 * 7?"])


def multiplies(prompt: str, before: int) -> str:
    """Call the calculator once, then answer."""
    return "the end" if "<tool_response>" in prompt else tool_call("calculator", expression="6 * 7")
