"""Starts and ends the process of `agent_loopback.py` and reads its counters."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path


class AgentLoopback:
    """The server in its own process and session; it ends when it is closed or when this process ends."""

    def __init__(
        self,
        tokenizer: str | Path,
        turns: list[int],
        *,
        tokens: int = 64,
        latency: float = 0.0,
        cpu: int | None = None,
    ) -> None:
        command = [sys.executable, str(Path(__file__).resolve().parent / "agent_loopback.py"), str(tokenizer)]
        command += ["--turns", ",".join(map(str, turns)), "--tokens", str(tokens), "--latency", str(latency)]
        command += [] if cpu is None else ["--cpu", str(cpu)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        ports = json.loads(self._process.stdout.readline() or "[]")
        if not ports:
            raise SystemExit("the loopback server did not start")
        self.urls = {count: f"http://127.0.0.1:{port}" for count, port in zip(turns, ports, strict=True)}
        """Address of the server, by number of turns with a tool call."""

    def used(self) -> dict[str, float]:
        """Return the counters of the server over all ports, and its CPU seconds."""
        with urllib.request.urlopen(next(iter(self.urls.values())) + "/cpu", timeout=60) as answer:
            counted: dict[str, float] = json.load(answer)
        return counted

    def __enter__(self) -> AgentLoopback:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)
