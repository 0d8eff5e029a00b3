"""Agents that run as other programs: each gets its session in `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL`.

The environment variable `AGENT` chooses one; `AGENT_PYTHON` is the Python that has its SDK (default: this one).
"""

import os
import sys
from pathlib import Path

from strands_sglang.gateway import AgentProcess, Network

HERE = Path(__file__).parent
PYTHON = os.environ.get("AGENT_PYTHON", sys.executable)
COMMANDS = {
    "openai_loop": [PYTHON, str(HERE / "openai_loop.py")],
    "openai_agents": [PYTHON, str(HERE / "openai_agents.py")],
    "strands": [PYTHON, str(HERE / "strands_agent.py")],
    "strands_ts": ["node", str(HERE / "strands_agent.mjs")],
}


def build(task, model):
    """Return the process of one episode; it reaches nothing but its session."""
    command = COMMANDS[os.environ.get("AGENT", "openai_loop")]
    return AgentProcess([*command, task.prompt], network=Network.GATEWAY_ONLY)


def reward(episode):
    """Return 1.0 if the answer is in what the agent printed."""
    return float(str(episode.task.answer) in episode.text)
