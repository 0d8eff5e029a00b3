"""Programs of the SDKs and frameworks that `scripts/agents --install sdks` installs: the examples, and others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "other_processes"
OTHERS = str(Path(__file__).with_name("programs") / "sdk_agent.py")
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
INSTALLED = Path(os.environ.get("STRANDS_SGLANG_AGENTS") or _CACHE / "strands-sglang" / "agents")
"""Where `scripts/agents` installs."""
SDKS, STRANDS, NODE = (INSTALLED / name for name in ("sdks/bin/python", "strands/bin/python", "npm"))
COMMANDS = {
    "openai_loop": [str(SDKS), str(EXAMPLES / "openai_loop.py")],
    "openai_agents": [str(SDKS), str(EXAMPLES / "openai_agents.py")],
    "strands": [str(STRANDS), str(EXAMPLES / "strands_agent.py")],
    "strands_ts": ["node", str(NODE / "strands_agent.mjs")],
    **{
        name: [str(SDKS), OTHERS, name]
        for name in ("openai_agents_chat", "openai_agents_stream", "anthropic", "pydantic_chat", "pydantic_responses",
                     "pydantic_messages")
    },
}  # fmt: skip


def is_installed(name: str) -> bool:
    """Return whether a program can be run; a module of JavaScript finds its packages only beside them."""
    if name == "strands_ts":
        if shutil.which("node") is None or not (NODE / "node_modules" / "@strands-agents").is_dir():
            return False
        shutil.copy(EXAMPLES / "strands_agent.mjs", NODE)
        return True
    return Path(COMMANDS[name][0]).exists()
