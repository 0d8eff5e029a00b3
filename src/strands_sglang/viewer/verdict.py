"""Verdicts for the page: of one episode at once, of the whole run in a separate process (`RunVerdict`).

Invariants: the verdict is that of `proof`, computed from the bytes on disk. The verdict of a run is kept for as long as
name, size and modification time of all its files stay the same, and is computed again when they change. The process
that computes it ends with the viewer, however that ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from strands_sglang._json import jsonable
from strands_sglang.ledger.run_dir import shard_paths
from strands_sglang.ledger.trainer_values import TRAINER_FILE
from strands_sglang.proof.verify import InMemoryEvents, prove_episodes, verify
from strands_sglang.viewer.index import RunIndex

logger = logging.getLogger(__name__)

_MAX_FINDINGS = 200
# Without the current directory in the path: a directory of untrusted runs may contain Python files.
_VERIFIER = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from strands_sglang.viewer.verdict import write_certificate
write_certificate(sys.argv[1])
"""
_LIVE_SECONDS = 20.0  # a run that grows is verified again at most this often


def episode_verdict(index: RunIndex, id: str, run: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the verdict of one episode: its value, and all findings with locations; LedgerError if there is none."""
    source = InMemoryEvents(place.data for place in index.places(id))
    [proof] = list(prove_episodes(source, run, None, False))
    findings = [finding.to_dict() for finding in proof.findings[:_MAX_FINDINGS]]
    return {"verdict": proof.verdict.value, "findings": findings, "tokens": proof.tokens.to_dict()}


def run_state(directory: Path) -> list[list[Any]]:
    """Return name, size and modification time in nanoseconds of every file that a verdict depends on."""
    state = []
    for path in (directory / "run.json", directory / "seal.json", directory / TRAINER_FILE, *shard_paths(directory)):
        try:
            found = path.stat()
        except OSError:
            continue
        state.append([path.name, found.st_size, found.st_mtime_ns])
    return state


class RunVerdict:
    """The certificate of a run, computed in another process so that the page stays quick."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificate: dict[str, Any] | None = None  # the newest certificate, shortened; None until it is computed
        self.running = False  # whether a certificate is being computed
        self.error = ""  # why the last attempt failed; "" if it did not
        self._state: list[list[Any]] | None = None  # of the files that `certificate` is about
        self._began = 0.0
        self._task: asyncio.Task[None] | None = None

    def current(self) -> dict[str, Any]:
        """Return the state for the page, and start computing a new certificate if the files changed."""
        state = run_state(self.directory)
        outdated = state != self._state
        due = self._state is None or time.monotonic() - self._began > _LIVE_SECONDS
        if outdated and due and not self.running:
            self.running, self._began = True, time.monotonic()
            self._task = asyncio.get_running_loop().create_task(self._compute(state))
        return {
            "certificate": self.certificate,
            "running": self.running,
            "outdated": outdated and self.certificate is not None,
            "error": self.error,
        }

    async def _compute(self, state: list[list[Any]]) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _VERIFIER, str(self.directory)),
                stdin=asyncio.subprocess.PIPE,  # never written: it ends with this process
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None and process.stderr is not None
            try:
                output, errors = await asyncio.gather(process.stdout.read(), process.stderr.read())
                await process.wait()
            except asyncio.CancelledError:
                process.kill()
                await process.wait()
                raise
            if process.returncode == 0:
                self.certificate, self.error = orjson.loads(output), ""
            else:
                self.error = errors.decode(errors="replace").strip().rpartition("\n")[2] or "the verifier failed"
            self._state = state
        except (OSError, ValueError) as error:
            self.error, self._state = str(error), state
        finally:
            self.running = False

    async def close(self) -> None:
        """End a verification that is still running."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=5)


def shortened_certificate(directory: Path) -> dict[str, Any]:
    """Verify a run and return its certificate with a bounded number of findings."""
    found = verify(directory).to_dict()
    findings = found["findings"]
    return {**found, "findings": findings[:_MAX_FINDINGS], "findings_count": sum(found["found"].values())}


def write_certificate(directory: str) -> None:
    """Write the certificate of a run to stdout as JSON, in a separate process, which ends when its stdin does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(10)  # the page comes first
    sys.stdout.buffer.write(orjson.dumps(jsonable(shortened_certificate(Path(directory)))))
    sys.stdout.flush()


def _end_with_parent() -> None:
    while os.read(0, 1):  # not `sys.stdin`, whose lock a thread must not hold when the interpreter ends
        pass
    os._exit(1)
