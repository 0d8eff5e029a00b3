"""The lab's engines of a queue: one that is trained, and one for a teacher where a run has it."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from settings import ROOT, Settings, policy_folder

sys.path.append(str(ROOT / "lab"))

import engine as lab


def large(policy: str) -> bool:
    """Return whether a policy is not one of the small ones, which share an architecture."""
    return policy.startswith("smollm2")


class Engine:
    """An engine that is started when it is needed, and again when it is gone or cannot hold the weights of a policy."""

    def __init__(self, log: Path, url: str | None = None) -> None:
        """Start nothing yet.

        Args:
            log: File for the output of engines.
            url: An engine that runs already; None: start one.
        """
        self._given, self._log = url, log
        self._process: subprocess.Popen[bytes] | None = None
        self._folder, self._url = Path(), ""

    def trained(self, settings: Settings) -> str:
        """Return the address of an engine that can take the weights of a run; it may hold others now."""
        # The small policies have one architecture, so one engine serves all of them.
        return self.serving(policy_folder(settings.policy if large(settings.policy) else "canonical"))

    def serving(self, folder: Path) -> str:
        """Return the address of an engine that was started with a checkpoint."""
        if self._given is not None:
            return self._given
        if self._process is None or self._process.poll() is not None or folder != self._folder:
            self.close()
            port = lab.free_port()
            more = [] if large(folder.name) else ["--max-running-requests", "512", "--max-total-tokens", "200000"]
            command = [sys.executable, ROOT / "lab" / "serve", folder, "--port", port, "--die-with-parent", *more]
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
            self._folder, self._url = folder, f"http://127.0.0.1:{port}"
            self._wait()
        return self._url

    def _wait(self, seconds: float = 600.0) -> None:
        """Wait until the engine answers."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._process is not None and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self._url}/health", timeout=30) as response:
                    if response.status == 200:
                        return
            except OSError:
                time.sleep(1.0)
        self.close()
        raise RuntimeError(f"the engine did not start, see {self._log}")

    def close(self) -> None:
        """End the engine, if this command started it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None
