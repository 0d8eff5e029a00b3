"""A real MCP server: a calculator, a counter that keeps state, and ways to fail.

It speaks stdio, or HTTP on a port: `python tests/support/mcp_server.py [PORT]`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from mcp.server import MCPServer

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a program has only its own folder on the path

from support.lab_servers import task

server = MCPServer("lab", log_level="WARNING")
_count = 0


@server.tool()
def calculator(expression: str) -> str:
    """Work out one operation on two whole numbers.

    Args:
        expression: Such as `615 * 17`.
    """
    return task.calculate(expression)


@server.tool()
def count(die: str = "") -> str:
    """Count the calls of this process. `die`: a path; if the file is there, it is deleted, and the process ends."""
    global _count
    if die and os.path.exists(die):
        os.remove(die)
        os.kill(os.getpid(), signal.SIGKILL)
    _count += 1
    return f"{_count}"


@server.tool()
def wait(seconds: float) -> str:
    """Answer late."""
    time.sleep(seconds)
    return f"waited {seconds}"


@server.tool()
def freeze() -> str:
    """Stop the whole process: it takes connections, and answers nothing."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return "thawed"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
