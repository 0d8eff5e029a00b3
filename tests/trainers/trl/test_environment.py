"""scripts/setup-trainers: messages if an environment is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.lab_servers import LAB

SCRIPT = LAB.parent / "scripts" / "setup-trainers"


def setup(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "STRANDS_SGLANG_LAB": str(cache)}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, env=env, check=False
    )


def test_where_prints_the_setup_command_and_creates_nothing(tmp_path: Path) -> None:
    done = setup(tmp_path, "--where", "trl")
    assert done.returncode == 1 and not done.stdout and "scripts/setup-trainers trl" in done.stderr
    assert not list(tmp_path.iterdir())


def test_unknown_trainer_is_refused(tmp_path: Path) -> None:
    done = setup(tmp_path, "dreamer")
    assert done.returncode == 1 and "NAME must be one of trl" in done.stderr and "got dreamer" in done.stderr


def test_incomplete_environment_is_not_used(tmp_path: Path) -> None:
    where = subprocess.run(
        [sys.executable, "-c", f"import runpy; print(runpy.run_path({str(SCRIPT)!r})['folder_of']('trl', '3.11'))"],
        capture_output=True,
        text=True,
        env={**os.environ, "STRANDS_SGLANG_LAB": str(tmp_path)},
        check=True,
    )
    folder = Path(where.stdout.strip())
    assert folder.parent == tmp_path
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    assert setup(tmp_path, "--where", "trl").returncode == 1
    (folder / ".complete").touch()
    found = setup(tmp_path, "--where", "trl")
    assert found.returncode == 0 and found.stdout.strip() == str(folder / "bin" / "python")
