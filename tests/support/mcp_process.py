"""Starts the MCP server of `mcp_server.py` over HTTP, and makes clients for it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters, stdio_client
from strands.tools.mcp import MCPClient

from support.lab_servers import free_port

PROGRAM = str(Path(__file__).with_name("mcp_server.py"))
START_SECONDS = 120.0  # on a busy machine


def stdio() -> MCPClient:
    """Return a client that starts a server of its own."""

    def transport() -> Any:
        return stdio_client(StdioServerParameters(command=sys.executable, args=[PROGRAM]))

    return MCPClient(transport)


class Http:
    """Makes clients for a server over HTTP. It can be pickled."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self) -> MCPClient:
        return MCPClient(url=f"http://127.0.0.1:{self.port}/mcp")


class McpServer:
    """A server over HTTP, in a process of its own."""

    def __init__(self) -> None:
        self.port = free_port()
        self.connect = Http(self.port)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> McpServer:
        """Start it, and wait until it takes connections."""
        self._process = subprocess.Popen([sys.executable, PROGRAM, str(self.port)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            assert self._process.poll() is None and time.monotonic() < deadline, "the MCP server did not start"
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def stdio_servers() -> int:
    """Return how many servers over stdio are running, of this process or of any other."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_text().split("\0")[1:] == [PROGRAM, ""]
        except OSError:  # it has just ended
            continue
    return found


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait for a condition; return whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def client_threads() -> list[str]:
    """Return the threads that MCP clients and what closes them run in."""
    frames = sys._current_frames()

    def runs_a_client(thread: threading.Thread) -> bool:
        frame = frames.get(thread.ident or 0)
        while frame is not None and frame.f_code.co_name != "_background_task":  # its name does not tell
            frame = frame.f_back
        return frame is not None

    return [one.name for one in threading.enumerate() if "mcp" in one.name or runs_a_client(one)]
