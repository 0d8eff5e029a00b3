"""Processes that the suite starts: contestants, which run jobs, and the lab's engine. Each ends with the suite."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import deque
from pathlib import Path
from typing import Any

from suite.environments import ROOT, Environment, Unavailable

LAB = ROOT / "lab"
_START_SECONDS = 420.0
_JOB_SECONDS = 300.0
"""A job that takes longer is ended: it hangs."""


class JobFailed(Exception):
    """A contestant could not run a job; the message is its error."""


class Contestant:
    """A process that runs jobs in one environment."""

    def __init__(self, environment: Environment, tokenizer: str, cpu: int = 1) -> None:
        self.environment = environment
        self._process = subprocess.Popen(
            [environment.python, "-m", "suite.contestant", tokenizer, str(cpu)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment.variables(),
            cwd=ROOT / "bench",
        )
        # Read the log, so that the pipe does not fill up; it is shown if the process ends.
        self._log: deque[str] = deque(maxlen=20)
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        if self._line() != "ready":
            raise JobFailed(f"{environment.python} did not start:\n{''.join(self._log)}")

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(line)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._reader.join(timeout=5)
        return line.strip()

    def run(self, **job: Any) -> dict[str, float]:
        """Run a job (the fields of `ways.Job`) and return its figures.

        Raises:
            JobFailed: The job failed, or the process ended.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        alarm = threading.Timer(_JOB_SECONDS, self._process.kill)
        alarm.start()
        line = self._line()
        alarm.cancel()
        if not line:
            raise JobFailed(f"the process ended:\n{''.join(self._log)}")
        figures: dict[str, Any] = json.loads(line)
        if "error" in figures:
            raise JobFailed(f"{job.get('way')}: {figures['error']}")
        return figures

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Engine:
    """The lab's SGLang server with the tool policy, in a process group of its own.

    Raises:
        Unavailable: The lab is not set up, or the server did not start.
    """

    def __init__(self, *flags: str) -> None:
        sys.path.append(str(LAB))
        import engine as lab

        if lab.environment() is None:
            raise Unavailable("the lab's engine is not installed: run lab/setup")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.NamedTemporaryFile(prefix="bench-engine-", suffix=".log")
        command = [sys.executable, str(LAB / "serve"), "tool-policy", "--port", str(port), "--die-with-parent", *flags]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)
        end = time.monotonic() + _START_SECONDS
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > end:
                tail = Path(self._log.name).read_text(errors="replace").splitlines()[-5:]
                self.close()
                raise Unavailable("the lab's engine did not start: " + " | ".join(tail))
            time.sleep(0.3)

    def _healthy(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=10) as answer:
            return bool(answer.status == 200)
        return False

    def flush_cache(self) -> None:
        """Empty the prefix cache, so that every run starts with the same one."""
        for _ in range(50):
            time.sleep(0.1)  # a flush right after a response can fail
            with contextlib.suppress(OSError):
                request = urllib.request.Request(f"{self.url}/flush_cache", method="POST")
                with urllib.request.urlopen(request, timeout=10) as answer:
                    if answer.status == 200:
                        return
        raise Unavailable("the engine's cache could not be emptied")

    def close(self) -> None:
        """End the server and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
