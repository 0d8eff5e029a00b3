"""Real SGLang servers and routers for tests, started by lab/serve and lab/router, ended with all they started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

LAB = Path(__file__).resolve().parents[2] / "lab"
sys.path += [str(LAB), str(LAB / "tool_policy")]

import task  # noqa: E402

import engine  # noqa: E402 - the lab is not a package; these files need the standard library alone

__all__ = ["LAB", "LabProcess", "Routed", "engine", "route", "serve", "task"]

# A first start compiles the engine's own Python files, on a machine that may be busy with other tests.
START_SECONDS = 420.0


class LabProcess:
    """A server or router of the lab, in a process group of its own."""

    def __init__(self, name: str, arguments: list[str], logs: Path, workers: int = 0) -> None:
        self.name = name
        self.workers = workers
        self.port = free_port()
        self.log = logs / f"{name}-{self.port}.log"
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> LabProcess:
        """Start the process; `wait` tells when it is ready.

        To be called from a thread that lives as long as the process should: it ends with that thread.
        """
        command = [sys.executable, *self._arguments, "--port", str(self.port), "--die-with-parent"]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        return self

    def wait(self) -> LabProcess:
        """Wait until it answers that it is healthy."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended before it was ready:\n{self.tail()}")
            with contextlib.suppress(urllib.error.URLError, OSError):
                if self._ready():
                    return self
            time.sleep(0.3)
        raise RuntimeError(f"{self.name} was not ready within {START_SECONDS:.0f} s:\n{self.tail()}")

    def _ready(self) -> bool:
        if urllib.request.urlopen(self.url + "/health", timeout=10).status != 200:
            return False
        if not self.workers:
            return True
        # A router is healthy before it knows its workers.
        listed = json.load(urllib.request.urlopen(self.url + "/workers", timeout=10))["workers"]
        return [worker["is_healthy"] for worker in listed] == [True] * self.workers

    def kill(self) -> None:
        """End it and all it started with SIGKILL, as a lost machine would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def freeze(self) -> None:
        """Stop it and all it started where they are: it takes connections, and answers nothing."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGCONT)

    def tail(self, lines: int = 20) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


@dataclass(frozen=True)
class Routed:
    """Two workers behind the real router."""

    router: LabProcess
    workers: tuple[LabProcess, LabProcess]

    @property
    def url(self) -> str:
        return self.router.url


def serve(model: str, logs: Path, *flags: str) -> LabProcess:
    return LabProcess(model, [str(LAB / "serve"), model, *flags], logs)


class Server(Protocol):
    """What a router sends requests to: a server of the lab, or something in front of it."""

    @property
    def url(self) -> str: ...


def route(servers: Sequence[Server], logs: Path, policy: str = "cache_aware") -> LabProcess:
    urls = [server.url for server in servers]
    return LabProcess(f"router-{policy}", [str(LAB / "router"), *urls, "--policy", policy], logs, len(urls))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
