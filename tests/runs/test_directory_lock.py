"""directory_lock: one run at a time uses a directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.errors import ConfigurationError, LedgerError
from strands_sglang.runs.resume import directory_lock
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, run, steps

HOLDS = """
import sys, time
from pathlib import Path
from strands_sglang.runs.resume import directory_lock
with directory_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


async def test_lock_of_another_process(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        engine = PromptEngine(steps(1))
        with pytest.raises(ConfigurationError, match="another run is active"):
            await run(lambda task, model: plain(model), ["question"], engine, tmp_path)
        assert not engine.calls and not (tmp_path / "run.json").exists()
        # The lock is released when the process ends, even if it is killed.
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(20)
        assert len(await run(lambda task, model: plain(model), ["question"], engine, tmp_path)) == 1
    finally:
        holder.kill()
        holder.wait(20)
        assert holder.stdout is not None
        holder.stdout.close()


def test_two_runs_of_one_process(tmp_path: Path) -> None:
    with directory_lock(tmp_path / "a" / "b"):
        with pytest.raises(ConfigurationError, match="another directory"), directory_lock(tmp_path / "a" / "b"):
            pass
        with directory_lock(tmp_path / "a"):
            pass
    with directory_lock(tmp_path / "a" / "b"):
        pass


def test_lock_is_released_after_an_error(tmp_path: Path) -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="inside"), directory_lock(tmp_path):
            raise ValueError("inside")


def test_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be written"), directory_lock(tmp_path / "file" / "below"):
        pass


def test_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is locked there, and no run is rejected."""
    import fcntl

    def refuse(*_: Any) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with directory_lock(tmp_path), directory_lock(tmp_path):
        pass
